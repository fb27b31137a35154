//! What came and what went between two snapshots.
//!
//! Owns: which block of the one is which block of the other, and the sums. Refuses: what happened
//! in between (the trace and the ledger's series answer that): a block that came and went between the two is in
//! neither.
//!
//! # When a block is the same
//!
//! Within one process: device, address and size agree, and so do the moments at which it came, where both are
//! known. Where only one is known, it must not be later than either snapshot. Two processes have
//! no block in common, and their addresses mean nothing to one another: there blocks are paired
//! by number within their group, and what remains on either side is what one has more than the
//! other ([`MatchedBy`] says which it was).
//!
//! Blocks are those handed out; what waits for a stream is in the devices' totals. Bytes are
//! the blocks' own (rounded) bytes, so that groups add up to the totals.

use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// How blocks of the two were paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchedBy {
    /// Each block with itself: the same memory image of the same process.
    Block,
    /// By number in each group: different processes.
    Number,
}

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn plus(&mut self, other: Amount) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Blocks of one device, stream and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupDiff {
    /// Device.
    pub device: i32,
    /// Stream.
    pub stream: u64,
    /// Requested size of each block; where it is not known, its rounded size.
    pub size_bytes: u64,
    /// Whether `size_bytes` is the requested size.
    pub requested: bool,
    /// In the second and not in the first.
    pub came: Amount,
    /// In the first and not in the second.
    pub went: Amount,
    /// In both.
    pub stayed: Amount,
}

/// One device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceDiff {
    /// Device.
    pub device: i32,
    /// Bytes handed out in the first.
    pub allocated_before_bytes: u64,
    /// Bytes handed out in the second.
    pub allocated_after_bytes: u64,
    /// Bytes freed by the program and still used by a stream, in the first.
    pub pending_before_bytes: u64,
    /// The same in the second.
    pub pending_after_bytes: u64,
    /// Bytes of the segments in the first.
    pub reserved_before_bytes: u64,
    /// Bytes of the segments in the second.
    pub reserved_after_bytes: u64,
    /// In the second and not in the first.
    pub came: Amount,
    /// In the first and not in the second.
    pub went: Amount,
    /// In both.
    pub stayed: Amount,
}

/// See [`diff`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// How blocks were paired.
    pub matched_by: MatchedBy,
    /// Process id of the first.
    pub before_pid: u32,
    /// Process id of the second.
    pub after_pid: u32,
    /// Moment of the first, nanoseconds since 1970.
    pub before_unix_ns: u64,
    /// Moment of the second.
    pub after_unix_ns: u64,
    /// By device.
    pub devices: Vec<DeviceDiff>,
    /// The largest change of bytes first, those without one last.
    pub groups: Vec<GroupDiff>,
}

/// (device, stream, size, whether requested)
type GroupKey = (i32, u64, u64, bool);

/// A block that is handed out, as it is looked for.
#[derive(Clone, Copy)]
struct Held<'a> {
    segment: &'a SnapshotSegment,
    block: &'a SnapshotBlock,
}

impl Held<'_> {
    fn place(&self) -> (i32, u64, u64) {
        (self.segment.device, self.block.addr, self.block.size)
    }

    fn group(&self) -> GroupKey {
        let (size, requested) = match self.block.requested {
            Some(size) => (size, true),
            None => (self.block.size, false),
        };
        (self.segment.device, self.segment.stream, size, requested)
    }
}

/// What came, what went and what stayed from `a` to `b`.
pub fn diff(a: &SnapshotReport, b: &SnapshotReport) -> Diff {
    let matched_by = match same_process(a, b) {
        true => MatchedBy::Block,
        false => MatchedBy::Number,
    };
    let mut groups: BTreeMap<GroupKey, GroupDiff> = BTreeMap::new();
    match matched_by {
        MatchedBy::Block => by_block(a, b, &mut groups),
        MatchedBy::Number => by_number(a, b, &mut groups),
    }
    let mut devices: BTreeMap<i32, DeviceDiff> = BTreeMap::new();
    for segment in &a.segments {
        let row = device(&mut devices, segment.device);
        row.reserved_before_bytes += segment.size;
        row.allocated_before_bytes += bytes_in(segment, BlockState::Active);
        row.pending_before_bytes += bytes_in(segment, BlockState::PendingFree);
    }
    for segment in &b.segments {
        let row = device(&mut devices, segment.device);
        row.reserved_after_bytes += segment.size;
        row.allocated_after_bytes += bytes_in(segment, BlockState::Active);
        row.pending_after_bytes += bytes_in(segment, BlockState::PendingFree);
    }
    for group in groups.values() {
        let row = device(&mut devices, group.device);
        row.came.plus(group.came);
        row.went.plus(group.went);
        row.stayed.plus(group.stayed);
    }
    let mut groups: Vec<GroupDiff> = groups.into_values().collect();
    groups.sort_by_key(|group| {
        let change = group.came.bytes.abs_diff(group.went.bytes);
        let moved = group.came.bytes.saturating_add(group.went.bytes);
        Reverse((change, moved, group.stayed.bytes))
    });
    Diff {
        matched_by,
        before_pid: a.process.facts.pid,
        after_pid: b.process.facts.pid,
        before_unix_ns: a.as_of.unix_ns,
        after_unix_ns: b.as_of.unix_ns,
        devices: devices.into_values().collect(),
        groups,
    }
}

