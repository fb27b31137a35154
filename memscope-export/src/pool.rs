//! How the memory of a snapshot is divided: by size class and age, by pool, and what of it lies idle.
//!
//! Owns: the classes, the ages, and the definitions of fragmentation, of which each has its name: people
//! mean different things by the word. Refuses: time: a snapshot is one moment, and growth is the
//! difference to another.

use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment};
use serde::Serialize;
use std::collections::BTreeMap;

use crate::diff::Amount;

/// Upper ends of the ages that are told apart, nanoseconds; older ones are a group of their own.
pub const AGES_NS: [u64; 5] = [
    10_000_000_000,
    60_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
    86_400_000_000_000,
];

/// Live blocks whose rounded size lies in one range of powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SizeClass {
    /// Largest size in the class, bytes: a power of two; the smallest is just above half of it.
    pub up_to_bytes: u64,
    /// Live blocks.
    pub live: Amount,
    /// The same by age: as many as [`AGES_NS`], then the older ones.
    pub by_age: Vec<Amount>,
    /// Those of which only is known that they were there before the attach.
    pub age_unknown: Amount,
    /// The same at the earlier moment, where one was given.
    pub before: Option<Amount>,
}

/// Segments that share stream, kind and pool id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolShare {
    /// Private pool id; (0, 0) is the default one.
    pub pool: (u64, u64),
    /// Large blocks (else small).
    pub large: bool,
    /// Made of mapped chunks.
    pub expandable: bool,
    /// Stream.
    pub stream: u64,
    /// Segments and their bytes.
    pub segments: Amount,
    /// Blocks handed out.
    pub allocated: Amount,
    /// Blocks freed by the program and still used by a stream.
    pub pending: Amount,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DevicePool {
    /// Ordinal.
    pub device: i32,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// Blocks handed out.
    pub allocated: Amount,
    /// Blocks freed by the program and still used by a stream.
    pub pending: Amount,
    /// Bytes that were asked for, of the blocks handed out; `None` where that is not known of all of them.
    pub requested_bytes: Option<u64>,
    /// Free pieces inside segments.
    pub free: Amount,
    /// The largest of them, bytes.
    pub largest_free_bytes: u64,
    /// Segments without any block in use: what `empty_cache` would give back.
    pub idle_segments: Amount,
    /// 1 - largest free piece / all free bytes, as XProf defines fragmentation; 0 where nothing is free.
    pub fragmentation_of_free: f64,
    /// Sum of the squares of the free pieces / square of the reserved bytes, as PyTorch's memory viewer
    /// prints it.
    pub fragmentation_viewer: f64,
    /// 1 - allocated / reserved: the share of the reserved bytes that nobody uses.
    pub unused_share: f64,
    /// Size classes with a live block now or before, ascending.
    pub classes: Vec<SizeClass>,
    /// Largest first.
    pub pools: Vec<PoolShare>,
}

/// Describes the devices of a snapshot, by ordinal; `before` is an earlier one of the same process.
pub fn pool(report: &SnapshotReport, before: Option<&SnapshotReport>) -> Vec<DevicePool> {
    let mut devices: BTreeMap<i32, Making> = BTreeMap::new();
    for segment in &report.segments {
        devices
            .entry(segment.device)
            .or_default()
            .add(segment, report.as_of.boot_ns);
    }
    if let Some(before) = before {
        for segment in &before.segments {
            let making = devices.entry(segment.device).or_default();
            for block in in_use(segment) {
                let class = making.classes.entry(class_of(block.size)).or_default();
                count(class.before.get_or_insert_default(), block.size);
            }
        }
    }
    devices
        .into_iter()
        .map(|(device, making)| making.finish(device, before.is_some()))
        .collect()
}

/// The power of two that a size belongs to.
fn class_of(bytes: u64) -> u64 {
    bytes.max(1).checked_next_power_of_two().unwrap_or(u64::MAX)
}

fn count(amount: &mut Amount, bytes: u64) {
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
    /// A block whose request is not known.
    unknown: bool,
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
            pool: segment.pool,
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
            match block.state {
                BlockState::Active => {
                    count(&mut done.allocated, block.size);
                    count(&mut share.allocated, block.size);
                    match block.requested {
                        Some(bytes) => {
                            let sum = self.requested.get_or_insert(0);
                            *sum = sum.saturating_add(bytes);
                        }
                        None => self.unknown = true,
                    }
                    let class = self.classes.entry(class_of(block.size)).or_default();
                    class.add(block, now_ns);
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
        done.requested_bytes = (!self.unknown).then(|| self.requested.unwrap_or(0));
        let share = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                1.0 - part as f64 / whole as f64
            }
        };
        done.fragmentation_of_free = share(done.largest_free_bytes, done.free.bytes);
        done.unused_share = share(done.allocated.bytes, done.reserved_bytes);
        if done.reserved_bytes > 0 {
            done.fragmentation_viewer = self.squares / (done.reserved_bytes as f64).powi(2);
        }
        done.classes = self
            .classes
            .into_iter()
            .map(|(up_to_bytes, mut class)| {
                class.up_to_bytes = up_to_bytes;
                class.by_age.resize(AGES_NS.len() + 1, Amount::default());
                if compared {
                    class.before.get_or_insert_default();
                }
                class
            })
            .collect();
        done.pools = self.pools.into_values().collect();
        done.pools
            .sort_by_key(|share| std::cmp::Reverse(share.segments.bytes));
        done
    }
}

impl SizeClass {
    fn add(&mut self, block: &SnapshotBlock, now_ns: u64) {
        count(&mut self.live, block.size);
        self.by_age.resize(AGES_NS.len() + 1, Amount::default());
        if block.since_ns == 0 {
            count(&mut self.age_unknown, block.size);
            return;
        }
        let age = now_ns.saturating_sub(block.since_ns);
        let place = AGES_NS.partition_point(|end| *end <= age);
        if let Some(amount) = self.by_age.get_mut(place) {
            count(amount, block.size);
        }
    }
}
