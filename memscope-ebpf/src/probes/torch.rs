//! Probes on PyTorch's caching allocator. There are entry probes only, since its functions may throw.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memscope_common::{
    CALIBRATE, CalibrationRecord, DEVICE_UNKNOWN, KIND_CALIBRATION, KIND_OOM, KIND_REPORT,
    KIND_TRACE, NOWHERE, ON_TRIAL, OomRecord, ProcessEntry, ReportRecord, STACK_NONE,
    TRACE_HAS_BLOCK, TRACE_HAS_POOL, TRACE_HAS_TOTALS, TRACE_NO_DEVICE, TRACE_ON_TRIAL,
    TraceRecord,
};

use super::ids;
use crate::emit::{emit, live_process, tell_launches};
use crate::{native, own_stack, read, stack};

/// `c10::DeviceType::CPU`.
const DEVICE_CPU: i8 = 0;
const ACTION_ALLOC: i32 = 0;
const ACTION_FREE_REQUESTED: i32 = 1;
const ACTION_FREE_COMPLETED: i32 = 2;
const ACTION_SNAPSHOT: i32 = 7;

/// Entry of `c10::reportMemoryUsageToProfiler(ptr, size, allocated, reserved, device)`.
#[uprobe]
pub fn torch_report(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let args = read::args(&ctx);
    let device_type = args[4] as i8;
    if device_type == DEVICE_CPU {
        return 0;
    }
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    // At level `blocks` there is no other event that could have the stack. A free has none.
    let stack = if args[1] as i64 > 0 {
        stack::stack(process, tid, native::at_entry(&ctx), args[1])
    } else {
        STACK_NONE
    };
    if args[1] as i64 > 0 {
        tell_launches(process, tid);
    }
    emit::<ReportRecord>(process, tid, KIND_REPORT, 0, stack, |record| {
        // SAFETY: the reservation is as large as ReportRecord; every field is written.
        unsafe {
            (*record).ptr = args[0];
            (*record).size = args[1] as i64;
            (*record).total_allocated = args[2];
            (*record).total_reserved = args[3];
            (*record).device_type = device_type as i32;
            (*record).device = (args[4] >> 8) as i8 as i32;
        }
    });
    0
}

/// Entry of `c10::reportOutOfMemoryToProfiler(size, allocated, reserved, device)`.
#[uprobe]
pub fn torch_oom(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let args = read::args(&ctx);
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let stack = stack::stack(process, tid, native::at_entry(&ctx), u64::MAX);
    emit::<OomRecord>(process, tid, KIND_OOM, 0, stack, |record| {
        // SAFETY: the reservation is as large as OomRecord; every field is written.
        unsafe {
            (*record).size = args[0] as i64;
            (*record).total_allocated = args[1];
            (*record).total_reserved = args[2];
            (*record).device_type = args[3] as i8 as i32;
            (*record).device = (args[3] >> 8) as i8 as i32;
        }
    });
    0
}

/// Size in bytes of PyTorch's `StatArray`.
const STAT_ARRAY: u32 = 96;
/// Number of words from the first word of a `StatArray` to the first word of the next one, both included.
const STAT_WORDS: usize = 13;

/// What was read in addition to the arguments of `record_trace`.
struct Beside {
    flags: u8,
    block_size: u64,
    allocated: u64,
    reserved: u64,
    pool: [u64; 2],
}

