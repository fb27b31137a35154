//! Probes on PyTorch's caching allocator. They stand at entries and on calls only, since its functions may throw.
//!
//! `record_trace` is called three times for an allocation and its free: for the allocation, for the request of the free,
//! and by `free_block` when the free completes. If no other stream uses the block, that is at once. So, once the layout of the
//! allocator's objects is proven, the probes stand on the calls of `record_trace` except for the one in `free_block`, and the
//! probe on the call in `free` tells of both events ([`FREES_AT_ONCE`]). A free that has to wait is completed by other calls of
//! `free_block`, which have a probe each.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memscope_common::{
    CALIBRATE, CalibrationRecord, DEVICE_UNKNOWN, DropReason, FREES_AT_ONCE, KIND_CALIBRATION,
    KIND_OOM, KIND_REPORT, KIND_TRACE, NOWHERE, ON_TRIAL, OomRecord, ProcessEntry, ReportRecord,
    STACK_NONE, TRACE_COMPLETES, TRACE_ENDS_WAIT, TRACE_EXPECTED, TRACE_HAS_BLOCK, TRACE_HAS_POOL,
    TRACE_HAS_TOTALS, TRACE_NO_DEVICE, TRACE_ON_TRIAL, TraceRecord,
};

use super::ids;
use crate::emit::{emit, emit_events, live_process, tell_launches, untold};
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
    /// Whether the block is used on its own stream only, so that a free of it completes at once. `None`: it is not known.
    alone: Option<bool>,
    allocated: u64,
    reserved: u64,
    pool: [u64; 2],
}

impl Beside {
    const NOTHING: Beside = Beside {
        flags: 0,
        block_size: 0,
        alone: None,
        allocated: 0,
        reserved: 0,
        pool: [0; 2],
    };
}

/// Entry of `DeviceCachingAllocator::record_trace(this, action, addr, size, stream, device, pool, …)`.
#[uprobe]
pub fn torch_trace(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    trace::<false>(&ctx);
    0
}

/// Calls of `record_trace`, except for the one in `free_block`.
#[uprobe]
pub fn torch_trace_call(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    trace::<true>(&ctx);
    0
}

