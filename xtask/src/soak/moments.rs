//! Moments of which the process wrote its state down itself, and the comparison with memscope's later answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::live::{Daemon, Python};
use crate::process;

/// Exit code of memscope-ctl for a moment that is refused.
const REFUSED: i32 = 2;
/// Time limit for an answer, in seconds: the machine may be busy with other things.
const PATIENCE: [&str; 2] = ["--timeout", "600"];

/// The two kinds of question.
const SNAPSHOT: &str = "snapshot --at";
const DIFF: &str = "diff --from";

/// A moment: what the process wrote down, and how often memscope refused it.
struct Moment {
    own: PathBuf,
    unix_ns: u64,
    /// Number of refused questions about it.
    refused: u64,
}

/// All moments, and the results of the comparisons.
pub struct Moments {
    python: PathBuf,
    pid: String,
    folder: TempDir,
    all: Vec<Moment>,
    /// For each kind of question, the numbers of answers that were equal, refused and wrong.
    counts: BTreeMap<&'static str, [u64; 3]>,
    compared: u64,
    slowest: Duration,
    wrong: Vec<String>,
}

impl Moments {
    /// No moments yet, of the process `pid`. This Python compares the answers.
    pub fn new(python: &Path, pid: &str) -> Result<Moments> {
        Ok(Moments {
            python: python.to_owned(),
            pid: pid.to_owned(),
            folder: tempfile::Builder::new()
                .prefix("memscope-soak-")
                .tempdir()
                .context("cannot make a temporary folder")?,
            all: Vec::new(),
            counts: BTreeMap::new(),
            compared: 0,
            slowest: Duration::ZERO,
            wrong: Vec::new(),
        })
    }

    /// Makes the process write down its present state.
    pub fn take(&mut self, trainer: &mut Python) -> Result<()> {
        let own = self.folder.path().join(format!("own-{}", self.all.len()));
        let told = trainer.ask_json(&own.to_string_lossy())?;
        let unix_ns = told["unix_ns"]
            .as_u64()
            .context("a moment without a time")?;
        self.all.push(Moment {
            own,
            unix_ns,
            refused: 0,
        });
        Ok(())
    }

    /// Compares the answers about the newest moment, the oldest and one in the middle.
    pub fn compare_some(&mut self, daemon: &Daemon) -> Result<()> {
        let last = self.all.len() - 1;
        let mut chosen = vec![0, last / 2, last];
        chosen.dedup();
        for number in chosen {
            self.compare_snapshot(daemon, number)?;
            if number < last {
                self.compare_diff(daemon, number, last)?;
            }
        }
        Ok(())
    }

    /// Compares the answers about every moment but the last.
    pub fn compare_all(&mut self, daemon: &Daemon) -> Result<()> {
        let last = self.all.len() - 1;
        for number in 0..last {
            self.compare_snapshot(daemon, number)?;
            self.compare_diff(daemon, number, last)?;
        }
        Ok(())
    }

    fn compare_snapshot(&mut self, daemon: &Daemon, number: usize) -> Result<()> {
        let file = self.folder.path().join("told.pickle");
        let at = self.all[number].unix_ns.to_string();
        let told = file.to_string_lossy().into_owned();
        let pid = self.pid.clone();
        let words = [
            "snapshot",
            "--pid",
            &pid,
            "--at",
            &at,
            "--format",
            "memory-viz",
            "-o",
            &told,
        ];
        let said = self.ask(daemon, &words)?;
        let own = self.all[number].own.clone();
        self.judge(
            SNAPSHOT,
            number,
            &said,
            &["snapshot".as_ref(), own.as_ref(), file.as_ref()],
        )
    }

    fn compare_diff(&mut self, daemon: &Daemon, from: usize, to: usize) -> Result<()> {
        let file = self.folder.path().join("told.json");
        let moments = [from, to].map(|number| self.all[number].unix_ns.to_string());
        let pid = self.pid.clone();
        let words = [
            "--json",
            "diff",
            "--pid",
            &pid,
            "--from",
            &moments[0],
            "--to",
            &moments[1],
        ];
        let said = self.ask(daemon, &words)?;
        std::fs::write(&file, &said.stdout)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let [before, after] = [from, to].map(|number| self.all[number].own.clone());
        let words = [
            "diff".as_ref(),
            before.as_ref(),
            after.as_ref(),
            file.as_ref(),
        ];
        self.judge(DIFF, from, &said, &words)
    }

