//! Blocks whose free may have been lost.
//!
//! Owns: after a loss of records, the addresses of the blocks that lived then. If another block comes to overlap one of
//! them, that one must be gone. Without this, every loss would leave blocks in the state that never go and look like a
//! leak. Of those that a reading has confirmed, it keeps which they are: the reading shows that a block is there, and not that
//! it is the one from before the loss. Refuses: to judge without such proof.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Suspects {
    /// Whether anything was ever lost; before that nothing is kept.
    armed: bool,
    /// Start → end of blocks that lived at the last loss.
    ranges: BTreeMap<u64, u64>,
    /// Blocks that came since the last loss, to be added at the next.
    fresh: Vec<u64>,
    /// Address → bytes of blocks that lived at a loss, and at whose address a later reading showed a block of the same size.
    #[serde(default)]
    stayed: BTreeMap<u64, u64>,
    /// Sum of the bytes in `stayed`.
    #[serde(default)]
    stayed_bytes: u64,
}

impl Suspects {
    /// Records were lost. `all` gives every live block, `end` the end of one that still lives.
    pub(crate) fn records_lost(
        &mut self,
        all: impl Iterator<Item = (u64, u64)>,
        end: impl Fn(u64) -> Option<u64>,
    ) {
        if self.armed {
            for addr in self.fresh.drain(..) {
                if let Some(end) = end(addr) {
                    self.ranges.insert(addr, end);
                }
            }
        } else {
            self.armed = true;
            self.ranges.extend(all);
        }
    }

    /// A block came.
    pub(crate) fn came(&mut self, addr: u64, live: usize, lives: impl Fn(u64) -> bool) {
        if self.armed {
            self.fresh.push(addr);
            if self.fresh.len() > 2 * live + 1024 {
                self.fresh.retain(|addr| lives(*addr));
                self.fresh.sort_unstable();
                self.fresh.dedup();
            }
        }
    }

    /// A block was seen to go.
    pub(crate) fn went(&mut self, addr: u64) {
        if !self.armed {
            return;
        }
        if !self.ranges.is_empty() {
            self.ranges.remove(&addr);
        }
        if !self.stayed.is_empty() {
            let bytes = self.stayed.remove(&addr).unwrap_or(0);
            self.stayed_bytes = self.stayed_bytes.saturating_sub(bytes);
        }
    }

    /// A reading shows a block of this size at this address, so one lives there.
    pub(crate) fn confirmed(&mut self, addr: u64, bytes: u64) {
        if self.armed && self.ranges.remove(&addr).is_some() {
            self.fresh.push(addr);
            let before = self.stayed.insert(addr, bytes).unwrap_or(0);
            self.stayed_bytes = self.stayed_bytes.saturating_sub(before);
            self.stayed_bytes = self.stayed_bytes.saturating_add(bytes);
        }
    }

    /// Takes out one suspect that overlaps the range, if there is one.
    pub(crate) fn take_overlapping(&mut self, addr: u64, end: u64) -> Option<u64> {
        if self.ranges.is_empty() {
            return None;
        }
        // Suspects lived at the same time, so they do not overlap one another: the last one that
        // starts before `end` is the only one to look at.
        let (&start, &stop) = self.ranges.range(..end).next_back()?;
        if stop > addr {
            self.ranges.remove(&start);
            Some(start)
        } else {
            None
        }
    }

    /// Number of addresses that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.ranges.len() + self.fresh.len()
    }

    /// Number and bytes of the blocks of which only their address and size tell that they are those from before a loss.
    pub(crate) fn stayed(&self) -> (usize, u64) {
        (self.stayed.len(), self.stayed_bytes)
    }

    /// Number of blocks whose free may have been lost.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_proof() {
        let mut suspects = Suspects::default();
        suspects.records_lost([(100, 200), (200, 300), (400, 500)].into_iter(), |_| None);
        assert_eq!(suspects.take_overlapping(300, 400), None);
        assert_eq!(suspects.take_overlapping(150, 250), Some(200));
        assert_eq!(suspects.take_overlapping(150, 250), Some(100));
        assert_eq!(suspects.take_overlapping(150, 250), None);
        suspects.went(400);
        assert_eq!(suspects.len(), 0);
    }
}
