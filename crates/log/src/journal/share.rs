//! Gives each process a share of a full journal: decides which processes lose records, and in which segment.
//!
//! When the journal is full, the processes that take most of its space lose their oldest records, and the others keep
//! theirs. So a process with many records (a *loud* one) does not push out the records of a quiet one. Processes that
//! take at least half as much as the loudest one count as loud, too. If all processes take about the same,
//! whole segments are removed, which costs nothing.

use crate::journal::checkpoint::Shares;
use crate::journal::tally::Tally;
use std::collections::{BTreeMap, BTreeSet};

/// Contents of a segment, as far as this journal has written it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// Bytes of records by process, before packing.
    pub(crate) records: BTreeMap<u32, u64>,
    /// Bytes of all records on disk.
    pub(crate) packed: u64,
    /// Bytes of the checkpoint by process.
    pub(crate) checkpoint: Shares,
    /// Number of the first record, and the number that follows on the last one.
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// Processes that are left out of the segment.
    pub(crate) left_out: BTreeSet<u32>,
    /// The segment could not be rewritten. It stays as it is until it is removed.
    pub(crate) is_kept_as_it_is: bool,
}

impl Content {
    /// Adds records, of which the first has the number `first`, and which take `packed` bytes on disk.
    pub(crate) fn add(&mut self, first: u64, tally: &Tally, packed: u64) {
        if self.next == 0 {
            self.first = first;
        }
        self.next = first.saturating_add(tally.numbered);
        for (process, bytes) in &tally.bytes {
            *self.records.entry(*process).or_default() += bytes;
        }
        self.packed += packed;
    }

    /// Estimates the bytes on disk of a process: its share of the packed records, and its part of the checkpoint.
    fn of(&self, process: u32) -> u64 {
        let all: u64 = self.records.values().sum();
        let own = self.records.get(&process).copied().unwrap_or(0);
        let packed = u128::from(self.packed) * u128::from(own) / u128::from(all.max(1));
        let checkpoint = self.checkpoint.get(&process).copied().unwrap_or(0);
        u64::try_from(packed)
            .unwrap_or(u64::MAX)
            .saturating_add(checkpoint)
    }

    /// The processes that are in the segment.
    fn processes(&self) -> BTreeSet<u32> {
        let all = self.records.keys().chain(self.checkpoint.keys());
        all.copied().filter(|process| *process != 0).collect()
    }

    fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint.values().sum()
    }

    /// Size of the segment on disk in bytes, without headers.
    pub(crate) fn bytes(&self) -> u64 {
        self.packed.saturating_add(self.checkpoint_bytes())
    }
}

/// The next step to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MakeRoom {
    /// Remove the oldest segment. Everything in it belongs to loud processes, or it cannot be rewritten. The number is
    /// the segment's.
    Remove(u64),
    /// Rewrite a segment.
    Thin {
        /// Number of the segment.
        index: u64,
        /// Processes that are left out of the new segment.
        leave_out: BTreeSet<u32>,
        /// Number of the segment before it, if both are to become one segment: both leave out the same processes and
        /// are small, and no records are missing between them.
        join: Option<u64>,
    },
}

