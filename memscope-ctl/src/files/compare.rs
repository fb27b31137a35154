//! What came and what went between two snapshots in files.
//!
//! Blocks are those handed out; what waits for a stream is in the devices' sums. Bytes are the blocks'
//! own (rounded) bytes, so that groups add up to the totals.

use super::kept::{Block, Segment, SnapshotFile, Stack, State};
use memscope_proto::v1::{Amount, DeviceDiff, GroupDiff};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// How blocks of the two are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MatchedBy {
    /// Each with itself: the files are of one process.
    Block,
    /// By number in each group: nothing says that they are.
    Number,
}

/// The difference.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) matched_by: MatchedBy,
    pub(crate) devices: Vec<DeviceDiff>,
    /// The largest change of bytes first.
    pub(crate) groups: Vec<GroupDiff>,
    /// The same by the stacks that allocated the blocks.
    pub(crate) stacks: Vec<StackDiff>,
}

/// What came and went of one stack.
#[derive(Debug, Serialize)]
pub(crate) struct StackDiff {
    pub(crate) device: i32,
    /// Innermost first; empty: the file does not tell.
    pub(crate) frames: Vec<String>,
    pub(crate) came: Amount,
    pub(crate) went: Amount,
    pub(crate) stayed: Amount,
}

/// Device, stream, size, and whether it is the size asked for.
type GroupKey = (i32, u64, u64, bool);

/// Device and stack.
type StackKey = (i32, Option<Stack>);

/// Sums by whatever blocks have in common.
#[derive(Default)]
struct Groups {
    sizes: BTreeMap<GroupKey, Sums>,
    stacks: BTreeMap<StackKey, Sums>,
}

impl Groups {
    fn add(
        &mut self,
        kept: &SnapshotFile,
        (segment, block): (&Segment, &Block),
        what: fn(&mut Sums) -> &mut Amount,
    ) {
        let sums = self.sizes.entry(key(segment, block)).or_default();
        add(what(sums), 1, block.size);
        let sums = self
            .stacks
            .entry(stack_key(kept, segment, block))
            .or_default();
        add(what(sums), 1, block.size);
    }
}

fn stack_key(kept: &SnapshotFile, segment: &Segment, block: &Block) -> StackKey {
    let stack = block
        .stack
        .and_then(|place| kept.stacks.get(place as usize));
    (segment.device, stack.cloned())
}

fn held(kept: &SnapshotFile) -> impl Iterator<Item = (&Segment, &Block)> {
    kept.segments.iter().flat_map(|segment| {
        let active = |block: &&Block| block.state == State::Active;
        segment
            .blocks
            .iter()
            .filter(active)
            .map(move |b| (segment, b))
    })
}

fn key(segment: &Segment, block: &Block) -> GroupKey {
    match block.requested {
        Some(size) => (segment.device, segment.stream, size, true),
        None => (segment.device, segment.stream, block.size, false),
    }
}

#[derive(Default)]
struct Sums {
    came: Amount,
    went: Amount,
    stayed: Amount,
}

fn add(to: &mut Amount, count: u64, bytes: u64) {
    to.count += count;
    to.bytes = to.bytes.saturating_add(bytes);
}