/// Entry of `DeviceCachingAllocator::record_trace(this, action, addr, size, stream, device, pool, …)`.
#[uprobe]
pub fn torch_trace(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let args = read::args(&ctx);
    let action = args[1] as i32;
    // The stack comes first: values that are known before its walk make the verifier follow the walk with them.
    let stack = match action {
        ACTION_FREE_REQUESTED | ACTION_FREE_COMPLETED | ACTION_SNAPSHOT => STACK_NONE,
        _ => {
            // Stacks are sampled by the size of the block, which is at least the requested size rounded up to 512
            // bytes.
            let bytes = args[3].wrapping_add(511) & !511;
            stack::stack(process, tid, native::at_entry(&ctx), bytes)
        }
    };
    let cookie = read::cookie(&ctx);
    let mut beside = Beside {
        flags: 0,
        block_size: 0,
        allocated: 0,
        reserved: 0,
        pool: [0; 2],
    };
    let mut device = args[5] as i8 as i32;
    if !cookie.torch_device() {
        device = DEVICE_UNKNOWN;
        beside.flags |= TRACE_NO_DEVICE;
    }
    if cookie.torch_pool()
        && let Some(pool) = read::seventh_pair(&ctx)
    {
        beside.pool = pool;
        beside.flags |= TRACE_HAS_POOL;
    }
    // Nothing is read when a free is completed, which can be right after it was requested or much later: the totals
    // do not change then, and the block is known.
    if action != ACTION_FREE_COMPLETED {
        read_block(&ctx, process, action, &args, &mut beside);
        read_totals(process, args[0], &mut beside);
    }
    if action == ACTION_ALLOC {
        tell_launches(process, tid);
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { (*process).flags } & CALIBRATE != 0 {
        let registers = read::left_over(&ctx);
        let caller = read::caller(&ctx);
        let frame = read::sp(&ctx);
        emit::<CalibrationRecord>(
            process,
            tid,
            KIND_CALIBRATION,
            beside.flags,
            stack,
            |record| {
                // SAFETY: the reservation is as large as CalibrationRecord; every field is written.
                unsafe {
                    fill(&raw mut (*record).trace, &args, action, device, &beside);
                    (*record).registers = registers;
                    (*record).caller = caller;
                    read::user_into(&raw mut (*record).stack, frame);
                }
            },
        );
    } else {
        emit::<TraceRecord>(process, tid, KIND_TRACE, beside.flags, stack, |record| {
            fill(record, &args, action, device, &beside);
        });
    }
    0
}

#[inline(always)]
fn fill(record: *mut TraceRecord, args: &[u64; 6], action: i32, device: i32, beside: &Beside) {
    // SAFETY: `record` lies in a reservation; every field behind the header is written.
    unsafe {
        (*record).allocator = args[0];
        (*record).action = action;
        (*record).device = device;
        (*record).addr = args[2];
        (*record).size = args[3];
        (*record).stream = args[4];
        (*record).block_size = beside.block_size;
        (*record).total_allocated = beside.allocated;
        (*record).total_reserved = beside.reserved;
        (*record).pool = beside.pool;
    }
}

/// Reads the rounded size from the block that the caller holds in a register or its frame. It is accepted only if the
/// block's address and requested size equal those of the call. So a wrong place or offset gives nothing, but never a
/// wrong size.
#[inline(always)]
fn read_block(
    ctx: &ProbeContext,
    process: *mut ProcessEntry,
    action: i32,
    args: &[u64; 6],
    beside: &mut Beside,
) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (offset, on_alloc, on_free) = unsafe {
        (
            (*process).block_ptr_offset,
            (*process).alloc_place,
            (*process).free_place,
        )
    };
    let place = match action {
        ACTION_ALLOC => on_alloc,
        ACTION_FREE_REQUESTED => on_free,
        _ => NOWHERE,
    };
    if offset == 0 || place == NOWHERE {
        return;
    }
    let Some(block) = read::place(ctx, place) else {
        return;
    };
    // The fields are {size, requested_size, pool, ptr}.
    let Some(fields) = read::user::<[u64; 4]>(block.wrapping_add(offset as u64).wrapping_sub(24))
    else {
        return;
    };
    if fields[3] == args[2] && fields[1] == args[3] {
        beside.block_size = fields[0];
        beside.flags |= TRACE_HAS_BLOCK;
    }
}

#[inline(always)]
fn read_totals(process: *mut ProcessEntry, allocator: u64, beside: &mut Beside) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (allocated, reserved) =
        unsafe { ((*process).allocated_offset, (*process).reserved_offset) };
    if allocated == 0 {
        return;
    }
    // If the two `StatArray`s are next to each other, one read gets both, at half the cost of two reads.
    if reserved.wrapping_sub(allocated) == STAT_ARRAY {
        let Some(both) = read::user::<[u64; STAT_WORDS]>(allocator.wrapping_add(allocated as u64))
        else {
            return;
        };
        beside.allocated = both[0];
        beside.reserved = both[STAT_WORDS - 1];
    } else {
        let (Some(a), Some(r)) = (
            read::user::<u64>(allocator.wrapping_add(allocated as u64)),
            read::user::<u64>(allocator.wrapping_add(reserved as u64)),
        ) else {
            return;
        };
        beside.allocated = a;
        beside.reserved = r;
    }
    beside.flags |= TRACE_HAS_TOTALS;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { (*process).flags } & ON_TRIAL != 0 {
        beside.flags |= TRACE_ON_TRIAL;
    }
}
