//! A program that setup looks for. It counts as found if it is there, starts, and reports a version that is new enough;
//! else it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::{apt, refresh};
use super::mode::Mode;
use crate::process;

/// Major and minor number of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// The first version in what a program prints about itself, such as `gcc (Debian 12.2.0-14) 12.2.0`.
    pub fn in_words(words: &str) -> Option<Version> {
        let parts = words.split(|c: char| c.is_whitespace() || c == '(' || c == ')');
        parts
            .filter_map(|part| {
                // As in `v18.20.4` and `go1.19.8`.
                let part = part.trim_start_matches(|c: char| c.is_ascii_alphabetic());
                let mut numbers = part.split(['.', '-', '+']);
                let major = numbers.next()?.parse().ok()?;
                // As in tmux's `3.3a`.
                let minor = numbers
                    .next()?
                    .trim_end_matches(|c: char| c.is_ascii_lowercase());
                let version = Version(major, minor.parse().ok()?);
                Some(version)
            })
            .next()
    }
}

/// A program, what it is needed for, and where it comes from.
pub struct Tool {
    /// Name of the program for people.
    pub name: &'static str,
    /// What it is needed for, as a sentence that begins with "it".
    pub why: &'static str,
    /// Its names on PATH; the first that is good enough is used.
    pub programs: &'static [&'static str],
    /// Arguments that make it print its version.
    pub ask: &'static [&'static str],
    /// Oldest version that is good enough.
    pub least: Version,
    /// Debian's packages that contain it.
    pub packages: &'static [&'static str],
}

/// A program that is good enough.
pub struct Found {
    /// Path of the program.
    pub program: PathBuf,
    /// What the program prints about its version.
    pub version: String,
}

impl Tool {
    /// Makes sure that the program is there. False: it is missing (only with [`Mode::Check`]).
    pub fn ensure(&self, mode: Mode) -> Result<bool> {
        provide(
            self.name,
            self.why,
            mode,
            || self.find(),
            || apt(self.packages),
        )
    }

    fn find(&self) -> Result<Found, String> {
        let mut refused = Vec::new();
        for program in self
            .programs
            .iter()
            .filter_map(|name| process::find_program(name))
        {
            match found(program, self.ask, self.least) {
                Ok(found) => return Ok(found),
                Err(why) => refused.push(why),
            }
        }
        if refused.is_empty() {
            refused.push(format!("{} is not on PATH", self.programs.join(", ")));
        }
        Err(refused.join("; "))
    }
}

/// The program, if it reports at least this version; else the reason why it is not good enough.
pub fn found(program: PathBuf, ask: &[&str], least: Version) -> Result<Found, String> {
    let place = program.display();
    let words = said(&program, ask).ok_or_else(|| format!("{place} does not start"))?;
    let version = Version::in_words(&words)
        .ok_or_else(|| format!("{place} does not say its version, but: {words}"))?;
    if version < least {
        return Err(format!("{place} is too old: {words}; {least} is needed"));
    }
    Ok(Found {
        version: words,
        program,
    })
}

/// The first line that a program prints, if it succeeds.
pub fn said(program: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim().to_owned();
    output.status.success().then_some(line)
}

/// Looks for a thing, and installs it or reports that it is missing (then it returns false). After an installation the
/// thing is looked for again. If it is not new enough, it is installed once more from fresh package lists, because
/// lists that are out of date have old versions.
pub fn provide(
    name: &str,
    why: &str,
    mode: Mode,
    find: impl Fn() -> Result<Found, String>,
    install: impl Fn() -> Result<()>,
) -> Result<bool> {
    provide_refreshing(name, why, mode, find, install, refresh)
}

