//! The last entries of a device's allocator trace.
//!
//! Owns: a bounded ring of entries, kept small. Refuses: to grow; what is dropped is counted.
//!
//! A reading of the pool that comes late is brought up to the present by the entries since its moment. For that, some
//! entries are kept even if none are to be shown.

use crate::event::TraceAction;
use crate::fast_hash::FastMap;
use crate::state::columns::{self, Row};
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Minimum number of entries kept, for readings that come late.
const RECENT: usize = 65_536;
/// Room for entries that a ring begins with.
const FIRST: usize = 16;
/// While what was there before is not known, the entries of the last `HELD_NS` nanoseconds are kept, but at most
/// `HELD`: reading a large pool takes long, and the reading needs the entries that came meanwhile.
const HELD_NS: u64 = 20_000_000_000;
const HELD: usize = 1 << 20;
/// Number of pools from which on those without an entry are forgotten.
const POOLS: usize = 1024;

/// One entry as kept. The device is the ring's, the pool an index into the ring's table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct StoredEntry {
    addr: u64,
    size: u64,
    stream: u64,
    time_ns: u64,
    rounded: u64,
    tid: u32,
    stack: StackIndex,
    action: TraceAction,
    orphan: bool,
    #[serde(default)]
    reported: bool,
    /// Index into `pools` plus one; 0 if the pool is not known.
    pool: u32,
}

/// All actions, in the order of their numbers.
const ACTIONS: [TraceAction; 9] = [
    TraceAction::Alloc,
    TraceAction::FreeRequested,
    TraceAction::FreeCompleted,
    TraceAction::SegmentAlloc,
    TraceAction::SegmentFree,
    TraceAction::SegmentMap,
    TraceAction::SegmentUnmap,
    TraceAction::Snapshot,
    TraceAction::Oom,
];

impl Row for StoredEntry {
    type Numbers = [u64; 8];

    fn numbers(&self) -> [u64; 8] {
        let action = ACTIONS.iter().position(|action| *action == self.action);
        [
            self.addr,
            self.size,
            self.stream,
            self.time_ns,
            self.rounded,
            u64::from(self.tid),
            u64::from(self.stack),
            u64::from(self.pool) << 8
                | action.map_or(0x3f, |action| action as u64) << 2
                | u64::from(self.orphan) << 1
                | u64::from(self.reported),
        ]
    }

    fn of(numbers: &[u64; 8]) -> Option<StoredEntry> {
        let [addr, size, stream, time_ns, rounded, tid, stack, rest] = *numbers;
        Some(StoredEntry {
            addr,
            size,
            stream,
            time_ns,
            rounded,
            tid: u32::try_from(tid).ok()?,
            stack: u32::try_from(stack).ok()?,
            action: *ACTIONS.get(((rest >> 2) & 0x3f) as usize)?,
            orphan: rest & 2 != 0,
            reported: rest & 1 != 0,
            pool: u32::try_from(rest >> 8).ok()?,
        })
    }
}

/// One entry, as callers pass and get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) action: TraceAction,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: Option<(u64, u64)>,
    pub(crate) time_ns: u64,
    pub(crate) tid: u32,
    pub(crate) stack: StackIndex,
    /// It is a free of a block that was not known when the entry came.
    pub(crate) orphan: bool,
    /// The entry was made from a report. The `size` of an allocation is then its rounded size.
    pub(crate) reported: bool,
    /// Rounded bytes of an `Alloc`; 0 if they are not known.
    pub(crate) rounded: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TraceRing {
    limit: usize,
    #[serde(
        serialize_with = "columns::write_all",
        deserialize_with = "columns::read_all"
    )]
    entries: VecDeque<StoredEntry>,
    pools: Vec<(u64, u64)>,
    /// Index of each pool in `pools`; made anew where it is not that of all of them, as after a checkpoint.
    #[serde(skip)]
    indexes: FastMap<(u64, u64), u32>,
    dropped: u64,
    /// A reading of what was there before is still to come, so more entries are kept.
    #[serde(default)]
    held: bool,
    /// The trace was given up because memory was short: no entry is shown, and only those are kept that readings need.
    #[serde(default)]
    given_up: bool,
}

