//! `cargo xtask pythons`: makes roots below `target/pythons` with CPython of several Debian releases, and runs the
//! tests
//! that compare what memscope reads of these interpreters with what they report themselves.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use super::root;
use crate::setup::mode::Mode;
use crate::setup::toolchain;
use crate::{live, process};

/// What to test with.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only make the roots
    #[arg(long)]
    pub setup: bool,

    /// Test these interpreters of this machine, too
    #[arg(long, value_name = "PROGRAM", num_args = 1..)]
    pub also: Vec<PathBuf>,
}

/// Releases of Debian, chosen by their CPython: 3.9; 3.13, the first that describes its own structures; and for `sid`
/// its default version and the newest.
const RELEASES: &[&str] = &["bullseye", "trixie", "sid"];
/// Recipe of a root. It must change whenever the content of a root changes.
const RECIPE: &str = "debootstrap minbase; python3, newest python3.N, their libraries; 1";

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // SAFETY: geteuid takes no arguments and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        bail!("other roots are made and entered by root only: sudo cargo xtask pythons");
    }
    toolchain::ensure_debootstrap(Mode::Install)?;
    let mut pythons = Vec::new();
    for release in RELEASES {
        let root = process::target().join("pythons").join(release);
        for version in ensure(release, &root)? {
            pythons.push(serde_json::json!({
                "root": root,
                "program": format!("/usr/bin/python{version}"),
            }));
        }
    }
    for program in &options.also {
        pythons.push(serde_json::json!({"root": null, "program": program}));
    }
    let list = serde_json::Value::from(pythons).to_string();
    eprintln!("pythons: {list}");
    if options.setup {
        return Ok(());
    }
    live::programs(live::Build::Checked)?;
    // The first tests read the interpreters and their objects from outside, as the daemon reads a process; the last use the walk in
    // the kernel.
    for (package, test) in [
        ("memscope-python", "chroots"),
        ("memscope-heap", "objects"),
        ("memscope-tests", "interpreters"),
    ] {
        process::run(
            process::command("cargo")
                .args(["test", "--locked", "-p", package, "--features", "pythons"])
                .args(["--test", test, "--no-fail-fast", "--", "--nocapture"])
                .env("MEMSCOPE_PYTHONS", &list),
        )?;
    }
    Ok(())
}

/// Makes a root with this release unless it is there; returns the versions of Python in it.
fn ensure(release: &str, root: &Path) -> Result<Vec<String>> {
    if let Some(versions) = root::finished(root, RECIPE) {
        return Ok(versions.split_whitespace().map(str::to_owned).collect());
    }
    root::make(release, root, &["python3"])?;
    let default = process::output(
        root::inside(root, "python3")
            .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]),
    )?;
    let mut versions = vec![default.trim().to_owned()];
    process::run(root::apt_get(root).arg("update"))?;
    let newest = newest(&process::output(
        root::inside(root, "apt-cache").args(["pkgnames", "python3."]),
    )?);
    versions.extend(newest.filter(|version| !versions.contains(version)));
    let packages = versions
        .iter()
        .flat_map(|version| [format!("python{version}"), format!("libpython{version}")]);
    process::run(
        root::apt_get(root)
            .args(["--yes", "install", "--no-install-recommends"])
            .args(packages),
    )?;
    root::finish(root, RECIPE, &versions.join(" "))?;
    Ok(versions)
}

/// The newest version of Python among names of packages.
fn newest(names: &str) -> Option<String> {
    names
        .split_whitespace()
        .filter_map(|name| name.strip_prefix("python3.")?.parse().ok())
        .max()
        .map(|minor: u32| format!("3.{minor}"))
}

#[cfg(test)]
mod unit {
    use super::newest;

    #[test]
    fn the_newest_by_number() {
        let names = "python3.9\npython3.15\npython3.13-dev\npython3.2to3\npython3.10\n";
        assert_eq!(newest(names).as_deref(), Some("3.15"));
        assert_eq!(newest("python3-minimal"), None);
    }
}
