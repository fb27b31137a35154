//! The difference between two pictures of a process's device memory: which blocks came, went and stayed. The daemon
//! compares two moments of a traced process, `memscope-ctl` compares two files.
//!
//! Owns: the rule when a block of one picture is the same as a block of the other, and the sums. Refuses: what happened
//! between the two moments. A block that was allocated and freed between them is in neither picture; the trace and the
//! series of the ledger have it.
//!
//! # When two blocks are one
//!
//! In two pictures of one process, a block of the later picture is the earlier picture's block if device, address and
//! size agree, and it was not allocated after the moment of the earlier picture. Where that cannot be known, it is that block
//! unless both pictures know its stack and these differ; such blocks are counted ([`Compared::by_place`]), as another block of
//! the same stack may have taken the place of the first.
//!
//! Two processes have no block in common, and the addresses of one mean nothing in the other. Then blocks are
//! counted in each group, and the surplus on one side came or went.
//!
//! Only blocks that are handed out are compared; blocks that were freed and are still used by a stream are only in the
//! devices' totals. Bytes are the blocks' rounded bytes, so that the groups add up to the totals.

use memscope_proto::v1::{Amount, DeviceDiff, GroupDiff};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How blocks of the two pictures are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchedBy {
    /// Each block is compared with itself: both pictures are of one memory image of one process.
    Block,
    /// The numbers of blocks in each group are compared: it is not known that both pictures are of one process.
    Number,
}

/// A block that is handed out, or one that the program has freed and a stream still uses. `S` is the type by which the
/// caller names stacks; its default stands for a stack that is not known.
#[derive(Clone, Copy, Debug)]
pub struct Block<S> {
    /// Device ordinal.
    pub device: i32,
    /// The stream that it was allocated for.
    pub stream: u64,
    /// Device address.
    pub address: u64,
    /// Size in bytes, rounded as the allocator rounds it.
    pub size: u64,
    /// The bytes that the program asked for, where they are known.
    pub requested: Option<u64>,
    /// When it was allocated, in nanoseconds of the same clock as the moment given to [`Side::new`]; `None` if not
    /// known.
    pub born_ns: Option<u64>,
    /// The stack that allocated it.
    pub stack: S,
    /// The program has freed it and a stream still uses it, so that it is only in the device's totals.
    pub pending: bool,
}

/// Sums of bytes of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    reserved: u64,
    allocated: u64,
    pending: u64,
}

/// One of the two pictures. Its blocks are not copied: `I` goes through them where they are.
#[derive(Clone, Debug)]
pub struct Side<I> {
    as_of_ns: Option<u64>,
    born_from_ns: Option<u64>,
    devices: BTreeMap<i32, Totals>,
    blocks: I,
}

impl<I> Side<I> {
    /// Makes a picture of this moment (nanoseconds of any clock that both pictures share; `None` if not known) with
    /// these blocks. They are compared fastest if they come ordered by device, address and size, and if no two of them
    /// have the same address.
    pub fn new(as_of_ns: Option<u64>, blocks: I) -> Side<I> {
        Side {
            as_of_ns,
            born_from_ns: None,
            devices: BTreeMap::new(),
            blocks,
        }
    }

    /// From this moment on it is known of each block when it was allocated: one of which that is not known is older.
    pub fn born_from(&mut self, ns: Option<u64>) {
        self.born_from_ns = ns;
    }

    /// Adds a segment: these bytes of the device are reserved.
    pub fn segment(&mut self, device: i32, bytes: u64) {
        let totals = self.devices.entry(device).or_default();
        totals.reserved = totals.reserved.saturating_add(bytes);
    }
}

/// The difference between two pictures.
#[derive(Clone, Debug)]
pub struct Compared<S> {
    /// Totals and sums for each device, ordered by device ordinal.
    pub devices: Vec<DeviceDiff>,
    /// Sums for each device, stream and size: the largest change of bytes first, groups without a change last.
    pub groups: Vec<GroupDiff>,
    /// Sums for each device and stack, in the same order.
    pub stacks: Vec<StackDiff<S>>,
    /// Of how many blocks that stayed only the place tells it, and the stack where it is known.
    pub by_place: u64,
}

