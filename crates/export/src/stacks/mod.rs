//! Whose memory: a report of stacks, compared, summed up, and in the formats of other tools.
//!
//! Owns: what is counted ([`View`]), what a frame is called outside ([`label`]), the comparison of two
//! moments ([`compare`](fn@compare)), sums by function, file and line ([`groups`](fn@groups)), and the writers:
//! [`folded`](fn@folded), [`flamegraph`](fn@flamegraph), [`pprof`](fn@pprof), [`speedscope`](fn@speedscope).
//! Refuses: where the numbers come from (the ledger), and repairs: a stack that was cut off is shown as cut off,
//! one that was never taken as a frame in square brackets that says why.
//!
//! # What every format keeps
//!
//! * The numbers are those of the report: what a format shows of a metric adds up to the metric's sum over the rows.
//! * Growth is what is live now less what was live at the earlier moment, for each stack. pprof takes
//!   negative numbers; the others draw widths, which cannot be negative, and show what grew (speedscope shows
//!   what shrank in a profile of its own). [`flamegraph_diff`] draws both, by colour.
//! * Names are a process's own words and may be anything: control characters, and those that turn the
//!   direction of writing, are written as `\u{…}`, in folded text `;` as well.

pub mod label;
mod marked;

mod compare;
mod flamegraph;
mod folded;
mod groups;
mod pprof;
mod speedscope;

pub use compare::{compare, merged};
pub use flamegraph::{flamegraph, flamegraph_diff};
pub use folded::{folded, folded_diff};
pub use groups::{Group, GroupBy, groups};
pub use pprof::pprof;
pub use speedscope::speedscope;

use crate::ExportError;
use memscope_ledger::report::{StackReport, StackRow, Tally};

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// What lives.
    #[default]
    Live,
    /// What lived when the device's allocated bytes were largest.
    Peak,
    /// Everything that came since the attach.
    Allocated,
    /// What lives now less what lived at the earlier moment.
    Growth,
}

impl Metric {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Metric::Live => "live",
            Metric::Peak => "peak",
            Metric::Allocated => "allocated",
            Metric::Growth => "growth",
        }
    }
}

/// In what it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    #[default]
    Bytes,
    /// Blocks.
    Count,
}

impl Unit {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Count => "blocks",
        }
    }

    fn of(self, tally: Tally) -> u64 {
        match self {
            Unit::Bytes => tally.bytes,
            Unit::Count => tally.count,
        }
    }
}

/// What is shown of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// What is counted.
    pub metric: Metric,
    /// In what.
    pub unit: Unit,
}

impl View {
    /// What it shows of some blocks; only growth can be negative.
    #[must_use]
    pub fn of(self, tallies: &Tallies) -> i128 {
        let of = |tally| i128::from(self.unit.of(tally));
        match self.metric {
            Metric::Live => of(tallies.live),
            Metric::Peak => of(tallies.peak),
            Metric::Allocated => of(tallies.allocated),
            Metric::Growth => of(tallies.live) - of(tallies.before.unwrap_or_default()),
        }
    }

    /// Refuses growth where there is nothing that it is since.
    fn check(self, report: &StackReport) -> Result<(), ExportError> {
        match (self.metric, report.from) {
            (Metric::Growth, None) => Err(ExportError::NoEarlier),
            _ => Ok(()),
        }
    }
}

/// What a row, or several together, counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Live blocks.
    pub live: Tally,
    /// Those of them that lived at the device's peak.
    pub peak: Tally,
    /// All that came since the attach.
    pub allocated: Tally,
    /// Live at the earlier moment, where there is one.
    pub before: Option<Tally>,
}

impl Tallies {
    /// Those of a row.
    #[must_use]
    pub fn of(row: &StackRow) -> Self {
        Tallies {
            live: row.live,
            peak: row.peak,
            allocated: row.allocated,
            before: row.before,
        }
    }

    /// Adds others to them.
    pub fn add(&mut self, other: &Tallies) {
        self.live = sum(self.live, other.live);
        self.peak = sum(self.peak, other.peak);
        self.allocated = sum(self.allocated, other.allocated);
        self.before = match (self.before, other.before) {
            (Some(one), Some(another)) => Some(sum(one, another)),
            (one, another) => one.or(another),
        };
    }
}

fn sum(one: Tally, another: Tally) -> Tally {
    Tally {
        count: one.count.saturating_add(another.count),
        bytes: one.bytes.saturating_add(another.bytes),
    }
}

/// Whether rows name several devices, so that one needs to be told from the other.
fn several_devices(report: &StackReport) -> bool {
    let mut devices = report.rows.iter().map(|row| row.device);
    let first = devices.next();
    devices.any(|device| Some(device) != first)
}

/// `device 0`, `device unknown`.
fn device_name(device: Option<i32>) -> String {
    match device {
        Some(device) => format!("device {device}"),
        None => "device unknown".to_owned(),
    }
}

/// `python (pid 4242)`.
fn process_name(report: &StackReport) -> String {
    let facts = &report.process.facts;
    format!("{} (pid {})", label::clean(&facts.comm), facts.pid)
}
