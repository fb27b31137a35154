//! Reads the files for the checks, beneath a root that tests can choose.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A machine, as its `/proc` and `/sys` show it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine that this program runs on.
    #[must_use]
    pub(crate) fn here() -> Self {
        Self::at("/")
    }

    /// A machine whose `/proc` and `/sys` lie beneath `root`.
    #[must_use]
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Machine { root: root.into() }
    }

    /// `path` beneath the root.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The content of a file without the white space at its ends.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The content of a file that consists of one number.
    pub(super) fn number(&self, path: &str) -> Option<i64> {
        self.read(path).ok()?.parse().ok()
    }

    /// The target of a symbolic link.
    pub(super) fn link(&self, path: &str) -> Option<PathBuf> {
        fs::read_link(self.path(path)).ok()
    }

    /// Whether this folder is the root of its whole file system, and not a part that is mounted as if it were all: in file systems of
    /// the kernel the root is the first of all files.
    pub(super) fn is_whole(&self, path: &str) -> bool {
        fs::metadata(self.path(path)).is_ok_and(|metadata| metadata.ino() == 1)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
