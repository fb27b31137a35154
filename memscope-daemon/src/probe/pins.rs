//! Maps and links that outlive the daemon: pinned as files of a BPF file system.
//!
//! Owns: one directory there, and the files in it. Refuses: to decide what may be taken over (`survive` does). A pinned link keeps its
//! probes in the traced program, and a pinned map keeps its contents, until the file is removed.

use std::ffi::CString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::multi::bpf;

const BPF_OBJ_PIN: i32 = 6;
const BPF_OBJ_GET: i32 = 7;
/// What the names of pinned links begin with.
pub const LINK: &str = "link_";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS: u64 = 0xcafe_4a11;

/// `union bpf_attr` for `BPF_OBJ_PIN` and `BPF_OBJ_GET`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Why nothing can be pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The directory would lie in another kind of file system.
    #[error(
        "{} is not in a BPF file system (mount -t bpf bpf /sys/fs/bpf)", path.display()
    )]
    NotBpfFs {
        /// The directory.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation, in words.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A directory of pins, which belongs to one daemon.
#[derive(Clone, Debug)]
pub struct Pins {
    dir: PathBuf,
}

impl Pins {
    /// Makes the directory if need be, for its owner alone.
    pub fn open(dir: &Path) -> Result<Pins, PinError> {
        let failed = |doing| {
            move |source| PinError::Io {
                doing,
                path: dir.to_owned(),
                source,
            }
        };
        // Nothing is made in a file system of another kind.
        let there = dir.ancestors().find(|parent| parent.exists());
        let kind = there.map(rustix::fs::statfs).transpose();
        let kind = kind.map_err(|error| failed("look at")(error.into()))?;
        if kind.is_none_or(|kind| kind.f_type as u64 != BPF_FS) {
            return Err(PinError::NotBpfFs {
                path: dir.to_owned(),
            });
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("make"))?;
        Ok(Pins {
            dir: dir.to_owned(),
        })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a pin. Names in a BPF file system must not contain a dot.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Pins a link or a map.
    pub fn pin(&self, name: &str, object: BorrowedFd<'_>) -> Result<(), PinError> {
        let path = self.path(name);
        let mut attr = ObjectAttr {
            fd: object.as_raw_fd() as u32,
            ..ObjectAttr::default()
        };
        self.call(BPF_OBJ_PIN, &path, "pin", &mut attr).map(drop)
    }

    /// Opens what was pinned.
    pub fn get(&self, name: &str) -> Result<OwnedFd, PinError> {
        let path = self.path(name);
        let fd = self.call(BPF_OBJ_GET, &path, "open", &mut ObjectAttr::default())?;
        fd.ok_or_else(|| PinError::Io {
            doing: "open",
            path,
            source: io::ErrorKind::InvalidData.into(),
        })
    }

    fn call(
        &self,
        command: i32,
        path: &Path,
        doing: &'static str,
        attr: &mut ObjectAttr,
    ) -> Result<Option<OwnedFd>, PinError> {
        let failed = |source| PinError::Io {
            doing,
            path: path.to_owned(),
            source,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        attr.path = name.as_ptr() as u64;
        match command {
            BPF_OBJ_GET => bpf(command, attr).map(Some).map_err(failed),
            _ => super::multi::bpf_done(command, attr)
                .map(|()| None)
                .map_err(failed),
        }
    }

    /// Removes a pin. What it held goes when nobody else holds it.
    pub fn unpin(&self, name: &str) -> Result<(), PinError> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PinError::Io {
                doing: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// The names of all pins.
    pub fn names(&self) -> Result<Vec<String>, PinError> {
        let failed = |source| PinError::Io {
            doing: "read",
            path: self.dir.clone(),
            source,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Removes all pins and the directory; links first, so that no probe writes into maps that nobody reads.
    pub fn remove_all(&self) -> Result<usize, PinError> {
        let mut names = match self.names() {
            Err(PinError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(0);
            }
            names => names?,
        };
        names.sort_by_key(|name| !name.starts_with(LINK));
        let found = names.len();
        for name in names {
            self.unpin(&name)?;
        }
        match std::fs::remove_dir(&self.dir) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PinError::Io {
                doing: "remove",
                path: self.dir.clone(),
                source,
            }),
            _ => Ok(found),
        }
    }
}
