//! The blocks of a reading, and what became of them after it.
//!
//! Owns: the proof that a reading agrees with itself, and the way by which its blocks are followed through later
//! events. Refuses: to change the pool's state.

use crate::event::TraceAction;
use crate::state::pool::block::HeldState;
use crate::state::pool::reading::Reading;
use crate::state::pool::trace_ring::Entry;
use serde::{Deserialize, Serialize};

/// One block of a reading.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HeldBlock {
    pub(crate) addr: u64,
    pub(crate) rounded: u64,
    requested: u64,
    pub(crate) stream: u64,
    pub(crate) state: HeldState,
    /// Identity of the stack that allocated it, where it is known.
    #[serde(default)]
    pub(crate) stack: Option<u64>,
}

impl HeldBlock {
    /// Requested bytes, where the reading has them. 0 stands for unknown, because no block is requested with 0 bytes.
    pub(crate) fn requested(&self) -> Option<u64> {
        (self.requested != 0).then_some(self.requested)
    }

    fn end(&self) -> u64 {
        self.addr.saturating_add(self.rounded)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HeldBlocks {
    /// Sorted by address.
    blocks: Vec<HeldBlock>,
}

impl HeldBlocks {
    /// The blocks, if the reading agrees with itself: nothing overlaps, every block lies in its
    /// segment, and the sums are the allocator's totals.
    pub(crate) fn of(reading: &Reading) -> Option<HeldBlocks> {
        let count = reading.segments.iter().map(|s| s.blocks.len()).sum();
        let mut blocks: Vec<HeldBlock> = Vec::with_capacity(count);
        let (mut allocated, mut reserved) = (0u64, 0u64);
        let mut at = 0;
        for segment in &reading.segments {
            let end = segment.addr.checked_add(segment.size)?;
            if segment.addr < at {
                return None;
            }
            at = segment.addr;
            reserved = reserved.checked_add(segment.size)?;
            let stack_of = |addr| {
                let found = segment.stacks.binary_search_by_key(&addr, |(at, _)| *at);
                let (_, stack) = segment.stacks.get(found.ok()?)?;
                Some(*stack)
            };
            for &(addr, rounded, requested, pending) in &segment.blocks {
                let block = HeldBlock {
                    addr,
                    rounded,
                    requested,
                    stream: segment.stream,
                    state: if pending {
                        HeldState::Pending
                    } else {
                        HeldState::Active
                    },
                    stack: stack_of(addr),
                };
                if addr < at || rounded == 0 || rounded > end.saturating_sub(addr) {
                    return None;
                }
                at = block.end();
                if !pending {
                    allocated = allocated.checked_add(rounded)?;
                }
                blocks.push(block);
            }
            at = end;
        }
        let sums = (allocated, reserved);
        (sums == (reading.total_allocated, reading.total_reserved)).then_some(HeldBlocks { blocks })
    }

    /// Follows the blocks through the entries of the device after the reading. Returns the rounded sizes of the blocks
    /// whose frees were orphans (their block was not known when they came), oldest first. `None` if an orphan belongs
    /// to no block of the reading either, which cannot be if the reading is right.
    pub(crate) fn follow(&mut self, later: impl Iterator<Item = Entry>) -> Option<Vec<u64>> {
        let mut explained = Vec::new();
        for entry in later {
            let found = self
                .place(entry.addr)
                .and_then(|at| self.blocks.get_mut(at));
            match (entry.action, found) {
                (TraceAction::FreeRequested, Some(block)) if block.state == HeldState::Active => {
                    block.state = HeldState::Pending;
                    if entry.orphan {
                        explained.push(block.rounded);
                    }
                }
                (TraceAction::FreeRequested, _) if entry.orphan => return None,
                (TraceAction::Alloc | TraceAction::FreeCompleted, Some(block)) => {
                    block.state = HeldState::Gone;
                }
                _ => {}
            }
        }
        Some(explained)
    }

    /// Number of the block at this address.
    pub(crate) fn place(&self, addr: u64) -> Option<usize> {
        self.blocks
            .binary_search_by_key(&addr, |block| block.addr)
            .ok()
    }

    /// All blocks by address.
    pub(crate) fn blocks(&self) -> &[HeldBlock] {
        &self.blocks
    }

    /// Sum of the rounded sizes of the live blocks, in bytes.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.blocks
            .iter()
            .filter(|block| block.state == HeldState::Active)
            .fold(0, |sum: u64, block| sum.saturating_add(block.rounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::HeldSegment;

    fn reading(blocks: Vec<(u64, u64, u64, bool)>) -> Reading {
        Reading {
            at_ns: 10,
            device: 0,
            allocator: 0,
            total_allocated: blocks.iter().filter(|b| !b.3).map(|b| b.1).sum(),
            total_reserved: 4096,
            segments: vec![HeldSegment {
                addr: 8192,
                size: 4096,
                stream: 3,
                large: false,
                pool: (0, 0),
                expandable: false,
                blocks,
                ..HeldSegment::default()
            }],
        }
    }

    fn entry(action: TraceAction, addr: u64, orphan: bool) -> Entry {
        Entry {
            action,
            addr,
            size: 1,
            stream: 3,
            pool: None,
            time_ns: 11,
            tid: 1,
            stack: 0,
            orphan,
            reported: false,
            rounded: 0,
        }
    }

    #[test]
    fn a_reading_must_agree_with_itself() {
        let good = vec![(8192, 512, 1, false), (9216, 512, 500, true)];
        assert!(HeldBlocks::of(&reading(good.clone())).is_some());
        for wrong in [
            vec![(8192, 1024, 1, false), (8704, 512, 1, false)],
            vec![(8704, 512, 1, false), (8192, 512, 1, false)],
            vec![(8192, 8192, 1, false)],
            vec![(8192, 0, 1, false)],
            vec![(100, 512, 1, false)],
        ] {
            assert!(
                HeldBlocks::of(&reading(wrong.clone())).is_none(),
                "{wrong:?}"
            );
        }
        let mut sums = reading(good);
        sums.total_allocated += 512;
        assert!(HeldBlocks::of(&sums).is_none());
    }

    #[test]
    fn a_free_of_nothing_contradicts() {
        let blocks = vec![(8192, 512, 1, false)];
        let follow = |entries: &[Entry]| {
            HeldBlocks::of(&reading(blocks.clone()))?.follow(entries.iter().copied())
        };
        let ours = entry(TraceAction::FreeRequested, 8192, true);
        let others = entry(TraceAction::FreeRequested, 9216, true);
        assert_eq!(follow(&[ours]), Some(vec![512]));
        assert_eq!(follow(&[others]), None);
        // Once it is gone, another orphan at its address is not it.
        assert_eq!(follow(&[ours, ours]), None);
    }
}
