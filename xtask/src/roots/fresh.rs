//! `cargo xtask fresh`: runs README's two commands as a new user does, on a machine that has nothing: a root of a
//! Debian
//! release with a Rust toolchain and git. Packages, crates and wheels come from their registries; nothing else is
//! brought in.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use super::root;
use crate::process;
use crate::setup::mode::Mode;
use crate::setup::toolchain;

/// Where to try it.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only on this release of Debian; may be given again
    #[arg(long, value_name = "RELEASE")]
    pub release: Vec<String>,

    /// Only with package lists of this kind
    #[arg(long, value_enum, value_name = "KIND")]
    pub lists: Option<Lists>,

    /// Only README's commands that contain this word, such as `demo`
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,
}

/// What a machine knows of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lists {
    /// Nothing, as in a container.
    None,
    /// Versions that are no longer there, as on a machine that was set up a year ago.
    Stale,
}

/// Releases of Debian in which the commands are run.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// Recipe of a root. It must change whenever the content of a root changes.
const RECIPE: &str = "debootstrap minbase; git, ca-certificates, gcc, libc6-dev; sources as the installer writes them; 2";
/// Packages that README asks for.
const NEEDED: [&str; 4] = ["git", "ca-certificates", "gcc", "libc6-dev"];
/// Paths in the root at which the checkout's repository and the Rust toolchain are mounted.
const REPOSITORY: &str = "/mnt/repository";
const RUST: &str = "/mnt/rust";
/// Path of the clone in the root.
const CLONE: &str = "/root/memscope";
/// Prefixes of the environment variables that say how registries are reached.
const SETTINGS: [&str; 5] = [
    "PIP_",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
];

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("other roots are made and entered by root only: sudo cargo xtask fresh");
    }
    toolchain::ensure_debootstrap(Mode::Install)?;
    let commands: Vec<String> = commands(&fs::read_to_string(process::root().join("README.md"))?)
        .into_iter()
        .filter(|command| {
            options
                .only
                .as_ref()
                .is_none_or(|word| command.contains(word))
        })
        .collect();
    if commands.is_empty() {
        bail!("README has no such command");
    }
    let releases = match options.release.as_slice() {
        [] => RELEASES.map(str::to_owned).to_vec(),
        named => named.to_vec(),
    };
    let mut table =
        "| release | package lists | command | seconds | of these |\n|---|---|---|---|---|\n"
            .to_owned();
    for release in releases {
        for lists in [Lists::None, Lists::Stale] {
            if options.lists.is_some_and(|only| only != lists) {
                continue;
            }
            let place = place(&release, lists)?;
            for command in &commands {
                let (took, phases) = walk(&place, command)
                    .with_context(|| format!("in {release} with package lists: {lists:?}"))?;
                let seconds = took.as_secs();
                table +=
                    &format!("| {release} | {lists:?} | `{command}` | {seconds} | {phases} |\n");
            }
            root::remove(&place)?;
        }
    }
    println!("{table}");
    Ok(())
}

/// The cargo commands in README's first code block.
fn commands(readme: &str) -> Vec<String> {
    let lines = readme
        .lines()
        .skip_while(|line| !line.starts_with("```"))
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with("```"));
    lines
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|command| command.starts_with("cargo "))
        .collect()
}

/// Makes a fresh root with a clone in it.
fn place(release: &str, lists: Lists) -> Result<PathBuf> {
    let folder = process::target().join("fresh");
    let base = folder.join(format!("base-{release}"));
    if root::finished(&base, RECIPE).is_none() {
        root::make(release, &base, &NEEDED)?;
        root::write_sources(release, &base)?;
        root::finish(&base, RECIPE, "")?;
    }
    let place = folder.join(release);
    root::remove(&place)?;
    process::run(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(&base)
            .arg(&place),
    )?;
    let settings: String = root::apt_settings()
        .iter()
        .filter_map(|setting| {
            let (name, value) = setting.split_once('=')?;
            Some(format!("{name} \"{value}\";\n"))
        })
        .collect();
    fs::write(place.join("etc/apt/apt.conf.d/99reach"), settings)?;
    for path in ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"]
        .into_iter()
        .map(PathBuf::from)
        .chain(named_files())
    {
        copy(&path, &place)?;
    }
    let lists_of = place.join("var/lib/apt/lists");
    match lists {
        Lists::None => {
            fs::remove_dir_all(&lists_of)?;
            fs::create_dir_all(lists_of.join("partial"))?;
        }
        Lists::Stale => {
            process::run(inside(&place, "apt-get -q update")?.current_dir("/"))?;
            for entry in fs::read_dir(&lists_of)? {
                make_stale(&entry?.path())?;
            }
        }
    }
    process::run(&mut inside(
        &place,
        &format!("git clone -q {REPOSITORY} {CLONE}"),
    )?)?;
    Ok(place)
}

