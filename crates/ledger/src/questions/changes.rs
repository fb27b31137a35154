//! What happened to a device's pool since a moment.
//!
//! Owns: the answer for the tracer, which reads the allocator's structures while the process continues. Refuses: to
//! answer where something may be missing.

use crate::event::TraceAction;
use crate::state::pool::trace_ring::Entry;
use crate::state::process::Process;

/// One change of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolChange {
    /// When it happened, `CLOCK_BOOTTIME` in nanoseconds.
    pub time_ns: u64,
    /// What happened to a block or to a segment.
    pub action: TraceAction,
    /// Address of the block or segment.
    pub addr: u64,
    /// Size of a segment, or requested bytes of a block, where known.
    pub bytes: Option<u64>,
    /// Rounded bytes of the block of an `Alloc`, where known.
    pub rounded: Option<u64>,
    /// Raw stream, where known.
    pub stream: Option<u64>,
    /// Id of the private pool, where known; `(0, 0)` is the default pool.
    pub pool: Option<(u64, u64)>,
}

/// Does the work of [`crate::Ledger::pool_changes`].
pub(crate) fn of(
    process: &Process,
    device: i32,
    allocator: u64,
    since_ns: u64,
) -> Option<Vec<PoolChange>> {
    let mut changes = Vec::new();
    let row = process
        .devices
        .iter()
        .find(|row| row.ordinal == Some(device));
    let forgotten = row.map_or(0, |row| row.pool.ring.forgotten_ns());
    if process.pool.complete_since.max(forgotten) > since_ns {
        return None;
    }
    if let Some(row) = row {
        changes.extend(row.pool.ring.after(since_ns).map(change));
    }
    // Entries whose device is not known yet: the trace of PyTorch 2.1 does not name it.
    let waiting = process.pool.deferred.waiting(allocator)?;
    let waiting = waiting.filter(|held| held.time_ns > since_ns);
    changes.extend(waiting.map(|held| PoolChange {
        time_ns: held.time_ns,
        action: held.trace.action,
        addr: held.trace.addr,
        bytes: Some(held.trace.size),
        rounded: held.trace.block_size,
        stream: Some(held.trace.stream),
        pool: held.trace.pool,
    }));
    // Where the pool does not report its segments, the driver's calls show them, as they do for other memory.
    if !row.is_some_and(|row| row.pool.is_traced(process.watch())) {
        let moved = process.driver.moved_since(since_ns)?;
        let moved = moved.filter(|moved| moved.device.is_none_or(|of| of == device));
        changes.extend(moved.map(|moved| PoolChange {
            time_ns: moved.time_ns,
            action: if moved.came {
                TraceAction::SegmentAlloc
            } else {
                TraceAction::SegmentFree
            },
            addr: moved.addr,
            bytes: moved.size,
            rounded: None,
            stream: None,
            pool: None,
        }));
    }
    Some(changes)
}

fn change(entry: Entry) -> PoolChange {
    PoolChange {
        time_ns: entry.time_ns,
        action: entry.action,
        addr: entry.addr,
        bytes: (!entry.reported).then_some(entry.size),
        rounded: (entry.rounded != 0).then_some(entry.rounded),
        stream: (!entry.reported).then_some(entry.stream),
        pool: entry.pool,
    }
}
