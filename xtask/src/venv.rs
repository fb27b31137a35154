//! Virtual environments with a pinned PyTorch, below `target/venv`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{absent, process};

const PIP_INSTALL: [&str; 8] = [
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--retries=5",
    // Of PyTorch's thousands of modules a few are imported; those are compiled then.
    "--no-compile",
    // Told of what is missing on purpose, it would look like a failure.
    "--no-warn-conflicts",
];

/// `tests/torch-versions.toml`.
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
}

impl Pins {
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

    /// The one that goes with a version of PyTorch.
    fn npu_for(&self, torch: &str) -> Option<&NpuPin> {
        self.torch_npu.iter().find(|pin| pin.torch == torch)
    }
}

impl NpuPin {
    /// Where this version is, or would be: a folder of the name that tells libraries from programs.
    pub fn folder(&self) -> PathBuf {
        process::target()
            .join("venv")
            .join(format!("torch-npu-{}", self.version))
            .join("site-packages")
    }

    /// Whether it is there and was finished with exactly these pins.
    pub fn installed(&self) -> bool {
        fs::read_to_string(self.marker()).is_ok_and(|text| text == self.contents())
    }

    /// Written last: an interrupted installation has none.
    fn marker(&self) -> PathBuf {
        self.folder().join("memscope-complete")
    }

    fn contents(&self) -> String {
        format!("torch_npu=={}\npyyaml=={}\n", self.version, self.pyyaml)
    }

    /// Installs it beside an environment that has its PyTorch, unless it is there.
    pub fn install(&self, environment: &Path) -> Result<PathBuf> {
        let folder = self.folder();
        if self.installed() {
            eprintln!("torch_npu {}: found in {}", self.version, folder.display());
            return Ok(folder);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        eprintln!(
            "torch_npu {}: installing into {}, for tests with the simulated NPU",
            self.version,
            folder.display()
        );
        // Without its dependencies: it asks for a PyTorch that is on another index.
        process::run(
            process::command(environment.join("bin/python"))
                .args(PIP_INSTALL)
                .args(["--no-deps", "--target"])
                .arg(&folder)
                .args(self.contents().lines()),
        )?;
        fs::write(self.marker(), self.contents())
            .context("cannot mark the installation as complete")?;
        Ok(folder)
    }
}

impl Pin {
    /// Where this version's environment is, or would be.
    pub fn folder(&self) -> PathBuf {
        process::target()
            .join("venv")
            .join(format!("torch-{}", self.version))
    }

    /// Whether the environment is there and was finished with exactly these pins.
    pub fn installed(&self) -> bool {
        fs::read_to_string(self.marker()).is_ok_and(|text| text == self.contents())
            && self.folder().join("bin/python").exists()
    }

    /// Written last: an interrupted installation has none.
    fn marker(&self) -> PathBuf {
        self.folder().join("memscope-complete")
    }

    fn contents(&self) -> String {
        let libraries = if has_gpu() { "NVIDIA's" } else { "stand-ins" };
        format!(
            "torch=={}\nnumpy=={}\nlibraries: {libraries}\n",
            self.version, self.numpy
        )
    }

    /// Makes the environment unless it is there; returns its folder.
    pub fn install(&self, interpreter: Option<&Path>) -> Result<PathBuf> {
        let folder = self.folder();
        if self.installed() {
            eprintln!("torch {}: found in {}", self.version, folder.display());
            return Ok(folder);
        }
        let python = self.interpreter(interpreter)?;
        if folder.exists() {
            eprintln!(
                "torch {}: {} is incomplete or has other pins; making it again",
                self.version,
                folder.display()
            );
        }
        eprintln!(
            "torch {}: installing into {}, for tests with the simulated device",
            self.version,
            folder.display()
        );
        make(&folder, &python)?;
        let torch = format!("torch=={}", self.version);
        let numpy = format!("numpy=={}", self.numpy);
        let pip = |more: &[String]| {
            process::run(
                process::command(folder.join("bin/python"))
                    .args(PIP_INSTALL)
                    .args(more),
            )
        };
        if has_gpu() {
            pip(&[torch, numpy])?;
        } else {
            pip(&["--no-deps".to_owned(), torch, numpy])?;
            pip(&needed(&requirements(&site_packages(&folder)?)?))?;
            absent::build(&folder)?;
        }
        // What was installed is believed when it runs.
        let script = "import torch; print(torch.__version__)";
        process::output(Command::new(folder.join("bin/python")).args(["-I", "-c", script]))
            .with_context(|| format!("torch {} does not start", self.version))?;
        fs::write(self.marker(), self.contents())
            .context("cannot mark the environment as complete")?;
        Ok(folder)
    }