/// Compares. They are of one process if both say so, or if the user does.
pub(crate) fn compare(before: &SnapshotFile, after: &SnapshotFile, same_process: bool) -> Compared {
    let said = before.image.is_some() && before.image == after.image;
    let matched_by = if said || same_process {
        MatchedBy::Block
    } else {
        MatchedBy::Number
    };
    let mut groups = Groups::default();
    match matched_by {
        MatchedBy::Block => by_block(before, after, &mut groups),
        MatchedBy::Number => by_number(before, after, &mut groups),
    }
    let Groups {
        sizes: groups,
        stacks,
    } = groups;
    let mut devices: BTreeMap<i32, DeviceDiff> = BTreeMap::new();
    for (kept, first) in [(before, true), (after, false)] {
        for segment in &kept.segments {
            let row = devices.entry(segment.device).or_default();
            let of = |state| -> u64 {
                let blocks = segment.blocks.iter().filter(|b| b.state == state);
                blocks.fold(0, |sum, block| sum.saturating_add(block.size))
            };
            let (reserved, allocated, pending) = if first {
                (
                    &mut row.reserved_before_bytes,
                    &mut row.allocated_before_bytes,
                    &mut row.pending_before_bytes,
                )
            } else {
                (
                    &mut row.reserved_after_bytes,
                    &mut row.allocated_after_bytes,
                    &mut row.pending_after_bytes,
                )
            };
            *reserved = reserved.saturating_add(segment.size);
            *allocated = allocated.saturating_add(of(State::Active));
            *pending = pending.saturating_add(of(State::Pending));
        }
    }
    for ((device, ..), sums) in &groups {
        let row = devices.entry(*device).or_default();
        for (to, from) in [
            (&mut row.came, sums.came),
            (&mut row.went, sums.went),
            (&mut row.stayed, sums.stayed),
        ] {
            add(to.get_or_insert_default(), from.count, from.bytes);
        }
    }
    let devices = devices
        .into_iter()
        .map(|(device, row)| DeviceDiff { device, ..row })
        .collect();
    let mut groups: Vec<GroupDiff> = groups
        .into_iter()
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
        .collect();
    groups.sort_by_key(|group| {
        let bytes = |amount: Option<Amount>| amount.unwrap_or_default().bytes;
        let (came, went) = (bytes(group.came), bytes(group.went));
        let stayed = bytes(group.stayed);
        Reverse((came.abs_diff(went), came.saturating_add(went), stayed))
    });
    let mut stacks: Vec<StackDiff> = stacks
        .into_iter()
        .map(|((device, frames), sums)| StackDiff {
            device,
            frames: frames.as_deref().unwrap_or_default().to_vec(),
            came: sums.came,
            went: sums.went,
            stayed: sums.stayed,
        })
        .collect();
    stacks.sort_by_key(|stack| {
        let (came, went) = (stack.came.bytes, stack.went.bytes);
        Reverse((
            came.abs_diff(went),
            came.saturating_add(went),
            stack.stayed.bytes,
        ))
    });
    Compared {
        matched_by,
        devices,
        groups,
        stacks,
    }
}

/// A block is the same where address and size are, unless the later file tells that it came after the
/// earlier one was made.
fn by_block(before: &SnapshotFile, after: &SnapshotFile, groups: &mut Groups) {
    let place = |segment: &Segment, block: &Block| (segment.device, block.address, block.size);
    let mut then: HashMap<_, _> = held(before)
        .map(|(segment, block)| (place(segment, block), (segment, block)))
        .collect();
    let turned = before.as_of_ns > after.as_of_ns && after.as_of_ns.is_some();
    let earlier = if turned {
        after.as_of_ns
    } else {
        before.as_of_ns
    };
    for (segment, now) in held(after) {
        let same = then.get(&place(segment, now)).is_some_and(|(_, then)| {
            let later = if turned { then } else { now };
            // Without either moment nothing speaks against it.
            later
                .born_ns
                .zip(earlier)
                .is_none_or(|(born, earlier)| born <= earlier)
        });
        if same {
            groups.add(after, (segment, now), |sums| &mut sums.stayed);
            then.remove(&place(segment, now));
        } else {
            groups.add(after, (segment, now), |sums| &mut sums.came);
        }
    }
    for (segment, block) in then.into_values() {
        groups.add(before, (segment, block), |sums| &mut sums.went);
    }
}

/// Pairs blocks within each group whose rounded sizes are alike as well.
fn by_number(before: &SnapshotFile, after: &SnapshotFile, groups: &mut Groups) {
    paired(before, after, key_of, &mut groups.sizes);
    paired(before, after, stack_key, &mut groups.stacks);
}

