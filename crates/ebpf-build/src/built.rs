//! The BPF objects that are committed beside their sources, and the record of what they were made from.
//!
//! `memscope-ebpf/built` has an object for each architecture and the file `made-from`, with a line for each fact: the
//! digest of the sources, the compiler, the linker, and the digest of each object. The daemon's build uses a committed
//! object if it was made from the sources that are there now. So building needs neither a second compiler nor LLVM.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::BuildError;

/// Folder of the committed objects, relative to the workspace's root.
pub const FOLDER: &str = "memscope-ebpf/built";
/// Everything that the contents of the objects depend on: files, and folders with all files in them.
const SOURCES: [&str; 7] = [
    "memscope-ebpf/Cargo.toml",
    "memscope-ebpf/Cargo.lock",
    "memscope-ebpf/src",
    "memscope-common/Cargo.toml",
    "memscope-common/src",
    // This file has the compiler's flags.
    "crates/ebpf-build/src/lib.rs",
    "crates/ebpf-build/src/built.rs",
];

/// The facts about the committed objects, as `made-from` has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Built {
    /// The facts of `made-from` by their names: `sources`, `rustc`, `bpf-linker`, and the name of each architecture.
    pub facts: BTreeMap<String, String>,
}

impl Built {
    /// Reads the facts that are committed below the workspace's root. Without the file there are no facts.
    pub fn read(root: &Path) -> Built {
        let text = fs::read_to_string(root.join(FOLDER).join("made-from")).unwrap_or_default();
        let facts = text.lines().filter_map(|line| line.split_once(": "));
        Built {
            facts: facts
                .map(|(name, fact)| (name.to_owned(), fact.to_owned()))
                .collect(),
        }
    }

    /// The facts as the text of `made-from`: one line `name: fact` for each.
    pub fn text(&self) -> String {
        let lines = self.facts.iter();
        lines
            .map(|(name, fact)| format!("{name}: {fact}\n"))
            .collect()
    }

    /// The fact with this name; empty if there is none.
    pub fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    /// Path of the committed object for an architecture.
    pub fn path(root: &Path, arch: &str) -> PathBuf {
        root.join(FOLDER).join(format!("{arch}.bpf.o"))
    }

    /// Path of the committed object for an architecture, if it was made from the sources that are there now and was not
    /// changed since. Fails if a source cannot be read.
    pub fn object(&self, root: &Path, arch: &str) -> Result<Option<PathBuf>, BuildError> {
        if self.fact("sources") != sources(root)? {
            return Ok(None);
        }
        let path = Built::path(root, arch);
        let is_it = fs::read(&path).is_ok_and(|bytes| digest(&bytes) == self.fact(arch));
        Ok(is_it.then_some(path))
    }
}

/// SHA-256 digest of everything that the objects are made from: names, lengths and contents of the files. Fails if a
/// source cannot be read.
pub fn sources(root: &Path) -> Result<String, BuildError> {
    let mut files = Vec::new();
    for name in SOURCES {
        add(&root.join(name), &mut files)?;
    }
    files.sort();
    let mut all = Sha256::new();
    for path in files {
        let bytes = fs::read(&path).map_err(|source| BuildError::Source {
            path: path.clone(),
            source,
        })?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        all.update(name.to_string_lossy().as_bytes());
        all.update([0]);
        all.update((bytes.len() as u64).to_le_bytes());
        all.update(&bytes);
    }
    Ok(hex(&all.finalize()))
}

/// SHA-256 digest of these bytes, in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn add(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), BuildError> {
    let failed = |source| BuildError::Source {
        path: path.to_owned(),
        source,
    };
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        add(&entry.map_err(failed)?.path(), files)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn what_is_committed_was_made_from_the_sources() {
        let built = Built::read(&root());
        for arch in crate::ARCHITECTURES {
            let object = built.object(&root(), arch).unwrap();
            assert!(object.is_some(), "cargo xtask ebpf makes the objects anew");
        }
    }

    #[test]
    fn facts_are_read_as_they_were_written() {
        let facts = [("sources", "ab"), ("rustc", "rustc 1.96.0 (a: b)")];
        let facts = facts.map(|(name, fact)| (name.to_owned(), fact.to_owned()));
        let built = Built {
            facts: facts.into_iter().collect(),
        };
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(FOLDER)).unwrap();
        let path = folder.path().join(FOLDER).join("made-from");
        fs::write(path, built.text()).unwrap();
        assert_eq!(Built::read(folder.path()), built);
    }

    #[test]
    fn an_object_of_other_sources_or_one_that_was_changed_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in SOURCES {
            let path = root.join(name);
            if name.ends_with("src") {
                fs::create_dir_all(&path).unwrap();
                fs::write(path.join("main.rs"), name).unwrap();
            } else {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, name).unwrap();
            }
        }
        fs::create_dir_all(root.join(FOLDER)).unwrap();
        fs::write(Built::path(root, "x86_64"), "object").unwrap();
        let facts = [
            ("sources".to_owned(), sources(root).unwrap()),
            ("x86_64".to_owned(), digest(b"object")),
        ];
        let built = Built {
            facts: facts.into_iter().collect(),
        };
        assert!(built.object(root, "x86_64").unwrap().is_some());
        assert!(built.object(root, "aarch64").unwrap().is_none());
        fs::write(Built::path(root, "x86_64"), "Object").unwrap();
        assert!(built.object(root, "x86_64").unwrap().is_none());
        fs::write(Built::path(root, "x86_64"), "object").unwrap();
        fs::write(root.join("memscope-common/src/main.rs"), "other").unwrap();
        assert!(built.object(root, "x86_64").unwrap().is_none());
    }
}
