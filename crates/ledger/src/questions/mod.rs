//! Questions: one file each, which folds what is known into the message that goes to whoever asked.
//!
//! Owns: the list of questions, and the ways to ask any of them. Refuses: to know how a question travels or who may ask it; the server
//! does.
//!
//! A new question is a file here, a line in the list below, and its messages in `proto/`. Questions about one process implement
//! `OfOne`. Pictures (`snapshot`, `stacks`) are no messages: whoever asked for one makes a file, a comparison or a stream of it.

mod affects;
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
pub use marks::find_mark;
pub use question::{Needs, Question, Senseless};

use crate::Ledger;
use crate::event::ProcessHandle;
use crate::report::{AsOf, Baseline, Gauge, SnapshotReport, StackReport};
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
    /// Asks a question about processes; `None` where one of them is not known.
    pub fn ask<Q: Question>(
        &self,
        of: &[ProcessHandle],
        as_of: AsOf,
        question: &Q,
    ) -> Option<Q::Reply> {
        question.answer(self, of, as_of)
    }

    /// The picture of memory, and the trace.
    pub fn snapshot(&self, p: ProcessHandle, as_of: AsOf) -> Option<SnapshotReport> {
        Some(snapshot::report(self.process(p)?, as_of, self.clock()))
    }

    /// What each stack of a process allocated.
    pub fn stacks(&self, p: ProcessHandle, as_of: AsOf) -> Option<StackReport> {
        Some(stacks::report(self.process(p)?, as_of))
    }

    /// What limits the answers about a process.
    pub fn coverage(&self, p: ProcessHandle) -> Option<Vec<v1::CoverageNote>> {
        self.process(p).map(coverage::notes)
    }

    /// When each step that is kept ended: its number and boot time in nanoseconds, oldest first; and how steps are known, in a sentence.
    pub fn ends_of_steps(&self, p: ProcessHandle) -> Option<(Vec<(u64, u64)>, String)> {
        let process = self.process(p)?;
        Some((steps::ends(process), steps::summary(process).evidence))
    }

    /// What happened to the pool of a process's device, whose allocator's object is at `allocator`, after `since_ns`, in the
    /// order in which it was told. `None` where something may be missing: records were lost, or so old ones are no longer kept.
    pub fn pool_changes(
        &self,
        p: ProcessHandle,
        device: i32,
        allocator: u64,
        since_ns: u64,
    ) -> Option<Vec<PoolChange>> {
        changes::of(self.process(p)?, device, allocator, since_ns)
    }

    /// The levels of one device of a process, at the cost of a lookup.
    pub fn gauge(&self, p: ProcessHandle, device: i32) -> Option<Gauge> {
        gauge::of(self.process(p)?, device)
    }

    /// The levels of all devices of a process that are known by number, in no order.
    pub fn gauges(&self, p: ProcessHandle) -> impl Iterator<Item = Gauge> {
        self.process(p).into_iter().flat_map(gauge::all)
    }

    /// Whether a snapshot of a process has in it what was there before the attach.
    pub fn baseline(&self, p: ProcessHandle) -> Option<Baseline> {
        self.process(p).map(gauge::baseline)
    }
}