/// Files that these variables name, such as certificates.
fn named_files() -> impl Iterator<Item = PathBuf> {
    settings()
        .map(|(_, value)| PathBuf::from(value))
        .filter(|path| path.is_absolute() && path.is_file())
}

/// The environment variables of this machine that say how registries are reached.
fn settings() -> impl Iterator<Item = (String, String)> {
    std::env::vars().filter(|(name, _)| {
        SETTINGS.iter().any(|setting| name.starts_with(setting))
            || name.to_lowercase().ends_with("_proxy")
    })
}

fn copy(path: &Path, root: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let to = root.join(path.strip_prefix("/").unwrap_or(path));
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    fs::copy(path, &to)
        .with_context(|| format!("cannot copy {} to {}", path.display(), to.display()))?;
    Ok(())
}

/// Makes a list name files that are gone, as a list that is a year old does. The index of all lists gets other
/// checksums and an old date, too: by these checksums apt knows whether a list is the one that it would fetch.
fn make_stale(list: &Path) -> Result<()> {
    let name = list.to_string_lossy();
    let cannot = |what: &str| format!("cannot {what} {}", list.display());
    let change: fn(&str) -> String = if name.ends_with("_Packages") {
        |text| text.replace("\nFilename: pool/", "\nFilename: pool/gone/")
    } else if name.ends_with("_InRelease") {
        other_sums
    } else {
        return Ok(());
    };
    let text = fs::read_to_string(list).with_context(|| cannot("read"))?;
    fs::write(list, change(&text)).with_context(|| cannot("write"))?;
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_420_070_400);
    fs::File::options()
        .write(true)
        .open(list)
        .and_then(|file| file.set_modified(long_ago))
        .with_context(|| cannot("write"))
}

/// The index with another checksum for each list.
fn other_sums(index: &str) -> String {
    let mut text = String::with_capacity(index.len());
    for line in index.lines() {
        let sum = line.trim_start().split(' ').next().unwrap_or_default();
        let is_sum = sum.len() >= 32 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        if line.starts_with(' ') && is_sum {
            let other: String = sum.chars().rev().collect();
            text += &line.replace(sum, &other);
        } else {
            text += line;
        }
        text.push('\n');
    }
    text
}

/// Runs a command in the clone; returns how long it took, and what it says at its end of its phases.
fn walk(place: &Path, command: &str) -> Result<(Duration, String)> {
    eprintln!("fresh: {} $ {command}", place.display());
    let began = Instant::now();
    let mut running = inside(place, &format!("cd {CLONE} && {command}"))?;
    let child = running.stdout(Stdio::piped()).spawn();
    let mut child = child.context("unshare could not be started")?;
    let mut phases = String::new();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        // Standard output is for the table.
        eprintln!("{line}");
        if let Some(told) = line.strip_prefix("Took: ") {
            phases = told.trim_end_matches('.').to_owned();
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command}: {status}");
    Ok((began.elapsed(), phases))
}

/// A command that runs a line of shell in the root. The system's own file systems, the toolchain and the repository are
/// mounted there, in a separate mount namespace, so that nothing stays mounted. The root itself is a mount point, as on
/// any machine, because tests make namespaces themselves.
fn inside(place: &Path, line: &str) -> Result<Command> {
    let rust = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let script = "set -e
        mount --make-rprivate /
        mount --rbind \"$1\" \"$1\"
        mount -t proc proc \"$1/proc\"
        mount --rbind /sys \"$1/sys\"
        mount --rbind /dev \"$1/dev\"
        mkdir -p \"$1$4\" \"$1$5\"
        mount --bind -o ro \"$2\" \"$1$4\"
        mount --bind -o ro \"$3\" \"$1$5\"
        exec chroot \"$1\" /bin/sh -c \"$6\"";
    let mut command = process::command("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(place).arg(rust.trim()).arg(process::root());
    command.args([RUST, REPOSITORY, line]);
    command.env_clear().envs(settings());
    let path = format!("{RUST}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command
        .env("PATH", path)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8");
    Ok(command)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn readmes_commands() {
        let text = fs::read_to_string(process::root().join("README.md")).unwrap();
        assert_eq!(commands(&text), ["cargo xtask demo", "cargo xtask test"]);
    }
}
