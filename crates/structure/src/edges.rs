//! Edges: where segments begin and end. They are known from the first and the last block of each chain.

use std::collections::{BTreeMap, BTreeSet};

use crate::walk::RawBlock;

/// A segment that was taken from the driver or given back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentChange {
    pub addr: u64,
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// For a segment that was taken: the address of its pool's object and its stream, if known.
    pub came: Option<(u64, u64)>,
}

/// Where chains of blocks begin and end. This does not change while the segment exists, however its blocks are split
/// and joined.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// Pool and stream, by the device address of the first block.
    pub starts: BTreeMap<u64, (u64, u64)>,
    pub ends: BTreeSet<u64>,
}

impl Edges {
    pub(crate) fn see(&mut self, block: &RawBlock) {
        if block.prev == 0 {
            self.starts.insert(block.ptr, (block.pool, block.stream));
        }
        if block.next == 0 {
            self.ends.insert(block.ptr + block.size);
        }
    }

    /// Applies a change: at the addresses of this segment there is a new segment now, or none.
    pub(crate) fn change(&mut self, segment: &SegmentChange) {
        let (at, first) = (segment.addr, segment.addr.saturating_add(1));
        let end = match segment.bytes {
            Some(bytes) => at.saturating_add(bytes),
            None => self.ends.range(first..).next().copied().unwrap_or(first),
        };
        self.starts.retain(|edge, _| !(at..end).contains(edge));
        self.ends.retain(|edge| !(first..=end).contains(edge));
        if let (Some(came), Some(_)) = (segment.came, segment.bytes) {
            self.starts.insert(at, came);
            self.ends.insert(end);
        }
    }

    /// Address ranges, from one edge to the next, in which an edge was not seen, or where one of the two edges comes
    /// from a block that does not exist any more.
    pub(crate) fn missing(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, bool)> = self.starts.keys().map(|at| (*at, true)).collect();
        all.extend(self.ends.iter().map(|at| (*at, false)));
        // An end sorts before a beginning at the same address.
        all.sort_unstable();
        let mut missing = Vec::new();
        let (mut last, mut open) = (0, false);
        for (at, begins) in all.into_iter().chain([(u64::MAX, true)]) {
            if begins == open {
                missing.push((last, at));
            }
            (last, open) = (at, begins);
        }
        missing
    }
}
