//! For whom something is read.

use std::io;
use std::os::unix::fs::MetadataExt;

/// For whom something is read. Each user has readers of their own, and a process for which one was given up is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub(crate) uid: u32,
    /// 0: no process.
    pub(crate) pid: u32,
}

impl Owner {
    /// What belongs to no process, but to the machine: files that only its administrator can write.
    pub const MACHINE: Owner = Owner { uid: 0, pid: 0 };

    /// What belongs to a process. Fails if there is no such process.
    pub fn process(pid: u32) -> io::Result<Owner> {
        // The owner of this folder is the effective user, also where the process keeps its memory from that user.
        let uid = std::fs::metadata(format!("/proc/{pid}"))?.uid();
        Ok(Owner { uid, pid })
    }
}
