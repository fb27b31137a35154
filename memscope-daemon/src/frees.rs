//! Which threads freed the blocks of an earlier moment, as far as the journal goes on behind it.
//!
//! Owns: which blocks are waited for, and how long. Refuses: to say what a thread is, which `threads` knows.

use std::collections::{HashMap, HashSet};

use memscope_ledger::Ledger;
use memscope_ledger::event::{Body, Event, ProcessHandle, TraceAction};

/// Number of records behind the moment that are looked at. Reading them takes some seconds; what a step allocates is
/// freed long before.
const MOST_RECORDS_BEHIND: u64 = 5_000_000;

/// What happened to a block behind the moment.
pub(crate) struct Behind {
    process: ProcessHandle,
    tid: u32,
    addr: u64,
    is_free: bool,
}

impl Behind {
    /// From an event; `None` if it ends no block.
    pub(crate) fn of(event: &Event) -> Option<Behind> {
        let Body::Trace(trace) = &event.body else {
            return None;
        };
        let is_free = match trace.action {
            TraceAction::FreeRequested | TraceAction::FreeCompleted => true,
            // Where another block comes instead, the record of the free was lost.
            TraceAction::Alloc => false,
            _ => return None,
        };
        Some(Behind {
            process: event.process,
            tid: event.tid,
            addr: trace.addr,
            is_free,
        })
    }
}

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

    /// Takes what happened behind the moment.
    pub(crate) fn see(&mut self, behind: &Behind) {
        let is_theirs = behind.process == self.process;
        if is_theirs && self.open.remove(&behind.addr) && behind.is_free {
            self.by.insert(behind.addr, behind.tid);
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
