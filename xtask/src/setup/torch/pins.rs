//! Which versions of PyTorch and torch_npu the tests know (`tests/torch-versions.toml`), where each of them is installed, and whether it
//! is there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::gpu::has_gpu;
use crate::process;
use crate::setup::venv;

/// The content of `tests/torch-versions.toml`.
#[derive(Deserialize)]
pub struct Pins {
    /// The version that is meant when none is named.
    pub default: String,
    /// All versions that the tests know.
    pub torch: Vec<Pin>,
    /// All versions of torch_npu that the tests know.
    pub torch_npu: Vec<NpuPin>,
}

/// One version of PyTorch and what goes with it.
#[derive(Deserialize)]
pub struct Pin {
    /// PyTorch's version on PyPI.
    pub version: String,
    /// The NumPy that is installed beside it.
    pub numpy: String,
    /// First and last minor version of Python 3 that it has wheels for.
    pub python: [u32; 2],
}

/// One version of torch_npu and what goes with it.
#[derive(Deserialize)]
pub struct NpuPin {
    /// torch_npu's version on PyPI.
    pub version: String,
    /// The PyTorch that it is made for.
    pub torch: String,
    /// The PyYAML that it imports.
    pub pyyaml: String,
}

/// Reads the pinned versions.
pub fn pins() -> Result<Pins> {
    let file = process::root().join("tests/torch-versions.toml");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    toml::from_str(&text).with_context(|| format!("cannot understand {}", file.display()))
}

impl Pins {
    /// The pin for `version`, or for the default.
    pub fn get(&self, version: Option<&str>) -> Result<&Pin> {
        let version = version.unwrap_or(&self.default);
        self.torch
            .iter()
            .find(|pin| pin.version == version)
            .with_context(|| {
                let known: Vec<&str> = self.torch.iter().map(|pin| pin.version.as_str()).collect();
                format!(
                    "torch {version} is not in tests/torch-versions.toml, which has {}",
                    known.join(", ")
                )
            })
    }

    /// The pin of torch_npu for `version`, or for the default PyTorch.
    pub fn npu(&self, version: Option<&str>) -> Result<&NpuPin> {
        let found = match version {
            Some(version) => self.torch_npu.iter().find(|pin| pin.version == version),
            None => self.npu_for(&self.default),
        };
        found.with_context(|| {
            let known: Vec<&str> = self
                .torch_npu
                .iter()
                .map(|pin| pin.version.as_str())
                .collect();
            format!(
                "torch_npu {} is not in tests/torch-versions.toml, which has {}",
                version.unwrap_or(&self.default),
                known.join(", ")
            )
        })
    }

    /// The pin of torch_npu that goes with a version of PyTorch.
    pub fn npu_for(&self, torch: &str) -> Option<&NpuPin> {
        self.torch_npu.iter().find(|pin| pin.torch == torch)
    }
}

impl NpuPin {
    /// Folder of this version, whether it is installed or not. Libraries are told from programs by the folder's name.
    pub fn folder(&self) -> PathBuf {
        process::target()
            .join("venv")
            .join(format!("torch-npu-{}", self.version))
            .join("site-packages")
    }

    /// Whether this version is installed completely, with exactly these pins, for the interpreter that the environment of its PyTorch has.
    pub fn installed(&self, environment: &Path) -> bool {
        venv::is_complete(&self.marker(), &self.contents(), environment)
    }

    /// Path of the file that is written last, so that an interrupted installation has none.
    pub fn marker(&self) -> PathBuf {
        self.folder().join("memscope-complete")
    }

    /// What that file begins with: the pins. The interpreter follows.
    pub fn contents(&self) -> String {
        format!("torch_npu=={}\npyyaml=={}\n", self.version, self.pyyaml)
    }
}

impl Pin {
    /// Folder of this version's environment, whether it exists or not.
    pub fn folder(&self) -> PathBuf {
        process::target()
            .join("venv")
            .join(format!("torch-{}", self.version))
    }

    /// Whether the environment is installed completely, with exactly these pins, for the interpreter that it still has.
    pub fn installed(&self) -> bool {
        venv::is_complete(&self.marker(), &self.contents(), &self.folder())
    }

    /// Path of the file that is written last, so that an interrupted installation has none.
    pub fn marker(&self) -> PathBuf {
        self.folder().join("memscope-complete")
    }

    /// What that file begins with: the pins. The interpreter follows.
    pub fn contents(&self) -> String {
        let libraries = if has_gpu() { "NVIDIA's" } else { "stand-ins" };
        format!(
            "torch=={}\nnumpy=={}\nlibraries: {libraries}\n",
            self.version, self.numpy
        )
    }
}
