//! Finds the PyTorch and the torch_npu that a task uses: those that the user names, or those that setup has installed.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::packages::site_packages;
use super::pins::pins;

/// The environment to use: `MEMSCOPE_TORCH_VENV`, or the one that setup made for `version`.
pub fn locate(version: Option<&str>) -> Result<PathBuf> {
    if version.is_none()
        && let Some(folder) = env::var_os("MEMSCOPE_TORCH_VENV")
    {
        let folder = PathBuf::from(folder);
        if !folder.join("bin/python").exists() {
            bail!(
                "MEMSCOPE_TORCH_VENV={} is not a virtual environment: it has no bin/python",
                folder.display()
            );
        }
        return std::path::absolute(&folder).context("cannot find the current directory");
    }
    let pins = pins()?;
    let pin = pins.get(version)?;
    if !pin.installed() {
        bail!(
            "torch {0} is not installed, or was made for another Python; run: cargo xtask setup --torch {0}\n\
             (or name an environment that has a CUDA build of torch in MEMSCOPE_TORCH_VENV)",
            pin.version
        );
    }
    Ok(pin.folder())
}

/// The folder that has the torch_npu for the environment that [`locate`] names: `MEMSCOPE_TORCH_NPU`, the
/// environment itself, or the one that setup made.
pub fn locate_npu(version: Option<&str>, environment: &Path) -> Result<PathBuf> {
    if version.is_none()
        && let Some(folder) = env::var_os("MEMSCOPE_TORCH_NPU")
    {
        let folder = PathBuf::from(folder);
        if !folder.join("torch_npu").is_dir() {
            bail!(
                "MEMSCOPE_TORCH_NPU={} has no torch_npu in it",
                folder.display()
            );
        }
        return std::path::absolute(&folder).context("cannot find the current directory");
    }
    let packages = site_packages(environment)?;
    if packages.join("torch_npu").is_dir() {
        return Ok(packages);
    }
    let pins = pins()?;
    // The folder of an environment that setup made tells which version it has.
    let ours = pins.torch.iter().find(|pin| pin.folder() == environment);
    let ours = ours.map_or(&pins.default, |pin| &pin.version);
    let torch = version.unwrap_or(ours);
    let pin = pins.npu_for(torch).with_context(|| {
        format!("no torch_npu for torch {torch} is in tests/torch-versions.toml")
    })?;
    if !pin.installed(&pins.get(Some(&pin.torch))?.folder()) {
        bail!(
            "torch_npu {0} is not installed, or was made for another Python; run: cargo xtask setup --torch-npu {0}\n\
             (or name a folder that has it in MEMSCOPE_TORCH_NPU)",
            pin.version
        );
    }
    Ok(pin.folder())
}
