//! One device's pool, undone backwards from the snapshot to the beginning of its trace, and then forwards again.
//!
//! Owns: what each entry of the trace does to segments and blocks, in both directions, and the allocator's rules by which a request becomes
//! a block's size. Refuses: to guess silently: what contradicts the snapshot is counted.

use super::torch::{Device, Entry, Snapshot};
use crate::reader::Value;
use crate::snapshot::{Action, Segment, State};
use memscope_ledger::event::HeldSegment;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// A request is rounded to a multiple of this.
const SMALLEST: u64 = 512;
/// torch_npu adds this to a request before it rounds it, on most devices.
const PADDING: u64 = 32;
/// Code of the note that the trace of a file of memscope's has rounded sizes.
const IS_ROUNDED: &str = "level_blocks";
/// A block of up to this size comes from the small pool. The rest of a large block stays with it if it is no larger than this.
const SMALL: u64 = 1 << 20;
/// Size of a segment of the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// A block that is handed out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) pending: bool,
    pub(super) frames: Option<Value>,
    /// It is in the snapshot itself, so its size is known.
    is_certain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    size: u64,
    stream: u64,
    large: bool,
    pool: (u64, u64),
    expandable: bool,
}

/// The segments and blocks of a device at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    segments: BTreeMap<u64, Room>,
    blocks: BTreeMap<u64, Held>,
    /// How often an entry contradicted what was known.
    pub(super) contradictions: u64,
    /// Bytes that are handed out. They are kept up to date while the trace is told, not while it is undone.
    pub(super) allocated: u64,
    /// Bytes of all segments; the same holds.
    pub(super) reserved: u64,
}

/// What is known of a device's trace when it was undone.
#[derive(Clone, Debug, Default)]
pub(super) struct Undone {
    /// The state at the beginning of the trace.
    pub(super) pool: Pool,
    /// Sizes of the blocks that the snapshot has, by the entry that allocated them: as handed out, and as requested.
    sizes: HashMap<usize, (u64, u64)>,
    /// Number of blocks from before the trace of which only the requested size is known.
    pub(super) guessed: u64,
}

/// How the allocator makes a block's size of a request.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    max_split: u64,
    divisions: Vec<u64>,
    expandable: bool,
    /// Bytes that are added to a request; `None` if nothing tells, and then none are.
    padding: Option<u64>,
}

impl Rules {
    pub(super) fn of(snapshot: &Snapshot) -> Rules {
        let settings = snapshot.settings.as_ref();
        let mut rules = Rules {
            max_split: settings.map_or(u64::MAX, |settings| settings.max_split_bytes),
            divisions: settings.map_or_else(Vec::new, |settings| settings.divisions.clone()),
            expandable: snapshot.expandable,
            padding: None,
        };
        rules.padding = rules.learned(snapshot);
        rules
    }

    /// How many bytes are added to a request, by the blocks of which both sizes are known. Which allocator it is no file says, and
    /// torch_npu's adds none on some devices.
    fn learned(&self, snapshot: &Snapshot) -> Option<u64> {
        if snapshot.notes.iter().any(|note| note.code == IS_ROUNDED) {
            return Some(0);
        }
        let segments = snapshot.devices.values().flat_map(|one| &one.segments);
        let blocks = segments.flat_map(|segment| &segment.blocks);
        let (mut plain, mut padded) = (0u64, 0u64);
        for block in blocks.filter(|block| block.state != State::Inactive) {
            let Some(requested) = block.requested.filter(|size| self.depends(*size)) else {
                continue;
            };
            plain += u64::from(block.size == self.with(requested, 0));
            padded += u64::from(block.size == self.with(requested, PADDING));
        }
        match plain.cmp(&padded) {
            Ordering::Greater => Some(0),
            Ordering::Less => Some(PADDING),
            // PyTorch writes its settings, torch_npu none.
            Ordering::Equal => (snapshot.settings.is_some() && !snapshot.is_memscopes).then_some(0),
        }
    }

    /// Whether this request's size depends on what is added.
    fn depends(&self, requested: u64) -> bool {
        self.with(requested, 0) != self.with(requested, PADDING)
    }

    /// The rounded size of a request, as the allocator looks for it.
    fn rounded(&self, requested: u64) -> u64 {
        self.with(requested, self.padding.unwrap_or(0))
    }

