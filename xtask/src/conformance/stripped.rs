//! A copy of an installation of PyTorch whose own allocator libraries are stripped of their symbols.
//!
//! The packages are links to the real ones; only the two libraries in which memscope looks for functions are separate
//! files. `PYTHONPATH` puts the copies before the real ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::installation::Installation;
use crate::process;
use crate::setup::torch;

/// The libraries with the allocator and its reports.
const LIBRARIES: [&str; 2] = ["libc10.so", "libc10_cuda.so"];

/// A stripped copy. Its folder is deleted when this is dropped.
pub struct Stripped {
    _folder: TempDir,
    /// The installation that uses the copy.
    pub installation: Installation,
}

impl Stripped {
    /// Makes a stripped copy of an installation.
    pub fn of(whole: &Installation) -> Result<Stripped> {
        if process::find_program("strip").is_none() {
            bail!("strip is missing; on Debian: apt-get install binutils");
        }
        let folder = tempfile::Builder::new()
            .prefix("memscope-stripped-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let from = torch::site_packages(&whole.folder)?;
        link_all(&from, folder.path(), &["torch"])?;
        let package = folder.path().join("torch");
        link_all(&from.join("torch"), &package, &["lib"])?;
        let libraries = package.join("lib");
        link_all(&from.join("torch/lib"), &libraries, &LIBRARIES)?;
        for name in LIBRARIES {
            process::run(
                process::command("strip")
                    .args(["--strip-all", "-o"])
                    .arg(libraries.join(name))
                    .arg(from.join("torch/lib").join(name)),
            )?;
        }
        let path = folder
            .path()
            .to_str()
            .context("the temporary folder's path is not UTF-8")?;
        let mut installation = whole.clone();
        installation
            .more
            .push(("PYTHONPATH".to_owned(), path.to_owned()));
        installation.stripped = true;
        installation.name = format!("{}, stripped", whole.name);
        Ok(Stripped {
            _folder: folder,
            installation,
        })
    }
}

fn link_all(from: &Path, into: &Path, but: &[&str]) -> Result<()> {
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        if but.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let link: PathBuf = into.join(entry.file_name());
        symlink(entry.path(), &link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(())
}
