//! Installs a pinned PyTorch into an environment of its own, and a torch_npu beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::absent;
use super::gpu::has_gpu;
use super::packages::{requirements, site_packages};
use super::pins::{NpuPin, Pin};
use crate::process;
use crate::setup::venv;

/// Installs a torch_npu beside an environment that has its PyTorch, unless it is there.
pub fn torch_npu(pin: &NpuPin, environment: &Path) -> Result<PathBuf> {
    let folder = pin.folder();
    if pin.installed(environment) {
        eprintln!("torch_npu {}: found in {}", pin.version, folder.display());
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    eprintln!(
        "torch_npu {}: installing into {}, for tests with the simulated NPU",
        pin.version,
        folder.display()
    );
    // Dependencies are left out, because it asks for a PyTorch that is on another index.
    process::run(
        venv::pip_install(environment)
            .args(["--no-deps", "--target"])
            .arg(&folder)
            .args(pin.contents().lines()),
    )?;
    venv::mark_complete(&pin.marker(), &pin.contents(), environment)?;
    Ok(folder)
}

/// Makes an environment with a PyTorch, unless it is there; returns its folder.
pub fn torch(pin: &Pin, wanted: Option<&Path>) -> Result<PathBuf> {
    let folder = pin.folder();
    if pin.installed() {
        eprintln!("torch {}: found in {}", pin.version, folder.display());
        return Ok(folder);
    }
    let python = interpreter(pin, wanted)?;
    if folder.exists() {
        eprintln!(
            "torch {}: {} is incomplete, has other pins, or was made for another Python; making it again",
            pin.version,
            folder.display()
        );
    }
    eprintln!(
        "torch {}: installing into {}, for tests with the simulated device",
        pin.version,
        folder.display()
    );
    venv::make(&folder, &python)?;
    let torch = format!("torch=={}", pin.version);
    let numpy = format!("numpy=={}", pin.numpy);
    let pip = |more: &[String]| process::run(venv::pip_install(&folder).args(more));
    if has_gpu() {
        pip(&[torch, numpy])?;
    } else {
        pip(&["--no-deps".to_owned(), torch, numpy])?;
        pip(&needed(&requirements(&site_packages(&folder)?)?))?;
        absent::build(&folder)?;
    }
    // The installation counts only if PyTorch starts.
    let script = "import torch; print(torch.__version__)";
    process::output(Command::new(folder.join("bin/python")).args(["-I", "-c", script]))
        .with_context(|| format!("torch {} does not start", pin.version))?;
    venv::mark_complete(&pin.marker(), &pin.contents(), &folder)?;
    Ok(folder)
}

/// Finds a Python for which this PyTorch has wheels.
fn interpreter(pin: &Pin, wanted: Option<&Path>) -> Result<PathBuf> {
    let [first, last] = pin.python;
    let mut candidates = vec![PathBuf::from("python3")];
    candidates.extend(
        (first..=last)
            .rev()
            .map(|minor| PathBuf::from(format!("python3.{minor}"))),
    );
    if let Some(wanted) = wanted {
        candidates = vec![wanted.to_path_buf()];
    }
    for candidate in &candidates {
        if let Ok(minor) = python_minor(candidate)
            && (first..=last).contains(&minor)
        {
            return Ok(candidate.clone());
        }
    }
    bail!(
        "torch {} needs Python 3.{first} to 3.{last}, and neither of these is one: {}; \
         name another with --python",
        pin.version,
        candidates
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    )
}

/// The requirements of a wheel that PyTorch needs without a GPU: the Python packages, and CUDA's runtime for its
/// headers. The rest of CUDA is some 2.5 GB.
fn needed(requirements: &[String]) -> Vec<String> {
    let mut needed = Vec::new();
    for requirement in requirements {
        // Before CUDA 13 the runtime is named; from then on it is a part of the toolkit, chosen in brackets.
        if let Some((_, version)) = requirement
            .strip_prefix("cuda-toolkit[")
            .and_then(|rest| rest.split_once(']'))
        {
            needed.push(format!("cuda-toolkit[cudart]{version}"));
            continue;
        }
        let is_runtime = requirement.starts_with("nvidia-cuda-runtime");
        let is_large = ["nvidia-", "cuda-", "triton"]
            .iter()
            .any(|name| requirement.starts_with(name));
        // pip refuses markers about extras where none was asked for.
        if (is_runtime || !is_large) && !requirement.contains("extra ==") {
            needed.push(requirement.clone());
        }
    }
    needed
}

/// The minor version y of Python 3.y; 0 for another major version.
fn python_minor(python: &Path) -> Result<u32> {
    let script = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)";
    let text = process::output(Command::new(python).args(["-I", "-c", script]))?;
    Ok(text.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_cuda_only_the_runtime_is_needed() {
        let all = [
            "sympy>=1.13.3",
            "cuda-toolkit[cublas,cudart,nvtx]==13.0.2; platform_system == \"Linux\"",
            "cuda-bindings<14,>=13.0.3; platform_system == \"Linux\"",
            "nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_system == \"Linux\"",
            "nvidia-cudnn-cu13==9.19.0.56; platform_system == \"Linux\"",
            "triton==3.6.0; platform_system == \"Linux\"",
            "optree>=0.13.0; extra == \"optree\"",
        ]
        .map(str::to_owned);
        assert_eq!(
            needed(&all),
            [
                "sympy>=1.13.3",
                "cuda-toolkit[cudart]==13.0.2; platform_system == \"Linux\"",
                "nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_system == \"Linux\"",
            ]
        );
    }
}