/// The same, where `refresh` fetches the package lists.
fn provide_refreshing(
    name: &str,
    why: &str,
    mode: Mode,
    find: impl Fn() -> Result<Found, String>,
    install: impl Fn() -> Result<()>,
    refresh: impl Fn() -> Result<()>,
) -> Result<bool> {
    let say = |how: &str, found: &Found| {
        eprintln!(
            "{name}: {how}, {} ({})",
            found.program.display(),
            found.version
        );
    };
    let missing = match find() {
        Ok(found) => {
            say("found", &found);
            return Ok(true);
        }
        Err(missing) => missing,
    };
    if mode == Mode::Check {
        eprintln!("{name}: missing; {why} ({missing})");
        return Ok(false);
    }
    eprintln!("{name}: missing, installing; {why} ({missing})");
    install().with_context(|| format!("cannot install: {name}"))?;
    let found = find().or_else(|missing| {
        eprintln!("{name}: {missing}; trying again with fresh package lists");
        refresh()?;
        install().with_context(|| format!("cannot install: {name}"))?;
        find().or_else(|missing| bail!("{name} was installed, but: {missing}"))
    })?;
    say("installed", &found);
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (words, version) in [
            ("cc (Debian 12.2.0-14+deb12u1) 12.2.0", Version(12, 2)),
            ("Debian clang version 14.0.6", Version(14, 0)),
            ("v18.20.4", Version(18, 20)),
            ("Chromium 140.0.7339.80 built on Debian", Version(140, 0)),
            ("debootstrap 1.0.128+nmu2+deb12u2", Version(1, 0)),
            ("bpf-linker 0.13.0", Version(0, 13)),
            ("systemd 252 (252.38-1~deb12u1)", Version(252, 38)),
            ("go version go1.19.8 linux/amd64", Version(1, 19)),
            ("libprotoc 3.21.12", Version(3, 21)),
            ("protoc-gen-go v1.28.1", Version(1, 28)),
            ("tmux 3.3a", Version(3, 3)),
            ("9.2.0", Version(9, 2)),
        ] {
            assert_eq!(Version::in_words(words), Some(version), "{words}");
        }
        assert_eq!(Version::in_words("no version here, 12"), None);
        assert!(Version(1, 85) < Version(1, 95) && Version(2, 0) > Version(1, 95));
    }

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_program_is_asked_before_it_is_believed() {
        let check = |text: &str| {
            let (_folder, path) = script(text);
            found(path, &["--version"], Version(1, 95)).map(|found| found.version)
        };
        assert_eq!(check("echo tool 1.95.0"), Ok("tool 1.95.0".to_owned()));
        assert!(check("echo tool 1.85.0").is_err_and(|why| why.contains("too old: tool 1.85.0")));
        assert!(check("echo tool").is_err_and(|why| why.contains("does not say its version")));
        assert!(check("echo tool 1.95.0; exit 1").is_err_and(|why| why.contains("does not start")));
    }

    #[test]
    fn what_is_missing_is_reported_and_not_installed_by_a_check() {
        let installed = Cell::new(false);
        let find = || Err("it is not there".to_owned());
        let install = || {
            installed.set(true);
            Ok(())
        };
        assert!(!provide("tool", "it helps", Mode::Check, find, install).unwrap());
        assert!(!installed.get());
    }

    /// What lists that are out of date install is asked for its version like anything else: lists are fetched once, then it is installed
    /// again, and what is too old even then is an error that says so.
    #[test]
    fn what_is_installed_too_old_is_installed_again_from_fresh_lists() {
        let provided = |newest: Version| {
            let steps = std::cell::RefCell::new(Vec::new());
            let (version, candidate) = (Cell::new(None), Cell::new(Version(1, 85)));
            let find = || match version.get() {
                None => Err("it is not there".to_owned()),
                Some(Version(_, minor)) => {
                    let (_folder, path) = script(&format!("echo tool 1.{minor}.0"));
                    found(path, &["--version"], Version(1, 95))
                }
            };
            let install = || {
                steps.borrow_mut().push("install");
                version.set(Some(candidate.get()));
                Ok(())
            };
            let refresh = || {
                steps.borrow_mut().push("refresh");
                candidate.set(newest);
                Ok(())
            };
            let done =
                provide_refreshing("tool", "it helps", Mode::Install, find, install, refresh);
            (done, steps.into_inner())
        };
        let order = ["install", "refresh", "install"];
        let (done, steps) = provided(Version(1, 95));
        assert!(done.unwrap());
        assert_eq!(steps, order);
        let (done, steps) = provided(Version(1, 90));
        let why = done.unwrap_err().to_string();
        assert!(why.starts_with("tool was installed, but: "), "{why}");
        assert!(why.contains("too old: tool 1.90.0"), "{why}");
        assert_eq!(steps, order);
    }
}
