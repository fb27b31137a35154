//! What a process has mapped, object by object, and how to open the file that is really mapped.
//!
//! A path in `/proc/<pid>/maps` belongs to another mount namespace, and may by now name a newer
//! file (after an upgrade an attach by path succeeds, but no event ever comes). So files are opened
//! through `/proc/<pid>/map_files/<range>`, which is the mapped file itself. Only where the kernel
//! does not permit that, the path below `/proc/<pid>/root` is tried, and then it is checked that it
//! is the same file. Only regular files are ever opened.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::SiteError;
use crate::elf::{Elf, ElfError, FileBytes, ReadAt, Segment};
use crate::maps::{self, Mapping, Name};
use memscope_memory::Owner;
use memscope_memory::file::{FileError, OpenFile};
use memscope_memory::{Memory, ProcessMemory};

/// A file that a process has mapped, at least in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedObject {
    /// Path in the process's mount namespace.
    pub path: OsString,
    /// Whether the path no longer names this file.
    pub deleted: bool,
    /// Major and minor device number, as `/proc/<pid>/maps` shows them.
    pub device: (u32, u32),
    /// Inode number, as `/proc/<pid>/maps` shows it.
    pub inode: u64,
    /// Its mappings in address order; never empty.
    pub mappings: Vec<Mapping>,
}

/// All files that a process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The files, in the order in which they first appear in `/proc/<pid>/maps`.
    pub objects: Vec<MappedObject>,
    /// Number of lines that do not have the known form.
    pub unknown_lines: usize,
    /// Whether the process has any mapping at all.
    pub any: bool,
}

/// How a mapped file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy {
    /// Through `map_files`, so it is certainly the mapped file.
    MapFiles,
    /// By path below the process's root; the build id of the file equals the one in memory.
    PathSameBuildId,
    /// By path below the process's root; device and inode equal those in `/proc/<pid>/maps`.
    PathSameInode,
}

/// A mapped file that was opened.
#[derive(Debug)]
pub struct OpenObject {
    /// The open file.
    pub bytes: FileBytes,
    /// A path that leads to this same file as long as the mapping exists.
    pub open_path: PathBuf,
    /// How the file was opened.
    pub by: OpenedBy,
}

/// Why a mapped file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The mapping is gone.
    #[error("it is no longer mapped")]
    Unmapped,
    /// The file is a device, a pipe or the like, and opening it could have an effect.
    #[error("it is no regular file")]
    NotRegular,
    /// `map_files` is not permitted and the path names another file.
    #[error(
        "its path names another file now, and the mapped one cannot be opened without CAP_SYS_ADMIN"
    )]
    Replaced,
    /// `map_files` is not permitted and nothing proves that the path is the mapped file.
    #[error("nothing proves that its path still names the mapped file")]
    Unproven,
    /// The file could not be opened.
    #[error("{path} cannot be opened", path = .path.display())]
    Open {
        /// Path that was to be opened.
        path: PathBuf,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
}

/// Reads the mappings of a process and groups them by file. Fails if `/proc/<pid>/maps` cannot be read.
pub fn read(pid: u32) -> Result<Mapped, SiteError> {
    Ok(group(&crate::process::read(pid, "maps")?))
}

/// Groups the lines of `/proc/<pid>/maps` by file.
pub fn group(text: &[u8]) -> Mapped {
    let (lines, unknown_lines) = maps::parse(text);
    let mut objects: Vec<MappedObject> = Vec::new();
    let any = !lines.is_empty();
    let mut places = std::collections::HashMap::new();
    for line in lines {
        let Name::File { path, deleted } = line.name.clone() else {
            continue;
        };
        let key = (line.device, line.inode, path.clone());
        let place = *places.entry(key).or_insert_with(|| {
            objects.push(MappedObject {
                path,
                deleted,
                device: line.device,
                inode: line.inode,
                mappings: Vec::new(),
            });
            objects.len() - 1
        });
        if let Some(object) = objects.get_mut(place) {
            object.mappings.push(line);
        }
    }
    Mapped {
        objects,
        unknown_lines,
        any,
    }
}

