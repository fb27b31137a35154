//! The .rpm: Debian's rpm reads it, installs it into a root and takes it out again. There is no distribution of its kind here, so what
//! it requires is listed and not resolved.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::container::text;
use super::trial::{Trial, found};
use crate::{process, roots};

/// Tries the package in a root of this release.
pub fn try_in(release: &str, trial: &Trial) -> Result<()> {
    let first = trial.package(1, "rpm")?;
    let second = trial.package(2, "rpm")?;
    let root = trial.folder.join("rpm-root");
    roots::make(release, &root, &[])?;
    let before = files(&root)?;
    rpm(&root, &["--install", text(&first)?])?;
    let said = process::output(roots::inside(&root, "/usr/bin/memscoped").arg("--check-config"))?;
    found("rpm", &format!("installed: {}", said.trim()));
    let groups = std::fs::read_to_string(root.join("etc/group")).context("no groups")?;
    if !groups.lines().any(|line| line.starts_with("memscope:")) {
        bail!("the package made no group");
    }
    rpm(&root, &["--upgrade", text(&second)?])?;
    let version = process::output(
        Command::new("rpm")
            .arg("--root")
            .arg(&root)
            .args(["--query", "memscope"]),
    )?;
    found("rpm", &format!("upgraded: {}", version.trim()));
    rpm(&root, &["--erase", "memscope"])?;
    let left: Vec<String> = files(&root)?
        .difference(&before)
        .filter(|path| path.contains("memscope"))
        .cloned()
        .collect();
    if !left.is_empty() {
        bail!("the removal leaves: {left:?}");
    }
    found("rpm", "removed: no file is left");
    roots::remove(&root)
}

/// rpm on another root, whose own packages it does not know.
fn rpm(root: &Path, words: &[&str]) -> Result<()> {
    process::output(
        Command::new("rpm")
            .arg("--root")
            .arg(root)
            .arg("--nodeps")
            .args(words),
    )
    .map(drop)
}

fn files(root: &Path) -> Result<BTreeSet<String>> {
    let text = process::output(Command::new("find").arg(root).arg("-xdev"))?;
    Ok(text.lines().map(str::to_owned).collect())
}
