//! What is known of each process while its events become rows, and the event that is being turned into rows.

use crate::attr::Attr;
use crate::row::{Device, Row, hex};
use memscope_ledger::RegionBook;
use memscope_ledger::event::{Event, ProcessHandle, StackRef};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Function that returns the text of a stack for the column of Python stacks: one frame on each line, the innermost
/// first. `None` if the stack has no frames.
pub type Stacks<'a> = dyn Fn(ProcessHandle, StackRef) -> Option<String> + 'a;

/// What is known of a process's pools beside the framework's own.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) book: RegionBook,
    /// Tracing began before the process made its first domain.
    pub(super) from_start: bool,
    /// The framework's own allocator is traced, so its blocks are known from there.
    pub(super) pool_seen: bool,
    /// Numbers of allocations, by domain and by the region's number in it.
    pub(super) regions: HashMap<(u64, u64), u64>,
    /// Live workspaces by address.
    pub(super) workspaces: HashMap<u64, Block>,
    /// Bytes in live workspaces, by device.
    pub(super) in_workspaces: HashMap<Option<i32>, u64>,
}

/// Where a block of a pool is: device and address.
pub(super) type BlockPlace = (i32, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) allocation: u64,
    pub(super) size: u64,
    /// `None`: the device is not known, or the block is memory of the host.
    pub(super) device: Option<i32>,
    /// The block is page-locked memory of the host.
    pub(super) host: bool,
}

/// The sums of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) allocated: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) driver: u64,
    /// All bytes of the device and its free bytes, as the program last asked for them.
    pub(super) total: Option<(u64, u64)>,
}

/// The last allocation, free or out-of-memory in a thread's trace, for which the allocator's report may follow.
#[derive(Clone, Debug)]
pub(super) struct Half {
    pub(super) device: i32,
    pub(super) ptr: u64,
    pub(super) frees: bool,
    /// The row that waits for its size or its sums. `None`: the row has been written already.
    pub(super) row: Option<Row>,
}

/// The operator that a thread is in.
#[derive(Debug)]
pub(super) struct Touching {
    pub(super) name: Arc<str>,
    /// The last allocation before it began. What it returns is new only if it came later: some operators return what they were
    /// given, and their schemas do not say so.
    pub(super) since: u64,
    /// Numbers of the allocations whose rows are written, and whether the rows say that they were written to.
    pub(super) told: HashSet<(u64, bool)>,
}

/// The blocks of a reading, as far as its parts have come.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at_ns: u64,
    /// Number of the part that must come next.
    pub(super) next: u32,
    pub(super) blocks: HashSet<u64>,
}

#[derive(Debug, Default)]
pub(super) struct SceneProcess {
    pub(super) pid: Option<u32>,
    pub(super) live: HashMap<BlockPlace, Block>,
    /// Memory handed out by the driver, by address or handle and not by device, because a free may name no device.
    pub(super) driver: HashMap<u64, Block>,
    /// Times of the last frees. A reading that was made before such a free must not bring the block back.
    pub(super) freed: HashMap<BlockPlace, u64>,
    /// At how many of them the old ones are left out.
    pub(super) prune_at: usize,
    /// There is no probe in the process: only readings tell of its blocks.
    pub(super) is_read: bool,
    /// Readings of which not all parts have come yet, by device. They are kept only where nothing else tells of blocks.
    pub(super) readings: HashMap<i32, Reading>,
    pub(super) sums: BTreeMap<Option<i32>, Sums>,
    pub(super) halves: HashMap<u32, Half>,
    /// Number of launches so far; `None`: not known, because the recording begins later.
    pub(super) launches: Option<u64>,
    /// What the operator that each thread is in has touched.
    pub(super) operators: HashMap<u32, Touching>,
    pub(super) pools: Pools,
}

/// Turns the ledger's events into the rows of a dump, event by event.
#[derive(Debug, Default)]
pub struct Rows {
    /// Time of day less boot time, in nanoseconds.
    pub(super) apart_ns: i128,
    pub(super) last_id: u64,
    pub(super) last_allocation: u64,
    pub(super) processes: HashMap<ProcessHandle, SceneProcess>,
    pub(super) left_out: u64,
}

/// One event that is being turned into rows, with what is needed for that.
pub(super) struct Scene<'a> {
    pub(super) rows: &'a mut Rows,
    pub(super) event: &'a Event,
    pub(super) stacks: &'a Stacks<'a>,
    pub(super) tell: &'a mut dyn FnMut(Row),
}

pub(super) fn device(ordinal: Option<i32>) -> Device {
    ordinal
        .and_then(|ordinal| u32::try_from(ordinal).ok())
        .map_or(Device::None, Device::Number)
}

pub(super) fn begun(allocation: Option<u64>, ptr: u64) -> Attr {
    let mut attr = Attr::new();
    if let Some(allocation) = allocation {
        attr.push("allocation_id", allocation.to_string());
    }
    attr.with("addr", hex(ptr))
}

/// The attributes of a pool's row, completed with size and sums.
pub(super) fn attr_of(row: &Row, size: u64, sums: Sums) -> Attr {
    let mut attr = row.attr.clone();
    attr.set("size", size.to_string());
    for (name, value) in [("used", sums.allocated), ("total", sums.reserved)] {
        if let Some(value) = value {
            attr.set(name, value.to_string());
        }
    }
    attr
}