/// Which blocks that one stack allocated came, went and stayed.
#[derive(Clone, Debug, Serialize)]
pub struct StackDiff<S> {
    /// Device ordinal.
    pub device: i32,
    /// The stack, as [`Block::stack`] names it.
    pub frames: S,
    /// Blocks that only the later picture has.
    pub came: Amount,
    /// Blocks that only the earlier picture has.
    pub went: Amount,
    /// Blocks that both have.
    pub stayed: Amount,
}

/// Device, stream, size, and whether that is the requested size (else the rounded one).
type GroupKey = (i32, u64, u64, bool);

/// Device, stream, rounded size, and the requested size where it is known.
type SizeKey = (i32, u64, u64, Option<u64>);

/// Blocks that came, went and stayed.
#[derive(Clone, Copy, Default)]
struct Sums {
    came: Amount,
    went: Amount,
    stayed: Amount,
}

impl Sums {
    /// Sort key that puts the largest change first.
    fn rank(&self) -> Reverse<(u64, u64, u64)> {
        let (came, went) = (self.came.bytes, self.went.bytes);
        let moved = came.saturating_add(went);
        Reverse((came.abs_diff(went), moved, self.stayed.bytes))
    }
}

/// Which of the three sums a block belongs to.
type Fate = fn(&mut Sums) -> &mut Amount;

fn add(to: &mut Amount, count: u64, bytes: u64) {
    to.count += count;
    to.bytes = to.bytes.saturating_add(bytes);
}

/// Compares two pictures: which blocks came, went and stayed from `before` to `after`.
pub fn compare<S: Ord + Copy + Default>(
    before: Side<impl Iterator<Item = Block<S>> + Clone>,
    after: Side<impl Iterator<Item = Block<S>> + Clone>,
    matched_by: MatchedBy,
) -> Compared<S> {
    let alike = |one: S, other: S| one == other || [one, other].contains(&S::default());
    compare_by(before, after, matched_by, alike)
}

/// The same, where the caller says whether two stacks may be of one allocation: pictures may have different kinds of frames. One of the
/// stacks may be unknown.
pub fn compare_by<S: Ord + Copy>(
    before: Side<impl Iterator<Item = Block<S>> + Clone>,
    after: Side<impl Iterator<Item = Block<S>> + Clone>,
    matched_by: MatchedBy,
    alike: impl Fn(S, S) -> bool,
) -> Compared<S> {
    let mut then = Walk::new(before.blocks.clone(), before.devices);
    let mut now = Walk::new(after.blocks.clone(), after.devices);
    let ((groups, stacks), by_place) = match matched_by {
        MatchedBy::Block => {
            let moments = [
                (before.as_of_ns, before.born_from_ns),
                (after.as_of_ns, after.born_from_ns),
            ];
            let sums = block_by_block(&mut then, &mut now, moments, &alike);
            match then.is_in_order && now.is_in_order {
                true => sums,
                false => {
                    let mut then = in_order(before.blocks);
                    // A picture has one block at a place; of several in a file the last one counts.
                    then.dedup_by(|later, kept| {
                        let same = place(later) == place(kept);
                        if same {
                            *kept = *later;
                        }
                        same
                    });
                    let now = in_order(after.blocks);
                    block_by_block(then.into_iter(), now.into_iter(), moments, &alike)
                }
            }
        }
        MatchedBy::Number => (numbers(&mut then, &mut now), 0),
    };
    Compared {
        devices: devices(&then.finish(), &now.finish(), &groups),
        groups: ranked(groups)
            .map(
                |((device, stream, size_bytes, requested), sums)| GroupDiff {
                    device,
                    stream,
                    size_bytes,
                    requested,
                    came: Some(sums.came),
                    went: Some(sums.went),
                    stayed: Some(sums.stayed),
                },
            )
            .collect(),
        stacks: ranked(stacks)
            .map(|((device, frames), sums)| StackDiff {
                device,
                frames,
                came: sums.came,
                went: sums.went,
                stayed: sums.stayed,
            })
            .collect(),
        by_place,
    }
}

/// The blocks of a picture that are handed out, as they come. On the way they are added to the devices' totals, and it is seen
/// whether they come in the order of their places, each place once.
struct Walk<I> {
    blocks: I,
    devices: BTreeMap<i32, Totals>,
    /// The device of the last block, and its totals. Most pictures have one device, so they are looked up when it changes.
    device: Option<(i32, Totals)>,
    last: Option<(i32, u64, u64)>,
    is_in_order: bool,
}