fn key_of(_: &SnapshotFile, segment: &Segment, block: &Block) -> GroupKey {
    key(segment, block)
}

fn paired<K: Ord>(
    before: &SnapshotFile,
    after: &SnapshotFile,
    key: fn(&SnapshotFile, &Segment, &Block) -> K,
    groups: &mut BTreeMap<K, Sums>,
) {
    let mut counts: BTreeMap<(K, u64), (u64, u64)> = BTreeMap::new();
    for (segment, block) in held(before) {
        let of = (key(before, segment, block), block.size);
        counts.entry(of).or_default().0 += 1;
    }
    for (segment, block) in held(after) {
        let of = (key(after, segment, block), block.size);
        counts.entry(of).or_default().1 += 1;
    }
    for ((key, size), (then, now)) in counts {
        let sums = groups.entry(key).or_default();
        let both = then.min(now);
        add(&mut sums.stayed, both, both.saturating_mul(size));
        add(
            &mut sums.came,
            now - both,
            (now - both).saturating_mul(size),
        );
        add(
            &mut sums.went,
            then - both,
            (then - both).saturating_mul(size),
        );
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::files::kept::Image;

    const MIB: u64 = 1 << 20;

    fn kept(
        as_of_ns: Option<u64>,
        pid: Option<u32>,
        blocks: &[(u64, u64, Option<u64>)],
    ) -> SnapshotFile {
        let block = |&(address, size, born_ns): &(u64, u64, Option<u64>)| Block {
            address,
            size,
            requested: Some(size - 1),
            state: State::Active,
            born_ns,
            stack: None,
        };
        SnapshotFile {
            path: "s".into(),
            image: pid.map(|pid| Image {
                pid,
                start: 7,
                generation: 0,
            }),
            as_of_ns,
            segments: vec![Segment {
                device: 0,
                stream: 3,
                size: 100 * MIB,
                blocks: blocks.iter().map(block).collect(),
            }],
            stacks: Vec::new(),
            coverage: Vec::new(),
        }
    }

    fn counts(compared: &Compared, size: u64) -> [u64; 3] {
        let group = compared.groups.iter().find(|g| g.size_bytes == size - 1);
        let group = group.unwrap();
        [group.came, group.went, group.stayed].map(|amount| amount.unwrap().count)
    }

    #[test]
    fn of_one_process_each_block_is_itself() {
        let a = kept(
            Some(100),
            Some(1),
            &[(10, MIB, None), (20, MIB, None), (30, 2 * MIB, None)],
        );
        // The second went and another came at its place.
        let b = kept(
            Some(200),
            Some(1),
            &[
                (10, MIB, None),
                (20, MIB, Some(150)),
                (90, 3 * MIB, Some(120)),
            ],
        );
        let compared = compare(&a, &b, false);
        assert_eq!(compared.matched_by, MatchedBy::Block);
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
        let turned = compare(&b, &a, false);
        assert_eq!(counts(&turned, MIB), [1, 1, 1]);
        assert_eq!(counts(&turned, 3 * MIB), [0, 1, 0]);
    }

    #[test]
    fn of_two_processes_numbers_count() {
        let a = kept(None, Some(1), &[(10, MIB, None), (20, MIB, None)]);
        let b = kept(None, Some(2), &[(110, MIB, None), (10, 2 * MIB, None)]);
        let compared = compare(&a, &b, false);
        assert_eq!(compared.matched_by, MatchedBy::Number);
        assert_eq!(counts(&compared, MIB), [0, 1, 1]);
        assert_eq!(counts(&compared, 2 * MIB), [1, 0, 0]);
        // Files that say nothing are not taken for one process's, unless the user says it.
        let (a, b) = (
            kept(None, None, &[(10, MIB, None)]),
            kept(None, None, &[(20, MIB, None)]),
        );
        assert_eq!(counts(&compare(&a, &b, false), MIB), [0, 0, 1]);
        assert_eq!(counts(&compare(&a, &b, true), MIB), [1, 1, 0]);
    }
}
