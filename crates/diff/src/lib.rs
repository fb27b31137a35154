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
//! size agree, and it was not allocated after the moment of the earlier picture. If that moment or the time of the
//! allocation is not known, equal device, address and size are enough.
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

/// A block that is handed out. `S` is the type by which the caller names stacks.
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
}

/// Sums of bytes of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    reserved: u64,
    allocated: u64,
    pending: u64,
}

/// One of the two pictures.
#[derive(Clone, Debug)]
pub struct Side<S> {
    as_of_ns: Option<u64>,
    devices: BTreeMap<i32, Totals>,
    blocks: Vec<Block<S>>,
}

impl<S> Side<S> {
    /// Makes an empty picture of this moment (nanoseconds of any clock that both pictures share; `None` if not known).
    pub fn new(as_of_ns: Option<u64>) -> Side<S> {
        Side {
            as_of_ns,
            devices: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    /// Adds a segment: these bytes of the device are reserved.
    pub fn segment(&mut self, device: i32, bytes: u64) {
        let totals = self.devices.entry(device).or_default();
        totals.reserved = totals.reserved.saturating_add(bytes);
    }

    /// Adds a block that the program has freed and a stream still uses.
    pub fn pending(&mut self, device: i32, bytes: u64) {
        let totals = self.devices.entry(device).or_default();
        totals.pending = totals.pending.saturating_add(bytes);
    }

    /// Adds a block that is handed out. No two blocks of a device may have the same address.
    pub fn block(&mut self, block: Block<S>) {
        let totals = self.devices.entry(block.device).or_default();
        totals.allocated = totals.allocated.saturating_add(block.size);
        self.blocks.push(block);
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
pub fn compare<S: Ord + Copy>(
    before: &Side<S>,
    after: &Side<S>,
    matched_by: MatchedBy,
) -> Compared<S> {
    let (groups, stacks) = match matched_by {
        MatchedBy::Block => {
            let mut groups = SumsOf::new(group_key);
            let mut stacks = SumsOf::new(stack_key);
            block_by_block(before, after, |block, fate| {
                groups.add(block, fate);
                stacks.add(block, fate);
            });
            (groups.finish(), stacks.finish())
        }
        MatchedBy::Number => (
            numbers(before, after, group_key),
            numbers(before, after, stack_key),
        ),
    };
    Compared {
        devices: devices(before, after, &groups),
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
    }
}

fn group_key<S>(block: &Block<S>) -> GroupKey {
    match block.requested {
        Some(size) => (block.device, block.stream, size, true),
        None => (block.device, block.stream, block.size, false),
    }
}

fn stack_key<S: Copy>(block: &Block<S>) -> (i32, S) {
    (block.device, block.stack)
}

fn ranked<K>(sums: BTreeMap<K, Sums>) -> impl Iterator<Item = (K, Sums)> {
    let mut rows: Vec<(K, Sums)> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sums)| sums.rank());
    rows.into_iter()
}

/// The blocks of a picture, ordered by device, address and size. Most pictures have them in that order.
fn in_order<S>(side: &Side<S>) -> Vec<&Block<S>> {
    let mut blocks: Vec<&Block<S>> = side.blocks.iter().collect();
    blocks.sort_by_key(|block| place(block));
    blocks
}

fn place<S>(block: &Block<S>) -> (i32, u64, u64) {
    (block.device, block.address, block.size)
}

/// Tells of each block of either picture, once, whether it came, went or stayed.
fn block_by_block<'a, S>(
    before: &'a Side<S>,
    after: &'a Side<S>,
    mut tell: impl FnMut(&'a Block<S>, Fate),
) {
    // A user may name the later moment first. The time of allocation that decides is always that in the later picture.
    let turned = matches!((before.as_of_ns, after.as_of_ns), (Some(a), Some(b)) if a > b);
    let earlier = if turned { after } else { before }.as_of_ns;
    let mut then = in_order(before);
    // A picture has one block at a place; of several in a file the last one counts.
    then.dedup_by(|later, kept| {
        let same = place(later) == place(kept);
        if same {
            *kept = *later;
        }
        same
    });
    let mut then = then.into_iter().peekable();
    for now in in_order(after) {
        while let Some(gone) = then.next_if(|then| place(then) < place(now)) {
            tell(gone, |sums| &mut sums.went);
        }
        let stayed = then.next_if(|then| {
            let later = if turned { *then } else { now };
            let known = later.born_ns.zip(earlier);
            place(then) == place(now) && known.is_none_or(|(born, earlier)| born <= earlier)
        });
        // For a block that stayed, the second picture is used: it is newer and may know more about the block.
        match stayed {
            Some(_) => tell(now, |sums| &mut sums.stayed),
            None => tell(now, |sums| &mut sums.came),
        }
    }
    for gone in then {
        tell(gone, |sums| &mut sums.went);
    }
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

/// Compares the numbers of blocks of each rounded size in each group.
fn numbers<S, K: Ord>(
    before: &Side<S>,
    after: &Side<S>,
    key: fn(&Block<S>) -> K,
) -> BTreeMap<K, Sums> {
    let mut counts: BTreeMap<(K, u64), (u64, u64)> = BTreeMap::new();
    for block in &before.blocks {
        counts.entry((key(block), block.size)).or_default().0 += 1;
    }
    for block in &after.blocks {
        counts.entry((key(block), block.size)).or_default().1 += 1;
    }
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

fn devices<S>(
    before: &Side<S>,
    after: &Side<S>,
    groups: &BTreeMap<GroupKey, Sums>,
) -> Vec<DeviceDiff> {
    let mut rows: BTreeMap<i32, (Totals, Totals, Sums)> = BTreeMap::new();
    for (device, totals) in &before.devices {
        rows.entry(*device).or_default().0 = *totals;
    }
    for (device, totals) in &after.devices {
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

    const MIB: u64 = 1 << 20;

    fn side(as_of_ns: Option<u64>, blocks: &[(u64, u64, Option<u64>)]) -> Side<()> {
        let mut side = Side::new(as_of_ns);
        side.segment(0, 100 * MIB);
        for &(address, size, born_ns) in blocks {
            side.block(Block {
                device: 0,
                stream: 3,
                address,
                size,
                requested: Some(size - 1),
                born_ns,
                stack: (),
            });
        }
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
        let compared = compare(&a, &b, MatchedBy::Block);
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
        let turned = compare(&b, &a, MatchedBy::Block);
        assert_eq!(counts(&turned, MIB), [1, 1, 1]);
        assert_eq!(counts(&turned, 3 * MIB), [0, 1, 0]);
    }

    #[test]
    fn of_two_processes_numbers_count() {
        let a = side(None, &[(10, MIB, None), (20, MIB, None)]);
        let b = side(None, &[(110, MIB, None), (10, 2 * MIB, None)]);
        let compared = compare(&a, &b, MatchedBy::Number);
        assert_eq!(counts(&compared, MIB), [0, 1, 1]);
        assert_eq!(counts(&compared, 2 * MIB), [1, 0, 0]);
        let (a, b) = (
            side(None, &[(10, MIB, None)]),
            side(None, &[(20, MIB, None)]),
        );
        assert_eq!(counts(&compare(&a, &b, MatchedBy::Number), MIB), [0, 0, 1]);
        assert_eq!(counts(&compare(&a, &b, MatchedBy::Block), MIB), [1, 1, 0]);
    }
}
