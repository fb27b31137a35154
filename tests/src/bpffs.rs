//! A BPF file system of this test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::places::scratch;

/// A mounted BPF file system. What is pinned in it goes with it, whatever the test has done.
pub struct BpfFs {
    folder: TempDir,
}

impl BpfFs {
    /// Mounts one.
    pub fn mount() -> BpfFs {
        crate::need_root();
        let folder = scratch();
        let mounted = Command::new("mount")
            .args(["-t", "bpf", "bpf"])
            .arg(folder.path())
            .status()
            .unwrap();
        assert!(mounted.success(), "a BPF file system cannot be mounted");
        BpfFs { folder }
    }

    /// A directory in it for a daemon's pins.
    pub fn pins(&self) -> PathBuf {
        self.folder.path().join("pins")
    }

    /// Names of what is pinned now.
    pub fn pinned(&self) -> Vec<String> {
        names(&self.pins())
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        let is_gone = unmounted.is_ok_and(|status| status.success());
        // A second panic would end everything.
        if !std::thread::panicking() {
            assert!(is_gone, "{} is still mounted", self.folder.path().display());
        }
    }
}
