//! The sums of one pool on one device.
//!
//! Owns: how the allocator's own totals and our own sum of known blocks are kept consistent. Refuses: to know blocks
//! one by one.
//!
//! The allocator's total is the truth whenever an event brings it. Between such events the total is
//! `base + known`: `known` is the sum of the blocks that we saw come and that live, `base` is the
//! rest. `base` is signed: after a loss, `known` may still contain blocks whose frees were not seen, and then the
//! difference is negative until they are found. Answers never show it below zero.

use serde::{Deserialize, Serialize};

/// A rounded size that differs from the request by more than this is no rounding: the large pool
/// keeps remainders of up to 1 MiB, power-of-two divisions can add as much as the request itself.
const LARGEST_ROUNDING: u64 = 2 << 20;
/// Maximum number of blocks of open size that are kept one by one; further ones are only counted. A total can give a
/// size only to a single one, and a block's report closes what its trace entry opened.
const MOST_OPEN: usize = 8;

/// What follows from a total besides the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The total differed from ours without a reason that we know.
    pub(crate) resynced: bool,
    /// The single block whose rounded size was not known has it now: its address, and the bytes to add to its stand-in.
    pub(crate) sized: Option<(u64, u64)>,
    /// Bytes of orphan frees whose size was not known until now.
    pub(crate) orphan_bytes: u64,
}

/// Whether a block's rounded size is known; if not, the round in which a stand-in was taken for it (see
/// `Totals::round`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sized(u32);

impl Sized {
    /// The rounded size is known.
    pub(crate) const EXACT: Sized = Sized(0);

    /// As a checkpoint has it.
    pub(crate) fn packed(self) -> u32 {
        self.0
    }

