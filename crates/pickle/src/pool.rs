//! One device's pool, undone backwards from the snapshot to the beginning of its trace, and then forwards again.
//!
//! Owns: what each entry of the trace does to segments and blocks, in both directions, and the allocator's rules by which a request becomes
//! a block's size. Refuses: to guess silently: what contradicts the snapshot is counted.

use crate::doubts::{Doubts, LeftOut};
use crate::reader::Value;
use crate::snapshot::{Action, Segment, State};
use crate::whole::{Device, Entry, Snapshot};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// A request is rounded to a multiple of this.
const SMALLEST: u64 = 512;
/// torch_npu adds this to a request before it rounds it, on most devices.
const PADDING: u64 = 32;
/// Code of the note that the trace of a file of memscope's has rounded sizes and no segments.
const IS_ROUNDED: &str = "level_blocks";
/// A block of up to this size comes from the small pool. The rest of a large block stays with it if it is no larger than this.
const SMALL: u64 = 1 << 20;
/// Size of a segment of the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// A block that is handed out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) pending: bool,
    pub(crate) frames: Option<Value>,
    /// It is in the snapshot itself, so its size is known.
    is_certain: bool,
}

/// A segment of the pool, with what undoing and redoing a trace need to know of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Room {
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) large: bool,
    /// Its private pool; `None` of a segment that is gone and of which no entry says it.
    pub(crate) pool: Option<(u64, u64)>,
    pub(crate) expandable: bool,
}

/// The segments and blocks of a device at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub(crate) segments: BTreeMap<u64, Room>,
    pub(crate) blocks: BTreeMap<u64, Held>,
    /// How often an entry contradicted what was known of the blocks.
    contradictions: u64,
    /// How often one named a segment or a block in a segment that was not known.
    outside: u64,
    /// The trace has no entries of requested frees, so a block counts until its free is complete.
    without_requests: bool,
    /// Bytes that are handed out. They are kept up to date while the trace is told, not while it is undone.
    pub(crate) allocated: u64,
    /// Bytes of all segments; the same holds.
    pub(crate) reserved: u64,
}

/// What is known of a device's trace when it was undone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undone {
    /// The state at the beginning of the trace.
    pub(crate) pool: Pool,
    /// Sizes of the blocks that the snapshot has, by the entry that allocated them: as handed out, and as requested.
    sizes: HashMap<usize, (u64, u64)>,
    /// Private pools of the segments that came, where the entry itself does not say it, by the entry.
    pools: HashMap<usize, (u64, u64)>,
    /// Number of blocks from before the trace of which only the requested size is known.
    pub(crate) guessed: u64,
}

/// How the allocator makes a block's size of a request.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    max_split: u64,
    divisions: Vec<u64>,
    expandable: bool,
    /// memscope wrote the file at a level at which its trace has no segments.
    without_segments: bool,
    /// Bytes that are added to a request; `None` if nothing tells, and then none are.
    padding: Option<u64>,
}

/// Whether the file is one of memscope's whose trace has rounded sizes and no segments.
fn is_rounded(snapshot: &Snapshot) -> bool {
    snapshot.notes.iter().any(|note| note.code == IS_ROUNDED)
}

impl Rules {
    pub(crate) fn of(snapshot: &Snapshot) -> Rules {
        let settings = snapshot.settings.as_ref();
        let mut rules = Rules {
            max_split: settings.map_or(u64::MAX, |settings| settings.max_split_bytes),
            divisions: settings.map_or_else(Vec::new, |settings| settings.divisions.clone()),
            expandable: snapshot.expandable,
            without_segments: is_rounded(snapshot),
            padding: None,
        };
        rules.padding = rules.learned(snapshot);
        rules
    }

