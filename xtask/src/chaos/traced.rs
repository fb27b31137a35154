//! A process that allocates, and whether the daemon knows what it knows.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::node::Node;
use crate::live::Python;
use crate::process;

/// Time in which what was lost must have been read.
const READING: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A process, and what its counts are compared with.
pub struct Traced {
    program: Python,
    pid: String,
    /// What PyTorch counts more than the daemon, and the lost records with which that is so. `None`: it has to be found out.
    counts: Option<(u64, [u64; 2])>,
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compared {
    /// Blocks, each of which was the same.
    pub blocks: u64,
    /// How often the process has allocated since it was attached.
    pub events: u64,
    /// Records that were lost.
    pub lost: u64,
    /// The counts were compared, too.
    pub counted: bool,
}

impl Traced {
    /// Starts a process.
    pub fn start(
        python: &Path,
        words: &[String],
        variables: &[(String, String)],
    ) -> Result<Traced> {
        let script = process::root().join("xtask/chaos/load.py");
        let mut program = Python::start_with(python, &script, words, variables, Stdio::piped())?;
        program.line()?;
        Ok(Traced {
            pid: program.pid().to_string(),
            program,
            counts: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> &str {
        &self.pid
    }

    /// Attaches it while it stands still, so that both begin to count at the same moment.
    pub fn attach(&mut self, node: &Node, how: &[&str]) -> Result<()> {
        let held = self.program.ask_json("hold")?;
        node.json(&[&["attach", "--pid", &self.pid], how].concat())?;
        self.program.ask_json("go")?;
        self.counts = Some((0, counts(&held)?));
        Ok(())
    }

    /// It was attached anew, without a moment at which it stood still.
    pub fn begins_anew(&mut self) {
        self.counts = None;
    }

    /// Stops the process, compares what both know, and lets it go on.
    pub fn compare(&mut self, node: &Node) -> Result<Compared> {
        let held = self.program.ask_json("hold")?;
        let began = Instant::now();
        let (mut compared, stats) = loop {
            let stats = node.json(&["stats", "--pid", &self.pid])?;
            match self.numbers(&held, &stats) {
                Ok(compared) => break (compared, stats),
                // Where records are missing, the process is read: that takes its time.
                Err(_) if self.is_read_anew(&stats)? && began.elapsed() < READING => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
            }
        };
        let file = node.file("snapshot.pickle");
        let name = file.to_str().context("a path that is no text")?;
        let taken = node
            .ctl(&["snapshot", "--pid", &self.pid, "-o", name])
            .output()?;
        if !taken.status.success() {
            bail!("no snapshot: {}", String::from_utf8_lossy(&taken.stderr));
        }
        let blocks = self.program.ask_json(&format!("compare {name}"))?;
        std::fs::remove_file(&file)?;
        if blocks["equal"] != true {
            bail!(
                "the blocks of process {} differ: {blocks}: {stats:#}",
                self.pid
            );
        }
        compared.blocks = number_at(&blocks, "blocks")?;
        self.program.ask_json("go")?;
        Ok(compared)
    }

    /// Whether records are missing about which nothing was known so far.
    fn is_read_anew(&self, stats: &Value) -> Result<bool> {
        let lost = number_at(stats, "lost_records")?;
        Ok(self.counts.is_none_or(|(known, _)| known != lost))
    }

    fn numbers(&mut self, held: &Value, stats: &Value) -> Result<Compared> {
        let pid = &self.pid;
        let devices = stats["devices"].as_array().context("no devices")?;
        let device = devices
            .iter()
            .find(|device| device["device"] == 0)
            .context("no device 0")?;
        let lost = number_at(stats, "lost_records")?;
        let mut expected = vec![
            ("allocated_bytes", number_at(held, "allocated")?),
            ("reserved_bytes", number_at(held, "reserved")?),
        ];
        let [allocs, frees] = counts(held)?;
        // Where records were lost, the state is read again, and the counts stay behind, from then on by the same number.
        let behind = self
            .counts
            .filter(|(known, _)| *known == lost)
            .map(|(_, behind)| behind);
        if let Some([no_allocs, no_frees]) = behind {
            expected.push(("alloc_count", allocs - no_allocs));
            expected.push(("free_count", frees - no_frees));
        }
        for (key, value) in expected {
            if device[key] != value {
                bail!(
                    "{key} of process {pid} is {}, and PyTorch has {value}: {stats:#}",
                    device[key]
                );
            }
        }
        let events = number_at(device, "alloc_count")?;
        if behind.is_none() {
            let known = [events, number_at(device, "free_count")?];
            self.counts = Some((lost, [allocs - known[0], frees - known[1]]));
        }
        Ok(Compared {
            blocks: 0,
            events,
            lost,
            counted: behind.is_some(),
        })
    }
}

fn counts(held: &Value) -> Result<[u64; 2]> {
    Ok([number_at(held, "allocs")?, number_at(held, "frees")?])
}

fn number_at(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("no number {key} in {value:#}"))
}
