//! An initial root file system: the archive that the kernel unpacks into memory before it starts `/init`.
//!
//! The format is cpio's "newc" (Documentation/driver-api/early-userspace/buffer-format.rst). The archive is not
//! compressed, because the machine would take longer to unpack it than to read it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

enum Entry {
    Folder,
    File {
        bytes: Vec<u8>,
        executable: bool,
    },
    Link(String),
    /// The console, which the kernel opens before anything is mounted.
    Console,
}

/// The content of a root file system.
#[derive(Default)]
pub struct Image {
    entries: BTreeMap<String, Entry>,
}

/// Folders that are links into `/usr`, as in every current Debian, even where a package still has them apart.
const MERGED: [&str; 3] = ["bin", "lib", "sbin"];

impl Image {
    /// Adds an empty folder.
    pub fn folder(&mut self, path: &str) {
        self.parents(path);
        self.entries.insert(path.to_owned(), Entry::Folder);
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, bytes: &[u8], executable: bool) {
        self.parents(path);
        let bytes = bytes.to_vec();
        let entry = Entry::File { bytes, executable };
        self.entries.insert(path.to_owned(), entry);
    }

    /// Adds the files below a folder of this machine whose paths `wanted` accepts.
    pub fn tree(&mut self, folder: &Path, wanted: fn(&str) -> bool) -> Result<()> {
        self.below(folder, "", wanted)
            .with_context(|| format!("cannot read {}", folder.display()))
    }

    fn below(&mut self, folder: &Path, path: &str, wanted: fn(&str) -> bool) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = merged(&if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            });
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.below(&entry.path(), &path, wanted)?;
            } else if !wanted(&path) {
                continue;
            } else if kind.is_symlink() {
                let to = fs::read_link(entry.path())?;
                self.parents(&path);
                let link = Entry::Link(to.to_string_lossy().into_owned());
                self.entries.insert(path, link);
            } else {
                let executable = entry.metadata()?.permissions().mode() & 0o111 != 0;
                self.file(&path, &fs::read(entry.path())?, executable);
            }
        }
        Ok(())
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            self.entries
                .entry(path[..at].to_owned())
                .or_insert(Entry::Folder);
        }
    }

    /// Writes the archive to a file, and returns its path.
    pub fn write(mut self, to: &Path) -> Result<PathBuf> {
        for name in MERGED {
            self.folder(&format!("usr/{name}"));
            let link = Entry::Link(format!("usr/{name}"));
            self.entries.insert(name.to_owned(), link);
        }
        self.folder("dev");
        self.entries
            .insert("dev/console".to_owned(), Entry::Console);
        fs::write(to, self.archive()).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(to.to_owned())
    }

    fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, entry)) in (1..).zip(&self.entries) {
            let (mode, bytes, device) = match entry {
                Entry::Folder => (0o040_755, &[][..], (0, 0)),
                Entry::File { bytes, executable } => {
                    let mode = if *executable { 0o100_755 } else { 0o100_644 };
                    (mode, &bytes[..], (0, 0))
                }
                Entry::Link(to) => (0o120_777, to.as_bytes(), (0, 0)),
                Entry::Console => (0o020_600, &[][..], (5, 1)),
            };
            put(&mut out, number, path, mode, bytes, device);
        }
        put(&mut out, 0, "TRAILER!!!", 0, &[], (0, 0));
        out
    }
}

fn merged(path: &str) -> String {
    let first = path.split('/').next().unwrap_or_default();
    if MERGED.contains(&first) {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

/// Appends one entry: numbers in hexadecimal digits, the name, the bytes; both are padded to four bytes.
fn put(out: &mut Vec<u8>, number: u32, path: &str, mode: u32, bytes: &[u8], device: (u32, u32)) {
    out.extend(b"070701");
    let words = [
        number,
        mode,
        0,
        0,
        1,
        0,
        bytes.len() as u32,
        0,
        0,
        device.0,
        device.1,
        path.len() as u32 + 1,
        0,
    ];
    for word in words {
        out.extend(format!("{word:08X}").into_bytes());
    }
    out.extend(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_reads() {
        let mut image = Image::default();
        image.file("a/b", b"12345", true);
        let archive = image.archive();
        assert_eq!(archive.len() % 4, 0);
        assert!(archive.starts_with(b"070701"));
        let text = String::from_utf8_lossy(&archive);
        // The folder comes first, then the file in it.
        let (folder, file) = (text.find("\0a\0").or(text.find("a\0")), text.find("a/b\0"));
        assert!(folder < file && file < text.find("TRAILER!!!\0"));
        assert!(text.contains(concat!("12345\0\0\0", "070701")));
    }

    #[test]
    fn what_lies_apart_is_merged() {
        assert_eq!(merged("lib/x/y"), "usr/lib/x/y");
        assert_eq!(merged("lib64/x"), "lib64/x");
        assert_eq!(merged("usr/lib/x"), "usr/lib/x");
    }
}
