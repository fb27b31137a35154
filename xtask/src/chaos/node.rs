//! A daemon that is killed and started anew in the same place, with a BPF file system of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::disk::{self, Trouble, Troubled};
use crate::live::{Ended, tied};
use crate::process;

/// Time in which a daemon must answer after its start, or end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// SIGKILL.
    Kill,
    /// SIGUSR1: it hands over.
    HandOver,
    /// A panic of one of its threads.
    Panic(&'static str),
}

/// Reader processes that were stopped. They end when this is dropped.
pub struct Hung(Vec<u32>);

impl Drop for Hung {
    fn drop(&mut self) {
        for pid in self.0.drain(..).filter(|pid| is_reader(*pid)) {
            signal(pid, libc::SIGKILL);
        }
    }
}

fn is_reader(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|words| words.ends_with(b"\0--read-for-memscoped\0"))
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a system call without pointers; the process was just seen to be what it is taken for.
    unsafe { libc::kill(pid as i32, signal) };
}

/// The place, and the daemon that runs there.
pub struct Node {
    folder: TempDir,
    programs: PathBuf,
    arguments: Vec<String>,
    faults: PathBuf,
    running: Option<Ended>,
}

impl Node {
    /// Makes the place. Nothing runs there yet.
    ///
    /// `disk_mib`: size of the file system with the daemon's state.
    pub fn new(programs: &Path, arguments: &[&str], disk_mib: u64) -> Result<Node> {
        let folder = tempfile::Builder::new()
            .prefix("memscope-chaos-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        for name in ["bpf", "panic", "disk"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        // So that nothing stays mounted when the run is given up.
        process::own_mounts()?;
        mount_bpf(&folder.path().join("bpf"))?;
        let size = format!("size={disk_mib}m");
        process::run(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
                .arg(folder.path().join("disk")),
        )?;
        let faults = disk::build(folder.path())?;
        Ok(Node {
            folder,
            faults,
            programs: programs.to_owned(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            running: None,
        })
    }

    /// A file of this run's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The disk with the daemon's state is in trouble until the result is dropped.
    pub fn trouble(&self, what: Trouble) -> Result<Troubled> {
        what.begin(&self.file("disk"), self.file("faults"))
    }

    /// Loses all that is pinned, as in a reboot.
    pub fn lose_pins(&self) -> Result<()> {
        let bpf = self.file("bpf");
        process::run(Command::new("umount").arg(&bpf))?;
        mount_bpf(&bpf)
    }

    /// Stops the daemon's reader processes, of which it has some while it takes over and a minute longer.
    pub fn hang_readers(&self) -> Result<Hung> {
        let running = self.running.as_ref().context("no memscoped runs")?;
        let mut hung = Hung(Vec::new());
        for thread in std::fs::read_dir(format!("/proc/{}/task", running.0.id()))? {
            let children = std::fs::read_to_string(thread?.path().join("children"));
            let children = children.unwrap_or_default();
            let readers = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            for pid in readers.filter(|pid| is_reader(*pid)) {
                signal(pid, libc::SIGSTOP);
                hung.0.push(pid);
            }
        }
        if hung.0.is_empty() {
            bail!("memscoped has no reader that could hang");
        }
        Ok(hung)
    }

    /// The maps that the last daemon has written down, in its words.
    pub fn maps(&self) -> Result<String> {
        let text = std::fs::read_to_string(self.file("disk/state/attachments.json"))?;
        let kept: Value = serde_json::from_str(&text)?;
        let shapes = kept["shapes"].as_str();
        Ok(shapes.context("no shapes of maps")?.to_owned())
    }

    /// Waits until the daemon's journal is in this state.
    pub fn wait_for_journal(&self, state: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let status = self.json(&["status"])?;
            if status["journal"]["state"] == state {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("the journal is not {state}: {:#}", status["journal"]);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What the daemon has to say about itself.
    pub fn messages(&self) -> Result<String> {
        let status = self.json(&["status"])?;
        let all = status["messages"].as_array().context("no messages")?;
        let texts = all.iter().filter_map(|one| one["text"].as_str());
        Ok(texts.collect::<Vec<_>>().join("\n"))
    }

    /// Starts the daemon from the folder `programs`, or else from the one that has the client, and does not wait.
    pub fn start(&mut self, programs: Option<&Path>) -> Result<()> {
        let programs = programs.unwrap_or(&self.programs);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.file("log"))?;
        let child = tied(&mut Command::new(programs.join("memscoped")))
            .arg("--socket")
            .arg(self.file("sock"))
            .arg("--state-dir")
            .arg(self.file("disk/state"))
            .arg("--pin-dir")
            .arg(self.file("bpf/pins"))
            .args(["--stack-budget", "off"])
            .args(&self.arguments)
            .env("MEMSCOPE_TEST_PANIC", self.file("panic"))
            .env("LD_PRELOAD", &self.faults)
            .env("FAULTS_FILE", self.file("faults"))
            .env("FAULTS_BELOW", self.file("disk/state"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("memscoped could not be started")?;
        self.running = Some(Ended(child));
        Ok(())
    }

    /// Waits until the daemon answers; the time that it took.
    pub fn wait(&mut self) -> Result<Duration> {
        let began = Instant::now();
        while !self.ask(&["status"])?.status.success() {
            let ended = match &mut self.running {
                Some(running) => running.0.try_wait()?,
                None => bail!("no memscoped runs"),
            };
            if let Some(status) = ended {
                bail!("memscoped ended with {status}: {}", self.log());
            }
            if began.elapsed() > PATIENCE {
                bail!("memscoped does not answer: {}", self.log());
            }
            std::thread::sleep(LOOK);
        }
        Ok(began.elapsed())
    }

    /// Ends the daemon, and waits for that.
    pub fn end(&mut self, end: End) -> Result<()> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let signal = |signal| {
            // SAFETY: the child has not been waited for, so its pid cannot belong to another process.
            unsafe { libc::kill(running.0.id() as i32, signal) };
        };
        let asked = match end {
            End::Kill => {
                signal(libc::SIGKILL);
                None
            }
            End::HandOver => {
                signal(libc::SIGUSR1);
                None
            }
            End::Panic(thread) => {
                let file = self.folder.path().join("panic").join(thread);
                std::fs::write(&file, "")?;
                Some(file)
            }
        };
        let began = Instant::now();
        let status = loop {
            if let Some(status) = running.0.try_wait()? {
                break status;
            }
            if began.elapsed() > PATIENCE {
                bail!("memscoped does not end after {end:?}");
            }
            std::thread::sleep(LOOK);
        };
        if let Some(file) = asked {
            std::fs::remove_file(file)?;
        }
        let expected = match end {
            End::Kill => None,
            End::HandOver => Some(75),
            End::Panic(_) => Some(101),
        };
        if status.code() != expected {
            bail!(
                "after {end:?} memscoped ended with {status}: {}",
                self.log()
            );
        }
        self.running = None;
        Ok(())
    }

    /// Stops the daemon as `systemctl stop` does; nothing may be left pinned.
    pub fn stop(&mut self) -> Result<()> {
        self.running = None;
        let left: Vec<_> = match std::fs::read_dir(self.file("bpf/pins")) {
            Ok(entries) => entries.flatten().map(|entry| entry.file_name()).collect(),
            Err(_) => Vec::new(),
        };
        if !left.is_empty() {
            bail!("a clean stop has left {left:?}");
        }
        Ok(())
    }

    /// A command that runs the client.
    pub fn ctl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("memscope-ctl"));
        command
            .arg("--socket")
            .arg(self.file("sock"))
            .args(words)
            .stdin(Stdio::null());
        command
    }

    fn ask(&self, words: &[&str]) -> Result<Output> {
        let asked = self.ctl(words).output();
        asked.context("memscope-ctl could not be started")
    }

    /// Runs the client with `--json`.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
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

    /// The end of what the daemons logged.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

fn mount_bpf(at: &Path) -> Result<()> {
    process::run(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(at))
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running = None;
        for name in ["bpf", "disk"] {
            let _ = Command::new("umount").arg(self.file(name)).status();
        }
    }
}
