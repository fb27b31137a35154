//! A script that runs in steps: `xtask/verdicts/driver.py` and its words.

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

/// What the driver says after each word.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Said {
    /// Steps made in all.
    #[serde(default)]
    pub steps: u64,
    /// Bytes that live of PyTorch's pinned memory.
    #[serde(default)]
    pub host: u64,
    /// Bytes that the driver gave out beyond PyTorch's.
    #[serde(default)]
    pub driver: u64,
    /// By line of the script (`none` for no line): blocks and bytes that live.
    #[serde(default)]
    pub lines: BTreeMap<String, (u64, u64)>,
    /// What this PyTorch has not, and the script needs: nothing was run.
    pub lacking: Option<String>,
    /// Why it cannot go on.
    pub failed: Option<String>,
}

/// How a script is run.
#[derive(Clone, Debug)]
pub struct How {
    /// The environment that has PyTorch.
    pub installation: PathBuf,
    /// Whether PyTorch's own recorder says which line allocated what lives.
    pub by_line: bool,
    /// Milliseconds in which nothing happens after each step.
    pub pace: u64,
    /// Whether it runs on this machine's GPU.
    pub real_device: bool,
    /// What its devices are.
    pub device: sim::Device,
    /// How long each answer may take.
    pub patience: Duration,
}

/// One process that runs a script. It ends with this value.
pub struct Driver {
    running: Ended,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
    patience: Duration,
}

impl Driver {
    /// Starts it as one of the workload's ranks; `folder` is for what it writes. It is importing when this returns.
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
            .env("PYTHONDONTWRITEBYTECODE", "1")
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

    /// Its process id.
    pub fn pid(&self) -> String {
        self.running.0.id().to_string()
    }

    /// Tells it a word; `hear` has the answer.
    pub fn tell(&mut self, words: &str) -> Result<()> {
        writeln!(self.input, "{words}")
            .and_then(|()| self.input.flush())
            .with_context(|| format!("the script has ended\n{}", self.wrote()))
    }

    /// Waits for an answer.
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

    /// Both.
    pub fn ask(&mut self, words: &str) -> Result<Said> {
        self.tell(words)?;
        self.hear()
    }

    /// The end of what the script wrote.
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
