//! Identifies a file independently of its path.

use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

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
    /// The identity from the result of `fstat` and the build id.
    pub fn new(metadata: &Metadata, build_id: Option<Vec<u8>>) -> FileIdentity {
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
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