/// The same memory image: handles are a daemon's own, and the two may be from different daemons.
fn same_process(a: &SnapshotReport, b: &SnapshotReport) -> bool {
    let image = |report: &SnapshotReport| {
        let facts = &report.process.facts;
        (facts.pid, facts.start_ticks, facts.generation)
    };
    image(a) == image(b)
}

fn held(report: &SnapshotReport) -> impl Iterator<Item = Held<'_>> {
    report.segments.iter().flat_map(|segment| {
        let active = |block: &&SnapshotBlock| block.state == BlockState::Active;
        let held = move |block| Held { segment, block };
        segment.blocks.iter().filter(active).map(held)
    })
}

fn bytes_in(segment: &SnapshotSegment, state: BlockState) -> u64 {
    let of_it = segment.blocks.iter().filter(|block| block.state == state);
    of_it.map(|block| block.size).sum()
}

fn device(devices: &mut BTreeMap<i32, DeviceDiff>, device: i32) -> &mut DeviceDiff {
    devices.entry(device).or_insert(DeviceDiff {
        device,
        ..DeviceDiff::default()
    })
}

fn group(groups: &mut BTreeMap<GroupKey, GroupDiff>, key: GroupKey) -> &mut GroupDiff {
    let (device, stream, size_bytes, requested) = key;
    groups.entry(key).or_insert(GroupDiff {
        device,
        stream,
        size_bytes,
        requested,
        came: Amount::default(),
        went: Amount::default(),
        stayed: Amount::default(),
    })
}

fn by_block(a: &SnapshotReport, b: &SnapshotReport, groups: &mut BTreeMap<GroupKey, GroupDiff>) {
    // Blocks do not overlap, so an address is there once.
    let mut before: HashMap<_, Held<'_>> = held(a).map(|held| (held.place(), held)).collect();
    let earliest = a.as_of.boot_ns.min(b.as_of.boot_ns);
    for now in held(b) {
        let then = before.get(&now.place()).filter(|then| {
            match (then.block.since_ns, now.block.since_ns) {
                (0, 0) => true,
                (0, known) | (known, 0) => known <= earliest,
                (then, now) => then == now,
            }
        });
        let stayed = then.is_some();
        // What the second knows of a block that stayed is newer, and may be more.
        let row = group(groups, now.group());
        if stayed {
            row.stayed.add(now.block.size);
            before.remove(&now.place());
        } else {
            row.came.add(now.block.size);
        }
    }
    for then in before.into_values() {
        group(groups, then.group()).went.add(then.block.size);
    }
}

/// Pairs blocks within each group whose rounded sizes are alike as well.
fn by_number(a: &SnapshotReport, b: &SnapshotReport, groups: &mut BTreeMap<GroupKey, GroupDiff>) {
    let mut sizes: BTreeMap<GroupKey, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for one in held(a) {
        let of_group = sizes.entry(one.group()).or_default();
        of_group.entry(one.block.size).or_default().0 += 1;
    }
    for one in held(b) {
        let of_group = sizes.entry(one.group()).or_default();
        of_group.entry(one.block.size).or_default().1 += 1;
    }
    let amount = |count: u64, size: u64| Amount {
        count,
        bytes: count.saturating_mul(size),
    };
    for (key, of_group) in sizes {
        let row = group(groups, key);
        for (size, (then, now)) in of_group {
            let both = then.min(now);
            row.stayed.plus(amount(both, size));
            row.came.plus(amount(now - both, size));
            row.went.plus(amount(then - both, size));
        }
    }
}
