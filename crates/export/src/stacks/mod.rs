//! Which code holds the memory: a report of stacks, compared, summed up, and in the formats of other tools.
//!
//! Owns: what is counted ([`View`]), the labels of frames ([`label`]), the comparison of two
//! moments ([`compare`](fn@compare)), sums by function, file and line ([`groups`](fn@groups)), and the writers:
//! [`folded`](fn@folded), [`flamegraph`](fn@flamegraph), [`pprof`](fn@pprof), [`speedscope`](fn@speedscope).
//! Refuses: where the numbers come from (the ledger), and repairs: a stack that was cut off is shown as cut off,
//! and one that was never taken is shown as a frame in square brackets that says why.
//!
//! # What every format keeps
//!
//! * The numbers are those of the report: what a format shows for a metric adds up to the metric's sum over the rows.
//! * Growth is what is live now less what was live at the earlier moment, for each stack. pprof takes
//!   negative numbers; the others draw widths, which cannot be negative, and show what grew (speedscope shows
//!   what shrank in a profile of its own). [`flamegraph_diff`] draws both, by colour.
//! * Names come from the process and may contain anything: control characters, and characters that change the
//!   direction of writing, are written as `\u{…}`; in folded text `;` is, too.

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

/// Which blocks are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// Blocks that are live.
    #[default]
    Live,
    /// Blocks that were live when the device's allocated bytes were largest since the attach.
    Peak,
    /// All blocks that came since the attach.
    Allocated,
    /// Live blocks now less live blocks at the earlier moment.
    Growth,
}

impl Metric {
    /// The word for it in names and titles.
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

/// Whether bytes or blocks are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of the blocks.
    #[default]
    Bytes,
    /// Number of blocks.
    Count,
}

impl Unit {
    /// The word for it in names and titles.
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

/// Which numbers of a report are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Which blocks are counted.
    pub metric: Metric,
    /// Whether their bytes or their number is shown.
    pub unit: Unit,
}

impl View {
    /// The number that is shown for these tallies. Only growth can be negative.
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

    /// Refuses growth if the report has no earlier moment.
    fn check(self, report: &StackReport) -> Result<(), ExportError> {
        match (self.metric, report.from) {
            (Metric::Growth, None) => Err(ExportError::NoEarlier),
            _ => Ok(()),
        }
    }
}

/// What one row counts, or several rows added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Live blocks.
    pub live: Tally,
    /// Blocks that were live when the device's allocated bytes were largest since the attach.
    pub peak: Tally,
    /// All blocks that came since the attach.
    pub allocated: Tally,
    /// Blocks that were live at the earlier moment; `None` if there is no earlier moment.
    pub before: Option<Tally>,
}

impl Tallies {
    /// The tallies of a row.
    #[must_use]
    pub fn of(row: &StackRow) -> Self {
        Tallies {
            live: row.live,
            peak: row.peak,
            allocated: row.allocated,
            before: row.before,
        }
    }

    /// Adds other tallies to these.
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

/// Whether the rows are of more than one device, so that each device must be named.
fn several_devices(report: &StackReport) -> bool {
    let mut devices = report.rows.iter().map(|row| row.device);
    let first = devices.next();
    devices.any(|device| Some(device) != first)
}

/// For example `device 0`, or `device unknown`.
fn device_name(device: Option<i32>) -> String {
    match device {
        Some(device) => format!("device {device}"),
        None => "device unknown".to_owned(),
    }
}

/// For example `python (pid 4242)`.
fn process_name(report: &StackReport) -> String {
    let facts = &report.process.facts;
    format!("{} (pid {})", label::clean(&facts.comm), facts.pid)
}
