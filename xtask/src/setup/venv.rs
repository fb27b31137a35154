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

/// Whether a folder has what a file of requirements names. If not, that is installed if `mode` allows it; `what` it is, is said.
pub fn installed_from(
    folder: &Path,
    pins: &Path,
    what: &str,
    mode: Mode,
    install: impl Fn(&Path) -> Result<()>,
) -> Result<bool> {
    let wanted =
        fs::read_to_string(pins).with_context(|| format!("cannot read {}", pins.display()))?;
    // This file is written last, so an interrupted installation has none.
    let done = folder.join("complete");
    if !fs::read_to_string(&done).is_ok_and(|text| text == wanted) {
        if mode == Mode::Check {
            eprintln!("{what}: missing; tests need it");
            return Ok(false);
        }
        install(pins)?;
        fs::write(&done, wanted)?;
    }
    eprintln!("{what}: found in {}", folder.display());
    Ok(true)
}
