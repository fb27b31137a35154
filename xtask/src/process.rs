//! Starting other programs, and where things are in this repository.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository. Cargo says where the crate is at run time, so a moved checkout works.
pub fn root() -> PathBuf {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// Cargo's output directory, which holds everything that setup installs.
pub fn target() -> PathBuf {
    root().join("target")
}

/// Path of the executable file that `name` means on PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// A command without input whose standard output goes to our standard error: our standard output is for results.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    command
}

/// The command line as a user would type it.
pub fn words(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!(
                "{}={}",
                name.to_string_lossy(),
                value.to_string_lossy()
            ));
        }
    }
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Gives this thread, and all that it starts from now on, mounts of their own. What they mount is gone
/// when the last of them ends, also if it is killed.
pub fn own_mounts() -> Result<()> {
    let everywhere = c"/";
    // SAFETY: system calls; the only pointer that is read is that of a string which lives on.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                everywhere.as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
    };
    if !done {
        return Err(std::io::Error::last_os_error()).context("cannot have mounts of its own");
    }
    Ok(())
}

/// Prints the command line, runs the command, and fails if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", words(command));
    let status = command
        .status()
        .with_context(|| format!("cannot start: {}", words(command)))?;
    if !status.success() {
        bail!("{status} from: {}", words(command));
    }
    Ok(())
}

/// Runs the command silently and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start: {}", words(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let first: Vec<&str> = errors.lines().take(25).collect();
        bail!(
            "{} from: {}\n{}",
            output.status,
            words(command),
            first.join("\n")
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("not text, from: {}", words(command)))
}
