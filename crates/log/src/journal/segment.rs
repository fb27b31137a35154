//! A segment file that is being written.

use crate::journal::error::JournalError;
use crate::journal::format::{SEGMENT_HEADER, SegmentHeader};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Extension of segment files.
pub(crate) const ENDING: &str = "msj";
/// Extension of the checkpoint file beside the segment with the same number.
pub(crate) const CHECKPOINT: &str = "msc";
/// Last extension of a file that is not complete yet.
pub(crate) const UNFINISHED: &str = "new";

/// Removes a file. A file that does not exist is no error.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes disk space. Tests simulate a full disk with an implementation of their own.
pub(crate) trait Space: Send + Sync {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()>;

    /// Writes a piece of a checkpoint, whose size is known only at its end.
    fn write_state(&self, mut file: &File, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut file, bytes)
    }
}

/// Allocates with `fallocate`.
pub(crate) struct Disk;

impl Space for Disk {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        let done = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes);
        match done {
            // On a file system that cannot allocate ahead, a full disk is noticed when a batch is written.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Creates an unfinished file. One of this name may have been left because it could not be removed, and is of no use.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    remove_if_there(path)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// A segment file open for writing.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    path: PathBuf,
    /// Path of the file until it is complete.
    new: PathBuf,
    at: u64,
    size: u64,
}

impl Segment {
    /// Creates the file under a name that marks it as unfinished.
    pub(crate) fn begin(dir: &Path, index: u64, size: u64) -> Result<Self, JournalError> {
        let path = dir.join(format!("{index:06}.{ENDING}"));
        let new = dir.join(format!("{index:06}.{ENDING}.{UNFINISHED}"));
        let file =
            create_anew(&new).map_err(|error| JournalError::of("create", &path, size, error))?;
        Ok(Self {
            file,
            path,
            new,
            at: SEGMENT_HEADER as u64,
            size,
        })
    }

    /// Allocates `header.segment_bytes`, writes the header, and renames the file to its final name.
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

    /// Allocates room for `bytes` more bytes.
    pub(crate) fn lengthen(&mut self, bytes: u64, space: &dyn Space) -> Result<(), JournalError> {
        let size = self.size + bytes;
        space
            .allocate(&self.file, size)
            .map_err(|error| JournalError::of("lengthen", &self.path, bytes, error))?;
        self.size = size;
        Ok(())
    }

    /// Bytes that are allocated.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Removes a file that could not be opened. If that fails, whoever needs its name next removes it.
    pub(crate) fn discard(self) {
        let _ = std::fs::remove_file(&self.new);
    }

    /// Bytes left in the allocated space.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX)
    }

    /// Writes `bytes` after what is there. If that fails, the next write goes to the same place.
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

    /// Releases the allocated space after the last batch, and with it a batch that was written only in part.
    pub(crate) fn finish(&self) {
        // Readers treat zeros at the end as the end of the segment, so nothing is lost if this fails.
        let _ = self.file.set_len(self.at);
    }
}
