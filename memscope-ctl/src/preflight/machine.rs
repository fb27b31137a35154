//! The files that the checks read, beneath a root that tests can choose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A machine, as its `/proc` and `/sys` show it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// This one.
    #[must_use]
    pub(crate) fn here() -> Self {
        Self::at("/")
    }

    /// One whose `/proc` and `/sys` lie beneath `root`.
    #[must_use]
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Machine { root: root.into() }
    }

    /// Where `path` lies.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The content of a file without the white space at its ends.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub(super) fn number(&self, path: &str) -> Option<i64> {
        self.read(path).ok()?.parse().ok()
    }

    /// Where a link points to.
    pub(super) fn link(&self, path: &str) -> Option<PathBuf> {
        fs::read_link(self.path(path)).ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
