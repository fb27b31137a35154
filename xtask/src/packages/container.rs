//! Containers of podman, whose root is a folder or an image. What they change in a folder is thrown away with them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// Time in which something in a container must come true.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// podman, told how to make containers wherever this runs: without systemd on this machine, and with runc where that is there, because
/// crun refuses control groups of both versions at once.
pub fn podman() -> Command {
    let mut command = Command::new("podman");
    if let Some(runc) = process::find_program("runc") {
        command.arg("--runtime").arg(runc);
    }
    command.arg("--cgroup-manager=cgroupfs");
    command.stdin(Stdio::null());
    command
}

/// A container that runs. It is removed when this is dropped.
pub struct Container {
    name: String,
}

impl Container {
    /// Starts a container without a network. `words` are more options, the root and the command.
    pub fn start(trial: &str, words: &[&str]) -> Result<Container> {
        let name = format!("memscope-{trial}-{}", std::process::id());
        let mut command = podman();
        command.args(["run", "--detach", "--network=none", "--name", &name]);
        // Less than podman asks for by itself, which not every machine may give.
        command.args(["--ulimit=nofile=20000:20000", "--ulimit=nproc=2000:2000"]);
        process::output(command.args(words))?;
        Ok(Container { name })
    }

    /// A command that runs a program in the container.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = podman();
        command.args(["exec", "--interactive", &self.name]);
        command.args(words);
        command
    }

    /// What a line of shell in the container prints; an error if it fails.
    pub fn shell(&self, line: &str) -> Result<String> {
        process::output(&mut self.command(&["sh", "-c", line]))
    }

    /// Waits until a line of shell succeeds.
    pub fn eventually(&self, line: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Err(error) = self.shell(line) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(error).with_context(|| format!("it never came true: {line}"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What memscope-ctl says in the container, as JSON.
    pub fn ask(&self, words: &str) -> Result<serde_json::Value> {
        let text = self.shell(&format!("memscope-ctl --json {words}"))?;
        serde_json::from_str(&text).context("memscope-ctl's answer is not understood")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = process::output(podman().args(["rm", "--force", "--time=5", &self.name]));
    }
}

/// Fails unless both are the same.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Result<()> {
    if ours != theirs {
        bail!("{what}: {ours:?} and not {theirs:?}");
    }
    Ok(())
}

/// The path as a word of a command line.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}
