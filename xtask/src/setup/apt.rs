//! Packages of Debian and its relatives.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// Installs packages of Debian or a relative of it.
pub fn apt(packages: &[&str]) -> Result<()> {
    let by_hand = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    if process::find_program("apt-get").is_none() {
        bail!(
            "this system has no apt-get; install what corresponds to Debian's {}",
            packages.join(", ")
        );
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("installing packages needs root; run: sudo {by_hand}");
    }
    // Fresh machines and containers have no package lists.
    if !known(packages) {
        process::run(&mut apt_get(&["update"]))?;
    }
    if !known(packages) {
        bail!(
            "this system's package sources do not have all of: {}",
            packages.join(", ")
        );
    }
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(packages);
    if let Err(error) = process::run(&mut apt_get(&words)) {
        // Lists that are out of date name files that are gone.
        eprintln!("setup: {error:#}; trying again with fresh package lists");
        process::run(&mut apt_get(&["update"]))?;
        process::run(&mut apt_get(&words)).with_context(|| format!("by hand: {by_hand}"))?;
    }
    Ok(())
}

fn apt_get(words: &[&str]) -> Command {
    let mut command = process::command("apt-get");
    command
        .args([
            "-q",
            "-o",
            "Acquire::Retries=3",
            "-o",
            "DPkg::Lock::Timeout=120",
        ])
        .args(words);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether the package lists have a version of each.
fn known(packages: &[&str]) -> bool {
    packages.iter().all(|package| {
        let policy = process::output(
            Command::new("apt-cache")
                .args(["policy", package])
                .env("LC_ALL", "C"),
        );
        policy.is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
    })
}

/// Fetches the package lists again, which needs apt-get and root.
pub fn refresh() -> Result<()> {
    process::run(&mut apt_get(&["update"]))
}
