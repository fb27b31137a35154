//! Memory that a pool gives back to the driver at a level at which no event of the pool says so.
//!
//! Owns: how much one driver call takes from the reserved total of each pool that is known by reports only. Reports
//! come with blocks, and giving memory back (`empty_cache`) hands out no block. Refuses: pools whose trace reports
//! segments.

use crate::event::{Call, CallOp};
use crate::state::device::{Device, Devices, Watch};
use crate::state::driver::Driver;

/// State before the call.
pub(crate) struct Before {
    watch: Watch,
    /// For each device, in the order of their rows: bytes of driver allocations that are the pool's, and bytes of the
    /// segments that are known from a reading.
    rows: Vec<(u64, u64)>,
    /// Bytes that the call unmaps and that are also counted as the pool's among the driver allocations. There they are
    /// subtracted when their physical memory goes, so they must not be subtracted twice.
    unmapped: u64,
    /// Number of frees and unmaps so far of memory that was not known.
    unknown: u64,
    /// It unmaps something, and nothing says how much, as Ascend's calls of what was mapped before the attach.
    is_unsized: bool,
}

/// Whether the call may give memory back.
fn gives_back(op: CallOp) -> bool {
    matches!(
        op,
        CallOp::Free | CallOp::AsyncFree | CallOp::Unmap | CallOp::Release | CallOp::Reset
    )
}

/// Whether this pool is known by reports and readings only.
fn is_reported(row: &Device, watch: Watch) -> bool {
    row.pool.reserved.is_some() && !row.pool.is_traced(watch)
}

/// Number of calls of this kind so far that gave back memory that was not known. Physical memory without a name goes with its mapping.
fn unknown(devices: &Devices, driver: &Driver, call: &Call) -> u64 {
    match call.op {
        CallOp::Unmap => driver.vmm.unknown(),
        _ => devices.iter().map(|row| row.driver.orphan_free_count).sum(),
    }
}

fn stand(row: &Device, watch: Watch) -> (u64, u64) {
    if is_reported(row, watch) {
        (row.driver.pooled.bytes, row.pool.segments.bytes())
    } else {
        (0, 0)
    }
}

/// Notes the state before the call takes effect. `None` if the call cannot change such a pool.
pub(crate) fn before(
    devices: &Devices,
    driver: &Driver,
    call: &Call,
    watch: Watch,
) -> Option<Before> {
    let reported = || devices.iter().any(|row| is_reported(row, watch));
    if call.status != 0 || !gives_back(call.op) || !reported() {
        return None;
    }
    Some(Before {
        watch,
        rows: devices.iter().map(|row| stand(row, watch)).collect(),
        unmapped: match call.op {
            CallOp::Unmap => driver.pooled_within(call),
            _ => 0,
        },
        unknown: unknown(devices, driver, call),
        is_unsized: call.op == CallOp::Unmap && driver.unmapped_bytes(call) == 0,
    })
}

/// Subtracts what the call took from each pool. To be called when the call, and what it means for segments, has taken
/// effect.
pub(crate) fn after(
    devices: &mut Devices,
    driver: &Driver,
    before: Option<Before>,
    call: &Call,
    missed_none: bool,
    time_ns: u64,
) {
    let Some(before) = before else {
        return;
    };
    let unknown = unknown(devices, driver, call) > before.unknown;
    let mut stood = before.rows.into_iter();
    for row in devices.iter_mut() {
        // A device that this call made known comes last, and had nothing to give back.
        let Some((pooled, in_segments)) = stood.next() else {
            return;
        };
        if !is_reported(row, before.watch) {
            continue;
        }
        let by_driver = pooled.saturating_sub(row.driver.pooled.bytes);
        let by_reading = in_segments.saturating_sub(row.pool.segments.bytes());
        let in_both = match call.op {
            CallOp::Unmap => before.unmapped,
            _ => by_driver,
        };
        let gone = by_driver.saturating_add(by_reading.saturating_sub(in_both));
        if gone > 0 {
            row.pool.gave_back(gone, time_ns);
        } else if unknown && !missed_none && (row.pool.read.count == 0 || before.is_unsized) {
            // The memory may have been the pool's from before the attach, and how much of it was the pool's is not known, so
            // the reserved total is not known any more either. The call's device is no help: it is the thread's, and
            // `empty_cache` frees the segments of all devices without selecting each.
            row.pool.reserved = None;
        }
    }
}