    /// How many bytes are added to a request, by the blocks of which both sizes are known. Which allocator it is no file says, and
    /// torch_npu's adds none on some devices.
    fn learned(&self, snapshot: &Snapshot) -> Option<u64> {
        if is_rounded(snapshot) {
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

    /// The size of the block that a request gets out of `room` bytes of a segment: what is left is cut off only if it is large enough.
    /// torch_npu writes no settings, but of each segment whether it is expandable.
    fn taken(&self, rounded: u64, room: u64, segment: Room) -> u64 {
        let left = room.saturating_sub(rounded);
        let is_cut = match !segment.large || self.expandable || segment.expandable {
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
    pub(crate) fn of(device: &Device) -> Pool {
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

    /// How much room there is from an address on, up to the next block or the end of the segment, and 0 if it is not free; and the
    /// segment, if one is known.
    fn room(&self, addr: u64) -> (u64, Option<Room>) {
        let found = self.segment(addr);
        let segment = found.map(|(_, room)| room);
        let before = self.blocks.range(..=addr).next_back();
        if before.is_some_and(|(at, held)| at.saturating_add(held.size) > addr) {
            return (0, segment);
        }
        let end = found.map_or(u64::MAX, |(start, room)| start.saturating_add(room.size));
        let next = self.blocks.range(addr..).next().map_or(end, |(at, _)| *at);
        (next.min(end) - addr, segment)
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
                pool: other.pool.or(room.pool),
                ..other
            };
            from = at;
        }
        if let Some(other) = after {
            self.segments.remove(&end);
            room.size += other.size;
            room.pool = room.pool.or(other.pool);
        }
        let replaced = self.segments.insert(from, room);
        if let Some(replaced) = replaced.filter(|_| before.is_none()) {
            self.reserved = self.reserved.saturating_sub(replaced.size);
            self.outside += 1;
        }
    }

    fn remove_range(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let whole = self.segment(addr);
        let Some((start, room)) = whole.filter(|(at, room)| at.saturating_add(room.size) >= end)
        else {
            self.outside += 1;
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
    pub(crate) fn undo(mut self, trace: &[Entry], rules: &Rules) -> Undone {
        let (mut sizes, mut pools) = (HashMap::new(), HashMap::new());
        // The first entry may be the end of a free whose beginning is no longer in the trace.
        let completed = trace.iter().skip(1);
        self.without_requests = completed
            .map(|entry| entry.action)
            .any(|action| action == Action::FreeCompleted)
            && !has(trace, &[Action::FreeRequested]);
        if self.without_requests {
            for held in self.blocks.values_mut() {
                held.pending = false;
            }
        }
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
                Action::FreeCompleted => self.put_back(entry, !self.without_requests, rules),
                Action::FreeRequested => match self.blocks.get_mut(&entry.addr) {
                    Some(held) => held.pending = false,
                    // Its completion was not in the trace.
                    None => self.put_back(entry, false, rules),
                },
                Action::SegmentAlloc | Action::SegmentMap => {
                    let pool = self.segment(entry.addr).and_then(|(_, room)| room.pool);
                    if let Some(pool) = pool {
                        pools.insert(number, pool);
                    }
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
            pools,
            guessed: guessed as u64,
        }
    }

    fn new_segment(&self, entry: &Entry, expandable: bool) -> Room {
        Room {
            size: entry.size,
            stream: entry.stream,
            large: entry.size > SMALL_SEGMENT,
            pool: entry.pool,
            expandable,
        }
    }

    /// Undoes the end of a block: it is there again.
    fn put_back(&mut self, entry: &Entry, pending: bool, rules: &Rules) {
        let (room, segment) = self.room(entry.addr);
        self.outside += u64::from(segment.is_none());
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
                let (room, segment) = self.room(entry.addr);
                self.outside += u64::from(segment.is_none());
                let rounded = rules.rounded(entry.size);
                let (size, requested) = match (known, segment) {
                    (Some(sizes), _) => sizes,
                    (None, Some(segment)) if room >= rounded => {
                        (rules.taken(rounded, room, segment), entry.size)
                    }
                    (None, _) => (rounded, entry.size),
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

    /// The blocks that are handed out, and whether they wait for a stream if that is told.
    fn told_blocks(&self, has_requests: bool) -> Vec<(u64, u64, u64, bool)> {
        let blocks = self.blocks.iter();
        let told = |(at, held): (&u64, &Held)| {
            let pending = held.pending && has_requests;
            (*at, held.size, held.requested, pending)
        };
        blocks.map(told).collect()
    }

    /// Whether the same memory is reserved.
    fn has_the_segments_of(&self, other: &Pool) -> bool {
        // Which pool a segment is from, its entry may not say.
        let segments = |pool: &Pool| {
            let segments = pool.segments.iter();
            segments
                .map(|(at, room)| (*at, room.size, room.stream))
                .collect::<Vec<_>>()
        };
        segments(self) == segments(other)
    }
}

/// Whether a trace has an entry of one of these actions.
fn has(trace: &[Entry], actions: &[Action]) -> bool {
    trace.iter().any(|entry| actions.contains(&entry.action))
}

impl Undone {
    /// Number of blocks that came and went in the trace and of which nothing tells how large they were.
    pub(crate) fn unsure(&self, device: &Device, rules: &Rules) -> u64 {
        let numbered = device.trace.iter().enumerate();
        let unsure = numbered.filter(|(number, entry)| {
            let is_sized = entry.action == Action::Alloc && !self.sizes.contains_key(number);
            is_sized && rules.padding.is_none() && rules.depends(entry.size)
        });
        unsure.count() as u64
    }

    /// What is wrong with the trace of this device, which is done again for that.
    pub(crate) fn judge(&self, device: &Device, rules: &Rules) -> Doubts {
        let mut tried = self.clone();
        for numbered in device.trace.iter().enumerate() {
            tried.redo(numbered, rules);
        }
        let (end, pool) = (Pool::of(device), tried.pool);
        let has = |actions: &[Action]| has(&device.trace, actions);
        let segments = [
            Action::SegmentAlloc,
            Action::SegmentFree,
            Action::SegmentMap,
            Action::SegmentUnmap,
        ];
        let has_requests = !pool.without_requests;
        let has_blocks = pool.told_blocks(has_requests) == end.told_blocks(has_requests);
        let has_right_segments = pool.has_the_segments_of(&end);
        let leads_to_end = pool.told_blocks(true) == end.told_blocks(true)
            && has_right_segments
            && pool.contradictions + pool.outside == 0;
        let mut left_out = Vec::new();
        if !has_blocks || pool.contradictions > 0 {
            let (requested, completed) =
                (has(&[Action::FreeRequested]), has(&[Action::FreeCompleted]));
            if !has(&[Action::Alloc]) {
                left_out.push(LeftOut::Allocations);
            }
            match (requested, completed) {
                (false, false) => left_out.push(LeftOut::Frees),
                (true, false) => left_out.push(LeftOut::Completions),
                (_, true) => {}
            }
        }
        let blocks_are_explained = !left_out.is_empty();
        let has_segments = has(&segments);
        if pool.without_requests {
            left_out.push(LeftOut::Requests);
        }
        let lacks_segments_as_said = !has_segments && rules.without_segments;
        let lacks_segments = !has_segments && (rules.without_segments || pool.outside > 0);
        if lacks_segments {
            left_out.push(LeftOut::Segments);
        }
        let mut contradictions = 0;
        if !blocks_are_explained {
            contradictions += pool.contradictions;
            contradictions += u64::from(has_segments) * pool.outside;
            let is_right = has_blocks && (!has_segments || has_right_segments);
            contradictions = contradictions.max(u64::from(!is_right));
        }
        Doubts {
            moved: device.moved,
            contradictions,
            left_out,
            leads_to_end,
            may_lack_segments: !has_segments && !lacks_segments && has(&[Action::Alloc]),
            lacks_segments_as_said,
        }
    }

    /// Does what the entry with this number says. Returns the sizes of the block that it allocates, as handed out and as requested.
    pub(crate) fn redo(
        &mut self,
        (number, entry): (usize, &Entry),
        rules: &Rules,
    ) -> Option<(u64, u64)> {
        let known = self.sizes.get(&number).copied();
        let entry = Entry {
            pool: self.pool_of((number, entry)),
            ..*entry
        };
        self.pool.redo(&entry, known, rules)
    }

    /// The private pool of the segment that an entry is about, if it is known.
    pub(crate) fn pool_of(&self, (number, entry): (usize, &Entry)) -> Option<(u64, u64)> {
        entry.pool.or_else(|| self.pools.get(&number).copied())
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
