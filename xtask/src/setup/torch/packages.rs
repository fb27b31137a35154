//! The packages of a virtual environment, and the requirements of PyTorch's wheel among them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The requirements of PyTorch's wheel in these packages, as its metadata has them.
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

/// The folder in which an environment's packages are.
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
