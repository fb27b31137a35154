//! Does a sequence repeat itself?
//!
//! Owns: the search for the shortest period of a sequence's end, and the pattern of allocations by which a loop is
//! recognised that calls nothing with a name (inference, for example). Refuses: time.

use crate::config::table_bytes;
use crate::fast_hash::FastMap;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A repetition must be at least this many times as long as its period.
const CYCLES: usize = 4;
/// Number of last allocations that are remembered in order.
const REMEMBERED: usize = 1 << 15;
/// Maximum number of different tokens that are counted.
const COUNTED: usize = 1 << 16;
/// Number of allocations before the first search for a period.
const FIRST_LOOK: u64 = 64;

/// Finds the shortest period of the end of a sequence. The repetition must be at least [`CYCLES`] times as long as the
/// period and cover at least `quarters` quarters of the whole sequence.
pub(crate) fn period<T: PartialEq>(sequence: &[T], quarters: usize) -> Option<usize> {
    let len = sequence.len();
    // The Z-function of the reversed sequence: for each shift, over what length the end agrees with itself.
    let at = |i: usize| sequence.get(len.wrapping_sub(i + 1));
    let mut run = vec![0usize; len];
    let (mut left, mut right) = (0usize, 0usize);
    for shift in 1..len {
        let mut agreed = if shift < right {
            run.get(shift - left)
                .copied()
                .unwrap_or(0)
                .min(right - shift)
        } else {
            0
        };
        while shift + agreed < len && at(agreed) == at(shift + agreed) {
            agreed += 1;
        }
        if shift + agreed > right {
            (left, right) = (shift, shift + agreed);
        }
        if let Some(slot) = run.get_mut(shift) {
            *slot = agreed;
        }
        let covered = shift + agreed;
        if covered >= shift * CYCLES && covered * 4 >= len * quarters {
            return Some(shift);
        }
    }
    None
}

/// Stands for an allocation: two of the same device, size and stack have the same token.
pub(crate) type Token = u64;