/// What both programs do. The arguments are in their places already when a function is called.
#[inline(always)]
fn trace<const ON_CALL: bool>(ctx: &ProbeContext) {
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return;
    };
    let args = read::args(ctx);
    let action = args[1] as i32;
    // The stack comes first: values that are known before its walk make the verifier follow the walk with them.
    let stack = match action {
        ACTION_FREE_REQUESTED | ACTION_FREE_COMPLETED | ACTION_SNAPSHOT => STACK_NONE,
        _ => {
            // Stacks are sampled by the size of the block, which is at least the requested size rounded up to 512
            // bytes.
            let bytes = args[3].wrapping_add(511) & !511;
            let place = match ON_CALL {
                true => native::at_call(ctx),
                false => native::at_entry(ctx),
            };
            stack::stack(process, tid, place, bytes)
        }
    };
    let frame = match ON_CALL {
        true => read::callee_sp(ctx),
        false => read::sp(ctx),
    };
    let mut beside = Beside::NOTHING;
    let device = arguments(ctx, frame, &args, &mut beside);
    // Nothing is read when a free is completed, which can be right after it was requested or much later: the totals
    // do not change then, and the block is known.
    if action != ACTION_FREE_COMPLETED {
        read_block(ctx, frame, process, action, &args, &mut beside);
        read_totals(process, args[0], &mut beside);
    }
    if action == ACTION_ALLOC {
        tell_launches(process, tid);
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let settings = unsafe { (*process).flags };
    let mut events = 1;
    if action == ACTION_FREE_REQUESTED {
        let at_once = settings & FREES_AT_ONCE != 0;
        match beside.alone {
            Some(true) if at_once => {
                beside.flags |= TRACE_COMPLETES;
                events = 2;
            }
            Some(true) => beside.flags |= TRACE_EXPECTED,
            Some(false) => {}
            // Nobody else tells whether it completes.
            None if at_once => untold(process, DropReason::ResultUnreadable),
            None => {}
        }
    }
    if settings & CALIBRATE != 0 {
        let registers = read::left_over(ctx);
        let caller = match ON_CALL {
            true => read::behind_call(ctx),
            false => read::caller(ctx),
        };
        emit_events::<CalibrationRecord>(
            process,
            tid,
            KIND_CALIBRATION,
            beside.flags,
            stack,
            events,
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
        emit_events::<TraceRecord>(
            process,
            tid,
            KIND_TRACE,
            beside.flags,
            stack,
            events,
            |record| fill(record, &args, action, device, &beside),
        );
    }
}

/// The call of `record_trace` in `free_block`: a free is completed. From the moment on from which the other programs tell
/// that too, such a record may tell something again.
#[uprobe]
pub fn torch_trace_completed(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let args = read::args(&ctx);
    let mut beside = Beside::NOTHING;
    let device = arguments(&ctx, read::callee_sp(&ctx), &args, &mut beside);
    beside.flags |= TRACE_EXPECTED;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let again = unsafe { (*process).flags } & FREES_AT_ONCE != 0;
    emit_events::<TraceRecord>(
        process,
        tid,
        KIND_TRACE,
        beside.flags,
        STACK_NONE,
        u64::from(!again),
        |record| fill(record, &args, ACTION_FREE_COMPLETED, device, &beside),
    );
    0
}

/// Calls of `DeviceCachingAllocator::free_block(this, block, …)`, except for the one in `free`: they complete frees that had to
/// wait for other streams.
#[uprobe]
pub fn torch_free_block(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (settings, offset) = unsafe { ((*process).flags, (*process).block_ptr_offset) };
    if settings & FREES_AT_ONCE == 0 {
        return 0;
    }
    let args = read::args(&ctx);
    let block = args[1];
    // The block begins with {device, stream}.
    let (Some(head), Some(fields)) = (
        read::user::<[u64; 2]>(block),
        read::user::<[u64; BLOCK_WORDS]>(fields_of(block, offset)),
    ) else {
        untold(process, DropReason::ResultUnreadable);
        return 0;
    };
    let mut beside = Beside::NOTHING;
    beside.flags = TRACE_ENDS_WAIT;
    let mut device = head[0] as i8 as i32;
    if !read::cookie(&ctx).torch_device() {
        device = DEVICE_UNKNOWN;
        beside.flags |= TRACE_NO_DEVICE;
    }
    let args = [
        args[0],
        ACTION_FREE_COMPLETED as u64,
        fields[PTR],
        fields[REQUESTED],
        head[1],
        0,
    ];
    emit::<TraceRecord>(
        process,
        tid,
        KIND_TRACE,
        beside.flags,
        STACK_NONE,
        |record| fill(record, &args, ACTION_FREE_COMPLETED, device, &beside),
    );
    0
}

/// Reads the pool's id, if it is passed, and returns the device.
#[inline(always)]
fn arguments(ctx: &ProbeContext, frame: u64, args: &[u64; 6], beside: &mut Beside) -> i32 {
    let cookie = read::cookie(ctx);
    if cookie.torch_pool()
        && let Some(pool) = read::seventh_pair(ctx, frame)
    {
        beside.pool = pool;
        beside.flags |= TRACE_HAS_POOL;
    }
    if cookie.torch_device() {
        args[5] as i8 as i32
    } else {
        beside.flags |= TRACE_NO_DEVICE;
        DEVICE_UNKNOWN
    }
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

/// Number of words that are read of a block.
const BLOCK_WORDS: usize = 7;
/// Indices of these words, which are the settings of the set of other streams, the number of these streams, a word that is not
/// used, the size, the requested size, the pool and the address.
const SET: usize = 0;
const STREAMS: usize = 1;
const SIZE: usize = 3;
const REQUESTED: usize = 4;
const PTR: usize = 6;
/// The upper half of the word before the number of streams is the set's largest load factor, the `float` 0.5. If it is not, the
/// block is laid out in another way.
const LOAD_FACTOR: u64 = 0x3f00_0000;

/// Address of the first of these words, given the offset of the last one.
#[inline(always)]
fn fields_of(block: u64, ptr_offset: u16) -> u64 {
    block
        .wrapping_add(ptr_offset as u64)
        .wrapping_sub(PTR as u64 * 8)
}

/// Reads the rounded size from the block that the caller holds in a register or its frame, and whether other streams use it. It is
/// accepted only if the block's address and requested size equal those of the call. So a wrong place or offset gives nothing, but
/// never a wrong size.
#[inline(always)]
fn read_block(
    ctx: &ProbeContext,
    frame: u64,
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
    let Some(block) = read::place(ctx, frame, place) else {
        return;
    };
    let Some(fields) = read::user::<[u64; BLOCK_WORDS]>(fields_of(block, offset)) else {
        return;
    };
    if fields[PTR] == args[2] && fields[REQUESTED] == args[3] {
        beside.block_size = fields[SIZE];
        beside.flags |= TRACE_HAS_BLOCK;
        if fields[SET] >> 32 == LOAD_FACTOR {
            beside.alone = Some(fields[STREAMS] == 0);
        }
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
