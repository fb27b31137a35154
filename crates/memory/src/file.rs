//! Files that a traced process has mapped or named: opened, read and asked for facts without ever waiting for a file
//! system that does not answer.
//!
//! Where there are reader processes, the daemon itself holds such a file only as a place in the file system (`O_PATH`).
//! Even closing a file that is really open may wait for the server of its file system for ever.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::owner::Owner;
use crate::place::{open_place, place, whole};
use crate::reader;

pub use crate::place::FileFacts;

/// Most bytes of a file that are read at once. A file system may be slow, and is waited for with each piece.
const PIECE: usize = 1 << 20;

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file is a device, a pipe or the like, and opening it could have an effect.
    #[error("it is no regular file")]
    NotRegular,
    /// It cannot be opened.
    #[error("it cannot be opened")]
    Open(#[source] io::Error),
}

/// A regular file that can be read.
#[derive(Debug)]
pub struct OpenFile {
    facts: FileFacts,
    held: Held,
}

#[derive(Debug)]
enum Held {
    /// Open for reading.
    Here(File),
    /// A place in the file system. A reader opens it for each piece.
    ByReader(OwnedFd, Owner),
}

impl OpenFile {
    /// Opens a regular file for reading, on behalf of what is done for `owner`'s process. Every path that a traced
    /// process can influence must be opened by this function only. With `follow` a symbolic link as the path's last
    /// part is followed.
    ///
    /// # Errors
    /// Nothing has this path, it is no regular file, or it cannot be opened.
    pub fn open(owner: Owner, path: &Path, follow: bool) -> Result<OpenFile, FileError> {
        let (facts, held) = match reader::readers() {
            Some(readers) => {
                let (place, facts) = readers.open(owner, path, follow).map_err(FileError::Open)?;
                (facts, place.map(|place| Held::ByReader(place, owner)))
            }
            None => {
                let (place, facts) = place(path, follow).map_err(FileError::Open)?;
                let file = place.map(|place| open_place(place.as_fd()).map(Held::Here));
                (facts, file.transpose().map_err(FileError::Open)?)
            }
        };
        match held {
            Some(held) => Ok(OpenFile { facts, held }),
            None => Err(FileError::NotRegular),
        }
    }

    /// A file that is open already, and that needs no reader.
    pub fn given(file: File) -> io::Result<OpenFile> {
        Ok(OpenFile {
            facts: FileFacts::of(&file)?,
            held: Held::Here(file),
        })
    }

    /// What the file system said of the file when it was opened.
    pub fn facts(&self) -> &FileFacts {
        &self.facts
    }

    /// For whom it was opened.
    pub fn owner(&self) -> Owner {
        match &self.held {
            Held::Here(_) => Owner::MACHINE,
            Held::ByReader(_, owner) => *owner,
        }
    }

    /// A path by which this process can name the file to the kernel, as long as it is held, whatever its own path names
    /// by now.
    pub fn own_path(&self) -> PathBuf {
        let fd = match &self.held {
            Held::Here(file) => file.as_raw_fd(),
            Held::ByReader(place, _) => place.as_raw_fd(),
        };
        PathBuf::from(format!("/proc/self/fd/{fd}"))
    }

    /// Fills the whole buffer with what the file has from `offset` on. Fails if not all of it can be read.
    pub fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (place, owner) = match &self.held {
            Held::Here(file) => return file.read_exact_at(buffer, offset),
            Held::ByReader(place, owner) => (place, *owner),
        };
        let readers = reader::readers().ok_or(io::ErrorKind::NotConnected)?;
        let mut at = offset;
        for piece in buffer.chunks_mut(PIECE) {
            readers.read_file(owner, place.as_fd(), at, piece)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }
}

/// Reads a file of `/proc` as a whole, such as `/proc/<pid>/maps`. The kernel may have to wait for a lock of the process for it, or read
/// the process's memory, so this is a reader's work as well.
///
/// # Errors
/// It cannot be read, or has more than 16 MiB ([`io::ErrorKind::FileTooLarge`]).
pub fn read_whole(owner: Owner, path: &Path) -> io::Result<Vec<u8>> {
    match reader::readers() {
        Some(readers) => readers.read_whole(owner, path),
        None => whole(path),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;

    fn open_regular(path: &Path) -> Result<OpenFile, FileError> {
        OpenFile::open(Owner::MACHINE, path, true)
    }

    fn open_itself(path: &Path) -> Result<OpenFile, FileError> {
        OpenFile::open(Owner::MACHINE, path, false)
    }

    #[test]
    fn devices_are_not_opened() {
        assert!(matches!(
            open_regular(Path::new("/dev/null")),
            Err(FileError::NotRegular)
        ));
        assert!(matches!(
            open_regular(Path::new("/nowhere/at/all")),
            Err(FileError::Open(_))
        ));
    }

    /// A path of the process may name a FIFO one moment and a file the next. Opening a FIFO wakes a writer, so a writer
    /// shows whether it was ever opened.
    #[test]
    fn a_fifo_is_never_opened_even_while_paths_change() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, file, path] = ["fifo", "file", "path"].map(|name| folder.path().join(name));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        fs::write(&file, "contents").unwrap();
        assert!(matches!(open_regular(&fifo), Err(FileError::NotRegular)));
        // A link that is changed all the time by another thread.
        let stop = std::sync::atomic::AtomicBool::new(false);
        let opened = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = folder.path().join("next");
                let mut names = [&file, &fifo].into_iter().cycle();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::os::unix::fs::symlink(names.next().unwrap(), &next).unwrap();
                    fs::rename(&next, &path).unwrap();
                }
            });
            // Opening for writing succeeds only while somebody has the FIFO open for reading.
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let writer = OpenOptions::new()
                        .write(true)
                        .custom_flags(libc::O_NONBLOCK)
                        .open(&fifo);
                    if writer.is_ok() {
                        opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
            let (mut files, mut others) = (0, 0);
            while files < 20_000 || others < 20_000 {
                match open_regular(&path) {
                    Ok(_) => files += 1,
                    Err(FileError::NotRegular) => others += 1,
                    // The link is not there for a moment.
                    Err(FileError::Open(error)) => {
                        assert_eq!(error.kind(), io::ErrorKind::NotFound);
                    }
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(opened.into_inner(), 0);
    }

    #[test]
    fn a_link_is_refused_where_the_file_itself_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "contents").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open_itself(&file).is_ok());
        assert!(open_regular(&link).is_ok());
        assert!(matches!(open_itself(&link), Err(FileError::NotRegular)));
    }
}
