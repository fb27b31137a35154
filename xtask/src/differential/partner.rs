//! A process that answers each line of JSON with a line of JSON: `player.py` or `judge.py`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::live::{Ended, tied};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The running process. It ends when this is dropped.
pub struct Partner {
    running: Ended,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
    what: &'static str,
}

impl Partner {
    /// Starts the process; its standard error goes to a file in `folder`.
    pub fn start(what: &'static str, command: &mut Command, folder: &Path) -> Result<Partner> {
        let errors = folder.join(format!("{what}.log"));
        let log =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = tied(command)
            .spawn()
            .with_context(|| format!("the {what} could not be started"))?;
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
        Ok(Partner {
            running,
            input: input.context("no input")?,
            lines,
            errors,
            what,
        })
    }

    /// Process id of the partner.
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Waits for a line; an error if the line reports one.
    pub fn hear(&self) -> Result<Value> {
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!(
                "the {} did not answer within {} s\n{}",
                self.what,
                PATIENCE.as_secs(),
                self.wrote()
            ),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the {} ended early\n{}", self.what, self.wrote())
            }
        };
        let said: Value = serde_json::from_str(&line)
            .with_context(|| format!("not understood from the {}: {line}", self.what))?;
        if let Some(error) = said["error"].as_str() {
            bail!("the {} failed: {error}", self.what);
        }
        Ok(said)
    }

    /// Sends an order and waits for the answer.
    pub fn ask(&mut self, words: &Value) -> Result<Value> {
        writeln!(self.input, "{words}")
            .and_then(|()| self.input.flush())
            .with_context(|| format!("the {} has ended\n{}", self.what, self.wrote()))?;
        self.hear()
    }

    /// The last lines that the process wrote to standard error, for error messages.
    fn wrote(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(12)..);
        format!("it wrote:\n  {}", tail.unwrap_or_default().join("\n  "))
    }
}
