//! Small programs that come and go all the time beside the long-lived process: they are attached, asked, detached,
//! killed in the middle of a call, and replaced by exec. The daemon may keep nothing of them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use serde_json::Value;
use tempfile::TempDir;

use crate::live::{Daemon, tied};
use crate::{process, sim};

/// Number of guests at the same time.
pub const AT_ONCE: u64 = 3;
/// Time limit for an answer, in seconds: the machine may be busy with other things.
const PATIENCE: [&str; 2] = ["--timeout", "600"];

/// A running guest. It is killed when this is dropped.
struct Guest {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Guest {
    fn start(program: &std::path::Path, seed: u64) -> Result<Guest> {
        let mut child = tied(&mut Command::new(program))
            .arg(seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a guest could not be started")?;
        let lines = BufReader::new(child.stdout.take().context("a guest without output")?);
        let mut guest = Guest { child, lines };
        guest.line()?;
        Ok(guest)
    }

    fn tell(&mut self, words: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("a guest without input")?;
        writeln!(input, "{words}").context("a guest has ended early")
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a guest said {line:?}"))
    }

    fn ask(&mut self, words: &str) -> Result<Value> {
        self.tell(words)?;
        self.line()
    }

    /// Ends it by the end of its input.
    fn finish(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("a guest ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a visit ends.
const ENDS: [&str; 6] = [
    "detached at rest",
    "detached in the middle of calls",
    "ended by itself",
    "killed in the middle of calls",
    "replaced by exec",
    "killed while it was attached",
];

/// What happened so far.
#[derive(Default)]
struct Counts {
    attaches: AtomicU64,
    detaches: AtomicU64,
    equal: AtomicU64,
    lossy: AtomicU64,
    ends: [AtomicU64; ENDS.len()],
}

/// All guests of one run.
pub struct Guests<'a> {
    daemon: &'a Daemon,
    program: PathBuf,
    _folder: TempDir,
    seed: u64,
    counts: Counts,
    /// Nobody shall come any more: the time is over, or a guest has found a fault.
    over: AtomicBool,
    /// Each guest has it for reading, from when it comes to when it has gone.
    door: RwLock<()>,
}

impl<'a> Guests<'a> {
    /// Builds the guests' program. The same seed gives each guest the same calls and the same end.
    pub fn new(daemon: &'a Daemon, seed: u64) -> Result<Guests<'a>> {
        let folder = tempfile::Builder::new()
            .prefix("memscope-soak-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let program = folder.path().join("guest");
        process::run(
            Command::new("cc")
                .args(["-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror"])
                .arg("-o")
                .arg(&program)
                .arg(process::root().join("xtask/soak/guest.c"))
                .args(sim::c_flags(&sim::Options::default())?),
        )?;
        Ok(Guests {
            daemon,
            program,
            _folder: folder,
            seed,
            counts: Counts::default(),
            over: AtomicBool::new(false),
            door: RwLock::new(()),
        })
    }

    /// Lets no more guests come.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until all guests have gone; none comes before the result is dropped.
    pub fn quiet(&self) -> RwLockWriteGuard<'_, ()> {
        self.door.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no more guests come.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// One guest for each way in which a visit ends.
    pub fn receive_each(&self) -> Result<()> {
        let mut rng = Rng::with_seed(self.seed);
        (0..ENDS.len()).try_for_each(|end| self.receive(end, &mut rng))
    }

    /// Receives one guest after the other, until there were `most` attaches or somebody ends it.
    pub fn receive_all(&self, number: u64, most: Option<u64>) -> Result<()> {
        let mut rng = Rng::with_seed(self.seed * 1000 + number + 1);
        while !self.is_over() {
            let _inside = self.door.read().unwrap_or_else(PoisonError::into_inner);
            let end = rng.usize(0..ENDS.len());
            if let Err(error) = self.receive(end, &mut rng) {
                self.end();
                return Err(error.context(format!("a guest that was to be {}", ENDS[end])));
            }
            if most.is_some_and(|most| self.counts.attaches.load(Ordering::Relaxed) >= most) {
                self.end();
            }
        }
        Ok(())
    }

    fn receive(&self, end: usize, rng: &mut Rng) -> Result<()> {
        let mut guest = Guest::start(&self.program, rng.u64(1..1 << 32))?;
        let pid = guest.child.id().to_string();
        let level = ["segments", "blocks", "trace"][rng.usize(0..3)];
        let attach = ["attach", "--pid", &pid, "--level", level];
        match ENDS[end] {
            "killed while it was attached" => {
                guest.tell("run")?;
                let attaching = self
                    .daemon
                    .ctl(&[&PATIENCE, &attach[..]].concat())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .context("memscope-ctl could not be started")?;
                drop(guest);
                // Whether the attach came in time is left to chance; it may also find what is left of the guest before we collect that.
                let said = attaching.wait_with_output()?;
                let why = String::from_utf8_lossy(&said.stderr);
                if said.status.success() {
                    self.counts.attaches.fetch_add(1, Ordering::Relaxed);
                } else if said.status.code() != Some(4) && !why.contains("has ended (a zombie") {
                    bail!("the attach: {why}");
                }
            }
            how => {
                self.attach(&attach)?;
                let own = guest.ask(&format!("work {}", rng.u32(1..400)))?;
                self.compare(&pid, &own)?;
                match how {
                    "detached at rest" => {
                        // The same process is attached and detached again.
                        for _ in 0..rng.u8(0..3) {
                            self.detach(&pid)?;
                            guest.ask("work 20")?;
                            self.attach(&attach)?;
                            guest.ask("work 20")?;
                        }
                        self.detach(&pid)?;
                        guest.ask("work 20")?;
                        guest.finish()?;
                    }
                    "detached in the middle of calls" => {
                        guest.tell("run")?;
                        self.detach(&pid)?;
                        guest.ask("work 20")?;
                        guest.finish()?;
                    }
                    "ended by itself" => guest.finish()?,
                    "killed in the middle of calls" => {
                        guest.tell("run")?;
                        self.answer(&["stats", "--pid", &pid])?;
                        drop(guest);
                    }
                    "replaced by exec" => {
                        guest.ask("exec")?;
                        guest.ask("work 50")?;
                        guest.finish()?;
                    }
                    other => bail!("no guest is {other}"),
                }
            }
        }
        self.counts.ends[end].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn answer(&self, words: &[&str]) -> Result<Output> {
        let said = self.daemon.ask(&[&PATIENCE, words].concat())?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            bail!("memscope-ctl {}: {why}", words.join(" "));
        }
        Ok(said)
    }

    fn attach(&self, words: &[&str]) -> Result<()> {
        self.answer(words)?;
        self.counts.attaches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn detach(&self, pid: &str) -> Result<()> {
        self.answer(&["detach", "--pid", pid])?;
        self.counts.detaches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The guest rests, so the answer is what it has counted itself.
    fn compare(&self, pid: &str, own: &Value) -> Result<()> {
        let stats = self
            .daemon
            .json(&[&PATIENCE, &["stats", "--pid", pid][..]].concat())?;
        if stats["lost_records"] != 0 {
            self.counts.lossy.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let told = &stats["devices"][0];
        if told["driver"]["bytes"] != own["live"] || told["alloc_count"] != own["allocs"] {
            bail!("it counted {own}, and memscope {stats:#}");
        }
        self.counts.equal.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The counts as Markdown.
    pub fn table(&self) -> String {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut text = format!(
            "\nSeed {}: {} attaches and {} detaches of guests, {AT_ONCE} guests at a time; {} answers equal what the guest had counted itself, \
             {} were not compared because records were lost and said to be.\n\n| a guest was | times |\n|---|---|\n",
            self.seed,
            count(&self.counts.attaches),
            count(&self.counts.detaches),
            count(&self.counts.equal),
            count(&self.counts.lossy),
        );
        for (end, number) in ENDS.iter().zip(&self.counts.ends) {
            text.push_str(&format!("| {end} | {} |\n", count(number)));
        }
        text
    }
}