impl<I> Walk<I> {
    fn new(blocks: I, devices: BTreeMap<i32, Totals>) -> Walk<I> {
        Walk {
            blocks,
            devices,
            device: None,
            last: None,
            is_in_order: true,
        }
    }

    fn totals(&mut self, of: i32) -> Option<&mut Totals> {
        if self.device.is_none_or(|(device, _)| device != of) {
            self.put_away();
            let totals = self.devices.get(&of).copied().unwrap_or_default();
            self.device = Some((of, totals));
        }
        self.device.as_mut().map(|(_, totals)| totals)
    }

    fn put_away(&mut self) {
        if let Some((device, totals)) = self.device.take() {
            self.devices.insert(device, totals);
        }
    }

    /// The totals, once all blocks were taken.
    fn finish(mut self) -> BTreeMap<i32, Totals> {
        self.put_away();
        self.devices
    }
}

impl<S, I: Iterator<Item = Block<S>>> Iterator for Walk<I> {
    type Item = Block<S>;

    fn next(&mut self) -> Option<Block<S>> {
        loop {
            let block = self.blocks.next()?;
            if let Some(totals) = self.totals(block.device) {
                let sum = match block.pending {
                    true => &mut totals.pending,
                    false => &mut totals.allocated,
                };
                *sum = sum.saturating_add(block.size);
            }
            if !block.pending {
                let place = place(&block);
                self.is_in_order &= self.last.is_none_or(|last| last < place);
                self.last = Some(place);
                return Some(block);
            }
        }
    }
}

fn size_key<S>(block: &Block<S>) -> SizeKey {
    (block.device, block.stream, block.size, block.requested)
}

/// What was summed up by both sizes, by the size of its group. Of a rounded size of which it is not known of each block what was
/// requested, all blocks are one group: else those of which one picture knows it would be other ones than those of the other picture.
fn by_group<T>(sums: BTreeMap<SizeKey, T>) -> impl Iterator<Item = (GroupKey, u64, T)> {
    let unknown: Vec<(i32, u64, u64)> = sums
        .keys()
        .filter(|(.., requested)| requested.is_none())
        .map(|(device, stream, size, _)| (*device, *stream, *size))
        .collect();
    sums.into_iter()
        .map(move |((device, stream, size, requested), sums)| {
            let known = unknown.binary_search(&(device, stream, size)).is_err();
            let key = match requested.filter(|_| known) {
                Some(requested) => (device, stream, requested, true),
                None => (device, stream, size, false),
            };
            (key, size, sums)
        })
}

fn stack_key<S: Copy>(block: &Block<S>) -> (i32, S) {
    (block.device, block.stack)
}

fn ranked<K>(sums: BTreeMap<K, Sums>) -> impl Iterator<Item = (K, Sums)> {
    let mut rows: Vec<(K, Sums)> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sums)| sums.rank());
    rows.into_iter()
}

/// The blocks of a picture that are handed out, ordered by device, address and size.
fn in_order<S>(blocks: impl Iterator<Item = Block<S>>) -> Vec<Block<S>> {
    let mut blocks: Vec<Block<S>> = blocks.filter(|block| !block.pending).collect();
    blocks.sort_by_key(place);
    blocks
}

fn place<S>(block: &Block<S>) -> (i32, u64, u64) {
    (block.device, block.address, block.size)
}

/// Sums by group, and by stack.
type BothSums<S> = (BTreeMap<GroupKey, Sums>, BTreeMap<(i32, S), Sums>);

