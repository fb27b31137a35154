//! How the memory of a snapshot is divided: by size class and age, by pool, and how much of it lies idle.
//!
//! Owns: the size classes, the ages, and the definitions of fragmentation. Each definition has a name of its own,
//! because people mean different things by the word. Refuses: time: a snapshot is one moment, and growth is the
//! difference to another snapshot.

use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment};
use memscope_proto::v1::{
    Amount, DevicePool, FailedAllocation, PoolResponse, PoolShare, SizeClass,
};
use std::collections::BTreeMap;

/// Upper ends (exclusive) of the groups of ages, in nanoseconds. Older blocks are one more group.
pub const AGES_NS: [u64; 5] = [
    10_000_000_000,
    60_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
    86_400_000_000_000,
];

/// Most failed allocations in an answer; the newest are told.
const MOST_FAILED: usize = 200;

/// Answers the question `pool`: how the memory of a snapshot is divided. `before` is an earlier snapshot of the same
/// process to compare with.
pub fn pool(report: &SnapshotReport, before: Option<&SnapshotReport>) -> PoolResponse {
    let mut coverage = report.coverage.clone();
    for note in before.map_or(&[][..], |before| &before.coverage) {
        // A note that both snapshots have is taken from the later one.
        if !coverage.iter().any(|known| known.code == note.code) {
            coverage.push(note.clone());
        }
    }
    PoolResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        from_unix_ns: before.map(|before| before.as_of.unix_ns),
        ages_ns: AGES_NS.to_vec(),
        devices: devices(report, before),
        process: Some(report.process.clone().into()),
        coverage,
        failed_allocations: failed(report),
    }
}

/// The failed allocations of the trace, the newest first.
fn failed(report: &SnapshotReport) -> Vec<FailedAllocation> {
    let entries = report.trace.iter().rev();
    let failed = entries.filter(|entry| entry.action == TraceAction::Oom);
    let told = failed.take(MOST_FAILED).map(|entry| {
        let stack = report.stacks.get(entry.stack as usize);
        let mut frames = stack.iter().flat_map(|stack| &stack.frames);
        FailedAllocation {
            device: entry.device,
            size_bytes: entry.size,
            device_free_bytes: entry.addr,
            time_boot_ns: entry.time_ns,
            time_unix_ns: entry.unix_ns,
            tid: entry.tid,
            line: frames.find(|frame| frame.is_own()).map(Into::into),
        }
    });
    told.collect()
}

/// Describes the devices of a snapshot, ordered by ordinal. `before` is an earlier snapshot of the same process to
/// compare with.
pub fn devices(report: &SnapshotReport, before: Option<&SnapshotReport>) -> Vec<DevicePool> {
    let mut devices: BTreeMap<i32, Making> = BTreeMap::new();
    for segment in report.segments.iter().chain(&report.unmapped) {
        devices
            .entry(segment.device)
            .or_default()
            .add(segment, report.as_of.boot_ns);
    }
    if let Some(before) = before {
        for segment in before.segments.iter().chain(&before.unmapped) {
            let making = devices.entry(segment.device).or_default();
            for block in in_use(segment) {
                let class = making.classes.entry(class_of(block.size)).or_default();
                count(&mut class.before, block.size);
            }
        }
    }
    devices
        .into_iter()
        .map(|(device, making)| making.finish(device, before.is_some()))
        .collect()
}

/// The size class of a block: the smallest power of two that is not below its size.
fn class_of(bytes: u64) -> u64 {
    bytes.max(1).checked_next_power_of_two().unwrap_or(u64::MAX)
}

fn count(amount: &mut Option<Amount>, bytes: u64) {
    let amount = amount.get_or_insert_default();
    amount.count += 1;
    amount.bytes = amount.bytes.saturating_add(bytes);
}

fn in_use(segment: &SnapshotSegment) -> impl Iterator<Item = &SnapshotBlock> {
    let blocks = segment.blocks.iter();
    blocks.filter(|block| block.state == BlockState::Active)
}

type PoolKey = ((u64, u64), bool, bool, u64);

