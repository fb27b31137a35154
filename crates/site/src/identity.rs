//! Identifies a file independently of its path.

use memscope_memory::file::FileFacts;
use serde::{Deserialize, Serialize};

/// Identifies one file in one state of its contents. It is taken from the opened file and not from
/// `/proc/<pid>/maps`, since the two differ on overlayfs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Device number of the file system (`st_dev`).
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of the contents, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// GNU build id, if the file has one.
    pub build_id: Option<Vec<u8>>,
}

impl FileIdentity {
    /// The identity from what the file system says of the file, and the build id.
    pub fn new(facts: &FileFacts, build_id: Option<Vec<u8>>) -> FileIdentity {
        FileIdentity {
            device: facts.device,
            inode: facts.inode,
            size: facts.size,
            modified_ns: i128::from(facts.modified_s) * 1_000_000_000
                + i128::from(facts.modified_ns),
            build_id,
        }
    }

    /// The build id in hexadecimal digits; empty if there is none.
    pub fn build_id_hex(&self) -> String {
        self.build_id
            .iter()
            .flatten()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
