//! What free room was last used for.
//!
//! Owns: for the free room of one device's pool, the bytes that were requested when it was last handed out, as
//! PyTorch's own snapshot shows it for inactive blocks. Refuses: to know what is free. For room of which it knows
//! nothing, it gives 0.
//!
//! It repeats the allocator's rules. A free block keeps the requested size of its last use until it is handed out
//! whole. When two free blocks join, that of the block freed last stays. What is left when a block is split keeps it.
//! Room that loses its memory (expandable segments) keeps it too, and passes it on to the free block that is mapped at
//! its beginning next.

use crate::event::{HeldSegment, TraceAction};
use crate::fast_hash::FastMap;
use crate::state::columns::{self, Row};
use crate::state::pool::segment::Segments;
use crate::state::pool::totals::least_rounded;
use crate::state::pool::trace_ring::Entry;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// Start of a free room, and the bytes requested at its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Room {
    start: u64,
    requested: u64,
}

impl Row for (u64, Room) {
    type Numbers = [u64; 3];

    fn numbers(&self) -> [u64; 3] {
        let (end, room) = self;
        [*end, room.start, room.requested]
    }

    fn of(numbers: &[u64; 3]) -> Option<(u64, Room)> {
        let [end, start, requested] = *numbers;
        Some((end, Room { start, requested }))
    }
}

fn write_free<S: Serializer>(free: &BTreeMap<u64, Room>, to: S) -> Result<S::Ok, S::Error> {
    let rows = free.iter().map(|(end, room)| (*end, *room));
    columns::write(rows, free.len(), to)
}

