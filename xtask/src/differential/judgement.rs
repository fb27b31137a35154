//! Results of comparing memscope's answers about moments with PyTorch, and their sums.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// Codes of coverage notes that say that not every block is known, as in `judge.py`.
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

/// When, and from what, memscope is asked about a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// At the moment itself.
    Live,
    /// Later, from the daemon that traced it.
    Past,
    /// Later, from a recording.
    Recorded,
}

impl When {
    /// The word for it in the judge's questions and in the table.
    pub fn word(self) -> &'static str {
        match self {
            When::Live => "live",
            When::Past => "past",
            When::Recorded => "recorded",
        }
    }
}

/// A moment at which all threads of the program rested, as PyTorch saw it.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Seed of the program.
    pub seed: u64,
    /// Running number of the moment.
    pub number: usize,
    /// Process id of the program, as memscope-ctl takes it.
    pub pid: String,
    /// File with PyTorch's own snapshot.
    pub own: PathBuf,
    /// Time of the moment, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Level at which memscope traced it.
    pub level: String,
    /// Whether memscope must know Python's frames.
    pub stacks: bool,
    /// Whether records may have been lost.
    pub lossy: bool,
    /// Whether the journal may have deleted it already.
    pub rotates: bool,
}

impl Moment {
    /// The question to the judge about this moment.
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

/// The judge's answer.
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

/// Numbers of what was compared.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Moments that were compared, equal or not, by how memscope was asked.
    pub compared: BTreeMap<When, u64>,
    /// Earlier moments that memscope refused with a message.
    pub refused: u64,
    /// Moments of which memscope said that it does not know everything.
    pub unknown: u64,
    /// Numbers of segments, blocks, trace entries, values, stacks and statistics that were compared.
    pub sums: [u64; 6],
}

/// The result for a moment, a program or several of them.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// How much was compared.
    pub counts: Counts,
    /// Number of values that differ, by key.
    pub differing: BTreeMap<String, u64>,
    /// The first differences in full, with their moments.
    pub differences: Vec<String>,
}

impl Judgement {
    /// Whether the answer of `stats` claims that every block is known.
    pub fn knows(stats: &Value) -> bool {
        let notes = stats["coverage"].as_array().into_iter().flatten();
        !notes
            .filter_map(|note| note["code"].as_str())
            .any(|code| NOT_KNOWN.contains(&code))
    }

    /// The judgement from an answer of the judge.
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

    /// The judgement on a moment that memscope refused. That is right only if the journal may have deleted it and the
    /// message gives a reason.
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

    /// The judgement on a program that could not be played.
    pub fn broken(error: &anyhow::Error) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.differing.insert("not played".to_owned(), 1);
        judgement.differences.push(format!("{error:#}"));
        judgement
    }

    /// Whether nothing differs.
    pub fn is_right(&self) -> bool {
        self.differing.is_empty()
    }

    /// Whether this fails as `other` does: whether a key differs in both.
    pub fn fails_as(&self, other: &Judgement) -> bool {
        self.differing
            .keys()
            .any(|key| other.differing.contains_key(key))
    }

    /// Adds another judgement to this one.
    pub fn add(&mut self, other: Judgement) {
        self.counts.add(&other.counts);
        for (key, count) in other.differing {
            *self.differing.entry(key).or_default() += count;
        }
        self.differences.extend(other.differences);
    }
}

impl Counts {
    /// Adds other counts to these.
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
