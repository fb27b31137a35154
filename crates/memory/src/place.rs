//! Files as places in the file system, and what is there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most bytes that are read at once, of memory or of a file.
pub(crate) const MOST_BYTES: u64 = 16 << 20;

/// What the file system says of a file. A reader process sends it as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FileFacts {
    /// Device number of the file system (`st_dev`).
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of the contents, seconds since 1970.
    pub modified_s: i64,
    /// The nanoseconds of that time.
    pub modified_ns: i64,
    /// User number of the owner.
    pub uid: u32,
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Kind of the file system (`f_type` of `statfs(2)`); 0 if nobody asked for it.
    pub file_system: u64,
}

impl FileFacts {
    pub(crate) fn of(file: &File) -> io::Result<FileFacts> {
        let metadata = file.metadata()?;
        Ok(FileFacts {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            uid: metadata.uid(),
            mode: metadata.mode(),
            file_system: 0,
        })
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Finds the place that a path leads to, without opening what is there: opening a device or a FIFO may have an effect or
/// never return, and between a check of the path and its opening a process could put one there. `None` beside the facts
/// if it is no regular file.
pub(crate) fn place(path: &Path, follow: bool) -> io::Result<(Option<OwnedFd>, FileFacts)> {
    let flags = if follow { 0 } else { libc::O_NOFOLLOW };
    // The standard library adds O_CLOEXEC.
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | flags)
        .open(path)?;
    let facts = FileFacts::of(&place)?;
    if !facts.is_regular() {
        return Ok((None, facts));
    }
    let file = open_place(place.as_fd())?;
    let facts = FileFacts {
        file_system: rustix::fs::fstatfs(&file)?.f_type as u64,
        ..FileFacts::of(&file)?
    };
    Ok((facts.is_regular().then(|| place.into()), facts))
}

/// Opens what is at a place for reading.
pub(crate) fn open_place(place: BorrowedFd<'_>) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// Reads a file as a whole.
pub(crate) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}