    /// The rounded size of a request to which so much is added.
    fn with(&self, requested: u64, padding: u64) -> u64 {
        let requested = requested.saturating_add(padding);
        let plain = requested.max(1).checked_next_multiple_of(SMALLEST);
        let plain = plain.unwrap_or(u64::MAX / SMALLEST * SMALLEST);
        // The divisions are listed from 1 MiB on, for each power of two.
        let place = requested.max(1).ilog2().saturating_sub(20) as usize;
        let last = self.divisions.len().checked_sub(1);
        let divisions = last.and_then(|last| self.divisions.get(place.min(last)));
        match divisions {
            Some(&divisions) if divisions > 1 && requested > SMALLEST.saturating_mul(divisions) => {
                if requested.is_power_of_two() {
                    return requested;
                }
                let power = 1u64 << requested.ilog2();
                let step = (power / divisions).max(1);
                requested.checked_next_multiple_of(step).unwrap_or(plain)
            }
            _ => plain,
        }
    }

    /// The size of the block that a request gets out of `room` bytes: what is left is cut off only if it is large enough.
    fn taken(&self, rounded: u64, room: u64, large: bool) -> u64 {
        let left = room.saturating_sub(rounded);
        let is_cut = match !large || self.expandable {
            true => left >= SMALLEST,
            false => rounded < self.max_split && left > SMALL,
        };
        match is_cut {
            true => rounded,
            false => room,
        }
    }
}

impl Pool {
    /// The state that the snapshot shows.
    pub(super) fn of(device: &Device) -> Pool {
        let mut pool = Pool::default();
        for segment in &device.segments {
            let Segment {
                addr,
                size,
                stream,
                large,
                expandable,
                ..
            } = *segment;
            let room = Room {
                size,
                stream,
                large,
                pool: segment.pool,
                expandable,
            };
            pool.segments.insert(addr, room);
            let held = segment.blocks.iter();
            for block in held.filter(|block| block.state != State::Inactive) {
                pool.blocks.insert(
                    block.addr,
                    Held {
                        size: block.size,
                        requested: block.requested.unwrap_or(0),
                        pending: block.state == State::Pending,
                        frames: block.frames,
                        is_certain: true,
                    },
                );
            }
        }
        pool
    }

    /// Sums up what is handed out and what is reserved.
    fn sum(&mut self) {
        let live = self.blocks.values().filter(|held| !held.pending);
        self.allocated = live.fold(0, |sum, held| sum.saturating_add(held.size));
        let rooms = self.segments.values();
        self.reserved = rooms.fold(0, |sum, room| sum.saturating_add(room.size));
    }

    /// A block is no longer handed out.
    fn went(&mut self, held: Held) {
        if !held.pending {
            self.allocated = self.allocated.saturating_sub(held.size);
        }
    }

    /// The segment in which an address lies.
    fn segment(&self, addr: u64) -> Option<(u64, Room)> {
        let (start, room) = self.segments.range(..=addr).next_back()?;
        (addr - start < room.size).then_some((*start, *room))
    }

    /// How much room there is from an address on, up to the next block or the end of the segment; 0 if it is not free.
    fn room(&self, addr: u64) -> (u64, bool) {
        let Some((start, segment)) = self.segment(addr) else {
            return (0, true);
        };
        let before = self.blocks.range(..=addr).next_back();
        if before.is_some_and(|(at, held)| at.saturating_add(held.size) > addr) {
            return (0, segment.large);
        }
        let end = start.saturating_add(segment.size);
        let next = self.blocks.range(addr..).next().map_or(end, |(at, _)| *at);
        (next.min(end) - addr, segment.large)
    }

    fn add_range(&mut self, addr: u64, room: Room) {
        self.reserved = self.reserved.saturating_add(room.size);
        let mut from = addr;
        let mut room = room;
        let end = addr.saturating_add(room.size);
        let joins =
            |other: &Room| room.expandable && other.expandable && other.stream == room.stream;
        let before = self.segments.range(..addr).next_back();
        let before =
            before.filter(|(at, other)| at.saturating_add(other.size) == addr && joins(other));
        let before = before.map(|(at, other)| (*at, *other));
        let after = self.segments.get(&end).copied().filter(joins);
        if let Some((at, other)) = before {
            room = Room {
                size: other.size + room.size,
                ..other
            };
            from = at;
        }
        if let Some(other) = after {
            self.segments.remove(&end);
            room.size += other.size;
        }
        let replaced = self.segments.insert(from, room);
        if let Some(replaced) = replaced.filter(|_| before.is_none()) {
            self.reserved = self.reserved.saturating_sub(replaced.size);
            self.contradictions += 1;
        }
    }

    fn remove_range(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let whole = self.segment(addr);
        let Some((start, room)) = whole.filter(|(at, room)| at.saturating_add(room.size) >= end)
        else {
            self.contradictions += 1;
            return;
        };
        let stop = start.saturating_add(room.size);
        self.segments.remove(&start);
        self.reserved = self.reserved.saturating_sub(room.size);
        for (from, to) in [(start, addr), (end, stop)] {
            if from < to {
                let size = to - from;
                self.reserved = self.reserved.saturating_add(size);
                // Another segment can begin at `end` only in a snapshot that contradicts itself.
                if let Some(replaced) = self.segments.insert(from, Room { size, ..room }) {
                    self.reserved = self.reserved.saturating_sub(replaced.size);
                }
            }
        }
        let inside = self.blocks.range(addr..end).map(|(at, _)| *at);
        let inside: Vec<u64> = inside.collect();
        self.contradictions += inside.len() as u64;
        for at in inside {
            if let Some(gone) = self.blocks.remove(&at) {
                self.went(gone);
            }
        }
    }

