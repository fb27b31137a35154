//! What is known of ranks, and the numbers by which they are compared.

use serde::Serialize;

/// What is known of one rank.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// Its number in the job.
    pub rank: u64,
    /// How long ago it began to be followed, nanoseconds.
    pub followed_ns: Option<u64>,
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
    pub(crate) fn alike(self) -> f64 {
        match self {
            Metric::StepTime => 0.05,
            Metric::Growth => 0.10,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.02,
        }
    }

    /// Share of the peers' level below which a difference is not worth telling.
    pub(crate) fn worth_telling(self) -> f64 {
        match self {
            Metric::StepTime => 0.10,
            Metric::Growth => 0.50,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.05,
        }
    }

    /// Tail index of the others from which on single ranks may be far away by themselves, so that only a distance counts
    /// that is large beside the largest of the others. An exponential tail has the index 0. Times have heavy tails more
    /// often than memory, and of paces of growth little is known.
    pub(crate) fn heavy_from(self) -> f64 {
        match self {
            Metric::Growth => f64::NEG_INFINITY,
            Metric::StepTime => 0.2,
            Metric::Peak | Metric::Reserved | Metric::Floor => 0.8,
        }
    }

    /// Whether the number is bytes of memory that a rank holds.
    pub(crate) fn is_memory(self) -> bool {
        matches!(self, Metric::Peak | Metric::Reserved | Metric::Floor)
    }
}
