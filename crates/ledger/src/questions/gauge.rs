//! The levels of a process, for those who look after each event.
//!
//! Owns: which number stands for which level (the same as in `stats`), at the cost of a lookup.
//! Refuses: to keep anything.

use crate::report::{Baseline, Gauge, Source};
use crate::state::device::Device;
use crate::state::process::Process;

/// What the daemon notes of a process whose structures could not be read.
const NOT_READ: &str = "baseline_not_read";

/// One device.
pub(crate) fn of(process: &Process, device: i32) -> Option<Gauge> {
    process
        .devices
        .iter()
        .find(|row| row.ordinal == Some(device))
        .map(|row| gauge(process, row, device))
}

/// All devices that are known by number.
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

/// Whether what was there before the attach is known, block by block.
pub(crate) fn baseline(process: &Process) -> Baseline {
    if process.facts.from_start {
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
