//! Installs Helm's own library, as a Python package, and the schemas against which what the chart makes is validated.

use std::path::PathBuf;

use anyhow::Result;

use super::mode::Mode;
use super::{npm, toolchain, venv};
use crate::process;

fn pins() -> PathBuf {
    process::root().join("tests/chart")
}

fn folder() -> PathBuf {
    process::target().join("chart")
}

/// The Python that has Helm's library.
pub fn python() -> PathBuf {
    folder().join("python/bin/python")
}

/// Makes sure that everything is there. False: something is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    let environment = folder().join("python");
    let requirements = pins().join("requirements.txt");
    let what = "Helm's library and the schemas of Kubernetes";
    let python = venv::installed_from(
        &environment,
        &environment,
        &requirements,
        what,
        mode,
        |pins| {
            toolchain::ensure_python(mode)?;
            venv::make_with(&environment, pins)
        },
    )?;
    let node = folder().join("node");
    if mode == Mode::Check && !npm::installed(&pins(), &node)? {
        eprintln!(
            "schemas of the Prometheus operator: missing; tests validate the chart with them"
        );
        return Ok(false);
    }
    npm::install(&pins(), &node)?;
    eprintln!(
        "schemas of the Prometheus operator: found in {}",
        node.display()
    );
    Ok(toolchain::ensure_node(mode)? & python)
}
