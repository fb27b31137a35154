//! Which threads freed the blocks of an earlier moment, as far as the journal goes on behind it.
//!
//! Owns: which blocks are waited for, and how long. Refuses: to say what a thread is, which `threads` knows.

use std::collections::{HashMap, HashSet};

use memscope_ledger::Ledger;
use memscope_ledger::event::{Body, Event, ProcessHandle, TraceAction};

/// Number of records behind the moment that are looked at. Reading them takes some seconds; what a step allocates is
/// freed long before.
const MOST_RECORDS_BEHIND: u64 = 5_000_000;

/// The frees that are waited for.
pub struct Frees {
    process: ProcessHandle,
    /// Addresses of blocks whose free has not been seen.
    open: HashSet<u64>,
    by: HashMap<u64, u32>,
    records: u64,
}

impl Frees {
    /// Waits for the frees of what the process holds in this ledger, but for the blocks that are `still` there: address
    /// and boot time of the allocation.
    pub(crate) fn begin(
        ledger: &Ledger,
        process: ProcessHandle,
        still: &HashSet<(u64, u64)>,
    ) -> Frees {
        let gone = ledger
            .blocks(process)
            .filter(|block| !still.contains(block));
        Frees {
            process,
            open: gone.map(|(addr, _)| addr).collect(),
            by: HashMap::new(),
            records: 0,
        }
    }

    /// Takes an event behind the moment.
    pub(crate) fn see(&mut self, event: &Event) {
        let Body::Trace(trace) = &event.body else {
            return;
        };
        if event.process != self.process {
            return;
        }
        let is_free = matches!(
            trace.action,
            TraceAction::FreeRequested | TraceAction::FreeCompleted
        );
        // Where another block comes instead, the record of the free was lost.
        let ends = is_free || trace.action == TraceAction::Alloc;
        if ends && self.open.remove(&trace.addr) && is_free {
            self.by.insert(trace.addr, event.tid);
        }
    }

    /// Counts a record. Whether more of them are wanted.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.records += 1;
        !self.open.is_empty() && self.records <= MOST_RECORDS_BEHIND
    }

    /// The threads that freed blocks, by the blocks' addresses.
    pub(crate) fn threads(self) -> HashMap<u64, u32> {
        self.by
    }
}
