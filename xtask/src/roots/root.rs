//! Roots of Debian releases, below `target`: made with debootstrap, entered with chroot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// File that says that a root is complete, and by which recipe it was made.
const MARKER: &str = "memscope-complete";

/// The text that [`finish`] left in a root, if the root is complete and was made by this recipe.
pub fn finished(root: &Path, recipe: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(MARKER)).ok()?;
    let (made_by, rest) = text.split_once('\n')?;
    (made_by == recipe).then(|| rest.to_owned())
}

/// Marks a root as complete. This is the last step of making it.
pub fn finish(root: &Path, recipe: &str, rest: &str) -> Result<()> {
    let marker = root.join(MARKER);
    fs::write(&marker, format!("{recipe}\n{rest}\n"))
        .with_context(|| format!("cannot write {}", marker.display()))
}

/// Makes a root with the minimal system of a release and these packages. What an earlier attempt left behind in the
/// folder is removed.
pub fn make(release: &str, root: &Path, include: &[&str]) -> Result<()> {
    remove(root)?;
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    let mut command = process::command("debootstrap");
    command.arg("--variant=minbase");
    if !include.is_empty() {
        command.arg(format!("--include={}", include.join(",")));
    }
    command.arg(release).arg(root);
    process::run(command.arg(mirror()))
}

/// Removes a root, after everything that is mounted in it is unmounted.
pub fn remove(root: &Path) -> Result<()> {
    if root.exists() {
        unmount_below(root)?;
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    Ok(())
}

/// Unmounts everything below a root. debootstrap mounts `/proc` and more there while it works, and leaves that behind
/// when it is killed. An error if something stays mounted, so that nothing of it is removed.
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

/// The mount points: the fifth field of each line. The kernel writes a space as `\040`.
fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .collect()
}

/// A command that runs a program in another root.
pub fn inside(root: &Path, program: &str) -> Command {
    let mut command = process::command("chroot");
    command.arg(root).arg(program);
    command
}

/// apt-get in another root. It reaches package sources in the same way as this machine.
pub fn apt_get(root: &Path) -> Command {
    let mut command = inside(root, "apt-get");
    command
        .arg("-q")
        .args(apt_settings().iter().map(|setting| format!("-o{setting}")));
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Writes the package sources that Debian's own installer writes. debootstrap writes only the first of them, and
/// compilers that are newer than the release come with the last.
pub fn write_sources(release: &str, root: &Path) -> Result<()> {
    let main = mirror();
    let security = sites()
        .into_iter()
        .find(|site| site.contains("security"))
        .unwrap_or_else(|| "http://deb.debian.org/debian-security".to_owned());
    let path = root.join("etc/apt/sources.list");
    let text = format!(
        "deb {main} {release} main\ndeb {main} {release}-updates main\ndeb {security} {release}-security main\n"
    );
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The address from which this machine gets Debian's packages; Debian's own where it gets none.
pub fn mirror() -> String {
    sites()
        .into_iter()
        .find(|site| !site.contains("security"))
        .unwrap_or_else(|| "http://deb.debian.org/debian".to_owned())
}

/// The addresses of Debian's packages in the package sources of this machine.
fn sites() -> Vec<String> {
    let targets = process::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI) $(COMPONENT)",
        "Created-By: Packages",
    ]));
    targets
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix("Debian ")?.strip_suffix(" main"))
        .map(str::to_owned)
        .collect()
}

/// apt's settings for reaching package sources as this machine does: proxies, and whether lists may be old (those of a
/// frozen mirror are).
pub fn apt_settings() -> Vec<String> {
    let dump = process::output(Command::new("apt-config").args([
        "dump",
        "--no-empty",
        "--format",
        "%F=%v%n",
        "Acquire",
    ]))
    .unwrap_or_default();
    let mut settings = vec!["Acquire::Retries=3".to_owned()];
    settings.extend(
        dump.lines()
            .filter(|line| line.starts_with("Acquire::Check-") || line.contains("::Proxy"))
            .map(str::to_owned),
    );
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_mounts() {
        let text =
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 0:4 / /a\\040b/proc rw - proc proc rw\n";
        let expected = ["/", "/a b/proc"].map(PathBuf::from);
        assert_eq!(mount_points(text), expected);
    }
}
