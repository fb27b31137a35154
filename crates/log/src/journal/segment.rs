//! One segment file being written.

use crate::journal::error::JournalError;
use crate::journal::format::{SEGMENT_HEADER, SegmentHeader};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Ending of segment files.
pub(crate) const ENDING: &str = "msj";
/// Ending of the checkpoint of the segment with the same number.
pub(crate) const CHECKPOINT: &str = "msc";
/// What the name of a file ends with that is not whole yet.
pub(crate) const UNFINISHED: &str = "new";

/// How space is allocated; tests put a full disk in here.
pub(crate) trait Space: Send {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()>;
}

/// `fallocate`.
pub(crate) struct Disk;

impl Space for Disk {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        let done = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes);
        match done {
            // A file system that cannot allocate ahead tells of a full disk at the write.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// A segment file open for writing.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    path: PathBuf,
    /// Its name until it is complete.
    new: PathBuf,
    at: u64,
    size: u64,
}

impl Segment {
    /// Makes the file under a name that says that it is unfinished.
    pub(crate) fn begin(dir: &Path, index: u64, size: u64) -> Result<Self, JournalError> {
        let path = dir.join(format!("{index:06}.{ENDING}"));
        let new = dir.join(format!("{index:06}.{ENDING}.{UNFINISHED}"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(|error| JournalError::of("create", &path, size, error))?;
        Ok(Self {
            file,
            path,
            new,
            at: SEGMENT_HEADER as u64,
            size,
        })
    }

    /// Allocates the space for `header.segment_bytes`, writes the header, and gives the file its name.
    pub(crate) fn open(
        &mut self,
        header: &SegmentHeader,
        space: &dyn Space,
    ) -> Result<(), JournalError> {
        let size = header.segment_bytes;
        self.size = size;
        let path = &self.path;
        space
            .allocate(&self.file, size)
            .map_err(|error| JournalError::of("allocate", path, size, error))?;
        self.file
            .write_all_at(&header.encode(), 0)
            .map_err(|error| JournalError::of("write", path, size, error))?;
        std::fs::rename(&self.new, path)
            .map_err(|error| JournalError::of("rename", &self.new, size, error))
    }

    /// Removes a file that could not be opened; what is left is cleared at the next start as well.
    pub(crate) fn discard(self) {
        let _ = std::fs::remove_file(&self.new);
    }

    /// Bytes left.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX)
    }

    /// Writes behind what is there, whole or not at all.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        match self.file.write_all_at(bytes, self.at) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                let needed = bytes.len() as u64;
                Err(JournalError::of("write", &self.path, needed, error))
            }
        }
    }

    /// Gives back the space behind the last batch (and with it half a batch whose write failed).
    pub(crate) fn finish(&self) {
        // Readers take zeros at the end as the end, so nothing is lost if this fails.
        let _ = self.file.set_len(self.at);
    }
}
