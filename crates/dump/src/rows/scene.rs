//! What is known of each process while its events become rows, and one event on its way.

use crate::attr::Attr;
use crate::row::{Device, Row, hex};
use memscope_ledger::RegionBook;
use memscope_ledger::event::{Event, ProcessHandle, StackRef};
use std::collections::{BTreeMap, HashMap};

/// Text of a stack for the column of Python stacks: one frame a line, innermost first.
pub type Stacks<'a> = dyn Fn(ProcessHandle, StackRef) -> Option<String> + 'a;

/// What a process has told of such pools.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) book: RegionBook,
    /// Tracing began before the process had made a domain.
    pub(super) from_start: bool,
    /// The framework's own functions tell of its blocks.
    pub(super) pool_seen: bool,
    /// By domain and the region's number in it.
    pub(super) regions: HashMap<(u64, u64), u64>,
    pub(super) workspaces: HashMap<u64, Block>,
    pub(super) in_workspaces: HashMap<Option<i32>, u64>,
}

/// Where a block is: in a pool of a device, at an address.
pub(super) type BlockPlace = (i32, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) allocation: u64,
    pub(super) size: u64,
    /// `None`: not known, or the host.
    pub(super) device: Option<i32>,
    /// Page-locked memory of the host.
    pub(super) host: bool,
}

/// The sums of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) allocated: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) driver: u64,
    pub(super) total: Option<(u64, u64)>,
}

/// What a thread told last, whose report may follow.
#[derive(Clone, Debug)]
pub(super) struct Half {
    pub(super) device: i32,
    pub(super) ptr: u64,
    pub(super) frees: bool,
    /// Not told yet: its size or its sums are missing.
    pub(super) row: Option<Row>,
}

#[derive(Debug, Default)]
pub(super) struct SceneProcess {
    pub(super) pid: Option<u32>,
    pub(super) live: HashMap<BlockPlace, Block>,
    /// What the driver gave out, by address or handle: a free may name no device.
    pub(super) driver: HashMap<u64, Block>,
    /// Frees of blocks that nobody had told of, for readings that are of an earlier moment.
    pub(super) orphans: HashMap<BlockPlace, u64>,
    pub(super) sums: BTreeMap<Option<i32>, Sums>,
    pub(super) halves: HashMap<u32, Half>,
    pub(super) launches: u64,
    pub(super) pools: Pools,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rows {
    /// Time of day less boot time, nanoseconds.
    pub(super) apart_ns: i128,
    pub(super) last_id: u64,
    pub(super) last_allocation: u64,
    pub(super) processes: HashMap<ProcessHandle, SceneProcess>,
    pub(super) left_out: u64,
}

/// One event on its way.
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

/// A pool's row with what was missing.
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