/// Chooses the next step, among segments that are older than the one with the number `newest`. Segments are joined up
/// to `small` bytes. Returns `None` if no segment can make room.
pub(crate) fn next_step(
    contents: &BTreeMap<u64, Content>,
    newest: u64,
    small: u64,
) -> Option<MakeRoom> {
    let mut totals: BTreeMap<u32, u64> = BTreeMap::new();
    for content in contents.values() {
        for process in content.processes() {
            *totals.entry(process).or_default() += content.of(process);
        }
    }
    let loudest = totals.values().copied().max()?;
    let loud: BTreeSet<u32> = totals
        .into_iter()
        .filter(|(_, bytes)| bytes.saturating_mul(2) >= loudest)
        .map(|(process, _)| process)
        .collect();
    let (oldest, _) = contents.first_key_value()?;
    let is_candidate = |(index, content): &(&u64, &Content)| {
        let can_be = !content.is_kept_as_it_is || *index == oldest;
        can_be && !content.processes().is_disjoint(&loud)
    };
    let (index, content) = contents.range(..newest).find(is_candidate)?;
    let there = content.processes();
    if index == oldest && (there.is_subset(&loud) || content.is_kept_as_it_is) {
        return Some(MakeRoom::Remove(*index));
    }
    let gone: BTreeSet<u32> = there.intersection(&loud).copied().collect();
    let join = contents.range(..index).next_back();
    let join = join.filter(|(_, before)| {
        let left: u64 = there.difference(&gone).map(|left| content.of(*left)).sum();
        let together = before.packed.saturating_add(left);
        let after: BTreeSet<u32> = content.left_out.union(&gone).copied().collect();
        // Behind a gap a reader needs the state with which the segment begins, and joining would drop it.
        !before.is_kept_as_it_is
            && before.next == content.first
            && !before.left_out.is_empty()
            && after.is_subset(&before.left_out)
            && there
                .difference(&gone)
                .all(|left| !before.left_out.contains(left))
            && together <= small.max(before.checkpoint_bytes())
    });
    Some(MakeRoom::Thin {
        index: *index,
        leave_out: gone,
        join: join.map(|(before, _)| *before),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(records: &[(u32, u64)], left_out: &[u32]) -> Content {
        Content {
            records: records.iter().copied().collect(),
            packed: records.iter().map(|(_, bytes)| bytes / 10).sum(),
            left_out: left_out.iter().copied().collect(),
            ..Content::default()
        }
    }

    fn journal(contents: Vec<Content>) -> BTreeMap<u64, Content> {
        let mut all = BTreeMap::new();
        for (index, content) in (0..).zip(contents) {
            put(&mut all, index, content);
        }
        all
    }

    /// Each segment has ten numbers.
    fn put(all: &mut BTreeMap<u64, Content>, index: u64, content: Content) {
        let first = index * 10 + 1;
        let next = first + 10;
        all.insert(
            index,
            Content {
                first,
                next,
                ..content
            },
        );
    }

    #[test]
    fn among_equals_the_oldest_segment_goes() {
        let all = journal(vec![content(&[(1, 900), (2, 600)], &[]); 3]);
        assert_eq!(next_step(&all, 2, 100), Some(MakeRoom::Remove(0)));
        let one = journal(vec![content(&[(0, 50), (1, 900)], &[]); 3]);
        assert_eq!(next_step(&one, 2, 100), Some(MakeRoom::Remove(0)));
        assert_eq!(next_step(&one, 0, 100), None);
        assert_eq!(next_step(&BTreeMap::new(), 0, 100), None);
    }

    #[test]
    fn a_loud_process_gives_way() {
        let thin = |index, join| {
            Some(MakeRoom::Thin {
                index,
                leave_out: BTreeSet::from([1]),
                join,
            })
        };
        let mut all = journal(vec![content(&[(1, 900), (2, 60)], &[]); 4]);
        assert_eq!(next_step(&all, 3, 100), thin(0, None));
        put(&mut all, 0, content(&[(2, 60)], &[1]));
        assert_eq!(next_step(&all, 3, 100), thin(1, Some(0)));
        // The second one's state is what heals a gap between them.
        if let Some(before) = all.get_mut(&0) {
            before.next -= 1;
        }
        assert_eq!(next_step(&all, 3, 100), thin(1, None));
        put(&mut all, 0, content(&[(2, 60)], &[1]));
        // Together they would be larger than a small segment.
        assert_eq!(next_step(&all, 3, 11), thin(1, None));
        // A segment that could not be rewritten is passed over.
        if let Some(content) = all.get_mut(&1) {
            content.is_kept_as_it_is = true;
        }
        assert_eq!(next_step(&all, 3, 100), thin(2, None));
    }

    #[test]
    fn segments_that_leave_out_others_are_not_joined() {
        let before = content(&[(2, 60)], &[1, 3]);
        let mut all = journal(vec![before]);
        // Process 3 is in the second segment, and a reader knows it from there on.
        put(&mut all, 1, content(&[(1, 900), (2, 60), (3, 60)], &[]));
        put(&mut all, 2, content(&[(1, 900), (2, 60)], &[]));
        let step = next_step(&all, 2, 1000);
        assert!(
            matches!(
                &step,
                Some(MakeRoom::Thin {
                    index: 1,
                    join: None,
                    ..
                })
            ),
            "{step:?}"
        );
    }
}
