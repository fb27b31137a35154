//! Debian's packages for any architecture and release: fetched and unpacked, not installed. apt gets lists and a cache
//! of its own below `target`, so nothing of the system changes and nobody needs to be root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::roots::root;

/// The keys with which Debian signs its releases.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with lists and a cache of its own.
pub struct Packages {
    folder: PathBuf,
    /// Debian's name of the architecture.
    architecture: &'static str,
    /// Whether a list of package sources is beside the others; else this machine's sources are used.
    own_sources: bool,
}

impl Packages {
    /// Prepares apt's lists, cache and files below `folder`. With a suite (`bookworm`), packages come from it alone, from
    /// the mirror that this machine uses; without one, from this machine's own sources.
    pub fn new(folder: &Path, architecture: &'static str, suite: Option<&str>) -> Result<Packages> {
        for part in ["state/lists/partial", "cache/archives/partial", "files"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
        }
        // For this apt, no package is installed.
        fs::write(folder.join("state/status"), "")?;
        if let Some(suite) = suite {
            let mirror = root::mirror();
            let line = format!("deb [signed-by={KEYS}] {mirror} {suite} main\n");
            fs::write(folder.join("sources.list"), line)?;
        }
        Ok(Packages {
            folder: folder.to_owned(),
            architecture,
            own_sources: suite.is_some(),
        })
    }

    fn apt(&self, program: &str) -> Result<Command> {
        if process::find_program(program).is_none() {
            bail!("this system has no {program}; Debian's packages are fetched with it");
        }
        let mut command = process::command(program);
        let state = self.folder.join("state");
        for option in [
            format!("Dir::State={}", state.display()),
            format!("Dir::State::status={}", state.join("status").display()),
            format!("Dir::Cache={}", self.folder.join("cache").display()),
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures::={}", self.architecture),
            "APT::Sandbox::User=".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        if self.own_sources {
            let list = self.folder.join("sources.list");
            let list = format!("Dir::Etc::sourcelist={}", list.display());
            command.args(["-o", &list, "-o", "Dir::Etc::sourceparts=-"]);
        }
        command.arg("-q").current_dir(self.folder.join("files"));
        Ok(command)
    }

    /// Updates apt's package lists.
    pub fn update(&self) -> Result<()> {
        process::run(self.apt("apt-get")?.arg("update"))
    }

    /// Names of the packages that `package` depends on, of those that begin with `like`.
    pub fn depends(&self, package: &str, like: &str) -> Result<Vec<String>> {
        let text = process::output(self.apt("apt-cache")?.args(["depends", package]))?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .map(|name| name.split(':').next().unwrap_or(name).to_owned())
            .filter(|name| name.starts_with(like))
            .collect())
    }

    /// Fetches these packages (`name` or `name=version`) and unpacks them into a folder.
    pub fn unpack(&self, packages: &[&str], into: &Path) -> Result<()> {
        let files = self.folder.join("files");
        clear(&files)?;
        process::run(self.apt("apt-get")?.arg("download").args(packages))?;
        unpack_all(&files, into)
    }

    /// The same, with all packages that they depend on.
    pub fn unpack_with_all(&self, packages: &[&str], into: &Path) -> Result<()> {
        let files = self.folder.join("cache/archives");
        clear(&files)?;
        process::run(
            self.apt("apt-get")?
                .args(["install", "--yes", "--download-only"])
                .args(packages),
        )?;
        unpack_all(&files, into)
    }
}

fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb")
}

fn clear(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if is_package(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn unpack_all(files: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut some = false;
    for entry in fs::read_dir(files)? {
        let path = entry?.path();
        if is_package(&path) {
            some = true;
            process::output(Command::new("dpkg-deb").arg("-x").arg(&path).arg(into))?;
            fs::remove_file(&path)?;
        }
    }
    if !some {
        bail!("apt fetched nothing into {}", files.display());
    }
    Ok(())
}
