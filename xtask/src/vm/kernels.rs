//! Debian's kernels: each is the one of a suite, fetched when it is first asked for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::architecture::Architecture;
use crate::debian::Packages;

/// The suites whose kernels are booted, from the oldest kernel to the newest.
pub const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "trixie-backports"];

/// The suite's kernel, which lies in `folder` or is fetched into it.
pub fn of(suite: &str, architecture: &Architecture, folder: &Path) -> Result<PathBuf> {
    let folder = folder.join(suite);
    let kernel = folder.join("vmlinuz");
    if kernel.is_file() {
        return Ok(kernel);
    }
    let packages = Packages::new(&folder.join("apt"), architecture.debian, Some(suite))?;
    packages.update()?;
    // The first package only depends on the current kernel's; newer kernels are in a package that this one depends on.
    let meta = format!("linux-image-{}", architecture.debian);
    let image = packages
        .depends(&meta, "linux-image-")?
        .into_iter()
        .next()
        .with_context(|| format!("{meta} of {suite} names no kernel"))?;
    let binary = packages.depends(&image, "linux-binary-")?;
    let package = binary.first().unwrap_or(&image);
    let unpacked = folder.join("unpacked");
    packages.unpack(&[package], &unpacked)?;
    let release = image.trim_start_matches("linux-image-");
    let old = unpacked.join(format!("boot/vmlinuz-{release}"));
    let new = unpacked.join(format!("usr/lib/modules/{release}/vmlinuz"));
    let found = if old.exists() { old } else { new };
    fs::rename(&found, &kernel).with_context(|| format!("no kernel is in {package} of {suite}"))?;
    // Modules are the largest part of it, and the machine needs none.
    fs::remove_dir_all(&unpacked)?;
    fs::remove_dir_all(folder.join("apt"))?;
    Ok(kernel)
}