impl MappedObject {
    /// Whether any of its mappings is executable.
    pub fn is_executable(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.execute)
    }

    /// Path as text for users; bytes that are not UTF-8 are replaced.
    pub fn display_path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Last part of the path.
    pub fn file_name(&self) -> String {
        Path::new(&self.path)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Address in memory of the byte at this offset of the file, if it is mapped as code.
    pub fn code_address(&self, file_offset: u64) -> Option<u64> {
        self.mappings
            .iter()
            .filter(|mapping| mapping.execute)
            .find_map(|mapping| mapping.address_of(file_offset))
    }

    /// The number that must be added to the file's own addresses (wrapping) to get those in memory. `None` if none of
    /// its segments is found in the mappings.
    pub fn bias<R: ReadAt + ?Sized>(&self, elf: &Elf<'_, R>) -> Option<u64> {
        self.bias_of(&elf.segments)
    }

    /// The same from the segments of its file.
    pub fn bias_of(&self, segments: &[Segment]) -> Option<u64> {
        let code = self.bias_by(segments, true);
        // Code is tried first: a page where two segments meet is mapped twice, but only once as code.
        code.or_else(|| self.bias_by(segments, false))
    }

    fn bias_by(&self, segments: &[Segment], code: bool) -> Option<u64> {
        segments
            .iter()
            .filter(|segment| segment.kind == object::elf::PT_LOAD.0)
            .filter(|segment| !code || segment.flags & object::elf::PF_X.0 != 0)
            .find_map(|segment| {
                self.mappings
                    .iter()
                    .filter(|mapping| !code || mapping.execute)
                    .find_map(|mapping| mapping.address_of(segment.offset))
                    .map(|address| address.wrapping_sub(segment.address))
            })
    }

    /// Opens the file that is really mapped, in the process with this pid.
    pub fn open(&self, pid: u32) -> Result<OpenObject, OpenError> {
        let first = self
            .mappings
            .iter()
            .find(|mapping| mapping.execute)
            .or(self.mappings.first())
            .ok_or(OpenError::Unmapped)?;
        let path = PathBuf::from(format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            first.start, first.end
        ));
        let owner = Owner::process(pid).map_err(|_| OpenError::Unmapped)?;
        match open_regular(owner, &path) {
            Ok(bytes) => Ok(OpenObject {
                bytes,
                open_path: path,
                by: OpenedBy::MapFiles,
            }),
            Err(OpenError::Open { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) =>
            {
                self.open_by_path(owner, pid)
            }
            Err(error) => Err(error),
        }
    }

    fn open_by_path(&self, owner: Owner, pid: u32) -> Result<OpenObject, OpenError> {
        if self.deleted {
            return Err(OpenError::Replaced);
        }
        let mut path = OsString::from(format!("/proc/{pid}/root"));
        path.push(&self.path);
        let path = PathBuf::from(path);
        let bytes = open_regular(owner, &path)?;
        let by = match self.same_build_id(pid, &bytes) {
            Some(true) => OpenedBy::PathSameBuildId,
            Some(false) => return Err(OpenError::Replaced),
            None if self.same_inode(&bytes) => OpenedBy::PathSameInode,
            None => return Err(OpenError::Unproven),
        };
        Ok(OpenObject {
            bytes,
            open_path: path,
            by,
        })
    }

    fn same_inode(&self, bytes: &FileBytes) -> bool {
        let facts = bytes.file().facts();
        let device = (
            rustix::fs::major(facts.device),
            rustix::fs::minor(facts.device),
        );
        (facts.inode, device) == (self.inode, self.device)
    }

    /// Whether the build id of the file equals the one in the process's memory. `None` where the file or the memory
    /// cannot be read, or the memory has no build id.
    fn same_build_id(&self, pid: u32, file: &FileBytes) -> Option<bool> {
        let memory = ProcessMemory::open(pid).ok()?;
        let in_memory = MemoryView {
            memory: &memory,
            object: self,
        };
        let mapped = Elf::read_loaded(&in_memory).ok()?.build_id()?;
        let on_disk = match Elf::read(file) {
            Ok(elf) => elf.build_id(),
            Err(ElfError::Read(_)) => return None,
            Err(_) => None,
        };
        Some(on_disk.as_ref() == Some(&mapped))
    }
}

/// The file's bytes as far as they are mapped, read from the process's memory.
struct MemoryView<'a> {
    memory: &'a ProcessMemory,
    object: &'a MappedObject,
}

impl ReadAt for MemoryView<'_> {
    fn length(&self) -> u64 {
        self.object
            .mappings
            .iter()
            .map(|mapping| mapping.offset.saturating_add(mapping.len()))
            .max()
            .unwrap_or(0)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let address = self
            .object
            .mappings
            .iter()
            .filter(|mapping| !mapping.write)
            .find_map(|mapping| mapping.address_of(offset))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        self.memory.read(address, buffer)
    }
}

fn open_regular(owner: Owner, path: &Path) -> Result<FileBytes, OpenError> {
    OpenFile::open(owner, path, true)
        .map(FileBytes::from)
        .map_err(|error| match error {
            FileError::Open(source) => match source.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => OpenError::Unmapped,
                _ => OpenError::Open {
                    path: path.to_owned(),
                    source,
                },
            },
            _ => OpenError::NotRegular,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouping() {
        let mapped = group(
            b"1000-2000 r--p 0 fe:01 5 /lib/a.so\n\
              2000-3000 r-xp 1000 fe:01 5 /lib/a.so\n\
              3000-4000 rw-p 0 00:00 0 \n\
              4000-5000 r--p 0 fe:01 6 /lib/a.so\n\
              5000-6000 r-xp 0 00:00 0 [vdso]\n\
              6000-7000 rw-s 0 00:06 9 /dev/nvidia0\n\
              nonsense\n",
        );
        assert_eq!(mapped.unknown_lines, 1);
        let seen: Vec<_> = mapped
            .objects
            .iter()
            .map(|o| {
                (
                    o.display_path(),
                    o.inode,
                    o.mappings.len(),
                    o.is_executable(),
                )
            })
            .collect();
        // Two files have the same name: the replaced one and its successor.
        assert_eq!(
            seen,
            [
                ("/lib/a.so".to_owned(), 5, 2, true),
                ("/lib/a.so".to_owned(), 6, 1, false),
                ("/dev/nvidia0".to_owned(), 9, 1, false)
            ]
        );
        assert_eq!(mapped.objects[0].code_address(0x1010), Some(0x2010));
        assert_eq!(mapped.objects[0].code_address(0x10), None);
    }

    #[test]
    fn opened_through_map_files_or_proven() {
        let pid = std::process::id();
        let mapped = read(pid).unwrap();
        let libc = mapped
            .objects
            .iter()
            .find(|object| object.is_executable() && object.file_name().starts_with("libc.so"))
            .expect("a C library");
        let through = libc.open(pid).unwrap();
        let by_path = libc
            .open_by_path(Owner::process(pid).unwrap(), pid)
            .unwrap();
        assert_eq!(by_path.by, OpenedBy::PathSameBuildId);
        let inode = |o: &OpenObject| o.bytes.file().facts().inode;
        assert_eq!(inode(&through), inode(&by_path));
        let elf = Elf::read(&by_path.bytes).unwrap();
        assert!(libc.bias(&elf).is_some());
    }
}
