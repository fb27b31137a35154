//! gRPC's own libraries for Python and Node.js, with which tests ask the daemon.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::setup::Mode;
use crate::{npm, process, toolchain, venv};

/// Makes sure that they are there. False: something is missing.
pub fn ensure(mode: Mode) -> Result<bool> {
    let pins = process::root().join("tests/clients");
    let folder = process::target().join("clients");
    let wanted = fs::read_to_string(requirements()).context("cannot read what clients need")?;
    let python = folder.join("python");
    // Written last: an interrupted installation has none.
    let done = python.join("complete");
    let has_python = fs::read_to_string(&done).is_ok_and(|text| text == wanted);
    let node = folder.join("node");
    let has_node = npm::installed(&pins, &node)?;
    if mode == Mode::Check {
        for (there, what) in [(has_python, "Python"), (has_node, "Node.js")] {
            if !there {
                eprintln!("gRPC for {what}: missing; tests ask the daemon with it");
            }
        }
        return Ok(has_python && has_node);
    }
    if !has_python {
        toolchain::ensure_python(mode)?;
        venv::make_with(&python, &requirements())?;
        fs::write(&done, wanted)?;
    }
    npm::install(&pins, &node)?;
    eprintln!("gRPC for Python and Node.js: found in {}", folder.display());
    toolchain::ensure_node(mode)
}

fn requirements() -> PathBuf {
    process::root().join("tests/clients/requirements.txt")
}
