//! Runs a daemon, its client and Python programs, for the tasks that need them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// Time in which a daemon must answer after its start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a program end when the thread that starts it ends, even if that is killed.
pub fn tied(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec, the closure only calls prctl and reads errno, which is allowed there.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// A program that is ended when this value is dropped.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Who is stopped takes the first one when the second lets it go on.
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // SAFETY: the child has not been waited for, so its pid cannot belong to another process.
            unsafe { libc::kill(self.0.id() as i32, signal) };
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fails unless this is root, because the daemon needs it to load BPF programs.
pub fn need_root() -> Result<()> {
    // SAFETY: geteuid takes no arguments and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        bail!("loading BPF programs needs root; run this as root");
    }
    Ok(())
}

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// As the tests build them, with the checks of arithmetic and of what is asserted.
    Checked,
    /// As users get them by `cargo xtask dist`: what is measured of these is what they see.
    Dist,
}

impl Build {
    /// What an option `--release` asks for.
    pub fn of(release: bool) -> Build {
        if release { Build::Dist } else { Build::Checked }
    }

    /// The profile of Cargo.
    pub fn profile(self) -> &'static str {
        match self {
            Build::Checked => "test",
            Build::Dist => "dist",
        }
    }

    /// The folder below Cargo's that has the programs.
    pub fn folder(self) -> &'static str {
        match self {
            Build::Checked => "debug",
            Build::Dist => "dist",
        }
    }
}

/// Builds daemon and client, and returns their folder. Fails unless this is root, because only root can use them.
pub fn build(build: Build) -> Result<PathBuf> {
    need_root()?;
    programs(build)
}

/// The same for those who only copy them. As in the end-to-end tests, `MEMSCOPE_BIN_DIR` may name a folder that has them
/// already: then nothing is built.
pub fn programs(build: Build) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("MEMSCOPE_BIN_DIR") {
        return Ok(PathBuf::from(folder));
    }
    let mut cargo = process::command("cargo");
    cargo.args(["build", "--locked", "--profile", build.profile()]);
    cargo.args(["-p", "memscope-daemon", "-p", "memscope-ctl"]);
    process::run(&mut cargo)?;
    Ok(process::target().join(build.folder()))
}

/// A daemon of our own. Its socket and its state directory are deleted with it.
pub struct Daemon {
    running: Ended,
    /// After the program, which must have ended when this is dropped.
    _folder: Folder,
    socket: PathBuf,
    programs: PathBuf,
}

impl Daemon {
    /// Builds the programs and starts a daemon.
    pub fn start(how: Build) -> Result<Daemon> {
        Daemon::launch(&build(how)?, &[])
    }

    /// Starts a daemon from programs that are already built, with more arguments.
    pub fn launch(programs: &Path, arguments: &[&str]) -> Result<Daemon> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        need_root()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("memscope-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let socket = folder.join("memscoped.sock");
        let running = tied(&mut Command::new(programs.join("memscoped")))
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(folder.join("state"))
            .args(["--log", "warn", "--stack-budget", "off"])
            // memscoped refuses an option that is given twice.
            .args((!arguments.contains(&"--pin-dir")).then_some("--pin-dir=none"))
            .args((!arguments.contains(&"--journal-mib")).then_some("--journal-mib=64"))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .context("memscoped could not be started")?;
        let daemon = Daemon {
            running: Ended(running),
            _folder: Folder(folder),
            socket,
            programs: programs.to_owned(),
        };
        let deadline = Instant::now() + PATIENCE;
        while !daemon.ask(&["status"])?.status.success() {
            if Instant::now() > deadline {
                bail!("memscoped does not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(daemon)
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: the child has not been waited for, so its pid cannot belong to another process.
        if unsafe { libc::kill(self.running.0.id() as i32, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("memscoped cannot be signalled");
        }
        Ok(())
    }

    /// A command that runs the client with these arguments.
    pub fn ctl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("memscope-ctl"));
        command
            .arg("--socket")
            .arg(&self.socket)
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// Runs the client and returns its output without showing it.
    pub fn ask(&self, words: &[&str]) -> Result<std::process::Output> {
        self.ctl(words)
            .output()
            .context("memscope-ctl could not be started")
    }

    /// Runs the client with `--json` and returns the document; an error if the client fails.
    pub fn json(&self, words: &[&str]) -> Result<serde_json::Value> {
        let said = self.ask(&[&["--json"], words].concat())?;
        if !said.status.success() {
            bail!(
                "memscope-ctl {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&said.stderr)
            );
        }
        serde_json::from_slice(&said.stdout).context("memscope-ctl's answer is not understood")
    }

    /// Runs the client as a user would, and shows the command and its output.
    pub fn show(&self, words: &[&str]) -> Result<std::process::ExitStatus> {
        println!("\n$ memscope-ctl {}", words.join(" "));
        self.ctl(words)
            .status()
            .context("memscope-ctl could not be started")
    }
}

/// A folder that is deleted when this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running Python program, whose output is read line by line.
pub struct Python {
    /// The process. It is ended when this is dropped.
    pub running: Ended,
    lines: BufReader<ChildStdout>,
}

impl Python {
    /// Starts a script without arguments.
    pub fn start(
        python: &Path,
        script: &Path,
        environment: &[(String, String)],
        stdin: Stdio,
    ) -> Result<Python> {
        Python::start_with(python, script, &[], environment, stdin)
    }

    /// Starts a script with arguments.
    pub fn start_with(
        python: &Path,
        script: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        stdin: Stdio,
    ) -> Result<Python> {
        let child = Command::new(python)
            .arg(script)
            .args(arguments)
            .envs(environment.iter().map(|(k, v)| (k, v)))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", script.display()))?;
        Python::of(Ended(child))
    }

    /// A program that was started elsewhere, whose output is a pipe.
    pub fn of(mut running: Ended) -> Result<Python> {
        let output = running.0.stdout.take().context("no output")?;
        Ok(Python {
            running,
            lines: BufReader::new(output),
        })
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Writes a line to the program.
    pub fn tell(&mut self, words: &str) -> Result<()> {
        let input = self.running.0.stdin.as_mut().context("no input")?;
        writeln!(input, "{words}")?;
        Ok(input.flush()?)
    }

    /// Writes a line to the program and returns its next line.
    pub fn ask(&mut self, words: &str) -> Result<String> {
        self.tell(words)?;
        self.line()
    }

    /// The same as [`Python::ask`], for an answer in JSON.
    pub fn ask_json(&mut self, words: &str) -> Result<serde_json::Value> {
        serde_json::from_str(&self.ask(words)?).context("the program's answer is no JSON")
    }

    /// The next line of the program's output; an error if the program has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("the program ended early");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads lines until one begins with `beginning`, and returns that one.
    pub fn until(&mut self, beginning: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if line.starts_with(beginning) {
                return Ok(line);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_daemon_that_does_not_end_is_killed_and_its_folder_goes() {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo ready; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pid = child.id();
        let daemon = Daemon {
            running: Ended(child),
            socket: folder.join("memscoped.sock"),
            _folder: Folder(folder.clone()),
            programs: PathBuf::new(),
        };
        let (ended, is_over) = channel();
        std::thread::spawn(move || {
            drop(daemon);
            ended.send(()).unwrap();
        });
        let waited = is_over.recv_timeout(PATIENCE);
        if waited.is_err() {
            // SAFETY: nobody has waited for the child, so its pid cannot belong to another process.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        waited.unwrap();
        assert!(!folder.exists());
    }
}
