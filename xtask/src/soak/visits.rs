//! Other processes that are attached for a while, asked about, and detached: the daemon may keep nothing of them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::live::{Daemon, Python};
use crate::process;

/// Number of events after which the trace of such a process (a visitor) is full.
const EVENTS: u64 = 300_000;
/// Time in which a visitor must have made that many events.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(200);

/// What the visitors have in common, and their number.
pub struct Visits {
    python: PathBuf,
    variables: Vec<(String, String)>,
    folder: TempDir,
    count: u64,
}

impl Visits {
    /// No visitors yet. Each will run this Python with these environment variables.
    pub fn new(python: &Path, variables: &[(String, String)]) -> Result<Visits> {
        Ok(Visits {
            python: python.to_owned(),
            variables: variables.to_vec(),
            folder: tempfile::Builder::new()
                .prefix("memscope-soak-")
                .tempdir()
                .context("cannot make a temporary folder")?,
            count: 0,
        })
    }

    /// Runs one visitor from its start to its end, with all exports of it.
    pub fn receive(&mut self, daemon: &Daemon) -> Result<()> {
        let script = process::root().join("xtask/soak/trainer.py");
        let words = ["stacks", "200"].map(str::to_owned);
        let mut visitor = Python::start_with(
            &self.python,
            &script,
            &words,
            &self.variables,
            Stdio::piped(),
        )?;
        visitor.line()?;
        let pid = visitor.pid().to_string();
        let waiting = ["--timeout", "600"];
        daemon.json(&[&waiting[..], &["attach", "--pid", &pid]].concat())?;
        self.wait_until_full(daemon, visitor.pid())?;
        self.count += 1;
        let file = |ending: &str| {
            let name = format!("visit-{}.{ending}", self.count);
            self.folder.path().join(name).to_string_lossy().into_owned()
        };
        for (words, ending) in [
            (&["record"][..], "mscope"),
            (
                &["snapshot", "--pid", &pid, "--format", "memory-viz"],
                "pickle",
            ),
            (&["snapshot", "--pid", &pid, "--format", "html"], "html"),
            (&["flamegraph", "--pid", &pid], "svg"),
        ] {
            let output = file(ending);
            let words = [&waiting[..], words, &["-o", &output]].concat();
            let said = daemon.ask(&words)?;
            if !said.status.success() {
                let why = String::from_utf8_lossy(&said.stderr);
                bail!("memscope-ctl {}: {why}", words.join(" "));
            }
            std::fs::remove_file(&output).with_context(|| format!("there is no {output}"))?;
        }
        daemon.json(&[&waiting[..], &["detach", "--pid", &pid]].concat())?;
        Ok(())
    }

    fn wait_until_full(&self, daemon: &Daemon, pid: u32) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = daemon.json(&["--timeout", "600", "ps"])?;
            let processes = list["processes"].as_array().context("ps lists nothing")?;
            let visitor = processes
                .iter()
                .find(|process| process["pid"] == pid && process["state"] == "attached")
                .context("the visitor is not attached")?;
            if visitor["events"].as_u64() >= Some(EVENTS) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the visitor allocates too slowly");
            }
            std::thread::sleep(PAUSE);
        }
    }
}
