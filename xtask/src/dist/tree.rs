//! The files of a package, as they lie on the machine on which it is installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::contents::{ITEMS, Kind, PROGRAMS};
use super::licences;
use super::release::Commit;
use crate::process;

/// Folders in which the two kinds of packages differ.
pub struct Layout {
    /// Where zsh looks for completions of packages, below `usr/share/zsh`.
    pub zsh: &'static str,
    /// The name of the changelog below the folder of documentation.
    pub changelog: &'static str,
}

/// Makes a folder, empty.
pub fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Writes a tree with everything that both kinds of packages have.
pub fn write(programs: &Path, tree: &Path, layout: &Layout, commit: &Commit) -> Result<()> {
    empty(tree)?;
    for program in &PROGRAMS {
        let from = programs.join(program.file);
        copy(&from, &tree.join("usr/bin").join(program.file), 0o755)?;
    }
    for item in ITEMS {
        let mode = match item.kind {
            Kind::Executable => 0o755,
            Kind::Plain | Kind::Setting | Kind::Document => 0o644,
        };
        copy(&process::root().join(item.from), &tree.join(item.to), mode)?;
    }
    let documents = tree.join("usr/share/doc/memscope");
    licences::write(&documents.join("third-party.txt"))?;
    write_pages(programs, &tree.join("usr/share"), commit)?;
    let zsh = tree.join("usr/share/zsh");
    if layout.zsh != "vendor-completions" {
        fs::rename(zsh.join("vendor-completions"), zsh.join(layout.zsh))?;
    }
    fs::rename(
        documents.join("changelog"),
        documents.join(layout.changelog),
    )?;
    let mut pages = files(&tree.join("usr/share/man"))?;
    pages.push(documents.join(layout.changelog));
    pages.push(documents.join("third-party.txt"));
    for page in &pages {
        compress(page)?;
    }
    Ok(())
}

/// Has each program write its man pages and completions below `share`.
pub fn write_pages(programs: &Path, share: &Path, commit: &Commit) -> Result<()> {
    let date = commit.written("+%Y-%m-%d")?;
    for program in &PROGRAMS {
        let file = programs.join(program.file);
        let mut command = Command::new(&file);
        // As crates/pages has it (`ARGUMENT`), which nothing here may depend on: xtask is built first of all.
        command.arg("--write-pages").arg(share).arg(&date);
        process::output(&mut command)
            .with_context(|| format!("{} writes no pages", file.display()))?;
    }
    Ok(())
}

/// Gives a file to gzip, without name and time.
pub fn compress(file: &Path) -> Result<()> {
    process::output(Command::new("gzip").arg("-n9").arg(file)).map(drop)
}

/// Copies a file, and makes the folders for it.
pub fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// The files below a folder, sorted.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Gives everything in a tree the time of the commit, and folders and files the modes that do not depend on who made them. `DEBIAN`'s
/// scripts must be executable.
pub fn settle(tree: &Path, commit: &Commit) -> Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(commit.seconds);
    let mut left = vec![tree.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        } else {
            let is_started = path.metadata()?.permissions().mode() & 0o100 != 0;
            let mode = if is_started { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        fs::File::open(&path)
            .and_then(|file| file.set_modified(time))
            .with_context(|| format!("cannot set the time of {}", path.display()))?;
    }
    Ok(())
}
