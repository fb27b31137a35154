//! A PyTorch that memscope is compared with: its folder, its version, and the devices that it runs on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::workload::Workload;
use crate::setup::torch;
use crate::sim;

/// A PyTorch to compare with.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Name of the installation in the table.
    pub name: String,
    /// Folder of the virtual environment.
    pub folder: PathBuf,
    /// More environment variables with which its Python is started.
    pub more: Vec<(String, String)>,
    /// Whether the symbols of its allocator's libraries are stripped, so that the trace cannot be seen.
    pub stripped: bool,
    /// Whether it runs on this machine's GPU.
    pub real_device: bool,
    /// Kind of the simulated devices.
    pub device: sim::Device,
}

impl Installation {
    /// An installation of the user's. It is checked before anything is built.
    pub fn of(folder: &Path) -> Result<Installation> {
        let folder = std::path::absolute(folder).context("cannot find the current directory")?;
        let shown = folder.display();
        if !folder.join("bin/python").exists() {
            bail!(
                "{shown} is not a virtual environment: it has no bin/python; make one with python3 -m venv {shown}"
            );
        }
        let version = folder_version(&folder)?;
        Ok(Installation {
            name: version,
            folder,
            more: Vec::new(),
            stripped: false,
            real_device: false,
            device: sim::Device::Cuda,
        })
    }

    /// Path of its Python.
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// Environment variables that set up the simulated device that a workload wants.
    pub fn variables(&self, workload: &Workload) -> Result<Vec<(String, String)>> {
        if self.real_device {
            return Ok(Vec::new());
        }
        sim::environment_of(&self.folder, &workload.device(self.device))
    }
}

/// The version of an environment's PyTorch, read from its files without running it.
fn folder_version(folder: &Path) -> Result<String> {
    let packages = torch::site_packages(folder)?;
    let text = std::fs::read_to_string(packages.join("torch/version.py")).with_context(|| {
        format!(
            "{0} has no torch; install a CUDA build into it: {0}/bin/pip install torch",
            folder.display()
        )
    })?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__ = "))
        .with_context(|| {
            format!(
                "{} has a torch that does not say its version",
                folder.display()
            )
        })?;
    Ok(version.trim_matches(['\'', '"']).to_owned())
}
