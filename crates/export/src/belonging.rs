//! Finds the pool that each trace entry belongs to.
//!
//! Newer versions of PyTorch name the pool in each entry, older ones do not. There the pool is taken from the entry's
//! segment, because the pools of segments are read from the process. Owns: this search, which walks backwards through
//! the trace from the segments that exist at its end. Refuses: guesses. Entries in a segment that is gone by the end
//! stay with the default pool.

use crate::private_pool::{DEFAULT_POOL, Pool};
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{SnapshotReport, SnapshotTrace};
use std::collections::BTreeMap;

/// The pools of a trace's entries.
#[derive(Debug)]
pub(crate) struct Belonging {
    /// Pool of each entry, by its index in the trace. Empty if every entry names its pool, or if no segment belongs to
    /// a private pool.
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
                // Going backwards, a segment does not exist before its allocation. Of a segment that was given
                // back, the pool is not known.
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

/// Address ranges that do not overlap: from device and start to end and pool.
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

    /// Removes a range of addresses. The parts of other ranges that lie outside of it stay.
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
