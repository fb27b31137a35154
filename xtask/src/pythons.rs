//! `cargo xtask pythons`: CPython of several Debian releases, each in a root of its own below `target/pythons`, and the tests that
//! compare what memscope sees of them with what they say of themselves.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::setup::Mode;
use crate::{process, toolchain};

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

/// Releases of Debian, and why: 3.9; 3.13, the first that describes itself; its default version and the newest.
const RELEASES: &[&str] = &["bullseye", "trixie", "sid"];
/// Changes when what is in a root changes.
const RECIPE: &str = "debootstrap minbase; python3, newest python3.N, their libraries; 1";
/// Says that a root is complete, by which recipe, and which versions it has.
const MARKER: &str = "memscope-complete";

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // SAFETY: no arguments, no memory.
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
    process::run(process::command("cargo").args([
        "build",
        "--locked",
        "-p",
        "memscope-daemon",
        "-p",
        "memscope-ctl",
    ]))?;
    // From outside, as the daemon reads a process; then through the walk in the kernel.
    for (package, test) in [
        ("memscope-python", "chroots"),
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

/// Makes sure that there is a root with this release; says which versions of Python are in it.
fn ensure(release: &str, root: &Path) -> Result<Vec<String>> {
    let marker = root.join(MARKER);
    if let Ok(text) = fs::read_to_string(&marker)
        && let Some((recipe, versions)) = text.split_once('\n')
        && recipe == RECIPE
    {
        return Ok(versions.split_whitespace().map(str::to_owned).collect());
    }
    // What an attempt left behind that did not come to its end.
    if root.exists() {
        unmount_below(root)?;
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    let mut command = process::command("debootstrap");
    command
        .args(["--variant=minbase", "--include=python3", release])
        .arg(root);
    if let Some(mirror) = mirror() {
        command.arg(mirror);
    }
    process::run(&mut command)?;
    let default = process::output(
        inside(root, "python3").args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]),
    )?;
    let mut versions = vec![default.trim().to_owned()];
    let settings = apt_settings();
    let apt_get = || {
        let mut command = inside(root, "apt-get");
        command.arg("-q").args(&settings);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    process::run(apt_get().arg("update"))?;
    let newest = newest(&process::output(
        inside(root, "apt-cache").args(["pkgnames", "python3."]),
    )?);
    versions.extend(newest.filter(|version| !versions.contains(version)));
    let packages = versions
        .iter()
        .flat_map(|version| [format!("python{version}"), format!("libpython{version}")]);
    process::run(
        apt_get()
            .args(["--yes", "install", "--no-install-recommends"])
            .args(packages),
    )?;
    fs::write(&marker, format!("{RECIPE}\n{}\n", versions.join(" ")))
        .with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(versions)
}

/// debootstrap mounts `/proc` and more in its root while it works, and leaves that behind when it is killed. Nothing is
/// removed before that is gone.
fn unmount_below(root: &Path) -> Result<()> {
    let root = fs::canonicalize(root)?;
    let mounts = || -> Result<Vec<PathBuf>> {
        let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        Ok(mount_points(&text)
            .into_iter()
            .filter(|point| point.starts_with(&root))
            .collect())
    };
    for point in mounts()?.iter().rev() {
        process::run(process::command("umount").arg(point))?;
    }
    if let Some(point) = mounts()?.first() {
        bail!("{} is mounted; unmount it first", point.display());
    }
    Ok(())
}

/// The fifth field of each line; the kernel writes spaces and the like as `\040`.
fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .collect()
}

/// A command in another root.
fn inside(root: &Path, program: &str) -> std::process::Command {
    let mut command = process::command("chroot");
    command.arg(root).arg(program);
    command
}

/// The newest version among names of packages.
fn newest(names: &str) -> Option<String> {
    names
        .split_whitespace()
        .filter_map(|name| name.strip_prefix("python3.")?.parse().ok())
        .max()
        .map(|minor: u32| format!("3.{minor}"))
}

/// Where this machine gets Debian's packages from, if it is one that does; otherwise debootstrap knows a place.
fn mirror() -> Option<String> {
    let targets = process::output(std::process::Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI) $(COMPONENT)",
        "Created-By: Packages",
    ]))
    .ok()?;
    targets
        .lines()
        .filter_map(|line| line.strip_prefix("Debian ")?.strip_suffix(" main"))
        .find(|site| !site.contains("security"))
        .map(str::to_owned)
}

/// How this machine reaches package sources: proxies, and whether lists may be old (a frozen mirror's are).
fn apt_settings() -> Vec<String> {
    let dump = process::output(std::process::Command::new("apt-config").args([
        "dump",
        "--no-empty",
        "--format",
        "%F=%v%n",
        "Acquire",
    ]))
    .unwrap_or_default();
    let mut settings = vec!["-oAcquire::Retries=3".to_owned()];
    settings.extend(
        dump.lines()
            .filter(|line| line.starts_with("Acquire::Check-") || line.contains("::Proxy"))
            .map(|line| format!("-o{line}")),
    );
    settings
}

#[cfg(test)]
mod unit {
    use std::path::PathBuf;

    use super::{mount_points, newest};

    #[test]
    fn points_of_mounts() {
        let text =
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 0:4 / /a\\040b/proc rw - proc proc rw\n";
        let expected = ["/", "/a b/proc"].map(PathBuf::from);
        assert_eq!(mount_points(text), expected);
    }

    #[test]
    fn the_newest_by_number() {
        let names = "python3.9\npython3.15\npython3.13-dev\npython3.2to3\npython3.10\n";
        assert_eq!(newest(names).as_deref(), Some("3.15"));
        assert_eq!(newest("python3-minimal"), None);
    }
}