    /// The state and the certain sizes at the beginning of a device's trace.
    pub(super) fn undo(mut self, trace: &[Entry], rules: &Rules) -> Undone {
        let mut sizes = HashMap::new();
        for (number, entry) in trace.iter().enumerate().rev() {
            match entry.action {
                Action::Alloc => match self.blocks.remove(&entry.addr) {
                    Some(held) => {
                        self.contradictions += u64::from(held.pending);
                        if held.is_certain {
                            sizes.insert(number, (held.size, held.requested));
                        }
                    }
                    None => self.contradictions += 1,
                },
                Action::FreeCompleted => self.put_back(entry, true, rules),
                Action::FreeRequested => match self.blocks.get_mut(&entry.addr) {
                    Some(held) => held.pending = false,
                    // Its completion was not in the trace.
                    None => self.put_back(entry, false, rules),
                },
                Action::SegmentAlloc | Action::SegmentMap => {
                    self.remove_range(entry.addr, entry.size);
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    let expandable = entry.action == Action::SegmentUnmap;
                    let room = self.new_segment(entry, expandable);
                    self.add_range(entry.addr, room);
                }
                Action::Snapshot | Action::Oom => {}
            }
        }
        let guessed = self.blocks.values().filter(|held| !held.is_certain).count();
        self.sum();
        Undone {
            pool: self,
            sizes,
            guessed: guessed as u64,
        }
    }

    fn new_segment(&self, entry: &Entry, expandable: bool) -> Room {
        Room {
            size: entry.size,
            stream: entry.stream,
            large: entry.size > SMALL_SEGMENT,
            pool: entry.pool.unwrap_or((0, 0)),
            expandable,
        }
    }

    /// Undoes the end of a block: it is there again.
    fn put_back(&mut self, entry: &Entry, pending: bool, rules: &Rules) {
        let (room, _) = self.room(entry.addr);
        let rounded = rules.rounded(entry.size);
        if room < rounded {
            self.contradictions += 1;
            if room == 0 {
                return;
            }
        }
        let held = Held {
            size: rounded.min(room),
            requested: entry.size,
            pending,
            frames: None,
            is_certain: false,
        };
        self.blocks.insert(entry.addr, held);
    }

    /// Does what an entry says. Returns the sizes of the block that it allocates: as handed out, and as requested.
    fn redo(
        &mut self,
        entry: &Entry,
        known: Option<(u64, u64)>,
        rules: &Rules,
    ) -> Option<(u64, u64)> {
        match entry.action {
            Action::Alloc => {
                let (room, large) = self.room(entry.addr);
                let rounded = rules.rounded(entry.size);
                let (size, requested) = match known {
                    Some(sizes) => sizes,
                    None if room >= rounded => (rules.taken(rounded, room, large), entry.size),
                    None => (rounded, entry.size),
                };
                self.contradictions += u64::from(size > room);
                let held = Held {
                    size,
                    requested,
                    pending: false,
                    frames: entry.frames,
                    is_certain: known.is_some(),
                };
                if let Some(before) = self.blocks.insert(entry.addr, held) {
                    self.went(before);
                }
                self.allocated = self.allocated.saturating_add(size);
                return Some((size, requested));
            }
            Action::FreeRequested => match self.blocks.get_mut(&entry.addr) {
                Some(held) => {
                    let before = *held;
                    held.pending = true;
                    self.went(before);
                }
                None => self.contradictions += 1,
            },
            Action::FreeCompleted => match self.blocks.remove(&entry.addr) {
                Some(gone) => self.went(gone),
                None => self.contradictions += 1,
            },
            Action::SegmentAlloc | Action::SegmentMap => {
                let room = self.new_segment(entry, entry.action == Action::SegmentMap);
                self.add_range(entry.addr, room);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.remove_range(entry.addr, entry.size);
            }
            Action::Snapshot | Action::Oom => {}
        }
        None
    }

    /// Whether the same blocks are handed out, and the same memory is reserved.
    pub(super) fn is_same(&self, other: &Pool) -> bool {
        let blocks = |pool: &Pool| {
            let blocks = pool.blocks.iter();
            let blocks = blocks.map(|(at, held)| (*at, held.size, held.requested, held.pending));
            blocks.collect::<Vec<_>>()
        };
        // Which pool a segment is from, its entry may not say.
        let segments = |pool: &Pool| {
            let segments = pool.segments.iter();
            segments
                .map(|(at, room)| (*at, room.size, room.stream))
                .collect::<Vec<_>>()
        };
        blocks(self) == blocks(other) && segments(self) == segments(other)
    }

