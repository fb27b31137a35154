//! A disk that is soon full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of a few MiB over a folder. It is unmounted when this value is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of so many bytes. The folder is made if it is not there.
    pub fn over(folder: &Path, bytes: u64) -> SmallDisk {
        crate::need_root();
        std::fs::create_dir_all(folder).unwrap();
        let size = format!("size={bytes},mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "none"])
            .arg(folder)
            .status();
        assert!(mounted.unwrap().success(), "a small disk cannot be mounted");
        SmallDisk(folder.to_owned())
    }

    /// The folder at which the disk is mounted.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
