//! What is found out about ranks.

use crate::rank::Metric;
use serde::Serialize;

/// What was found out about the ranks of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// Ranks that stand out, the surest first.
    pub odd: Vec<Odd>,
    /// The rank that is most unlike the others without standing out, where one was compared at all.
    pub nearest: Option<Finding>,
    /// How many comparisons were made; each makes the confidence smaller.
    pub comparisons: usize,
    /// The metrics that could not be judged, and why.
    pub not_judged: Vec<NotJudged>,
    /// Numbers of the ranks that began to be followed later than the others, smallest first. What they hold and held is
    /// compared with nobody's: memory that a job collects needs time.
    pub began_later: Vec<u64>,
}

/// A metric that could not be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NotJudged {
    /// The metric.
    pub metric: Metric,
    /// Why not.
    pub why: Why,
}

/// Why a metric could not be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is known of too few ranks.
    TooFew {
        /// Ranks of which it is known.
        known: usize,
        /// Ranks of which it must be known.
        needed: usize,
    },
    /// Too many ranks have no company, so that nothing tells which of them are odd.
    NoneAlike,
}

/// A rank that stands out.
#[derive(Clone, Debug, Serialize)]
pub struct Odd {
    /// Its number in the job.
    pub rank: u64,
    /// Its place among the ranks that were compared: several of them may have one number.
    pub place: usize,
    /// In what it stands out, the surest first.
    pub findings: Vec<Finding>,
    /// The lines that make it so, for the first finding that is about memory.
    pub explained: Option<Explained>,
}

/// In what one rank is unlike the others.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its number in the job.
    pub rank: u64,
    /// Its place among the ranks that were compared.
    pub place: usize,
    /// By which number.
    pub metric: Metric,
    /// The number of this rank: bytes, nanoseconds, or bytes per step.
    pub value: f64,
    /// Median of its peers, the ranks that it should look like.
    pub peers_median: f64,
    /// The smallest of the peers.
    pub peers_low: f64,
    /// The largest of the peers.
    pub peers_high: f64,
    /// Numbers of the peers in the job, smallest first.
    pub peers: Vec<u64>,
    /// Their places among the ranks that were compared, in the order of `peers`.
    #[serde(skip)]
    pub peer_places: Vec<usize>,
    /// One minus the chance that ranks with the others' spread bring forth such a rank by themselves, times the number of
    /// comparisons. Of growth it is the confidence of the verdict, where that has one.
    pub confidence: Option<f64>,
}

impl Finding {
    /// How much more than its peers the rank has; negative if it has less.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.value - self.peers_median
    }
}

/// The lines that make a rank odd.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// The lines, those that make up most first.
    pub lines: Vec<Difference>,
    /// The rank whose lines are most alike, but for these.
    pub beside: u64,
    /// The place of that rank among those that were compared.
    pub beside_place: usize,
    /// How much of the difference they make up, 0 to 1. Not known of growth, whose lines tell a sum and no pace.
    pub share: Option<f64>,
    /// The bytes that the lines make up.
    pub bytes: f64,
}

/// What one line holds in a rank and in its peers.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The line.
    pub name: String,
    /// Its bytes in this rank.
    pub bytes: u64,
    /// The median of its bytes in the peers.
    pub peers_bytes: u64,
}

impl Difference {
    /// How much more the rank has than its peers; negative if it has less.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.bytes as f64 - self.peers_bytes as f64
    }
}
