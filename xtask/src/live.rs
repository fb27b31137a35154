//! A daemon and its clients, for the demonstration and the benchmarks.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// How long anything may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Has a program end with the thread that starts it, even if that is killed.
pub fn tied(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec, calls prctl and nothing else.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// A program that ends when this value does.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // SAFETY: signals a child that has not been waited for, so its pid is still its own.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
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

/// Refuses to go on without the privilege that the daemon needs.
pub fn need_root() -> Result<()> {
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } != 0 {
        bail!("loading BPF programs needs root; run this as root");
    }
    Ok(())
}

/// Builds daemon and client, which only root can use; gives the folder that they are in. As in the
/// end-to-end tests, `MEMSCOPE_BIN_DIR` names one in which they are already.
pub fn build(release: bool) -> Result<PathBuf> {
    need_root()?;
    if let Some(folder) = std::env::var_os("MEMSCOPE_BIN_DIR") {
        return Ok(PathBuf::from(folder));
    }
    let mut build = process::command("cargo");
    build.args([
        "build",
        "--locked",
        "-p",
        "memscope-daemon",
        "-p",
        "memscope-ctl",
    ]);
    if release {
        build.arg("--release");
    }
    process::run(&mut build)?;
    Ok(process::target().join(if release { "release" } else { "debug" }))
}

/// A daemon of our own, with a socket and state directory that go with it.
pub struct Daemon {
    running: Ended,
    folder: PathBuf,
    socket: PathBuf,
    programs: PathBuf,
}

impl Daemon {
    /// Builds and starts one.
    pub fn start(release: bool) -> Result<Daemon> {
        Daemon::launch(&build(release)?, &[])
    }

    /// Starts one of programs that are built, with more arguments.
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
            // What is said twice is refused.
            .args((!arguments.contains(&"--journal-mib")).then_some("--journal-mib=64"))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .context("memscoped could not be started")?;
        let daemon = Daemon {
            running: Ended(running),
            folder,
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

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: signals a child that has not been waited for, so its pid is still its own.
        if unsafe { libc::kill(self.running.0.id() as i32, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("memscoped cannot be signalled");
        }
        Ok(())
    }

    /// The client, with the words of a question.
    pub fn ctl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("memscope-ctl"));
        command
            .arg("--socket")
            .arg(&self.socket)
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// Asks silently.
    pub fn ask(&self, words: &[&str]) -> Result<std::process::Output> {
        self.ctl(words)
            .output()
            .context("memscope-ctl could not be started")
    }

    /// Asks for a JSON document; an error if it is refused.
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

    /// Asks as a user would, and shows question and answer.
    pub fn show(&self, words: &[&str]) -> Result<std::process::ExitStatus> {
        println!("\n$ memscope-ctl {}", words.join(" "));
        self.ctl(words)
            .status()
            .context("memscope-ctl could not be started")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // SAFETY: signals a child that has not been waited for.
            unsafe { libc::kill(self.running.0.id() as i32, signal) };
        }
        let _ = self.running.0.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A Python program under some environment, its output read line by line.
pub struct Python {
    /// The program.
    pub running: Ended,
    lines: BufReader<ChildStdout>,
}

impl Python {
    /// Starts it.
    pub fn start(
        python: &Path,
        script: &Path,
        environment: &[(String, String)],
        stdin: Stdio,
    ) -> Result<Python> {
        Python::start_with(python, script, &[], environment, stdin)
    }

    /// Starts it with arguments.
    pub fn start_with(
        python: &Path,
        script: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        stdin: Stdio,
    ) -> Result<Python> {
        let mut child = Command::new(python)
            .arg(script)
            .args(arguments)
            .envs(environment.iter().map(|(k, v)| (k, v)))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", script.display()))?;
        let output = child.stdout.take().context("no output")?;
        Ok(Python {
            running: Ended(child),
            lines: BufReader::new(output),
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Says a line.
    pub fn tell(&mut self, words: &str) -> Result<()> {
        let input = self.running.0.stdin.as_mut().context("no input")?;
        writeln!(input, "{words}")?;
        Ok(input.flush()?)
    }

    /// Says a line, and hears the next one.
    pub fn ask(&mut self, words: &str) -> Result<String> {
        self.tell(words)?;
        self.line()
    }

    /// The same, where the answer is JSON.
    pub fn ask_json(&mut self, words: &str) -> Result<serde_json::Value> {
        serde_json::from_str(&self.ask(words)?).context("the program's answer is no JSON")
    }

    /// The next line; an error when the program has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("the program ended early");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads until a line that begins with this.
    pub fn until(&mut self, beginning: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if line.starts_with(beginning) {
                return Ok(line);
            }
        }
    }
}