    /// The reverse of [`Sized::packed`].
    pub(crate) fn unpacked(packed: u32) -> Sized {
        Sized(packed)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Total minus known blocks; `None` until a total was seen. If nothing was missed, it is 0 from the first block on.
    base: Option<i64>,
    /// Sum of the rounded sizes of known live blocks; a lower bound stands in where the rounded
    /// size is not known.
    known: i64,
    /// Counts the totals that came while such stand-ins were open, from 0.
    round: u32,
    /// Live known blocks with such a stand-in since the last total: address and request.
    open: Vec<(u64, u64)>,
    /// Number of further ones, beyond `MOST_OPEN`.
    more_open: u64,
    /// Frees of unknown blocks of unknown size since the last total, and a lower bound of their
    /// bytes.
    unsized_orphans: u64,
    unsized_orphan_floor: u64,
    /// Nothing came or went since the last total, and nothing was lost.
    fresh: bool,
    peak: Option<u64>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// The least that a request can be rounded to (`kMinBlockSize`).
pub(crate) fn least_rounded(requested: u64) -> u64 {
    requested
        .max(1)
        .checked_next_multiple_of(512)
        .unwrap_or(u64::MAX)
}

impl Totals {
    /// Nothing was missed: the base is zero unless a total says otherwise.
    pub(crate) fn start_at_zero(&mut self) {
        if self.base.is_none() && self.known == 0 {
            self.base = Some(0);
        }
    }

    /// A block came; `rounded` is a stand-in unless `exact`. The result is to be kept with the block.
    pub(crate) fn came(&mut self, addr: u64, requested: u64, rounded: u64, exact: bool) -> Sized {
        self.fresh = false;
        self.known = self.known.saturating_add(signed(rounded));
        if exact {
            return Sized::EXACT;
        }
        if self.open.len() < MOST_OPEN {
            self.open.push((addr, requested));
        } else {
            self.more_open += 1;
        }
        Sized(self.round + 1)
    }

    /// The rounded size of a live block is known now.
    pub(crate) fn sized(&mut self, addr: u64, before: u64, rounded: u64, size: Sized) {
        self.known = self
            .known
            .saturating_add(signed(rounded))
            .saturating_sub(signed(before));
        if !self.close(addr, size) {
            // A total has come since: the rest of the block is in the base.
            self.correct(before, rounded);
        }
    }

    /// A known block went. `held` is its size as we knew it, `told` its size as the free reports it (if it does).
    /// Returns whether no total came while the block lived: then its allocation and its free cancel out, whatever its
    /// size.
    pub(crate) fn went(&mut self, addr: u64, held: u64, size: Sized, told: Option<u64>) -> bool {
        self.fresh = false;
        self.known = self.known.saturating_sub(signed(held));
        let open = self.close(addr, size);
        if !open && let Some(told) = told {
            self.correct(held, told);
        }
        open
    }

    /// A block that went was counted with `held` bytes, but had `told` bytes: the difference was in the base.
    pub(crate) fn correct(&mut self, held: u64, told: u64) {
        if let Some(base) = &mut self.base {
            *base = base
                .saturating_add(signed(held))
                .saturating_sub(signed(told));
        }
    }

    /// A known block turned out to be gone, although its free was not seen. That does not change the total: one that
    /// came since has taken the block's bytes from the base, or the next one will.
    pub(crate) fn was_gone(&mut self, addr: u64, held: u64, size: Sized) {
        self.known = self.known.saturating_sub(signed(held));
        if let Some(base) = &mut self.base {
            *base = base.saturating_add(signed(held));
        }
        self.close(addr, size);
    }

    /// An unknown block went.
    pub(crate) fn orphan_went(&mut self, bytes: u64) {
        self.fresh = false;
        if let Some(base) = &mut self.base {
            *base = base.saturating_sub(signed(bytes));
        }
    }

    /// An unknown block of unknown size went, at least `floor` bytes.
    pub(crate) fn unsized_orphan_went(&mut self, floor: u64) {
        self.fresh = false;
        self.unsized_orphans += 1;
        self.unsized_orphan_floor = self.unsized_orphan_floor.saturating_add(floor);
    }

    /// The size of such a block is known after all. Returns false if a total in between has already taken its bytes.
    pub(crate) fn orphan_sized(&mut self, floor: u64, bytes: u64) -> bool {
        let waits = self.unsized_orphans > 0;
        if waits {
            self.unsized_orphans -= 1;
            self.unsized_orphan_floor = self.unsized_orphan_floor.saturating_sub(floor);
            self.orphan_went(bytes);
        }
        waits
    }

    /// Closes the block's size, if it is open. Returns whether it was.
    pub(crate) fn close(&mut self, addr: u64, size: Sized) -> bool {
        let open = size.0 == self.round + 1;
        if open {
            match self.open.iter().rposition(|(open, _)| *open == addr) {
                Some(place) => {
                    self.open.swap_remove(place);
                }
                None => self.more_open = self.more_open.saturating_sub(1),
            }
        }
        open
    }

    /// Every live block is known, and together they have `known` bytes: nothing is left over.
    pub(crate) fn all_known(&mut self, known: u64) {
        self.known = signed(known);
        self.base = Some(0);
        self.unsized_orphans = 0;
        self.unsized_orphan_floor = 0;
        self.raise_peak(known);
    }

    /// Records were lost: the last total may not be true any more.
    pub(crate) fn records_lost(&mut self) {
        self.fresh = false;
    }

    /// Whether the allocator's own total is known and differs from `total`. A sum that we continued since the last
    /// total is no evidence: after a loss, the blocks that came and went may have been others than we thought.
    pub(crate) fn contradicts(&self, total: u64) -> bool {
        self.fresh
            && self
                .base
                .is_some_and(|base| base.saturating_add(self.known) != signed(total))
    }

    /// How many of the last frees of unknown blocks have no size yet.
    pub(crate) fn unsized_orphans(&self) -> u64 {
        self.unsized_orphans
    }

    /// Takes the allocator's total, which includes everything that was reported so far.
    pub(crate) fn settle(&mut self, total: u64) -> Settled {
        let mut settled = Settled::default();
        if let Some(base) = self.base {
            let difference = signed(total)
                .saturating_sub(base)
                .saturating_sub(self.known);
            if difference != 0 {
                self.explain(difference, &mut settled);
            }
        }
        self.fresh = true;
        self.base = Some(signed(total).saturating_sub(self.known));
        if !self.open.is_empty() || self.more_open > 0 {
            self.round = self.round.wrapping_add(1) & 0x7fff_ffff;
        }
        self.open.clear();
        self.more_open = 0;
        self.unsized_orphans = 0;
        self.unsized_orphan_floor = 0;
        self.raise_peak(total);
        settled
    }

    fn explain(&mut self, difference: i64, settled: &mut Settled) {
        if difference > 0 && self.unsized_orphans == 0 {
            let excess = unsigned(difference);
            if let ([(addr, requested)], 0) = (self.open.as_slice(), self.more_open)
                && excess <= requested.saturating_add(LARGEST_ROUNDING)
            {
                self.known = self.known.saturating_add(difference);
                settled.sized = Some((*addr, excess));
                return;
            }
        }
        if difference < 0 && self.unsized_orphans > 0 && self.open.is_empty() && self.more_open == 0
        {
            let gone = difference.unsigned_abs();
            if gone >= self.unsized_orphan_floor {
                settled.orphan_bytes = gone;
                return;
            }
        }
        settled.resynced = true;
    }

    /// Raises the peak to a total that must have stood at some moment, even if no event brought it.
    pub(crate) fn raise_peak(&mut self, total: u64) {
        self.peak = Some(self.peak.map_or(total, |peak| peak.max(total)));
    }

    /// Bytes handed out; `None` if no total was ever seen.
    pub(crate) fn allocated(&self) -> Option<u64> {
        self.base
            .map(|base| unsigned(base.saturating_add(self.known)))
    }

    /// Bytes of the total that belong to no known block.
    pub(crate) fn baseline(&self) -> Option<u64> {
        self.base.map(unsigned)
    }

    /// Bytes of this total that belong to no known block.
    pub(crate) fn beyond_known(&self, total: u64) -> u64 {
        unsigned(signed(total).saturating_sub(self.known))
    }

    /// Bytes by which the known blocks exceed the total: blocks of that size must have gone without being seen.
    pub(crate) fn overhang(&self) -> u64 {
        self.base.map_or(0, |base| unsigned(base.saturating_neg()))
    }

    /// Largest total seen.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.peak
    }

    /// Whether there are live blocks that came since the last total and whose rounded size no event gave.
    pub(crate) fn has_unsized(&self) -> bool {
        !self.open.is_empty() || self.more_open > 0
    }

    /// Whether blocks came or went since the last total whose rounded size is not known.
    pub(crate) fn is_open(&self) -> bool {
        self.has_unsized() || self.unsized_orphans > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_is_what_was_there_before() {
        let mut totals = Totals::default();
        assert_eq!(totals.allocated(), None);
        totals.came(1, 512, 512, true);
        assert!(!totals.settle(10_512).resynced);
        assert_eq!(totals.baseline(), Some(10_000));
        totals.orphan_went(4_000);
        assert!(!totals.settle(6_512).resynced);
        assert_eq!(totals.baseline(), Some(6_000));
        assert_eq!(totals.peak(), Some(10_512));
    }

    #[test]
    fn one_unsized_block_takes_the_difference() {
        let mut totals = Totals::default();
        totals.settle(0);
        totals.came(7, 3_000_000, least_rounded(3_000_000), false);
        assert!(totals.is_open());
        let settled = totals.settle(3_500_032);
        assert_eq!(
            settled,
            Settled {
                resynced: false,
                sized: Some((7, 3_500_032 - least_rounded(3_000_000))),
                orphan_bytes: 0
            }
        );
        assert_eq!(totals.baseline(), Some(0));
        assert!(!totals.is_open());
    }

    #[test]
    fn unseen_frees_never_make_the_baseline_negative() {
        let mut totals = Totals::default();
        totals.settle(0);
        totals.came(1, 512, 512, true);
        totals.came(2, 512, 512, true);
        assert!(totals.settle(512).resynced);
        assert_eq!(totals.baseline(), Some(0));
        assert_eq!(totals.overhang(), 512);
        assert_eq!(totals.allocated(), Some(512));
        totals.was_gone(1, 512, Sized::EXACT);
        totals.came(1, 512, 512, true);
        assert!(!totals.settle(1024).resynced, "counted once only");
        assert_eq!(totals.overhang(), 0);
    }

    #[test]
    fn an_orphan_of_unknown_size_is_sized_by_the_next_total() {
        let mut totals = Totals::default();
        totals.settle(10_000);
        totals.unsized_orphan_went(512);
        let settled = totals.settle(9_000);
        assert_eq!((settled.resynced, settled.orphan_bytes), (false, 1_000));
        totals.orphan_sized(512, 1_000); // its report comes late: already taken
        assert!(!totals.settle(9_000).resynced);
    }

    #[test]
    fn a_block_that_no_total_saw_cancels_out() {
        let mut totals = Totals::default();
        totals.settle(10_000);
        let size = totals.came(7, 1000, 1024, false);
        assert!(totals.went(7, 1024, size, Some(4096)));
        assert!(!totals.settle(10_000).resynced);
        assert_eq!(totals.baseline(), Some(10_000));
        // Once a total has seen it, the rest of it is in the base and leaves with it.
        let size = totals.came(7, 1000, 1024, false);
        totals.came(8, 1000, 1024, false);
        assert!(totals.settle(10_000 + 4096 + 1024).resynced);
        assert!(!totals.went(7, 1024, size, Some(4096)));
        assert!(!totals.settle(10_000 + 1024).resynced);
        assert_eq!(totals.baseline(), Some(10_000));
    }
}