/// Of each block of either picture, whether it came, went or stayed, and of how many only their places say that they stayed. The
/// blocks are ordered by their places.
fn block_by_block<S: Ord + Copy>(
    mut before: impl Iterator<Item = Block<S>>,
    after: impl Iterator<Item = Block<S>>,
    moments: [(Option<u64>, Option<u64>); 2],
    alike: &impl Fn(S, S) -> bool,
) -> (BothSums<S>, u64) {
    // A user may name the later moment first. The time of allocation that decides is always that in the later picture.
    let turned = matches!(moments, [(Some(a), _), (Some(b), _)] if a > b);
    let [(earlier, _), (_, born_from)] = match (turned, moments) {
        (true, [one, other]) => [other, one],
        (false, moments) => moments,
    };
    let older = born_from
        .zip(earlier)
        .is_some_and(|(from, moment)| from <= moment);
    let mut groups = SumsOf::new(size_key);
    let mut stacks = SumsOf::new(stack_key);
    let mut tell = |block: &Block<S>, fate: Fate| {
        groups.add(block, fate);
        stacks.add(block, fate);
    };
    let mut by_place = 0;
    let mut then = before.next();
    for now in after {
        while let Some(gone) = then.filter(|then| place(then) < place(&now)) {
            tell(&gone, |sums| &mut sums.went);
            then = before.next();
        }
        let stayed = then.is_some_and(|then| {
            let later = if turned { &then } else { &now };
            place(&then) == place(&now)
                && match later.born_ns.zip(earlier) {
                    Some((born, earlier)) => born <= earlier,
                    None if older => true,
                    None => {
                        let of_one_stack = alike(then.stack, now.stack);
                        by_place += u64::from(of_one_stack);
                        of_one_stack
                    }
                }
        });
        // For a block that stayed, the second picture is used: it is newer and may know more about the block.
        match stayed {
            true => {
                tell(&now, |sums| &mut sums.stayed);
                then = before.next();
            }
            false => tell(&now, |sums| &mut sums.came),
        }
    }
    while let Some(gone) = then {
        tell(&gone, |sums| &mut sums.went);
        then = before.next();
    }
    let mut sums: BTreeMap<GroupKey, Sums> = BTreeMap::new();
    for (key, _, of_size) in by_group(groups.finish()) {
        let sums = sums.entry(key).or_default();
        for (to, from) in [
            (&mut sums.came, of_size.came),
            (&mut sums.went, of_size.went),
            (&mut sums.stayed, of_size.stayed),
        ] {
            add(to, from.count, from.bytes);
        }
    }
    ((sums, stacks.finish()), by_place)
}

/// Sums by a key. Blocks that lie beside each other often have the same one, so it is looked up when it changes.
struct SumsOf<S, K> {
    key: fn(&Block<S>) -> K,
    sums: BTreeMap<K, Sums>,
    last: Option<(K, Sums)>,
}

impl<S, K: Ord> SumsOf<S, K> {
    fn new(key: fn(&Block<S>) -> K) -> SumsOf<S, K> {
        SumsOf {
            key,
            sums: BTreeMap::new(),
            last: None,
        }
    }

    fn add(&mut self, block: &Block<S>, fate: Fate) {
        let key = (self.key)(block);
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.put_away();
            let sums = self.sums.get(&key).copied().unwrap_or_default();
            self.last = Some((key, sums));
        }
        if let Some((_, sums)) = &mut self.last {
            add(fate(sums), 1, block.size);
        }
    }

    fn put_away(&mut self) {
        if let Some((key, sums)) = self.last.take() {
            self.sums.insert(key, sums);
        }
    }

    fn finish(mut self) -> BTreeMap<K, Sums> {
        self.put_away();
        self.sums
    }
}

/// Compares the numbers of blocks of each rounded size in each group, and of each stack.
fn numbers<S: Ord + Copy>(
    before: impl Iterator<Item = Block<S>>,
    after: impl Iterator<Item = Block<S>>,
) -> BothSums<S> {
    let mut sizes: BTreeMap<SizeKey, (u64, u64)> = BTreeMap::new();
    let mut stacks: BTreeMap<((i32, S), u64), (u64, u64)> = BTreeMap::new();
    let mut count = |block: Block<S>, side: fn(&mut (u64, u64)) -> &mut u64| {
        *side(sizes.entry(size_key(&block)).or_default()) += 1;
        *side(stacks.entry((stack_key(&block), block.size)).or_default()) += 1;
    };
    before.for_each(|block| count(block, |counts| &mut counts.0));
    after.for_each(|block| count(block, |counts| &mut counts.1));
    let mut groups: BTreeMap<(GroupKey, u64), (u64, u64)> = BTreeMap::new();
    for (key, size, (then, now)) in by_group(sizes) {
        let counts = groups.entry((key, size)).or_default();
        counts.0 += then;
        counts.1 += now;
    }
    (of_numbers(groups), of_numbers(stacks))
}

