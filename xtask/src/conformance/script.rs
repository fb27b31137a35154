//! A script that stops at some points, inside `xtask/conformance/wrapper.py`, and the messages of the wrapper.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::mode::Mode;
use super::workload::Workload;
use crate::live::{Ended, tied};
use crate::{process, sim};

/// The next message of the wrapper.
#[derive(Debug)]
pub enum ScriptStep {
    /// memscope shall attach now.
    Attach {
        /// Active bytes on all devices together.
        active: u64,
    },
    /// The script has ended, and nothing changes until the comparison is made.
    Compare,
    /// PyTorch's own snapshot is written.
    Done,
    /// The script needs a feature that this PyTorch lacks.
    Lacking(String),
}

/// The process that runs a script. It ends when this is dropped.
pub struct Script {
    running: Ended,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
    patience: Duration,
}

impl Script {
    /// Starts the script; the wrapper's files and the log go into `folder`.
    #[allow(clippy::too_many_arguments)]
    pub fn start(
        python: &Path,
        workload: &Workload,
        device: sim::Device,
        variables: &[(String, String)],
        mode: Mode,
        folder: &Path,
        patience: Duration,
    ) -> Result<Script> {
        let errors = folder.join("script.log");
        let log =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        let mut command = Command::new(python);
        command
            .arg(process::root().join("xtask/conformance/wrapper.py"))
            .arg(mode.word())
            .arg(folder)
            .arg(workload.needs.as_deref().unwrap_or_default())
            .arg(&workload.script)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .envs(workload.variables_of(device))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = tied(&mut command)
            .spawn()
            .with_context(|| format!("{} could not be started", python.display()))?;
        let (output, input) = (child.stdout.take(), child.stdin.take());
        let running = Ended(child);
        let output = output.context("no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Script {
            running,
            input: input.context("no input")?,
            lines,
            errors,
            patience,
        })
    }

    /// Process id, as memscope-ctl takes it.
    pub fn pid(&self) -> String {
        self.running.0.id().to_string()
    }

    /// Lets the script continue.
    pub fn go_on(&mut self) -> Result<()> {
        writeln!(self.input)
            .and_then(|()| self.input.flush())
            .with_context(|| format!("the script has ended\n{}", self.said()))
    }

    /// Waits for the next message; an error if it says that the script failed.
    pub fn step(&self) -> Result<ScriptStep> {
        let line = match self.lines.recv_timeout(self.patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!(
                "the script did not come to its end within {} s; --timeout gives it longer\n{}",
                self.patience.as_secs(),
                self.said()
            ),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the script's process ended early\n{}", self.said())
            }
        };
        let words: Value = serde_json::from_str(&line)
            .with_context(|| format!("not understood from the wrapper: {line}"))?;
        let text = |key: &str| words[key].as_str().unwrap_or_default().to_owned();
        Ok(match text("step").as_str() {
            "attach" => ScriptStep::Attach {
                active: words["active"]
                    .as_array()
                    .map_or(0, |list| list.iter().filter_map(Value::as_u64).sum()),
            },
            "compare" => ScriptStep::Compare,
            "done" => ScriptStep::Done,
            "lacking" => ScriptStep::Lacking(text("what")),
            "failed" => bail!("{}\n{}", text("why"), self.said()),
            other => bail!("the wrapper said {other:?}"),
        })
    }

    /// The last lines that the script wrote to standard error, for error messages.
    fn said(&self) -> String {
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