/// The token of an allocation.
pub(crate) fn token(device: i32, size: u64, stack: StackIndex) -> Token {
    let mut token = (u64::from(stack) << 32) ^ u64::from(device as u32);
    token = token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ size;
    token.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The allocation that each cycle has exactly once, by which cycles are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Anchor {
    token: Token,
    /// Number of allocations in a cycle.
    pub(crate) period: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pattern {
    recent: VecDeque<Token>,
    /// The last two allocations.
    last: [Token; 2],
    /// For each token, how often it came and the number of the allocation with which it came first. Counted are single
    /// allocations, and allocations together with the two before them, for loops in which every single one comes
    /// several times.
    counts: FastMap<Token, (u64, u64)>,
    /// Number of allocations so far.
    seen: u64,
    /// Number of the allocation at which the next search for a period is due.
    next_look: u64,
    anchor: Option<Anchor>,
}

/// The token of an allocation together with the two before it. It differs from the tokens of single allocations.
fn with_context(last: [Token; 2], token: Token) -> Token {
    let mut mixed = 0x2545_f491_4f6c_dd1du64;
    for part in [last[0], last[1], token] {
        mixed = (mixed ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23);
    }
    mixed
}

impl Pattern {
    /// Takes an allocation. Returns whether a cycle begins with it.
    pub(crate) fn take(&mut self, token: Token) -> bool {
        self.seen += 1;
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
        let in_context = with_context(self.last, token);
        self.last = [self.last[1], token];
        for counted in [token, in_context] {
            if self.counts.len() < COUNTED || self.counts.contains_key(&counted) {
                self.counts.entry(counted).or_insert((0, self.seen)).0 += 1;
            }
        }
        if self.seen >= self.next_look.max(FIRST_LOOK) {
            self.next_look = (self.seen * 2).min(self.seen + REMEMBERED as u64 / 2);
            self.look();
        }
        self.anchor
            .is_some_and(|anchor| anchor.token == token || anchor.token == in_context)
    }

    /// Whether there was an allocation that may turn out to be one of a cycle.
    pub(crate) fn has_begun(&self) -> bool {
        self.seen > 0
    }

    /// The allocation by which cycles are counted; `None`: no pattern.
    pub(crate) fn anchor(&self) -> Option<Anchor> {
        self.anchor
    }

    /// Estimate of the bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.recent.capacity() * size_of::<Token>()) as u64
            + table_bytes::<(Token, (u64, u64))>(self.counts.capacity())
    }

    /// How many cycles have begun since the first one, and how many allocations are in one; `None`: no pattern.
    pub(crate) fn cycles(&self) -> Option<(u64, usize)> {
        let anchor = self.anchor?;
        let (count, _) = self.counts.get(&anchor.token)?;
        Some((*count, anchor.period))
    }

    fn look(&mut self) {
        let present = self.anchor;
        let sequence = self.recent.make_contiguous();
        self.anchor = period(sequence, 3).and_then(|found| {
            let cycle = sequence.get(sequence.len() - found..).unwrap_or_default();
            let last = |back: usize| {
                let place = cycle.len() - back % cycle.len().max(1);
                cycle.get(place % cycle.len().max(1)).copied().unwrap_or(0)
            };
            let mut before = [last(2), last(1)];
            let in_context: Vec<Token> = cycle
                .iter()
                .map(|token| {
                    let mixed = with_context(before, *token);
                    before = [before[1], *token];
                    mixed
                })
                .collect();
            let is_once = |token: &Token| {
                let all = cycle.iter().chain(&in_context);
                all.filter(|other| *other == token).count() == 1
            };
            // With another anchor cycles would begin elsewhere and have other numbers.
            let present = present.filter(|anchor| anchor.period == found);
            let present = present.map(|anchor| anchor.token).filter(is_once);
            let new = once(cycle, &self.counts).or_else(|| once(&in_context, &self.counts));
            let is_explained = |token: &Token| {
                let Some((count, first)) = self.counts.get(token) else {
                    return false;
                };
                // Cycles must make up at least three quarters of the allocations since the first one.
                let explained = count.saturating_mul(found as u64).saturating_mul(4);
                let since = self.seen.saturating_sub(*first).saturating_add(1);
                explained >= since.saturating_mul(3)
            };
            let token = present.into_iter().chain(new).find(is_explained)?;
            Some(Anchor {
                token,
                period: found,
            })
        });
    }
}

/// The token that a cycle has exactly once and that came least often in all; of several, the one that came first.
fn once(cycle: &[Token], counts: &FastMap<Token, (u64, u64)>) -> Option<Token> {
    let mut times: FastMap<Token, u32> = FastMap::default();
    for token in cycle {
        *times.entry(*token).or_default() += 1;
    }
    times
        .iter()
        .filter(|(_, times)| **times == 1)
        .filter_map(|(token, _)| counts.get(token).map(|known| (*known, *token)))
        .min()
        .map(|(_, token)| token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive<T: PartialEq>(sequence: &[T], quarters: usize) -> Option<usize> {
        let len = sequence.len();
        (1..len).find(|&shift| {
            let agreed = (0..len - shift)
                .take_while(|i| sequence[len - 1 - i] == sequence[len - 1 - i - shift])
                .count();
            let covered = shift + agreed;
            covered >= shift * CYCLES && covered * 4 >= len * quarters
        })
    }

    #[test]
    fn inner_loops_are_no_period_of_the_whole() {
        let layer = [1u64, 2, 3];
        let mut pass = vec![7u64];
        for _ in 0..12 {
            pass.extend(layer);
        }
        pass.push(9);
        let whole: Vec<u64> = std::iter::repeat_n(pass.clone(), 6).flatten().collect();
        assert_eq!(period(&whole, 3), Some(pass.len()));
        // In the middle of the layers, too.
        assert_eq!(period(&whole[..whole.len() - 4], 3), Some(pass.len()));
    }

    #[test]
    fn a_loop_is_counted_from_its_first_pass() {
        let mut pattern = Pattern::default();
        for token in 1000..1030 {
            pattern.take(token); // the model
        }
        for pass in 0..100u64 {
            if pass == 0 {
                pattern.take(555); // a workspace, once
            }
            for token in 1..=10 {
                pattern.take(token);
            }
            if pass > 20 {
                assert_eq!(pattern.cycles(), Some((pass + 1, 10)));
            }
        }
    }

    #[test]
    fn what_varies_has_no_pattern() {
        let mut pattern = Pattern::default();
        for pass in 0..200u64 {
            for token in 1..=10 {
                pattern.take(token * 1000 + pass * 37 % 101);
            }
            pattern.take(5);
        }
        assert_eq!(pattern.cycles(), None);
    }

    proptest! {
        #[test]
        fn as_the_naive_search(
            head in prop::collection::vec(0u8..3, 0..20),
            cycle in prop::collection::vec(0u8..3, 1..9),
            times in 1usize..12,
            quarters in 1usize..=4,
        ) {
            let mut sequence = head;
            for _ in 0..times {
                sequence.extend(&cycle);
            }
            prop_assert_eq!(period(&sequence, quarters), naive(&sequence, quarters));
        }
    }
}
