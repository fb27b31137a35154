//! Allocated and reserved bytes of a process, for callers that read them after each event.
//!
//! Owns: which numbers these are (the same as in `stats`), at the cost of a lookup. Refuses: to keep anything.

use crate::report::{Baseline, Gauge, Hidden, Source};
use crate::state::device::Device;
use crate::state::process::Process;

/// Code of the note that the daemon makes when the structures of a process's allocator could not be read.
const NOT_READ: &str = "baseline_not_read";

/// The levels of one device.
pub(crate) fn of(process: &Process, device: i32) -> Option<Gauge> {
    process
        .devices
        .iter()
        .find(|row| row.ordinal == Some(device))
        .map(|row| gauge(process, row, device))
}

/// The levels of all devices whose ordinal is known.
pub(crate) fn all(process: &Process) -> impl Iterator<Item = Gauge> {
    process
        .devices
        .iter()
        .filter_map(|row| Some(gauge(process, row, row.ordinal?)))
}

fn gauge(process: &Process, row: &Device, device: i32) -> Gauge {
    Gauge {
        device,
        allocated_bytes: process.allocated_bytes(row),
        reserved_bytes: process.reserved_bytes(row),
        oom_count: row.pool.oom_count,
    }
}

/// What nothing tells as long as the process is watched at this level.
pub(crate) fn hidden(process: &Process) -> Hidden {
    let is_pool_hidden = process.is_pool_hidden();
    Hidden {
        ooms: process.hides_ooms(),
        allocated: is_pool_hidden,
        reserved: is_pool_hidden && !process.saw_all_memory(),
    }
}

/// Whether the blocks from before the attach are known one by one.
pub(crate) fn baseline(process: &Process) -> Baseline {
    if process.saw_all_memory() {
        return Baseline::Known;
    }
    if process.source() == Source::Driver || process.is_pool_hidden() {
        return Baseline::Unknown;
    }
    let mut seen = 0;
    let unknown = process.devices.iter().any(|row| {
        let pool = &row.pool;
        seen += u32::from(pool.seen);
        pool.seen && pool.read.count == 0 && pool.totals.baseline() != Some(0)
    });
    match (unknown, seen) {
        (false, 1..) => Baseline::Known,
        _ if process.notes.has(NOT_READ) => Baseline::Unknown,
        _ => Baseline::Awaited,
    }
}
