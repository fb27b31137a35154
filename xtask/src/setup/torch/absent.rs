//! Builds stand-ins for NVIDIA's large libraries, so that these need not be downloaded to run PyTorch without a GPU.
//!
//! PyTorch's libraries are linked against cuDNN, NCCL, cuBLAS and a dozen more, and do not load without them. Under a simulated
//! device, or with no device at all, PyTorch calls none of their functions except those that the simulation implements.
//! Each library is replaced by one that exports what PyTorch imports and reports an error from every function.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{stubs, wheels};
use crate::process;

/// Builds the stand-ins into `environment`, beside the real runtime, where PyTorch's libraries look for them. A library
/// that is there already is kept.
pub fn build(environment: &Path) -> Result<()> {
    let wheels = wheels::find(environment)?;
    let folder = wheels
        .runtime
        .parent()
        .context("a runtime without a folder")?;
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    for (soname, exports, stand_in) in wheels.wanted()? {
        let library = folder.join(&soname);
        if stand_in.is_runtime() || library.exists() {
            continue;
        }
        let source = work.path().join("stubs.c");
        let script = work.path().join("exports.map");
        fs::write(
            &source,
            stubs::stub_source(exports.keys(), |_| stand_in.absent.to_string()),
        )?;
        fs::write(&script, stubs::version_script(&exports)?)?;
        let mut link = Command::new("cc");
        link.args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source);
        link.arg(format!("-Wl,-soname,{soname}"));
        if !exports.is_empty() {
            link.arg(format!("-Wl,--version-script={}", script.display()));
        }
        process::output(&mut link).with_context(|| format!("cannot link {soname}"))?;
    }
    Ok(())
}