    /// A Python that this PyTorch has wheels for.
    fn interpreter(&self, wanted: Option<&Path>) -> Result<PathBuf> {
        let [first, last] = self.python;
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
            self.version,
            candidates
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}

/// Makes an empty environment in `folder`, in place of what is there.
fn make(folder: &Path, python: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    process::run(process::command(python).args(["-m", "venv"]).arg(folder)).context(
        "python3 cannot make virtual environments; on Debian: apt-get install python3-venv",
    )
}

/// Makes an environment in `folder` with what a file of requirements names.
pub fn make_with(folder: &Path, requirements: &Path) -> Result<()> {
    make(folder, Path::new("python3"))?;
    process::run(
        process::command(folder.join("bin/python"))
            .args(PIP_INSTALL)
            .arg("-r")
            .arg(requirements),
    )
}

/// Puts what a file of requirements names into a folder that is no environment, for PYTHONPATH.
pub fn install_into(python: &Path, folder: &Path, requirements: &Path) -> Result<()> {
    process::run(
        process::command(python.join("bin/python"))
            .args(PIP_INSTALL)
            .arg("--target")
            .arg(folder)
            .arg("-r")
            .arg(requirements),
    )
}

/// Whether there is an NVIDIA GPU, for which PyTorch needs all of its libraries.
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists()
}

/// What of a wheel's requirements PyTorch needs where there is no GPU: what is Python, and CUDA's runtime for its headers. The
/// rest of CUDA is some 2.5 GB.
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
        // pip refuses markers that speak of extras where none was asked for.
        if (is_runtime || !is_large) && !requirement.contains("extra ==") {
            needed.push(requirement.clone());
        }
    }
    needed
}

/// The y of Python 3.y.
fn python_minor(python: &Path) -> Result<u32> {
    let script = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)";
    let text = process::output(Command::new(python).args(["-I", "-c", script]))?;
    Ok(text.trim().parse()?)
}

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
            "torch {0} is not installed; run: cargo xtask setup --torch {0}\n\
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
    // An environment of ours says which version it has.
    let ours = pins.torch.iter().find(|pin| pin.folder() == environment);
    let ours = ours.map_or(&pins.default, |pin| &pin.version);
    let torch = version.unwrap_or(ours);
    let pin = pins.npu_for(torch).with_context(|| {
        format!("no torch_npu for torch {torch} is in tests/torch-versions.toml")
    })?;
    if !pin.installed() {
        bail!(
            "torch_npu {0} is not installed; run: cargo xtask setup --torch-npu {0}\n\
             (or name a folder that has it in MEMSCOPE_TORCH_NPU)",
            pin.version
        );
    }
    Ok(pin.folder())
}

/// What the wheel of PyTorch in these packages asks for, as it says it.
pub fn requirements(packages: &Path) -> Result<Vec<String>> {
    for entry in
        fs::read_dir(packages).with_context(|| format!("cannot read {}", packages.display()))?
    {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("torch-") || !name.ends_with(".dist-info") {
            continue;
        }
        let file = folder.join("METADATA");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("Requires-Dist: "));
        return Ok(lines.map(str::to_owned).collect());
    }
    bail!("{} has no torch", packages.display())
}

/// The folder of an environment that its packages are in.
pub fn site_packages(environment: &Path) -> Result<PathBuf> {
    let library = environment.join("lib");
    let entries =
        fs::read_dir(&library).with_context(|| format!("cannot read {}", library.display()))?;
    for entry in entries {
        let folder = entry?.path().join("site-packages");
        if folder.is_dir() {
            return Ok(folder);
        }
    }
    bail!("{} has no site-packages", environment.display())
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
