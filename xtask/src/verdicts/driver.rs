//! A script that runs some steps at a time, inside `xtask/verdicts/driver.py`, and the orders that the driver takes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::workload::Workload;
use crate::live::{Ended, tied};
use crate::{process, sim};

/// The driver's answer to an order.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Said {
    /// Number of steps made so far.
    #[serde(default)]
    pub steps: u64,
    /// Live bytes of PyTorch's pinned host memory.
    #[serde(default)]
    pub host: u64,
    /// Live bytes that the driver of the device handed out, other than to PyTorch.
    #[serde(default)]
    pub driver: u64,
    /// Live blocks and bytes by line of the script (`none` for no line).
    #[serde(default)]
    pub lines: BTreeMap<String, (u64, u64)>,
    /// Lengths of the script's containers, by their names.
    #[serde(default)]
    pub lengths: BTreeMap<String, u64>,
    /// A feature that the script needs and this PyTorch lacks. Nothing was run then.
    pub lacking: Option<String>,
    /// Why the script cannot go on.
    pub failed: Option<String>,
}

/// How a script is run.
#[derive(Clone, Debug)]
pub struct How {
    /// Python environment in which PyTorch is installed.
    pub installation: PathBuf,
    /// Whether PyTorch's own recorder finds out which line allocated the live blocks.
    pub by_line: bool,
    /// Milliseconds to wait after each step.
    pub pace: u64,
    /// Whether the script runs on this machine's GPU.
    pub real_device: bool,
    /// Kind of the simulated devices.
    pub device: sim::Device,
    /// Time limit for each answer.
    pub patience: Duration,
}

/// One process that runs a script. It ends when this is dropped.
pub struct Driver {
    running: Ended,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
    patience: Duration,
}

impl Driver {
    /// Starts the script as one of the workload's ranks. Its log goes into `folder`. The process is still importing
    /// modules when this returns.
    pub fn start(how: &How, workload: &Workload, rank: u32, folder: &Path) -> Result<Driver> {
        let device = sim::Options {
            device: how.device,
            devices: (workload.ranks > 1).then_some(workload.ranks),
            ..sim::Options::default()
        };
        let variables = if how.real_device {
            Vec::new()
        } else {
            sim::environment_of(&how.installation, &device)?
        };
        let errors = folder.join(format!("rank-{rank}.log"));
        let log =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        let python = how.installation.join("bin/python");
        let mut command = Command::new(&python);
        command
            .arg(process::root().join("xtask/verdicts/driver.py"))
            .args(how.by_line.then_some("--by-line"))
            .args(["--pace", &how.pace.to_string()])
            .args(workload.needs.iter().flat_map(|what| ["--needs", what]))
            .arg(&workload.script)
            .envs(variables)
            .envs((how.device == sim::Device::Npu).then_some(("MEMSCOPE_ON_NPU", "1")))
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", workload.ranks.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = tied(&mut command)
            .spawn()
            .with_context(|| format!("{} could not be started", python.display()))?;
        let (output, input) = (child.stdout.take(), child.stdin.take());
        let running = Ended(child);
        let output = output.context("the script has no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Driver {
            running,
            input: input.context("the script has no input")?,
            lines,
            errors,
            patience: how.patience,
        })
    }

    /// Process id, as memscope-ctl takes it.
    pub fn pid(&self) -> String {
        self.running.0.id().to_string()
    }

    /// Sends an order; [`Driver::hear`] waits for its answer.
    pub fn tell(&mut self, words: &str) -> Result<()> {
        writeln!(self.input, "{words}")
            .and_then(|()| self.input.flush())
            .with_context(|| format!("the script has ended\n{}", self.wrote()))
    }

    /// Waits for the next answer of the driver; an error if it says that the script failed.
    pub fn hear(&self) -> Result<Said> {
        let line = match self.lines.recv_timeout(self.patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!(
                "the script did not answer within {} s; --timeout gives it longer\n{}",
                self.patience.as_secs(),
                self.wrote()
            ),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the script's process ended early\n{}", self.wrote())
            }
        };
        let said: Said = serde_json::from_str(&line)
            .with_context(|| format!("not understood from the driver: {line}"))?;
        if let Some(why) = said.failed {
            bail!("the script failed: {why}\n{}", self.wrote());
        }
        Ok(said)
    }

    /// Sends an order and waits for its answer.
    pub fn ask(&mut self, words: &str) -> Result<Said> {
        self.tell(words)?;
        self.hear()
    }

    /// The last lines that the script wrote to standard error, for error messages.
    fn wrote(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return "it wrote nothing".to_owned();
        }
        let tail = lines.get(lines.len().saturating_sub(12)..);
        format!("it wrote:\n  {}", tail.unwrap_or_default().join("\n  "))
    }
}
