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
//! other.
//!
//! Blocks are those handed out; what waits for a stream is in the devices' totals. Bytes are
//! the blocks' own (rounded) bytes, so that groups add up to the totals.

use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment};
use memscope_proto::v1::{Amount, DeviceDiff, DiffResponse, GroupDiff};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Most groups in one answer, which must stay below gRPC's 4 MiB.
const MOST_GROUPS: usize = 2000;

/// Blocks of one group that came, went and stayed.
#[derive(Clone, Copy, Default)]
struct Sums {
    came: Amount,
    went: Amount,
    stayed: Amount,
}

/// Adds so many blocks of so many bytes together.
fn add(amount: &mut Amount, count: u64, bytes: u64) {
    amount.count += count;
    amount.bytes = amount.bytes.saturating_add(bytes);
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

/// What came, what went and what stayed from `a` to `b`: the largest change of bytes first, groups without one last.
pub fn diff(a: &SnapshotReport, b: &SnapshotReport) -> DiffResponse {
    let mut groups: BTreeMap<GroupKey, Sums> = BTreeMap::new();
    match same_process(a, b) {
        true => by_block(a, b, &mut groups),
        false => by_number(a, b, &mut groups),
    }
    let mut devices: BTreeMap<i32, (DeviceDiff, Sums)> = BTreeMap::new();
    for segment in &a.segments {
        let (row, _) = devices.entry(segment.device).or_default();
        row.reserved_before_bytes += segment.size;
        row.allocated_before_bytes += bytes_in(segment, BlockState::Active);
        row.pending_before_bytes += bytes_in(segment, BlockState::PendingFree);
    }
    for segment in &b.segments {
        let (row, _) = devices.entry(segment.device).or_default();
        row.reserved_after_bytes += segment.size;
        row.allocated_after_bytes += bytes_in(segment, BlockState::Active);
        row.pending_after_bytes += bytes_in(segment, BlockState::PendingFree);
    }
    for ((device, ..), group) in &groups {
        let (_, sums) = devices.entry(*device).or_default();
        add(&mut sums.came, group.came.count, group.came.bytes);
        add(&mut sums.went, group.went.count, group.went.bytes);
        add(&mut sums.stayed, group.stayed.count, group.stayed.bytes);
    }
    let mut groups: Vec<(GroupKey, Sums)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| {
        let change = group.came.bytes.abs_diff(group.went.bytes);
        let moved = group.came.bytes.saturating_add(group.went.bytes);
        Reverse((change, moved, group.stayed.bytes))
    });
    let omitted = groups.len().saturating_sub(MOST_GROUPS);
    groups.truncate(MOST_GROUPS);
    let mut coverage = a.coverage.clone();
    let new = b.coverage.iter().filter(|note| !a.coverage.contains(note));
    coverage.extend(new.cloned());
    let device = |(device, (row, sums)): (i32, (DeviceDiff, Sums))| DeviceDiff {
        device,
        came: Some(sums.came),
        went: Some(sums.went),
        stayed: Some(sums.stayed),
        ..row
    };
    let group = |((device, stream, size_bytes, requested), sums): (GroupKey, Sums)| GroupDiff {
        device,
        stream,
        size_bytes,
        requested,
        came: Some(sums.came),
        went: Some(sums.went),
        stayed: Some(sums.stayed),
    };
    DiffResponse {
        pid: b.process.facts.pid,
        from_unix_ns: a.as_of.unix_ns,
        to_unix_ns: b.as_of.unix_ns,
        devices: devices.into_iter().map(device).collect(),
        groups: groups.into_iter().map(group).collect(),
        omitted_groups: omitted as u64,
        coverage,
    }
}

/// Whether both are of one memory image of one process.
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

fn by_block(a: &SnapshotReport, b: &SnapshotReport, groups: &mut BTreeMap<GroupKey, Sums>) {
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
        let row = groups.entry(now.group()).or_default();
        if stayed {
            add(&mut row.stayed, 1, now.block.size);
            before.remove(&now.place());
        } else {
            add(&mut row.came, 1, now.block.size);
        }
    }
    for then in before.into_values() {
        let row = groups.entry(then.group()).or_default();
        add(&mut row.went, 1, then.block.size);
    }
}

/// Pairs blocks within each group whose rounded sizes are alike as well.
fn by_number(a: &SnapshotReport, b: &SnapshotReport, groups: &mut BTreeMap<GroupKey, Sums>) {
    let mut sizes: BTreeMap<GroupKey, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for one in held(a) {
        let of_group = sizes.entry(one.group()).or_default();
        of_group.entry(one.block.size).or_default().0 += 1;
    }
    for one in held(b) {
        let of_group = sizes.entry(one.group()).or_default();
        of_group.entry(one.block.size).or_default().1 += 1;
    }
    for (key, of_group) in sizes {
        let row = groups.entry(key).or_default();
        for (size, (then, now)) in of_group {
            let both = then.min(now);
            let amounts = [
                (&mut row.stayed, both),
                (&mut row.came, now - both),
                (&mut row.went, then - both),
            ];
            for (amount, count) in amounts {
                add(amount, count, count.saturating_mul(size));
            }
        }
    }
}
