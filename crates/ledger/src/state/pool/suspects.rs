//! Blocks that may have gone unseen.
//!
//! Owns: after a loss, the addresses of the blocks that lived then; a block that comes over one of
//! them proves that it is gone. Without this, every loss would leave blocks that live for ever in
//! our books and look like a leak. Refuses: to judge without such proof.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Suspects {
    /// Whether anything was ever lost; before that nothing is kept.
    armed: bool,
    /// Start → end of blocks that lived at the last loss.
    ranges: BTreeMap<u64, u64>,
    /// Blocks that came since the last loss, to be added at the next.
    fresh: Vec<u64>,
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

    /// A block went in sight.
    pub(crate) fn went(&mut self, addr: u64) {
        if self.armed && !self.ranges.is_empty() {
            self.ranges.remove(&addr);
        }
    }

    /// A reading had it, or has just brought it: it lives.
    pub(crate) fn confirmed(&mut self, addr: u64) {
        if self.armed && self.ranges.remove(&addr).is_some() {
            self.fresh.push(addr);
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

    /// Addresses kept.
    pub(crate) fn kept(&self) -> usize {
        self.ranges.len() + self.fresh.len()
    }

    /// How many blocks are under suspicion.
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