impl TraceRing {
    /// Creates a ring that shows at most `limit` entries.
    pub(crate) fn new(limit: usize) -> TraceRing {
        TraceRing {
            limit,
            ..TraceRing::default()
        }
    }

    /// Adds an entry; if the ring is full, the oldest is dropped.
    pub(crate) fn push(&mut self, entry: Entry) {
        let mut room = self.room(entry.time_ns);
        while self.entries.len() >= room {
            self.entries.pop_front();
            self.dropped += 1;
            room = self.room(entry.time_ns);
        }
        let kept = self.entries.len();
        if kept == self.entries.capacity() {
            // Twice as much each time, but never more than is kept.
            self.entries
                .reserve_exact(kept.max(FIRST).min(room.saturating_sub(kept)));
        }
        let pool = entry.pool.map_or(0, |pool| self.pool_index(pool));
        self.entries.push_back(StoredEntry {
            addr: entry.addr,
            size: entry.size,
            stream: entry.stream,
            time_ns: entry.time_ns,
            tid: entry.tid,
            stack: entry.stack,
            action: entry.action,
            orphan: entry.orphan,
            reported: entry.reported,
            rounded: entry.rounded,
            pool,
        });
    }

    /// Sets how many entries are shown. Of those that are kept, more are shown at once; what is gone stays gone.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        if !self.given_up {
            self.limit = limit;
        }
        if !self.held {
            self.drop_surplus();
        }
    }

    /// Sets whether a reading of what was there before is still to come. Once it has come, surplus entries are dropped.
    pub(crate) fn hold(&mut self, held: bool) {
        let held = held && !self.given_up;
        if self.held && !held {
            self.drop_surplus();
        }
        self.held = held;
    }

    /// Gives the trace up, because memory is short.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
        self.limit = 0;
        self.held = false;
        self.drop_surplus();
    }

    fn drop_surplus(&mut self) {
        let kept = self.limit.max(RECENT);
        let surplus = self.entries.len().saturating_sub(kept);
        self.entries.drain(..surplus);
        self.dropped += surplus as u64;
        self.entries.shrink_to(kept);
    }

    /// Bytes that can be given up: those of all entries but the ones that readings need.
    pub(crate) fn bytes(&self) -> u64 {
        (self.entries.capacity() * size_of::<StoredEntry>()) as u64
    }

    /// Maximum number of entries at this time.
    fn room(&self, now_ns: u64) -> usize {
        let usual = self.limit.max(RECENT);
        let oldest = self.entries.front().map_or(now_ns, |oldest| oldest.time_ns);
        if self.held && now_ns.saturating_sub(oldest) < HELD_NS {
            usual.max(HELD)
        } else {
            usual
        }
    }

    /// The last entry turned out to be a free of an unknown block.
    pub(crate) fn last_is_orphan(&mut self) {
        if let Some(last) = self.entries.back_mut() {
            last.orphan = true;
        }
    }

    /// Notes the rounded size of a block in the last entry, if that is the block's allocation.
    pub(crate) fn last_is_sized(&mut self, addr: u64, rounded: u64) {
        if let Some(last) = self.entries.back_mut()
            && (last.action, last.addr) == (TraceAction::Alloc, addr)
        {
            last.rounded = rounded;
        }
    }

    fn pool_index(&mut self, pool: (u64, u64)) -> u32 {
        if self.indexes.len() != self.pools.len() {
            self.index_pools();
        }
        if let Some(index) = self.indexes.get(&pool) {
            return *index + 1;
        }
        // A program makes a private pool for each captured graph, and may go on with that as long as it runs.
        if self.pools.len() >= POOLS.max(2 * self.entries.len()) {
            self.forget_pools();
        }
        let index = self.pools.len() as u32;
        self.pools.push(pool);
        self.indexes.insert(pool, index);
        index + 1
    }

    /// Forgets the pools of which no entry is kept.
    fn forget_pools(&mut self) {
        let old = std::mem::take(&mut self.pools);
        let mut moved: Vec<u32> = vec![0; old.len()];
        for kept in &mut self.entries {
            let Some(at) = (kept.pool as usize).checked_sub(1) else {
                continue;
            };
            let (Some(pool), Some(index)) = (old.get(at), moved.get_mut(at)) else {
                continue;
            };
            if *index == 0 {
                self.pools.push(*pool);
                *index = self.pools.len() as u32;
            }
            kept.pool = *index;
        }
        self.index_pools();
    }

    fn index_pools(&mut self) {
        let indexes = self.pools.iter().zip(0..);
        self.indexes = indexes.map(|(pool, index)| (*pool, index)).collect();
    }

    /// Entries to be shown, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let hidden = self.hidden();
        self.entries
            .iter()
            .skip(hidden)
            .map(|kept| self.entry(kept))
    }

    /// Everything after `time_ns`, oldest first. It is complete unless `time_ns` is before
    /// [`Self::forgotten_ns`].
    pub(crate) fn after(&self, time_ns: u64) -> impl Iterator<Item = Entry> {
        // Entries whose device was learned late are not in the order of their times, so a binary search would fail.
        self.entries
            .iter()
            .filter(move |kept| kept.time_ns > time_ns)
            .map(|kept| self.entry(kept))
    }

    /// For each wanted address, the stack of the last allocation there, if its entry is still kept, it came after
    /// `time_ns` and has the wanted rounded size.
    pub(crate) fn last_births(
        &self,
        mut wanted: FastMap<u64, u64>,
        time_ns: u64,
    ) -> FastMap<u64, StackIndex> {
        let mut found = FastMap::default();
        for kept in self.entries.iter().rev() {
            if wanted.is_empty() {
                break;
            }
            if kept.action == TraceAction::Alloc
                && let Some(rounded) = wanted.remove(&kept.addr)
                && kept.rounded == rounded
                && kept.time_ns > time_ns
            {
                found.insert(kept.addr, kept.stack);
            }
        }
        found
    }

    fn entry(&self, kept: &StoredEntry) -> Entry {
        Entry {
            action: kept.action,
            addr: kept.addr,
            size: kept.size,
            stream: kept.stream,
            pool: (kept.pool as usize)
                .checked_sub(1)
                .and_then(|index| self.pools.get(index).copied()),
            time_ns: kept.time_ns,
            tid: kept.tid,
            stack: kept.stack,
            orphan: kept.orphan,
            reported: kept.reported,
            rounded: kept.rounded,
        }
    }

    fn hidden(&self) -> usize {
        self.entries.len().saturating_sub(self.limit)
    }

    /// Time of the last entry; 0 if there is none.
    pub(crate) fn newest_ns(&self) -> u64 {
        self.entries.back().map_or(0, |newest| newest.time_ns)
    }

    /// Number of entries to be shown.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.hidden()
    }

    /// Number of entries that are no longer shown.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.hidden() as u64
    }

    /// No entry after this moment is missing; 0 while all are kept. It is the time of the oldest entry that is kept:
    /// entries of the same time may have been dropped, but a reading of that moment contains them.
    pub(crate) fn forgotten_ns(&self) -> u64 {
        match self.entries.front() {
            Some(oldest) if self.dropped > 0 => oldest.time_ns,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use memscope_tests::limits::Met;

    #[test]
    fn bounded_and_counted() {
        let mut ring = TraceRing::new(3);
        for i in 0..5 {
            ring.push(Entry {
                action: TraceAction::Alloc,
                addr: i,
                size: 512,
                stream: 0,
                pool: (i > 2).then_some((0, i)),
                time_ns: i,
                tid: 1,
                stack: 0,
                orphan: false,
                reported: false,
                rounded: 0,
            });
        }
        let kept: Vec<Entry> = ring.entries().collect();
        assert_eq!(kept.len(), 3);
        assert_eq!((kept[0].addr, kept[0].pool), (2, None));
        assert_eq!((kept[2].addr, kept[2].pool), (4, Some((0, 4))));
        assert_eq!(ring.dropped(), 2);
        assert!(ring.entries.capacity() <= 2 * FIRST);
        ring.last_is_orphan();
        let recent: Vec<(u64, bool)> = ring.after(0).map(|e| (e.addr, e.orphan)).collect();
        assert_eq!(recent, [(1, false), (2, false), (3, false), (4, true)]);
        assert_eq!(ring.forgotten_ns(), 0);
        for i in 5..70_000 {
            ring.push(Entry {
                time_ns: i,
                ..kept[0]
            });
        }
        assert_eq!((ring.len(), ring.dropped()), (3, 70_000 - 3));
        assert_eq!(ring.forgotten_ns(), 70_000 - RECENT as u64);
        let mut longer = TraceRing::new(100_000);
        (0..200_000).for_each(|i| {
            longer.push(Entry {
                time_ns: i,
                ..kept[0]
            });
        });
        assert_eq!(longer.entries.capacity(), 100_000);
        Met {
            what: "entries of an allocator's trace",
            most: "`--trace-entries`".to_owned(),
            beyond: "the oldest go",
            told: "`trace_dropped` of a snapshot",
            test: "bounded_and_counted",
        }
        .is_told();
    }

    #[test]
    fn more_is_kept_until_what_was_there_before_is_known() {
        let entry = |time_ns| Entry {
            action: TraceAction::Alloc,
            addr: 512,
            size: 512,
            stream: 0,
            pool: None,
            time_ns,
            tid: 1,
            stack: 0,
            orphan: false,
            reported: false,
            rounded: 0,
        };
        let mut ring = TraceRing::new(3);
        ring.hold(true);
        let many = 3 * RECENT as u64;
        (1..=many).for_each(|time_ns| ring.push(entry(time_ns)));
        assert_eq!((ring.forgotten_ns(), ring.len()), (0, 3));
        // For some seconds only: a process that cannot be read costs no more than others.
        ring.push(entry(many + HELD_NS));
        assert_eq!(ring.after(0).count(), RECENT);
        let most = HELD as u64 + 5;
        (1..=most).for_each(|more| ring.push(entry(many + HELD_NS + more)));
        assert_eq!(ring.after(0).count(), HELD);
        ring.hold(false);
        assert_eq!(ring.after(0).count(), RECENT);
        assert_eq!(ring.dropped() + 3, many + 1 + most);
    }

    #[test]
    fn pools_without_entries_give_way_to_new_ones() {
        let mut ring = TraceRing::new(3);
        for pool in 0..300_000 {
            ring.push(Entry {
                action: TraceAction::SegmentAlloc,
                addr: pool,
                size: 512,
                stream: 0,
                pool: Some((0, pool)),
                time_ns: pool,
                tid: 1,
                stack: 0,
                orphan: false,
                reported: false,
                rounded: 0,
            });
            let last = ring.entries().last().and_then(|last| last.pool);
            assert_eq!(last, Some((0, pool)));
            assert!(ring.pools.len() <= 2 * RECENT, "{}", ring.pools.len());
        }
        assert!(ring.after(0).all(|kept| kept.pool == Some((0, kept.addr))));
        // A checkpoint has the pools, and not their indexes.
        let written = rmp_serde::to_vec_named(&ring).unwrap();
        let mut again: TraceRing = memscope_messagepack::from_slice(&written).unwrap();
        let known = again.pools.len();
        let last = again.entries().last().unwrap();
        again.push(last);
        assert_eq!(again.pools.len(), known);
        assert_eq!(again.entries().last(), Some(last));
    }
}
