//! What was found when memscope was asked of a moment, and how that adds up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// Codes of coverage that take back that every block is known, as in `judge.py`.
const NOT_KNOWN: [&str; 8] = [
    "attached_late",
    "baseline_not_read",
    "inexact_after_loss",
    "reading_contradicted",
    "reading_failed",
    "reading_incomplete",
    "reading_too_old",
    "rounded_size_unknown",
];

/// How a moment is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// While it lasts.
    Live,
    /// Later, of the daemon that saw it.
    Past,
    /// Of a recording.
    Recorded,
}

impl When {
    /// As the judge and the table know it.
    pub fn word(self) -> &'static str {
        match self {
            When::Live => "live",
            When::Past => "past",
            When::Recorded => "recorded",
        }
    }
}

/// A moment at which all threads rested, as PyTorch saw it.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Of which program.
    pub seed: u64,
    /// The how manieth.
    pub number: usize,
    /// Process id of the program, as memscope-ctl takes it.
    pub pid: String,
    /// PyTorch's own snapshot.
    pub own: PathBuf,
    /// When it was.
    pub unix_ns: u64,
    /// At which level memscope saw it.
    pub level: String,
    /// Whether Python's frames are promised.
    pub stacks: bool,
    /// Whether records may have been lost.
    pub lossy: bool,
    /// Whether the journal may not have it any more.
    pub rotates: bool,
}

impl Moment {
    /// What the judge is asked.
    pub fn question(&self, when: When, exported: &Path, plant: bool) -> Value {
        json!({
            "own": self.own.to_string_lossy(),
            "exported": exported.to_string_lossy(),
            "level": self.level,
            "moment": when.word(),
            "stacks": self.stacks,
            "lossy": self.lossy,
            "plant": plant,
        })
    }

    fn place(&self, when: When) -> String {
        format!(
            "moment {}, {}, level {}",
            self.number,
            when.word(),
            self.level
        )
    }
}

/// What the judge says.
#[derive(Debug, Deserialize)]
struct Answer {
    segments: u64,
    blocks: u64,
    entries: u64,
    values: u64,
    stacks: u64,
    statistics: u64,
    differing: BTreeMap<String, u64>,
    differences: Vec<String>,
    coverage: Vec<String>,
    verdict: String,
}

/// What was compared, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Moments by how they were asked of: equal or not.
    pub compared: BTreeMap<When, u64>,
    /// Earlier moments that were refused with a sentence.
    pub refused: u64,
    /// Moments of which memscope said that it does not know.
    pub unknown: u64,
    /// Segments, blocks, trace entries, values, stacks, statistics.
    pub sums: [u64; 6],
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// What was compared.
    pub counts: Counts,
    /// Values that differ, by key.
    pub differing: BTreeMap<String, u64>,
    /// The first of them in full, with their moments.
    pub differences: Vec<String>,
}

impl Judgement {
    /// Whether an answer claims that every block is known.
    pub fn knows(stats: &Value) -> bool {
        let notes = stats["coverage"].as_array().into_iter().flatten();
        !notes
            .filter_map(|note| note["code"].as_str())
            .any(|code| NOT_KNOWN.contains(&code))
    }

    /// Of what the judge said.
    pub fn of(moment: &Moment, when: When, answer: &Value) -> Result<Judgement> {
        let answer = Answer::deserialize(answer).context("the judge's answer is not understood")?;
        let mut judgement = Judgement::default();
        let counts = &mut judgement.counts;
        counts.compared.insert(when, 1);
        counts.sums = [
            answer.segments,
            answer.blocks,
            answer.entries,
            answer.values,
            answer.stacks,
            answer.statistics,
        ];
        match answer.verdict.as_str() {
            "equal" => {}
            "unknown" => counts.unknown = 1,
            "differs" => {
                let place = moment.place(when);
                judgement.differences = answer
                    .differences
                    .iter()
                    .map(|line| format!("{place}: {line}"))
                    .collect();
                judgement
                    .differences
                    .push(format!("{place}: coverage: {}", answer.coverage.join(", ")));
                judgement.differing = answer.differing;
            }
            other => bail!("the judge said {other:?}"),
        }
        Ok(judgement)
    }

    /// Of a moment that was refused: right where it may be gone, and with a reason.
    pub fn refused(moment: &Moment, when: When, why: &str) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.counts.refused = 1;
        if !moment.rotates || why.trim().is_empty() {
            let place = moment.place(when);
            judgement
                .differing
                .insert("refused, and it is in the journal".to_owned(), 1);
            judgement
                .differences
                .push(format!("{place}: refused: {}", why.trim()));
        }
        judgement
    }

    /// Of a program that could not be played.
    pub fn broken(error: &anyhow::Error) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.differing.insert("not played".to_owned(), 1);
        judgement.differences.push(format!("{error:#}"));
        judgement
    }

    /// Whether all was as it should be.
    pub fn is_right(&self) -> bool {
        self.differing.is_empty()
    }

    /// Whether it fails as the other one does: in a key that both name.
    pub fn fails_as(&self, other: &Judgement) -> bool {
        self.differing
            .keys()
            .any(|key| other.differing.contains_key(key))
    }

    /// Adds another one.
    pub fn add(&mut self, other: Judgement) {
        self.counts.add(&other.counts);
        for (key, count) in other.differing {
            *self.differing.entry(key).or_default() += count;
        }
        self.differences.extend(other.differences);
    }
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Counts) {
        for (when, count) in &other.compared {
            *self.compared.entry(*when).or_default() += count;
        }
        self.refused += other.refused;
        self.unknown += other.unknown;
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum += more;
        }
    }
}
