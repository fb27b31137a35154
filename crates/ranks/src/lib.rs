//! Which rank of a job is unlike the others, how sure that is, and which lines of the program make it so.
//!
//! Owns: the groups of ranks that look alike ([`groups`]), the test of a rank that looks like none of them, and the
//! comparison of its lines with those of its peers. Refuses: to ask anybody, to read a clock, and to format text.
//!
//! Healthy jobs have ranks that differ. Stages of a pipeline form groups, of which each has its own level; ranks of
//! one group differ by some per cent; rank 0 often holds a little more, and the last one a little less. So a rank is
//! odd only if no other looks like it while all others have company. How far it is away is measured by how far the
//! outermost of the others are apart, and the confidence is one minus the chance that ranks with such a spread bring
//! forth a rank so far away by themselves, times the number of comparisons that were made.

mod groups;
mod judge;
mod layout;
mod lines;
mod tail;

pub use groups::{Group, groups};
pub use judge::judge;
pub use lines::{Difference, Explained};

use serde::Serialize;

/// The ranks of which a number must be known before it is judged. Fewer ranks are too few to tell a rank that is odd from
/// a job whose ranks have different tasks.
pub const JUDGED_FROM: usize = 8;

/// Confidence from which on a rank is said to stand out.
pub const SURE: f64 = 0.99;

/// What is known of one rank.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// Its number in the job.
    pub rank: u64,
    /// Most bytes that were allocated at a time.
    pub peak_bytes: Option<u64>,
    /// Most bytes that its pool took from the driver.
    pub reserved_bytes: Option<u64>,
    /// Lowest allocated level of its last steps, bytes.
    pub floor_bytes: Option<u64>,
    /// Median time of its steps, nanoseconds.
    pub step_ns: Option<u64>,
    /// Whether it grows; `None`: nobody could tell.
    pub growth: Option<Growth>,
    /// What its lines hold.
    pub lines: Vec<Line>,
}

/// What is known of the growth of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Whether some line of it is known to grow.
    pub grows: bool,
    /// Bytes that its growing lines keep per step, or per second where steps are not known.
    pub pace: f64,
    /// How sure the verdict is, where it says so.
    pub confidence: Option<f64>,
}

/// What one line of the program holds in one rank.
#[derive(Clone, Debug)]
pub struct Line {
    /// What tells it from other lines, the same in all ranks.
    pub name: String,
    /// Bytes that live.
    pub live_bytes: u64,
    /// Bytes that lived when most was allocated.
    pub peak_bytes: u64,
}

/// A number by which ranks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Most bytes that were allocated at a time.
    Peak,
    /// Most bytes that the pool took from the driver.
    Reserved,
    /// Lowest allocated level of the last steps.
    Floor,
    /// What growing lines keep.
    Growth,
    /// Median time of steps.
    StepTime,
}

impl Metric {
    /// The metrics whose values are compared by their distance.
    pub const MEASURED: [Metric; 4] = [
        Metric::Peak,
        Metric::Reserved,
        Metric::Floor,
        Metric::StepTime,
    ];

    /// Value of this metric for a rank. Growth has one only where the rank grows.
    #[must_use]
    pub fn of(self, rank: &Rank) -> Option<f64> {
        let number = match self {
            Metric::Peak => rank.peak_bytes,
            Metric::Reserved => rank.reserved_bytes,
            Metric::Floor => rank.floor_bytes,
            Metric::StepTime => rank.step_ns,
            Metric::Growth => return rank.growth.filter(|one| one.grows).map(|one| one.pace),
        };
        number.map(|number| number as f64)
    }

    /// Share of a group's level below which two ranks count as alike.
    fn alike(self) -> f64 {
        match self {
            Metric::StepTime => 0.05,
            Metric::Growth => 0.10,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.02,
        }
    }

    /// Share of the peers' level below which a difference is not worth telling.
    fn worth_telling(self) -> f64 {
        match self {
            Metric::StepTime => 0.10,
            Metric::Growth => 0.50,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.05,
        }
    }

    /// Tail index of the others from which on single ranks may be far away by themselves, so that only a distance counts
    /// that is large beside the largest of the others. An exponential tail has the index 0. Times have heavy tails more
    /// often than memory, and of paces of growth little is known.
    fn heavy_from(self) -> f64 {
        match self {
            Metric::Growth => f64::NEG_INFINITY,
            Metric::StepTime => 0.2,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.4,
        }
    }

    /// Whether the number is bytes of memory that a rank holds.
    fn is_memory(self) -> bool {
        matches!(self, Metric::Peak | Metric::Reserved | Metric::Floor)
    }
}

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
    /// Numbers of the peers in the job.
    pub peers: Vec<u64>,
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