    /// The state as a reading has it: segments, the blocks in them, and allocated and reserved bytes. `stack` gives the identity of a
    /// block's stack. What overlaps is left out and counted.
    pub(super) fn reading(
        &mut self,
        mut stack: impl FnMut(Option<Value>) -> Option<u64>,
    ) -> (Vec<HeldSegment>, u64, u64) {
        let (mut allocated, mut reserved) = (0u64, 0u64);
        let mut held = Vec::with_capacity(self.segments.len());
        let mut placed = 0;
        for (&addr, room) in &self.segments {
            let end = addr.saturating_add(room.size);
            let mut segment = HeldSegment {
                addr,
                size: room.size,
                stream: room.stream,
                large: room.large,
                pool: room.pool,
                expandable: room.expandable,
                ..HeldSegment::default()
            };
            let mut at = addr;
            for (&block, one) in self.blocks.range(addr..end) {
                if block < at || one.size == 0 || one.size > end - block {
                    continue;
                }
                placed += 1;
                at = block + one.size;
                if !one.pending {
                    allocated = allocated.saturating_add(one.size);
                }
                let tuple = (block, one.size, one.requested, one.pending);
                segment.blocks.push(tuple);
                if let Some(stack) = stack(one.frames) {
                    segment.stacks.push((block, stack));
                }
            }
            reserved = reserved.saturating_add(room.size);
            held.push(segment);
        }
        self.contradictions += (self.blocks.len() - placed) as u64;
        (held, allocated, reserved)
    }
}

impl Undone {
    /// Number of blocks that came and went in the trace and of which nothing tells how large they were.
    pub(super) fn unsure(&self, device: &Device, rules: &Rules) -> u64 {
        let numbered = device.trace.iter().enumerate();
        let unsure = numbered.filter(|(number, entry)| {
            let is_sized = entry.action == Action::Alloc && !self.sizes.contains_key(number);
            is_sized && rules.padding.is_none() && rules.depends(entry.size)
        });
        unsure.count() as u64
    }

    /// Number of the entry from which on totals are not told. Where the trace does not lead to the snapshot, a reading sets the end right, and the
    /// ledger believes none that contradicts the last total.
    pub(super) fn totals_up_to(&self, device: &Device, rules: &Rules) -> usize {
        let mut tried = self.clone();
        for numbered in device.trace.iter().enumerate() {
            tried.redo(numbered, rules);
        }
        let comes = |entry: &Entry| entry.action == Action::Alloc;
        match tried.pool.is_same(&Pool::of(device)) {
            true => device.trace.len(),
            false => device.trace.iter().rposition(comes).unwrap_or(0),
        }
    }

    /// Does what the entry with this number says. Returns the sizes of the block that it allocates: as handed out, and as
    /// requested.
    pub(super) fn redo(
        &mut self,
        (number, entry): (usize, &Entry),
        rules: &Rules,
    ) -> Option<(u64, u64)> {
        let known = self.sizes.get(&number).copied();
        self.pool.redo(entry, known, rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let action = prop_oneof![
            4 => Just(Action::Alloc),
            2 => Just(Action::FreeRequested),
            2 => Just(Action::FreeCompleted),
            2 => Just(Action::SegmentAlloc),
            2 => Just(Action::SegmentMap),
            1 => Just(Action::SegmentFree),
            1 => Just(Action::SegmentUnmap),
        ];
        // So few places and sizes that entries meet, also where no allocator would make them: in part over one another.
        let entry = (action, 0..24u64, 0..9u64, 0..2u64);
        entry.prop_map(|(action, place, size, stream)| Entry {
            action,
            addr: place * SMALLEST,
            size: size * SMALLEST,
            stream,
            time_ns: 0,
            frames: None,
            pool: None,
        })
    }

    proptest! {
        #[test]
        fn sums_are_those_of_all_blocks_and_segments(trace in prop::collection::vec(entry(), 1..80)) {
            let rules = Rules::of(&Snapshot {
                expandable: true,
                ..Snapshot::default()
            });
            // The first part is undone, so that there are blocks and segments at the beginning.
            let (undone, redone) = trace.split_at(trace.len() / 3);
            let mut pool = Pool::default().undo(undone, &rules).pool;
            for entry in redone {
                pool.redo(entry, None, &rules);
                let live = pool.blocks.values().filter(|held| !held.pending);
                let allocated: u64 = live.map(|held| held.size).sum();
                let reserved: u64 = pool.segments.values().map(|room| room.size).sum();
                prop_assert_eq!((pool.allocated, pool.reserved), (allocated, reserved));
            }
        }
    }
}
