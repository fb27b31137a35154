//! Which pool a trace entry is of.
//!
//! Newer versions of PyTorch say it with each entry, older ones do not; there the segments say it, whose pools are read
//! from the process. Owns: that answer, worked out backwards from the segments of the end. Refuses: guesses. What was
//! in a segment that is gone by then stays with the default pool, from its birth to its end.

use crate::private_pool::{DEFAULT_POOL, Pool};
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{SnapshotReport, SnapshotTrace};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Belonging {
    /// By entry. Empty: nothing is to be found out.
    pools: Vec<Pool>,
}

impl Belonging {
    pub(crate) fn of(report: &SnapshotReport) -> Belonging {
        let untold = report.trace.iter().any(|entry| entry.pool.is_none());
        let mut private = Ranges::default();
        for segment in &report.segments {
            if segment.pool != DEFAULT_POOL {
                let end = segment.addr.saturating_add(segment.size);
                private.insert((segment.device, segment.addr), end, segment.pool);
            }
        }
        if !untold || private.0.is_empty() {
            return Belonging { pools: Vec::new() };
        }
        let mut pools = vec![DEFAULT_POOL; report.trace.len()];
        for (entry, pool) in report.trace.iter().zip(&mut pools).rev() {
            let at = (entry.device, entry.addr);
            *pool = entry.pool.unwrap_or_else(|| private.pool(at));
            let end = entry.addr.saturating_add(entry.size);
            match entry.action {
                // Neither was there before it came, nor, as far as is known, is what goes.
                TraceAction::SegmentAlloc
                | TraceAction::SegmentMap
                | TraceAction::SegmentFree
                | TraceAction::SegmentUnmap => private.remove(at, end),
                _ => {}
            }
        }
        Belonging { pools }
    }

    /// The pool of an entry, by its index in the trace.
    pub(crate) fn pool(&self, index: usize, entry: &SnapshotTrace) -> Pool {
        let found = || self.pools.get(index).copied();
        entry.pool.or_else(found).unwrap_or(DEFAULT_POOL)
    }
}

/// Ranges of addresses by device and start, with end and pool; they do not overlap.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<(i32, u64), (u64, Pool)>);

impl Ranges {
    fn insert(&mut self, start: (i32, u64), end: u64, pool: Pool) {
        if start.1 < end {
            self.0.insert(start, (end, pool));
        }
    }

    fn pool(&self, at: (i32, u64)) -> Pool {
        match self.0.range(..=at).next_back() {
            Some(((device, _), (end, pool))) if *device == at.0 && at.1 < *end => *pool,
            _ => DEFAULT_POOL,
        }
    }

    /// Takes a range out; what it cuts in two stays on both sides.
    fn remove(&mut self, from: (i32, u64), to: u64) {
        if to <= from.1 {
            return;
        }
        let until = (from.0, to);
        while let Some((start, (end, pool))) = self
            .0
            .range(..until)
            .next_back()
            .map(|(start, range)| (*start, *range))
        {
            if start.0 != from.0 || end <= from.1 {
                break;
            }
            self.0.remove(&start);
            self.insert(until, end, pool);
            if start.1 < from.1 {
                self.insert(start, from.1, pool);
                break;
            }
        }
    }
}
