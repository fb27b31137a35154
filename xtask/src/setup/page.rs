//! What the page of `memscope-ctl ui` is made of and tested with, from npm.

use std::path::PathBuf;

use anyhow::Result;

use super::mode::Mode;
use super::npm;
use crate::process;

/// Where the modules lie, and the page is made.
pub fn workshop() -> PathBuf {
    process::target().join("ui")
}

/// Installs them, or says whether they are there.
pub fn ensure(mode: Mode) -> Result<bool> {
    let pins = process::root().join("ui");
    if mode == Mode::Check && !npm::installed(&pins, &workshop())? {
        eprintln!(
            "missing: the modules that the page is made of; cargo xtask setup --browser gets them"
        );
        return Ok(false);
    }
    npm::install(&pins, &workshop())?;
    Ok(true)
}