#[derive(Default)]
struct Making {
    done: DevicePool,
    requested: Option<u64>,
    /// There is a block whose requested size is not known.
    unknown: bool,
    /// Sum of the squares of the free blocks' sizes.
    squares: f64,
    classes: BTreeMap<u64, SizeClass>,
    pools: BTreeMap<PoolKey, PoolShare>,
}

impl Making {
    fn add(&mut self, segment: &SnapshotSegment, now_ns: u64) {
        let key = (
            segment.pool,
            segment.large,
            segment.expandable,
            segment.stream,
        );
        let share = self.pools.entry(key).or_insert_with(|| PoolShare {
            pool_id_first: segment.pool.0,
            pool_id_second: segment.pool.1,
            allocated: Some(Amount::default()),
            pending: Some(Amount::default()),
            large: segment.large,
            expandable: segment.expandable,
            stream: segment.stream,
            ..PoolShare::default()
        });
        let done = &mut self.done;
        done.reserved_bytes = done.reserved_bytes.saturating_add(segment.size);
        count(&mut share.segments, segment.size);
        let mut idle = true;
        for block in &segment.blocks {
            if block.state != BlockState::Inactive {
                match block.requested {
                    Some(bytes) => {
                        let sum = self.requested.get_or_insert(0);
                        *sum = sum.saturating_add(bytes);
                    }
                    None => self.unknown = true,
                }
            }
            match block.state {
                BlockState::Active => {
                    count(&mut done.allocated, block.size);
                    count(&mut share.allocated, block.size);
                    let class = self.classes.entry(class_of(block.size)).or_default();
                    add(class, block, now_ns);
                }
                BlockState::PendingFree => {
                    count(&mut done.pending, block.size);
                    count(&mut share.pending, block.size);
                }
                BlockState::Inactive => {
                    count(&mut done.free, block.size);
                    done.largest_free_bytes = done.largest_free_bytes.max(block.size);
                    self.squares += (block.size as f64).powi(2);
                }
            }
            idle &= block.state == BlockState::Inactive;
        }
        if idle {
            count(&mut done.idle_segments, segment.size);
        }
    }

    fn finish(self, device: i32, compared: bool) -> DevicePool {
        let mut done = self.done;
        done.device = device;
        let allocated = *done.allocated.get_or_insert_default();
        let free = *done.free.get_or_insert_default();
        done.pending.get_or_insert_default();
        done.idle_segments.get_or_insert_default();
        done.requested_bytes = (!self.unknown).then(|| self.requested.unwrap_or(0));
        let share = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                1.0 - part as f64 / whole as f64
            }
        };
        done.fragmentation_of_free = share(done.largest_free_bytes, free.bytes);
        done.unused_share = share(allocated.bytes, done.reserved_bytes);
        if done.reserved_bytes > 0 {
            done.fragmentation_viewer = self.squares / (done.reserved_bytes as f64).powi(2);
        }
        done.classes = self
            .classes
            .into_iter()
            .map(|(up_to_bytes, mut class)| {
                class.up_to_bytes = up_to_bytes;
                class.live.get_or_insert_default();
                class.age_unknown.get_or_insert_default();
                class.by_age.resize(AGES_NS.len() + 1, Amount::default());
                if compared {
                    class.before.get_or_insert_default();
                }
                class
            })
            .collect();
        done.pools = self.pools.into_values().collect();
        done.pools
            .sort_by_key(|share| std::cmp::Reverse(share.segments.map_or(0, |all| all.bytes)));
        done
    }
}

fn add(class: &mut SizeClass, block: &SnapshotBlock, now_ns: u64) {
    count(&mut class.live, block.size);
    class.by_age.resize(AGES_NS.len() + 1, Amount::default());
    if block.since_ns == 0 {
        count(&mut class.age_unknown, block.size);
        return;
    }
    let age = now_ns.saturating_sub(block.since_ns);
    let place = AGES_NS.partition_point(|end| *end <= age);
    if let Some(amount) = class.by_age.get_mut(place) {
        amount.count += 1;
        amount.bytes = amount.bytes.saturating_add(block.size);
    }
}
