//! Installs modules for Node.js, in the versions of a `package-lock.json`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

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

/// Path of the file that is written last, so that an interrupted installation has none.
fn done(folder: &Path) -> PathBuf {
    folder.join("complete")
}
