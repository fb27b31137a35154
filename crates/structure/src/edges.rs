//! Where segments begin and end: the first and the last blocks of chains.

use std::collections::{BTreeMap, BTreeSet};

use crate::walk::RawBlock;

/// A segment that came or went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentChange {
    pub addr: u64,
    /// Its length, where known.
    pub bytes: Option<u64>,
    /// The pool's address and the stream of one that came, where known.
    pub came: Option<(u64, u64)>,
}

/// Where chains of blocks begin and end. This stays as it is while the segment is there, however its blocks
/// are split and joined.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// The pool and the stream, by the first block's address on the device.
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

    /// Where this segment is, is another one now, or none.
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

    /// Stretches of addresses, from a beginning or an end to the next one, in which an edge was not seen, or where
    /// one of the two was told by a block that is no more.
    pub(crate) fn missing(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, bool)> = self.starts.keys().map(|at| (*at, true)).collect();
        all.extend(self.ends.iter().map(|at| (*at, false)));
        // An end comes before the beginning at the same address.
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
