//! Other processes that are attached for a while, asked about, and detached: nothing of them may stay for good.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::live::{Daemon, Python};
use crate::process;

/// Events after which a visitor's trace is full.
const EVENTS: u64 = 300_000;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module.
pub struct Visits {
    python: PathBuf,
    variables: Vec<(String, String)>,
    folder: TempDir,
    count: u64,
}

impl Visits {
    /// Before the first visitor. Each runs this Python with these variables of the environment.
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

    /// One from its start to its end, with all that is exported of it.
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
