//! What the groups of an answer to `leaks` are made from, and how one is put together.
//!
//! Owns: which live blocks are looked at, the judge, and the fields of a group in an answer. Refuses: which groups there are;
//! `exact` and `several` find them.

use super::super::steps;
use super::items::{Item, Tally, each_item};
use super::judge::{Judge, Judgement, Young};
use crate::growth::floor::Row;
use crate::report::{Frame, Space, Verdict};
use crate::state::membership::Membership;
use crate::state::stacks::StackIndex;
use memscope_proto::v1::LeakGroup;

/// Most frames that are shown of a group's stack.
const MOST_FRAMES: usize = 64;

#[cfg(test)]
thread_local! {
    /// How often this thread has passed on all live blocks.
    pub(super) static WALKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The judge of the rows of groups, and which of their live blocks are looked at.
pub(super) struct View<'a> {
    pub(super) judge: Judge<'a>,
    pub(super) min_age_ns: u64,
}

/// A group as the answer shows it, and what further steps need to know of it.
pub(super) struct Shown {
    pub(super) group: LeakGroup,
    pub(super) space: Space,
    pub(super) verdict: Verdict,
    /// Bytes of the smallest and of the largest of its live blocks.
    pub(super) sizes: [u64; 2],
    /// Number of the group, if its blocks have one exact size.
    pub(super) exact: Option<usize>,
    /// Number of its class of sizes; `None` if it has the blocks of all sizes of a stack.
    pub(super) class: Option<usize>,
    pub(super) stack: Option<StackIndex>,
    pub(super) young: Option<Young>,
    /// For a group of an exact size: its floors, plus those of the blocks from before the attach that it replaced.
    pub(super) net: Row,
    /// Floors of the blocks from before the attach that it replaced, counted in units of bytes (`growth::group::UNIT`).
    pub(super) share: Option<Row>,
}

impl View<'_> {
    /// Passes on the live blocks that are old enough, in no order. Of a process that has ended also those that it freed as it ended; how
    /// old these were is not known, so they are left out where an age is asked for.
    pub(super) fn each(&self, mut take: impl FnMut(&Item)) {
        #[cfg(test)]
        WALKS.with(|walks| walks.set(walks.get() + 1));
        let now = self.judge.now;
        let is_old = |born_ns: u64| now.saturating_sub(born_ns) >= self.min_age_ns;
        each_item(self.judge.process, |item| {
            if item.born_ns.is_none_or(is_old) {
                take(item);
            }
        });
        let Some(ending) = self.judge.ending.as_ref().filter(|_| self.min_age_ns == 0) else {
            return;
        };
        let groups = &self.judge.process.groups;
        for (number, group) in groups.groups() {
            let (count, bytes) = ending.freed(groups, group.key.space, group.left);
            // Where their sizes differ, the first one has what is left over.
            let each = bytes.checked_div(u64::from(count)).unwrap_or(0);
            let mut item = Item {
                addr: None,
                size: bytes - each * u64::from(count).saturating_sub(1),
                born_ns: None,
                place: Membership::of_group(number as u32, 0),
                stack: Some(group.key.stack),
            };
            for _ in 0..count {
                take(&item);
                item.size = each;
            }
        }
    }

    /// The moment that the answer describes, in nanoseconds of boot time, if that is one before the process freed memory as it ended.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.judge.ending.as_ref()?.boot_ns()
    }

    pub(super) fn frames(&self, stack: StackIndex) -> (Vec<Frame>, Option<Frame>) {
        let frames = self.judge.process.stacks.frames_of(stack);
        let line = steps::own_line(&frames).cloned();
        (frames, line)
    }

    /// A group with the frames of its stack.
    pub(super) fn with_frames(&self, shown: Shown) -> LeakGroup {
        let (frames, line) = shown
            .stack
            .map(|stack| self.frames(stack))
            .unwrap_or_default();
        LeakGroup {
            line: line.as_ref().map(Into::into),
            frames: frames.iter().take(MOST_FRAMES).map(Into::into).collect(),
            ..shown.group
        }
    }

    pub(super) fn group(
        &self,
        tally: &Tally,
        judged: &Judgement,
        growth_bytes: u64,
        bytes: f64,
    ) -> LeakGroup {
        let per_step = judged.per_step.map(|slopes| slopes.map(|s| s * bytes));
        let seconds = self.judge.now.saturating_sub(judged.since_ns) as f64 / 1e9;
        let growth_bytes_per_s = match judged.per_second {
            Some(per_second) => per_second * bytes,
            None if seconds > 0.0 => growth_bytes as f64 / seconds,
            None => 0.0,
        };
        let age =
            |born_ns: Option<u64>| born_ns.map_or(0, |born| self.judge.now.saturating_sub(born));
        let mut group = LeakGroup {
            live_count: tally.count,
            live_bytes: tally.bytes,
            growth_count: u64::from(judged.growth).min(tally.count),
            growth_bytes,
            growth_bytes_per_s,
            oldest_age_ns: age(tally.oldest_ns),
            newest_age_ns: age(tally.newest_ns),
            verdict: judged.verdict.into(),
            confidence: judged.confidence,
            first_step: judged.first_step,
            reason: judged.reason.clone(),
            examples: tally.examples.iter().map(|(_, addr)| *addr).collect(),
            ..LeakGroup::default()
        };
        let slopes = [
            &mut group.growth_bytes_per_step_low,
            &mut group.growth_bytes_per_step,
            &mut group.growth_bytes_per_step_high,
        ];
        for (slope, known) in slopes.into_iter().zip(per_step.into_iter().flatten()) {
            *slope = Some(known);
        }
        group
    }
}