    /// Asks memscope, and remembers how long the slowest answer took.
    fn ask(&mut self, daemon: &Daemon, words: &[&str]) -> Result<std::process::Output> {
        let started = Instant::now();
        let said = daemon.ask(&[&PATIENCE, words].concat())?;
        self.slowest = self.slowest.max(started.elapsed());
        Ok(said)
    }

    fn judge(
        &mut self,
        what: &'static str,
        number: usize,
        said: &std::process::Output,
        words: &[&Path],
    ) -> Result<()> {
        let counts = self.counts.entry(what).or_default();
        let moment = &mut self.all[number];
        let why = String::from_utf8_lossy(&said.stderr);
        if said.status.code() == Some(REFUSED) && why.contains("known from") {
            counts[1] += 1;
            moment.refused += 1;
            return Ok(());
        }
        if !said.status.success() {
            bail!("{what}: {why}");
        }
        let output = Command::new(&self.python)
            .args([
                "-B".as_ref(),
                process::root().join("xtask/soak/compare.py").as_path(),
            ])
            .args(words)
            .output()
            .context("the comparison could not be started")?;
        if !output.status.success() {
            bail!("{what}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let judged: Value =
            serde_json::from_slice(&output.stdout).context("the comparison is not understood")?;
        self.compared += judged["compared"].as_u64().unwrap_or(0);
        if judged["different"] == 0 {
            counts[0] += 1;
        } else {
            counts[2] += 1;
            self.wrong
                .push(format!("{what} of moment {number}: {judged}"));
            eprintln!("WRONG  {what} of moment {number}: {judged}");
        }
        Ok(())
    }

    /// The counts in one line.
    pub fn summary(&self) -> String {
        let words = self.counts.iter().map(|(what, [equal, refused, wrong])| {
            format!("{what}: {equal} equal, {refused} refused, {wrong} wrong")
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Number of answers that were equal.
    pub fn equal(&self) -> u64 {
        self.counts.values().map(|[equal, ..]| equal).sum()
    }

    /// Number of wrong answers.
    pub fn wrong(&self) -> usize {
        self.wrong.len()
    }

    /// The kinds of question to which no answer was equal, so that nothing is known of them.
    pub fn unanswered(&self) -> Vec<&'static str> {
        unanswered(&self.counts)
    }

    /// The results as Markdown.
    pub fn table(&self) -> String {
        let mut text = "\n| question | equal | refused | wrong |\n|---|---|---|---|\n".to_owned();
        for (what, [equal, refused, wrong]) in &self.counts {
            text.push_str(&format!("| `{what}` | {equal} | {refused} | {wrong} |\n"));
        }
        let refused = self.all.iter().filter(|moment| moment.refused > 0).count();
        text.push_str(&format!(
            "\n{} moments, {refused} of them refused at least once because the journal no longer had them; \
             {} things compared; the slowest answer took {:.1} s.\n",
            self.all.len(),
            self.compared,
            self.slowest.as_secs_f64(),
        ));
        for wrong in &self.wrong {
            text.push_str(&format!("- {wrong}\n"));
        }
        text
    }
}

fn unanswered(counts: &BTreeMap<&'static str, [u64; 3]>) -> Vec<&'static str> {
    let mut all = vec![SNAPSHOT, DIFF];
    all.retain(|kind| counts.get(kind).is_none_or(|[equal, ..]| *equal == 0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_everything_has_shown_nothing() {
        let of = |all: &[(&'static str, [u64; 3])]| unanswered(&all.iter().copied().collect());
        assert_eq!(of(&[]), [SNAPSHOT, DIFF]);
        assert_eq!(
            of(&[(SNAPSHOT, [0, 40, 0]), (DIFF, [0, 38, 0])]),
            [SNAPSHOT, DIFF]
        );
        assert_eq!(of(&[(SNAPSHOT, [1, 40, 0]), (DIFF, [0, 38, 0])]), [DIFF]);
        assert!(of(&[(SNAPSHOT, [1, 40, 0]), (DIFF, [2, 38, 1])]).is_empty());
    }
}
