//! Installs modules for Node.js, in the versions of a `package-lock.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::mode::Mode;
use super::toolchain;
use crate::process;

/// Whether `folder` has what `pins` asks for.
pub fn installed(pins: &Path, folder: &Path) -> Result<bool> {
    let lock = fs::read_to_string(pins.join("package-lock.json"))?;
    Ok(fs::read_to_string(done(folder)).is_ok_and(|text| text == lock))
}

/// Installs what `pins` asks for into `folder`, unless it is there.
pub fn install(pins: &Path, folder: &Path) -> Result<()> {
    if installed(pins, folder)? {
        return Ok(());
    }
    toolchain::ensure_npm(Mode::Install)?;
    fs::create_dir_all(folder)?;
    begin(folder)?;
    for name in ["package.json", "package-lock.json"] {
        fs::copy(pins.join(name), folder.join(name))?;
    }
    let options = [
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--prefix",
    ];
    process::run(process::command("npm").args(options).arg(folder))?;
    fs::copy(pins.join("package-lock.json"), done(folder))?;
    Ok(())
}

/// Takes the mark of an earlier installation away: npm begins by removing the modules, and if it is interrupted after that, going back to
/// the earlier pins must not find them complete.
fn begin(folder: &Path) -> Result<()> {
    match fs::remove_file(done(folder)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", done(folder).display()))
        }
        _ => Ok(()),
    }
}

/// Path of the file that is written last, so that an interrupted installation has none.
fn done(folder: &Path) -> PathBuf {
    folder.join("complete")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_that_has_begun_is_not_complete() {
        let (pins, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(pins.path().join("package-lock.json"), "{}").unwrap();
        begin(folder.path()).unwrap();
        fs::write(done(folder.path()), "{}").unwrap();
        assert!(installed(pins.path(), folder.path()).unwrap());
        begin(folder.path()).unwrap();
        assert!(!installed(pins.path(), folder.path()).unwrap());
    }
}
