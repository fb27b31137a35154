//! Virtual environments of Python: making one, and having pip install packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::mode::Mode;
use crate::process;

const PIP_INSTALL: [&str; 8] = [
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--retries=5",
    // Only a few of PyTorch's thousands of modules are imported, and those are compiled at that time.
    "--no-compile",
    // Some packages are missing on purpose, and a warning about them would look like a failure.
    "--no-warn-conflicts",
];

/// The command with which an environment's pip installs packages; the caller adds their names.
pub fn pip_install(environment: &Path) -> Command {
    let mut command = process::command(environment.join("bin/python"));
    command.args(PIP_INSTALL);
    command
}

/// Makes an empty environment in `folder`, in place of what is there.
pub fn make(folder: &Path, python: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    process::run(process::command(python).args(["-m", "venv"]).arg(folder)).context(
        "python3 cannot make virtual environments; on Debian: apt-get install python3-venv",
    )
}

/// Makes an environment in `folder` with what a file of requirements names.
pub fn make_with(folder: &Path, requirements: &Path) -> Result<()> {
    make(folder, Path::new("python3"))?;
    process::run(pip_install(folder).arg("-r").arg(requirements))
}

/// The command that puts what a file of requirements names into a folder that is no environment, for PYTHONPATH.
pub fn install_into(python: &Path, folder: &Path, requirements: &Path) -> Command {
    let mut command = pip_install(python);
    command
        .arg("--target")
        .arg(folder)
        .arg("-r")
        .arg(requirements);
    command
}

/// The interpreter of an environment, in a line: its version, and where it really is. An environment only refers to the system's Python, which
/// may be replaced by another one; what pip has installed is for the one that was there then.
fn interpreter(environment: &Path) -> Result<String> {
    let script = "import os, sys; \
                  print('python', '.'.join(map(str, sys.version_info[:3])), os.path.realpath(sys.executable))";
    process::output(Command::new(environment.join("bin/python")).args(["-I", "-c", script]))
}

/// The version of the interpreter with which an environment was made, as Python has written it down there.
fn made_with(environment: &Path) -> Option<String> {
    let text = fs::read_to_string(environment.join("pyvenv.cfg")).ok()?;
    let mut settings = text.lines().filter_map(|line| line.split_once('='));
    let version = settings.find(|(name, _)| name.trim() == "version");
    version.map(|(_, version)| version.trim().to_owned())
}

/// Whether an installation is complete: its marker names what is wanted, and the interpreter that `environment` still has.
pub fn is_complete(marker: &Path, wanted: &str, environment: &Path) -> bool {
    let said = fs::read_to_string(marker).unwrap_or_default();
    // The interpreter is started only where the rest is right.
    let Some(made_for) = said.strip_prefix(wanted) else {
        return false;
    };
    let Ok(now) = interpreter(environment) else {
        return false;
    };
    match made_for {
        // Markers did not always name it. Installing everything again only for that would take long.
        "" => made_with(environment)
            .is_some_and(|version| now.starts_with(&format!("python {version} "))),
        made_for => now == made_for,
    }
}

/// Marks an installation as complete. Without the marker, which is written last, it counts as interrupted.
pub fn mark_complete(marker: &Path, wanted: &str, environment: &Path) -> Result<()> {
    let made_for = interpreter(environment)?;
    fs::write(marker, format!("{wanted}{made_for}"))
        .with_context(|| format!("cannot write {}", marker.display()))
}

/// Whether a folder has what a file of requirements names, installed for the interpreter of `environment`, which may be that folder. If not,
/// that is installed if `mode` allows it; `what` it is, is said.
pub fn installed_from(
    folder: &Path,
    environment: &Path,
    pins: &Path,
    what: &str,
    mode: Mode,
    install: impl Fn(&Path) -> Result<()>,
) -> Result<bool> {
    let wanted =
        fs::read_to_string(pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let done = folder.join("complete");
    if !is_complete(&done, &wanted, environment) {
        if mode == Mode::Check {
            eprintln!("{what}: missing, or made for another Python; tests need it");
            return Ok(false);
        }
        install(pins)?;
        mark_complete(&done, &wanted, environment)?;
    }
    eprintln!("{what}: found in {}", folder.display());
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Puts an interpreter into an environment, in place of the one that is there.
    fn put(environment: &Path, says: &str) {
        let python = environment.join("bin/python");
        fs::create_dir_all(python.parent().unwrap()).unwrap();
        // A new file each time, because one that is being executed cannot be written.
        let new = environment.join("bin/new");
        fs::write(&new, format!("#!/bin/sh\necho {says}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &python).unwrap();
    }

    #[test]
    fn an_environment_is_made_anew_for_another_python() {
        let folder = tempfile::tempdir().unwrap();
        let pins = folder.path().join("requirements.txt");
        fs::write(&pins, "left==1\n").unwrap();
        let environment = folder.path().join("environment");
        let system = Cell::new("python 3.11.2 /usr/bin/python3.11");
        let made = Cell::new(0);
        let ensure = |mode| {
            installed_from(&environment, &environment, &pins, "it", mode, |_| {
                made.set(made.get() + 1);
                put(&environment, system.get());
                Ok(())
            })
        };
        assert!(!ensure(Mode::Check).unwrap());
        assert!(ensure(Mode::Install).unwrap());
        assert!(ensure(Mode::Install).unwrap() && ensure(Mode::Check).unwrap());
        assert_eq!(made.get(), 1);
        // Another version, then the same one from another place.
        for (made_before, other) in [
            (1, "python 3.13.5 /usr/bin/python3.13"),
            (2, "python 3.13.5 /usr/local/bin/python3.13"),
        ] {
            system.set(other);
            put(&environment, other);
            assert!(!ensure(Mode::Check).unwrap());
            assert_eq!(made.get(), made_before);
            assert!(ensure(Mode::Install).unwrap() && ensure(Mode::Check).unwrap());
            assert_eq!(made.get(), made_before + 1);
        }
        // The system's Python is gone, and with it what the environment refers to.
        fs::remove_file(environment.join("bin/python")).unwrap();
        assert!(!ensure(Mode::Check).unwrap());
        put(&environment, system.get());
        // A marker that says nothing of the interpreter counts where the environment itself does.
        fs::write(environment.join("complete"), "left==1\n").unwrap();
        assert!(!ensure(Mode::Check).unwrap());
        for (version, is_same) in [("3.13.5", true), ("3.13.4", false), ("3.13", false)] {
            let settings = format!("home = /usr/bin\nversion = {version}\n");
            fs::write(environment.join("pyvenv.cfg"), settings).unwrap();
            assert_eq!(ensure(Mode::Check).unwrap(), is_same, "{version}");
        }
        // Other pins are another installation.
        assert!(ensure(Mode::Install).unwrap());
        fs::write(&pins, "left==2\n").unwrap();
        assert!(!ensure(Mode::Check).unwrap());
    }

    #[test]
    fn an_interpreter_is_known_by_its_version_and_its_real_place() {
        // What is on PATH may be a script that starts one of several.
        let where_it_is = ["-I", "-c", "import sys; print(sys.executable)"];
        let python = process::output(Command::new("python3").args(where_it_is)).unwrap();
        let python = Path::new(python.trim());
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        symlink(python, folder.path().join("bin/python3")).unwrap();
        symlink("python3", folder.path().join("bin/python")).unwrap();
        let line = interpreter(folder.path()).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["python", version, place] = words[..] else {
            panic!("{line}");
        };
        assert!(version.starts_with("3."), "{line}");
        assert_eq!(Path::new(place), fs::canonicalize(python).unwrap());
    }
}