fn read_free<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u64, Room>, D::Error> {
    let mut rows = Vec::new();
    columns::read_map(from, |end, room: Room| rows.push((end, room)))?;
    Ok(rows.into_iter().collect())
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rooms {
    /// Free rooms by their ends, because blocks are handed out from the beginning. They do not overlap.
    #[serde(serialize_with = "write_free", deserialize_with = "read_free")]
    free: BTreeMap<u64, Room>,
    /// Beginnings of rooms without memory, and the bytes requested at their last use, where not 0.
    holes: BTreeMap<u64, u64>,
    /// Beginnings of the address spaces of expandable segments.
    spaces: BTreeSet<u64>,
}

impl Rooms {
    /// A block was handed out.
    pub(crate) fn taken(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let Some((&stop, room)) = self.free.range_mut(addr.saturating_add(1)..).next() else {
            return;
        };
        if room.start == addr && stop > end {
            room.start = end;
        } else if room.start < end {
            self.cut(addr, end);
        }
    }

    /// A block became free.
    pub(crate) fn given_back(&mut self, segments: &Segments, addr: u64, size: u64, requested: u64) {
        self.add(segments, addr, addr.saturating_add(size), requested);
    }

    /// Applies an entry of the trace about segments. `segments` must have taken the entry already.
    pub(crate) fn step(&mut self, segments: &Segments, entry: &Entry) {
        let (addr, end) = (entry.addr, entry.addr.saturating_add(entry.size));
        match entry.action {
            TraceAction::SegmentAlloc => self.add(segments, addr, end, 0),
            TraceAction::SegmentFree => self.cut(addr, end),
            TraceAction::SegmentMap => {
                let known = self.holes.remove(&addr);
                let goes_on = segments.at(addr).is_some_and(|segment| segment.addr < addr);
                if known.is_none() && !goes_on {
                    self.spaces.insert(addr);
                }
                self.add(segments, addr, end, known.unwrap_or(0));
            }
            TraceAction::SegmentUnmap => self.unmapped(segments, addr, end),
            _ => {}
        }
    }

    fn unmapped(&mut self, segments: &Segments, addr: u64, end: u64) {
        let around = self.free.range(addr.saturating_add(1)..).next();
        let around = around
            .map(|(stop, room)| (*stop, *room))
            .filter(|(stop, room)| room.start <= addr && *stop >= end);
        let requested = around.map_or(0, |(_, room)| room.requested);
        self.cut(addr, end);
        if let Some((stop, room)) = around {
            // The allocator makes new blocks of what is left on both sides, without a requested size.
            for (start, stop) in [(room.start, addr), (end, stop)] {
                if start < stop {
                    let requested = 0;
                    self.free.insert(stop, Room { start, requested });
                }
            }
        }
        let space = self.spaces.range(..=addr).next_back().copied();
        let before = segments.before(addr).map(|segment| segment.end());
        let start = match before {
            // There is memory right before it, in the same address space.
            Some(before) if before == addr => addr,
            Some(before) => before.max(space.unwrap_or(addr)),
            None => space.unwrap_or(addr),
        };
        let merged: Vec<u64> = self.holes.range(start..=end).map(|(at, _)| *at).collect();
        for at in merged {
            self.holes.remove(&at);
        }
        let Some(space) = space else {
            return;
        };
        let next = self.spaces.range(addr.saturating_add(1)..).next().copied();
        let next = next.unwrap_or(u64::MAX);
        if segments.any_expandable(space, next) {
            if requested != 0 {
                self.holes.insert(start, requested);
            }
            return;
        }
        // An address space without any memory is given up.
        self.spaces.remove(&space);
        let gone: Vec<u64> = self.holes.range(space..next).map(|(at, _)| *at).collect();
        for at in gone {
            self.holes.remove(&at);
        }
    }

    /// Bytes requested at the last use of the room in this range; 0 if they are not known.
    pub(crate) fn requested(&self, addr: u64, end: u64) -> u64 {
        let first = self.free.range(addr.saturating_add(1)..).next();
        first
            .filter(|(_, room)| room.start < end)
            .map_or(0, |(_, room)| room.requested)
    }

    /// Number of entries that are kept.
    pub(crate) fn len(&self) -> usize {
        self.free.len() + self.holes.len() + self.spaces.len()
    }

    fn add(&mut self, segments: &Segments, addr: u64, end: u64, requested: u64) {
        if addr >= end {
            return;
        }
        let next = |free: &BTreeMap<u64, Room>| {
            let next = free.range(addr.saturating_add(1)..).next();
            next.map(|(stop, room)| (*stop, room.start))
        };
        let mut after = next(&self.free);
        if after.is_some_and(|(_, start)| start < end) {
            self.cut(addr, end);
            after = next(&self.free);
        }
        let mut after = after.filter(|(_, start)| *start == end);
        let mut before = self.free.get(&addr).map(|room| room.start);
        if before.is_some() || after.is_some() {
            // Rooms of different segments do not join, even if the segments touch.
            let segment = segments.at(addr);
            before = before.filter(|_| segment.is_none_or(|segment| segment.addr < addr));
            after = after.filter(|_| segment.is_none_or(|segment| segment.end() > end));
        }
        if before.is_some() {
            self.free.remove(&addr);
        }
        let start = before.unwrap_or(addr);
        let stop = after.map_or(end, |(stop, _)| stop);
        self.free.insert(stop, Room { start, requested });
    }

    fn cut(&mut self, addr: u64, end: u64) {
        while let Some((&stop, &room)) = self.free.range(addr.saturating_add(1)..).next() {
            if room.start >= end {
                break;
            }
            self.free.remove(&stop);
            if room.start < addr {
                self.free.insert(addr, room);
            }
            if stop > end {
                self.free.insert(stop, Room { start: end, ..room });
            }
        }
    }
}

/// The rooms of a reading, brought up to the present together with its segments.
pub(crate) struct Replay {
    pub(crate) segments: Segments,
    pub(crate) rooms: Rooms,
    /// Rounded sizes of the live blocks, as far as they are known.
    sizes: FastMap<u64, u64>,
}

impl Replay {
    /// The state in the reading.
    pub(crate) fn of(held: &[HeldSegment], segments: Segments) -> Replay {
        let mut replay = Replay {
            segments,
            rooms: Rooms::default(),
            sizes: FastMap::default(),
        };
        let rooms = &mut replay.rooms;
        for segment in held {
            if segment.expandable && segment.space != 0 {
                rooms.spaces.insert(segment.space);
            }
            rooms.holes.extend(segment.holes.iter().copied());
            let mut known = segment.rooms.iter().copied().peekable();
            let mut room = |from: u64, to: u64| {
                let requested = known.next_if(|(addr, _)| *addr == from).map_or(0, |r| r.1);
                if from < to {
                    let start = from;
                    rooms.free.insert(to, Room { start, requested });
                }
            };
            let mut at = segment.addr;
            for (addr, rounded, _, _) in &segment.blocks {
                room(at, *addr);
                at = addr.saturating_add(*rounded);
                replay.sizes.insert(*addr, *rounded);
            }
            room(at, segment.addr.saturating_add(segment.size));
        }
        replay
    }

    /// Applies the next entry of the trace.
    pub(crate) fn step(&mut self, entry: &Entry) {
        self.segments.step(entry);
        match entry.action {
            TraceAction::Alloc => {
                let rounded = match entry.rounded {
                    0 => least_rounded(entry.size),
                    known => known,
                };
                self.sizes.insert(entry.addr, rounded);
                self.rooms.taken(entry.addr, rounded);
            }
            TraceAction::FreeCompleted => {
                let known = self.sizes.remove(&entry.addr);
                let rounded = known.unwrap_or(least_rounded(entry.size));
                self.rooms
                    .given_back(&self.segments, entry.addr, rounded, entry.size);
            }
            _ => self.rooms.step(&self.segments, entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 2 << 20;

    fn entry(action: TraceAction, addr: u64, size: u64) -> Entry {
        Entry {
            action,
            addr,
            size,
            stream: 0,
            pool: None,
            time_ns: 1,
            tid: 1,
            orphan: false,
            reported: false,
            rounded: 0,
            stack: crate::state::stacks::NOT_TAKEN,
        }
    }

    fn replayed(entries: &[(TraceAction, u64, u64)]) -> Replay {
        let mut replay = Replay::of(&[], Segments::default());
        for &(action, addr, size) in entries {
            replay.step(&entry(action, addr, size));
        }
        replay
    }

    fn rooms(replay: &Replay) -> Vec<(u64, u64, u64)> {
        let free = replay.rooms.free.iter();
        free.map(|(end, room)| (room.start, *end, room.requested))
            .collect()
    }

    use TraceAction::{Alloc, FreeCompleted, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};

    /// What PyTorch's own snapshot showed after these calls.
    #[test]
    fn the_last_use_stays_with_the_room() {
        let base = 8 * CHUNK;
        let mut steps = vec![
            (SegmentAlloc, base, CHUNK),
            (Alloc, base, 100_000),
            (Alloc, base + 100_352, 1000),
            (Alloc, base + 101_376, 70_001),
            (FreeCompleted, base, 100_000),
        ];
        let end = (base + 171_520, base + CHUNK, 0);
        let replay = replayed(&steps);
        assert_eq!(rooms(&replay), [(base, base + 100_352, 100_000), end]);
        assert_eq!(replay.rooms.requested(base, base + 100_352), 100_000);
        assert_eq!(replay.rooms.requested(base + 171_520, base + CHUNK), 0);
        // Split: what is left keeps it.
        steps.push((Alloc, base, 513));
        let left = (base + 1024, base + 100_352, 100_000);
        assert_eq!(rooms(&replayed(&steps)), [left, end]);
        // Joined: the newer one's stays.
        steps.push((FreeCompleted, base + 100_352, 1000));
        assert_eq!(
            rooms(&replayed(&steps)),
            [(base + 1024, base + 101_376, 1000), end]
        );
        steps.push((FreeCompleted, base + 101_376, 70_001));
        steps.push((FreeCompleted, base, 513));
        assert_eq!(rooms(&replayed(&steps)), [(base, base + CHUNK, 513)]);
        steps.push((SegmentFree, base, CHUNK));
        assert_eq!(rooms(&replayed(&steps)), []);
    }

    #[test]
    fn segments_that_touch_do_not_join() {
        let base = 8 * CHUNK;
        let steps = [
            (SegmentAlloc, base, CHUNK),
            (SegmentAlloc, base + CHUNK, CHUNK),
            (Alloc, base + CHUNK, 512),
            (FreeCompleted, base + CHUNK, 512),
        ];
        assert_eq!(
            rooms(&replayed(&steps)),
            [
                (base, base + CHUNK, 0),
                (base + CHUNK, base + 2 * CHUNK, 512)
            ]
        );
    }

    /// A hole gives what it had to the block that is mapped there next; a new address space has nothing.
    #[test]
    fn holes_keep_it_for_the_next() {
        let base = 64 * CHUNK;
        let mut steps = vec![
            (SegmentMap, base, CHUNK),
            (SegmentMap, base + CHUNK, CHUNK),
            (SegmentMap, base + 2 * CHUNK, CHUNK),
            (Alloc, base, 3 * CHUNK),
            (FreeCompleted, base, 3 * CHUNK),
            (Alloc, base, 700),
            (Alloc, base + 1024, 2 * CHUNK - 1024),
            (Alloc, base + 2 * CHUNK, 900),
            (FreeCompleted, base + 1024, 77),
            // The whole chunk inside the free room goes.
            (SegmentUnmap, base + CHUNK, CHUNK),
        ];
        let tail = (base + 2 * CHUNK + 1024, base + 3 * CHUNK, 3 * CHUNK);
        let replay = replayed(&steps);
        assert_eq!(rooms(&replay), [(base + 1024, base + CHUNK, 0), tail]);
        assert_eq!(replay.rooms.holes, BTreeMap::from([(base + CHUNK, 77)]));
        steps.push((SegmentMap, base + CHUNK, CHUNK));
        let replay = replayed(&steps);
        assert_eq!(rooms(&replay), [(base + 1024, base + 2 * CHUNK, 77), tail]);
        assert_eq!(replay.rooms.spaces, BTreeSet::from([base]));
        // Everything goes, and the address space with it: what comes there next is new.
        steps.extend([
            (FreeCompleted, base, 700),
            (FreeCompleted, base + 2 * CHUNK, 900),
            (SegmentUnmap, base, 3 * CHUNK),
        ]);
        let replay = replayed(&steps);
        assert_eq!(replay.rooms.len(), 0, "{:?}", replay.rooms);
        steps.push((SegmentMap, base, CHUNK));
        assert_eq!(rooms(&replayed(&steps)), [(base, base + CHUNK, 0)]);
    }

    /// The beginning of an address space loses its memory first.
    #[test]
    fn holes_join_towards_the_beginning() {
        let base = 64 * CHUNK;
        let mut steps = vec![
            (SegmentMap, base, CHUNK),
            (SegmentMap, base + CHUNK, CHUNK),
            (SegmentMap, base + 2 * CHUNK, CHUNK),
            (Alloc, base, CHUNK),
            (Alloc, base + CHUNK, CHUNK),
            (Alloc, base + 2 * CHUNK, CHUNK),
            (FreeCompleted, base, 11),
            (SegmentUnmap, base, CHUNK),
            (FreeCompleted, base + CHUNK, 22),
            (SegmentUnmap, base + CHUNK, CHUNK),
        ];
        let replay = replayed(&steps);
        assert_eq!(replay.rooms.holes, BTreeMap::from([(base, 22)]));
        steps.push((SegmentMap, base, CHUNK));
        let replay = replayed(&steps);
        assert_eq!(rooms(&replay), [(base, base + CHUNK, 22)]);
        assert_eq!(replay.rooms.holes.len(), 0, "the rest of a hole is new");
        assert_eq!(replay.rooms.spaces, BTreeSet::from([base]));
    }

    #[test]
    fn a_reading_and_what_came_after_it() {
        let base = 64 * CHUNK;
        let held = HeldSegment {
            addr: base + CHUNK,
            size: CHUNK,
            expandable: true,
            space: base,
            holes: vec![(base, 5), (base + 2 * CHUNK, 6)],
            rooms: vec![(base + CHUNK + 2048, 9)],
            blocks: vec![
                (base + CHUNK + 512, 512, 500, false),
                (base + CHUNK + 1024, 1024, 1000, true),
            ],
            ..HeldSegment::default()
        };
        let mut segments = Segments::default();
        segments.add(crate::state::pool::segment::Segment {
            addr: held.addr,
            size: held.size,
            stream: 0,
            pool: (0, 0),
            expandable: true,
            large: Some(false),
            told: true,
        });
        let mut replay = Replay::of(&[held], segments);
        let at = base + CHUNK;
        assert_eq!(
            rooms(&replay),
            [(at, at + 512, 0), (at + 2048, at + CHUNK, 9)]
        );
        replay.step(&entry(FreeCompleted, at + 1024, 1000));
        replay.step(&Entry {
            rounded: 2048,
            ..entry(Alloc, at + 1024, 1500)
        });
        assert_eq!(
            rooms(&replay),
            [(at, at + 512, 0), (at + 3072, at + CHUNK, 1000)]
        );
        replay.step(&entry(SegmentMap, base, CHUNK));
        assert_eq!(rooms(&replay)[0], (base, at + 512, 5));
        replay.step(&entry(SegmentMap, base + 2 * CHUNK, CHUNK));
        assert_eq!(rooms(&replay)[1], (at + 3072, at + 2 * CHUNK, 6));
    }
}