/// Sums by key, of the numbers of blocks that each picture has of a key and a size.
fn of_numbers<K: Ord>(counts: BTreeMap<(K, u64), (u64, u64)>) -> BTreeMap<K, Sums> {
    let mut sums: BTreeMap<K, Sums> = BTreeMap::new();
    for ((key, size), (then, now)) in counts {
        let sums = sums.entry(key).or_default();
        let both = then.min(now);
        for (amount, count) in [
            (&mut sums.stayed, both),
            (&mut sums.came, now - both),
            (&mut sums.went, then - both),
        ] {
            add(amount, count, count.saturating_mul(size));
        }
    }
    sums
}

fn devices(
    before: &BTreeMap<i32, Totals>,
    after: &BTreeMap<i32, Totals>,
    groups: &BTreeMap<GroupKey, Sums>,
) -> Vec<DeviceDiff> {
    let mut rows: BTreeMap<i32, (Totals, Totals, Sums)> = BTreeMap::new();
    for (device, totals) in before {
        rows.entry(*device).or_default().0 = *totals;
    }
    for (device, totals) in after {
        rows.entry(*device).or_default().1 = *totals;
    }
    for ((device, ..), group) in groups {
        let (_, _, sums) = rows.entry(*device).or_default();
        for (to, from) in [
            (&mut sums.came, group.came),
            (&mut sums.went, group.went),
            (&mut sums.stayed, group.stayed),
        ] {
            add(to, from.count, from.bytes);
        }
    }
    rows.into_iter()
        .map(|(device, (then, now, sums))| DeviceDiff {
            device,
            reserved_before_bytes: then.reserved,
            reserved_after_bytes: now.reserved,
            allocated_before_bytes: then.allocated,
            allocated_after_bytes: now.allocated,
            pending_before_bytes: then.pending,
            pending_after_bytes: now.pending,
            came: Some(sums.came),
            went: Some(sums.went),
            stayed: Some(sums.stayed),
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::bool::weighted;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MIB: u64 = 1 << 20;

    type Listed = std::vec::IntoIter<Block<()>>;

    fn side(as_of_ns: Option<u64>, blocks: &[(u64, u64, Option<u64>)]) -> Side<Listed> {
        let blocks = blocks.iter().map(|&(address, size, born_ns)| Block {
            device: 0,
            stream: 3,
            address,
            size,
            requested: Some(size - 1),
            born_ns,
            stack: (),
            pending: false,
        });
        let mut side = Side::new(as_of_ns, blocks.collect::<Vec<_>>().into_iter());
        side.segment(0, 100 * MIB);
        side
    }

    /// How many came, went and stayed.
    fn counts(compared: &Compared<()>, size: u64) -> [u64; 3] {
        let group = compared.groups.iter().find(|g| g.size_bytes == size - 1);
        let group = group.unwrap();
        [group.came, group.went, group.stayed].map(|amount| amount.unwrap().count)
    }

    #[test]
    fn of_one_process_each_block_is_itself() {
        let a = side(
            Some(100),
            &[(10, MIB, None), (20, MIB, None), (30, 2 * MIB, None)],
        );
        // The second went and another came at its place.
        let b = side(
            Some(200),
            &[
                (10, MIB, None),
                (20, MIB, Some(150)),
                (90, 3 * MIB, Some(120)),
            ],
        );
        let compared = compare(a.clone(), b.clone(), MatchedBy::Block);
        assert_eq!(counts(&compared, MIB), [1, 1, 1]);
        assert_eq!(counts(&compared, 2 * MIB), [0, 1, 0]);
        assert_eq!(counts(&compared, 3 * MIB), [1, 0, 0]);
        assert_eq!(compared.groups[0].size_bytes, 3 * MIB - 1, "largest first");
        let device = &compared.devices[0];
        assert_eq!(
            (device.allocated_before_bytes, device.allocated_after_bytes),
            (4 * MIB, 5 * MIB)
        );
        assert_eq!(device.came.unwrap().bytes, 4 * MIB);
        // The other way round: what came went.
        let turned = compare(b, a, MatchedBy::Block);
        assert_eq!(counts(&turned, MIB), [1, 1, 1]);
        assert_eq!(counts(&turned, 3 * MIB), [0, 1, 0]);
    }

    #[test]
    fn a_block_of_another_stack_is_another_block() {
        let of = |stacks: [u8; 4]| {
            let blocks = (1..).zip(stacks).map(|(address, stack)| Block {
                device: 0,
                stream: 0,
                address,
                size: MIB,
                requested: None,
                born_ns: None,
                stack,
                pending: false,
            });
            Side::new(Some(100), blocks.collect::<Vec<_>>().into_iter())
        };
        // The second has another stack than before; of the third and the fourth it is not known at one of the moments.
        let compared = compare(of([1, 1, 1, 0]), of([1, 2, 0, 2]), MatchedBy::Block);
        let group = &compared.groups[0];
        let counts = [group.came, group.went, group.stayed].map(|amount| amount.unwrap().count);
        assert_eq!(counts, [1, 1, 3]);
        assert_eq!(compared.by_place, 3);
        // A block of which it is not known when it came is older than the first picture: it is the one that was there.
        let mut later = of([1, 2, 0, 2]);
        later.born_from(Some(100));
        let compared = compare(of([1, 1, 1, 0]), later, MatchedBy::Block);
        assert_eq!(compared.groups[0].stayed.unwrap().count, 4);
        assert_eq!(compared.by_place, 0);
    }

    #[test]
    fn of_two_processes_numbers_count() {
        let a = side(None, &[(10, MIB, None), (20, MIB, None)]);
        let b = side(None, &[(110, MIB, None), (10, 2 * MIB, None)]);
        let compared = compare(a, b, MatchedBy::Number);
        assert_eq!(counts(&compared, MIB), [0, 1, 1]);
        assert_eq!(counts(&compared, 2 * MIB), [1, 0, 0]);
        let (a, b) = (
            side(None, &[(10, MIB, None)]),
            side(None, &[(20, MIB, None)]),
        );
        let numbers = compare(a.clone(), b.clone(), MatchedBy::Number);
        assert_eq!(counts(&numbers, MIB), [0, 0, 1]);
        assert_eq!(counts(&compare(a, b, MatchedBy::Block), MIB), [1, 1, 0]);
    }

    /// At one of the moments it was not seen what was requested, as at level `blocks`.
    #[test]
    fn sizes_that_one_picture_does_not_know_make_no_rows_of_their_own() {
        let of = |from: u64, requested: Option<u64>| {
            let blocks = (from..from + 3).map(|address| Block {
                device: 0,
                stream: 0,
                address,
                size: 512,
                requested,
                born_ns: None,
                stack: (),
                pending: false,
            });
            Side::new(None, blocks.collect::<Vec<_>>().into_iter())
        };
        for (before, after) in [(None, Some(500)), (Some(500), None)] {
            let told = |from, matched_by| {
                let groups = compare(of(10, before), of(from, after), matched_by).groups;
                let [group] = groups.as_slice() else {
                    panic!("{groups:?}");
                };
                assert_eq!((group.size_bytes, group.requested), (512, false));
                [group.came, group.went, group.stayed].map(|amount| amount.unwrap().count)
            };
            assert_eq!(told(12, MatchedBy::Block), [2, 2, 1]);
            assert_eq!(told(12, MatchedBy::Number), [0, 0, 3]);
        }
    }

    /// A made-up block. There are so few places and sizes that pictures have many in common, and some twice.
    fn any_block() -> impl Strategy<Value = Block<u8>> {
        let place = (0..2_i32, 0..6_u64, 1..4_u64);
        let facts = (0..2_u64, option::of(1..4_u64), option::of(1..10_u64));
        (place, facts, 0..3_u8, weighted(0.2)).prop_map(|(place, facts, stack, pending)| Block {
            device: place.0,
            stream: facts.0,
            address: place.1,
            size: place.2,
            requested: facts.1,
            born_ns: facts.2,
            stack,
            pending,
        })
    }

    /// Blocks in any order, or as most pictures have them.
    fn any_blocks() -> impl Strategy<Value = Vec<Block<u8>>> {
        (vec(any_block(), 0..20), any::<bool>()).prop_map(|(mut blocks, in_order)| {
            if in_order {
                blocks.sort_by_key(place);
                blocks.dedup_by_key(|block| place(block));
            }
            blocks
        })
    }

    fn handed_out(blocks: &[Block<u8>]) -> impl Iterator<Item = &Block<u8>> {
        blocks.iter().filter(|block| !block.pending)
    }

    /// The rule of the module's documentation, in the plainest way: for each block of the later picture, and then for
    /// those blocks of the earlier picture that are left.
    fn fates(
        before: &[Block<u8>],
        after: &[Block<u8>],
        moments: (Option<u64>, Option<u64>),
        born_from: (Option<u64>, Option<u64>),
    ) -> Vec<(Block<u8>, Fate)> {
        let turned = moments.0.zip(moments.1).is_some_and(|(a, b)| a > b);
        let moment = if turned { moments.1 } else { moments.0 };
        let of = handed_out(before).map(|block| (place(block), *block));
        let mut left: BTreeMap<_, _> = of.collect();
        let mut all: Vec<(Block<u8>, Fate)> = Vec::new();
        for now in handed_out(after) {
            let same = left.get(&place(now)).filter(|then| {
                let born = if turned { then.born_ns } else { now.born_ns };
                let same_stack = then.stack == now.stack || then.stack == 0 || now.stack == 0;
                let from = if turned { born_from.0 } else { born_from.1 };
                let is_older = from
                    .zip(moment)
                    .is_some_and(|(from, moment)| from <= moment);
                let known = born.zip(moment);
                known.map_or(is_older || same_stack, |(born, moment)| born <= moment)
            });
            match same {
                Some(_) => {
                    left.remove(&place(now));
                    all.push((*now, |sums| &mut sums.stayed));
                }
                None => all.push((*now, |sums| &mut sums.came)),
            }
        }
        all.extend(
            left.into_values()
                .map(|gone| (gone, (|sums| &mut sums.went) as Fate)),
        );
        all
    }

    proptest! {
        #[test]
        fn any_two_pictures_differ_as_the_rule_says(
            before in any_blocks(),
            after in any_blocks(),
            moments in (option::of(1..10_u64), option::of(1..10_u64)),
            born_from in (option::of(1..10_u64), option::of(1..10_u64)),
        ) {
            let mut a = Side::new(moments.0, before.iter().copied());
            let mut b = Side::new(moments.1, after.iter().copied());
            a.born_from(born_from.0);
            b.born_from(born_from.1);
            let compared = compare(a, b, MatchedBy::Block);
            let mut groups: BTreeMap<GroupKey, Sums> = BTreeMap::new();
            let mut stacks: BTreeMap<(i32, u8), Sums> = BTreeMap::new();
            let fates = fates(&before, &after, moments, born_from);
            for (block, fate) in &fates {
                let alike = |other: &&(Block<u8>, Fate)| {
                    let size = |block: &Block<u8>| (block.device, block.stream, block.size);
                    size(&other.0) == size(block)
                };
                let known = fates.iter().filter(alike).all(|(other, _)| other.requested.is_some());
                let size = block.requested.filter(|_| known);
                let key = (block.device, block.stream, size.unwrap_or(block.size), size.is_some());
                add(fate(groups.entry(key).or_default()), 1, block.size);
                add(fate(stacks.entry(stack_key(block)).or_default()), 1, block.size);
            }
            let told = compared.groups.iter().map(|group| {
                let key = (group.device, group.stream, group.size_bytes, group.requested);
                (key, [group.came, group.went, group.stayed])
            });
            let expected = groups.into_iter().map(|(key, sums)| {
                (key, [Some(sums.came), Some(sums.went), Some(sums.stayed)])
            });
            prop_assert_eq!(told.collect::<BTreeMap<_, _>>(), expected.collect());
            let told = compared.stacks.iter().map(|row| {
                ((row.device, row.frames), [row.came, row.went, row.stayed])
            });
            let expected = stacks
                .into_iter()
                .map(|(key, sums)| (key, [sums.came, sums.went, sums.stayed]));
            prop_assert_eq!(told.collect::<BTreeMap<_, _>>(), expected.collect());
            for row in &compared.devices {
                let of = |blocks: &[Block<u8>], pending| -> u64 {
                    let all = blocks.iter().filter(|block| block.device == row.device);
                    all.filter(|block| block.pending == pending).map(|block| block.size).sum()
                };
                prop_assert_eq!(row.allocated_before_bytes, of(&before, false));
                prop_assert_eq!(row.allocated_after_bytes, of(&after, false));
                prop_assert_eq!(row.pending_before_bytes, of(&before, true));
                prop_assert_eq!(row.pending_after_bytes, of(&after, true));
            }
            let devices: BTreeSet<i32> = before.iter().chain(&after).map(|b| b.device).collect();
            let told: BTreeSet<i32> = compared.devices.iter().map(|row| row.device).collect();
            prop_assert_eq!(told, devices);
        }
    }
}
