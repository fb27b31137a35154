//! One segment file being written.

use crate::error::JournalError;
use crate::format::{SEGMENT_HEADER, SegmentHeader};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Ending of segment files.
pub(crate) const ENDING: &str = "msj";
/// Ending of a segment whose header is not written yet.
pub(crate) const UNFINISHED: &str = "msj.new";

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
    at: u64,
    size: u64,
}

impl Segment {
    /// Makes the file: allocated, with its header, and only then under its name.
    pub(crate) fn create(
        dir: &Path,
        header: &SegmentHeader,
        space: &dyn Space,
    ) -> Result<Self, JournalError> {
        let size = header.segment_bytes;
        let new = dir.join(format!("{:06}.{UNFINISHED}", header.index));
        let path = dir.join(format!("{:06}.{ENDING}", header.index));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(|error| JournalError::of("create", &new, size, error))?;
        let made = space
            .allocate(&file, size)
            .map_err(|error| JournalError::of("allocate", &path, size, error))
            .and_then(|()| {
                file.write_all_at(&header.encode(), 0)
                    .map_err(|error| JournalError::of("write", &path, size, error))
            })
            .and_then(|()| {
                std::fs::rename(&new, &path)
                    .map_err(|error| JournalError::of("rename", &new, size, error))
            });
        if let Err(error) = made {
            // The error that counts is the first one; what is left of the file is cleared at the
            // next start as well.
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        Ok(Self {
            file,
            path,
            at: SEGMENT_HEADER as u64,
            size,
        })
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
