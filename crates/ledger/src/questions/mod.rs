//! Questions: a file for each, which builds the message that answers it from the state.
//!
//! Owns: the list of questions, and the ways to ask any of them. Refuses: to know how a question is sent or who may ask
//! it; the server does.
//!
//! To add a question, add a file here, a line in the list below, and its messages in `proto/`. Questions about one
//! process implement `OfOne`. Pictures (`snapshot`, `stacks`) are no messages: the caller makes a file, a comparison or
//! a stream of them.

mod affects;
mod beside;
mod changes;
mod coverage;
mod devices;
mod fluctuation;
mod gauge;
mod leaks;
mod list;
mod marks;
mod question;
mod snapshot;
mod stacks;
mod stats;
mod steps;
mod words;

pub use affects::{Affects, Answer, EFFECTS, Effect, effect, inexact, is_judged};
pub use changes::PoolChange;
pub use marks::{find_mark, numbered_mark};
pub use question::{Needs, Question, Senseless};
pub use snapshot::Unnamed;

use crate::Ledger;
use crate::event::ProcessHandle;
use crate::report::{AsOf, Baseline, BesidePool, Gauge, Hidden, SnapshotReport, StackReport};
use memscope_proto::v1;
use question::{AboutOne, questions};

questions! {
    about one process {
        Fluctuation: FluctuationRequest => FluctuationResponse, Reading;
        Leaks: LeaksRequest => LeaksResponse, Totals;
        Marks: MarksRequest => MarksResponse, Events;
        Stats: StatsRequest => StatsResponse, Totals;
        Steps: StepsRequest => StepsResponse, Reading;
    }
    about all that the caller may see {
        Devices: DevicesRequest => DevicesResponse, Totals;
        List: ListRequest => ListResponse, Events;
    }
}

impl Ledger {
    /// Answers a question about some processes; `None` where a process that the answer needs is not known.
    pub fn ask<Q: Question>(
        &self,
        of: &[ProcessHandle],
        as_of: AsOf,
        question: &Q,
    ) -> Option<Q::Reply> {
        question.answer(self, of, as_of)
    }

    /// A snapshot: segments and blocks at this moment, and the trace.
    pub fn snapshot(&self, p: ProcessHandle, as_of: AsOf) -> Option<SnapshotReport> {
        self.picture(p, as_of).map(|(report, _)| report)
    }

    /// The same, with those of its stacks that have frames without a name yet. [`Ledger::name`] names them later.
    pub fn picture(&self, p: ProcessHandle, as_of: AsOf) -> Option<(SnapshotReport, Unnamed)> {
        Some(snapshot::report(self.process(p)?, as_of, self.clock()))
    }

    /// Gives the stacks of a picture the names that have come since it was made. Nothing else of it changes.
    pub fn name(&self, report: &mut SnapshotReport, unnamed: &Unnamed) {
        if let Some(process) = self.process(report.process.handle) {
            snapshot::name(process, report, unnamed);
        }
    }

    /// What each stack of a process allocated.
    pub fn stacks(&self, p: ProcessHandle, as_of: AsOf) -> Option<StackReport> {
        Some(stacks::report(self.process(p)?, as_of))
    }

    /// Memory that a process has from the driver beside its framework's pool, by stack. A process without a pool has none: its snapshot
    /// shows all that it has.
    pub fn beside_the_pool(&self, p: ProcessHandle) -> Option<Vec<BesidePool>> {
        self.process(p).map(beside::report)
    }

    /// The devices of which it was last seen how much is free before what the process holds there changed.
    pub fn free_is_old(&self, p: ProcessHandle) -> Vec<Option<i32>> {
        let process = self.process(p).into_iter();
        let rows = process.flat_map(|process| process.devices.iter());
        rows.filter(|row| row.is_free_old())
            .map(|row| row.ordinal)
            .collect()
    }

    /// Coverage notes: what limits the numbers in answers about a process.
    pub fn coverage(&self, p: ProcessHandle) -> Option<Vec<v1::CoverageNote>> {
        self.process(p).map(coverage::notes)
    }

    /// Number of steps that a process has made since it was attached; 0 where none was found yet.
    pub fn steps_so_far(&self, p: ProcessHandle) -> u64 {
        let steps = self.process(p).and_then(|process| process.steps.count());
        steps.map_or(0, |(count, _)| count)
    }

    /// How many steps a process has made, how long they take, and how that is known.
    pub fn step_summary(&self, p: ProcessHandle) -> Option<v1::StepSummary> {
        self.process(p).map(steps::summary)
    }

    /// For each step that is kept its number and the boot time of its end in nanoseconds, oldest first; and a sentence
    /// on how steps are found.
    pub fn ends_of_steps(&self, p: ProcessHandle) -> Option<(Vec<(u64, u64)>, String)> {
        let process = self.process(p)?;
        Some((steps::ends(process), steps::summary(process).evidence))
    }

    /// What happened after `since_ns` (boot time) to the pool of a device whose allocator object is at `allocator`:
    /// first the entries of the trace, then those whose device is not known yet, then calls of the driver, each in
    /// their order. `None` where something may be missing: records were lost since, or entries of that age are no
    /// longer kept.
    pub fn pool_changes(
        &self,
        p: ProcessHandle,
        device: i32,
        allocator: u64,
        since_ns: u64,
    ) -> Option<Vec<PoolChange>> {
        changes::of(self.process(p)?, device, allocator, since_ns)
    }

    /// Allocated and reserved bytes of one device of a process, at the cost of a lookup.
    pub fn gauge(&self, p: ProcessHandle, device: i32) -> Option<Gauge> {
        gauge::of(self.process(p)?, device)
    }

    /// Allocated and reserved bytes of all devices of a process whose ordinal is known, in no order.
    pub fn gauges(&self, p: ProcessHandle) -> impl Iterator<Item = Gauge> {
        self.process(p).into_iter().flat_map(gauge::all)
    }

    /// What nothing tells of a process that has a pool, as long as it is watched at this level.
    pub fn hidden(&self, p: ProcessHandle) -> Hidden {
        self.process(p).map(gauge::hidden).unwrap_or_default()
    }

    /// Whether a snapshot of a process has the blocks from before the attach in it.
    pub fn baseline(&self, p: ProcessHandle) -> Option<Baseline> {
        self.process(p).map(gauge::baseline)
    }
}
