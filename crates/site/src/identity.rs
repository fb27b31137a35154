//! Which file it is, apart from any path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Names one state of one file. Taken from the opened file, not from `/proc/<pid>/maps`: on
/// overlayfs the two differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content, nanoseconds since 1970.
    pub modified_ns: i128,
    /// GNU build id, where the file has one.
    pub build_id: Option<Vec<u8>>,
}

impl FileIdentity {
    /// From what `fstat` says.
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

    /// The build id in hexadecimal digits, empty for none.
    pub fn build_id_hex(&self) -> String {
        self.build_id
            .iter()
            .flatten()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
