//! Probes on calls of runtimes and drivers: entry and return of C functions that return a status.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memscope_common::{
    AscendExtra, CALL_DEVICE_BY_ARGUMENT, CALL_DEVICE_BY_THREAD, CALL_DEVICE_KNOWN, CALL_HAL,
    CALL_OF_HOST, CallRecord, Cookie, DEVICE_UNKNOWN, DropReason, InflightCall, KIND_CALL, NO_ARG,
    Op, ProcessEntry, PtrMode, STACK_NONE, SizeMode, UNKNOWN_U64, hal,
};

use super::{device, ids};
use crate::emit::{count_drop, emit, live_process, tell_launches, thread_of};
use crate::{inflight, native, own_stack, read, stack};

/// `CU_MEM_LOCATION_TYPE_DEVICE` from the header of CUDA's driver API, and the first and the last of the types that mean the host: `HOST`,
/// `HOST_NUMA` and `HOST_NUMA_CURRENT`.
const LOCATION_DEVICE: u32 = 1;
const LOCATION_HOST: u32 = 2;
const LOCATION_HOST_LAST: u32 = 4;
/// The device plus 1 of memory that is the host's.
const CREATED_OF_HOST: u64 = u64::MAX;

/// Where each thing that is found out about a call is kept: its device with what is known of that above it, pointer, size, handle, stream,
/// and what its kind has besides.
const DEVICE: usize = 0;
const PTR: usize = 1;
const SIZE: usize = 2;
const HANDLE: usize = 3;
const STREAM: usize = 4;
const EXTRA: usize = 5;

/// Entry of an allocator function.
#[uprobe]
pub fn call_entry(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let cookie = read::cookie(&ctx);
    let args = read::args(&ctx);
    let mut aside = 0;
    if cookie.size_mode() == SizeMode::Extent as u8 {
        // For cudaMalloc3D, the extent {width, height, depth} is passed by value.
        let extent = read::second_by_value(&ctx).unwrap_or([0; 3]);
        aside = extent[1].wrapping_mul(extent[2]);
    } else if cookie.op() == Op::Create as u16 {
        aside = created(cookie, args[2]);
    } else if cookie.op() == Op::SetDevice as u16 {
        device::begin_select(process, thread_of(process, tid));
    }
    let call = InflightCall {
        cookie: cookie.0,
        sp: read::sp(&ctx),
        // SAFETY: the helper takes no arguments.
        time_ns: unsafe { bpf_ktime_get_boot_ns() },
        args,
        aside,
    };
    inflight::enter(process, thread_of(process, tid), &call);
    0
}

/// Reads the properties with which physical memory is requested: the device plus 1 (0: not known) or [`CREATED_OF_HOST`], or for Ascend's
/// driver its word of flags.
#[inline(always)]
fn created(cookie: Cookie, properties: u64) -> u64 {
    if cookie.told() == AscendExtra::Properties as u8 {
        return match read::user::<[u32; 5]>(properties) {
            Some(properties) => hal::of_properties(properties),
            None => 0,
        };
    }
    if cookie.told() == AscendExtra::Location as u8 {
        // aclrtPhysicalMemProp: location {id, type} at 12; ACL_MEM_LOCATION_TYPE_DEVICE is 1 as well.
        return match read::user::<[u32; 2]>(properties.wrapping_add(12)) {
            Some([id, LOCATION_DEVICE]) => id as u64 + 1,
            _ => 0,
        };
    }
    // CUmemAllocationProp: location {type, id} at 8.
    match place(properties.wrapping_add(8)) {
        device::OF_HOST => CREATED_OF_HOST,
        device => (device + 1) as u64,
    }
}

/// Reads a location: {type, id}. Gives a device, [`device::OF_HOST`] or `DEVICE_UNKNOWN`.
#[inline(always)]
fn place(location: u64) -> i32 {
    match read::user::<[u32; 2]>(location) {
        Some([LOCATION_DEVICE, id]) => id as i32,
        Some([LOCATION_HOST..=LOCATION_HOST_LAST, _]) => device::OF_HOST,
        _ => DEVICE_UNKNOWN,
    }
}

/// The word of flags that Ascend's driver got in this call, if this is a call of the driver itself; else 0.
#[inline(always)]
fn word(cookie: Cookie, call: &InflightCall) -> u64 {
    if cookie.told() == AscendExtra::Flags as u8 {
        arg(call, cookie.extra())
    } else if cookie.told() == AscendExtra::Properties as u8 {
        call.aside
    } else {
        0
    }
}

/// Return of an allocator function.
#[uretprobe]
pub fn call_return(ctx: RetProbeContext) -> u32 {
    own_stack::keep();
    let ctx = ProbeContext::new(ctx.as_ptr());
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let thread = thread_of(process, tid);
    let Some((call, depth, nested)) = inflight::leave(thread, read::entry_sp(&ctx)) else {
        count_drop(DropReason::ReturnWithoutEntry);
        return 0;
    };
    let cookie = Cookie(call.cookie);
    let status = read::result(&ctx) as i32;
    let op = cookie.op();
    if op >= Op::SetDevice as u16 && op <= Op::PrimaryContext as u16 {
        if status == 0 {
            follow_device(process, thread, op, cookie, &call, depth > 0);
        }
        return 0;
    }
    if op == Op::NewStream as u16 || op == Op::PoolOf as u16 {
        if status == 0 {
            follow_order(process, thread, op, cookie, &call);
        }
        return 0;
    }
    if depth > 0 && !(cookie.apart() && inflight::is_outermost_allocation(thread, depth)) {
        let told = cookie.told();
        if status == 0
            && (told == AscendExtra::Flags as u8 || told == AscendExtra::Properties as u8)
        {
            // What only the driver is given is stored, and added to the record of the outer call.
            let of = if cookie.ptr_mode() == PtrMode::Out as u8 {
                out(&call, cookie.ptr())
            } else {
                out(&call, cookie.handle())
            };
            inflight::tell(thread, word(cookie, &call), of, arg(&call, cookie.size()));
        }
        inflight::note_nested(thread);
        return 0;
    }
    if cookie.apart() {
        // The number of launches is sent here, since there may never be an event of a pool that would send it.
        tell_launches(process, tid);
    }
    let place = native::at_return(&ctx);
    send(process, tid, cookie, &call, status, nested, place);
    if op == Op::Reset as u16 && status == 0 && cookie.handle() != NO_ARG {
        device::forget_context(process, thread, arg(&call, cookie.handle()));
    }
    0
}

/// The argument at a position that the cookie gives; 0 if there is none.
#[inline(always)]
fn arg(call: &InflightCall, position: u8) -> u64 {
    match position {
        0 => call.args[0],
        1 => call.args[1],
        2 => call.args[2],
        3 => call.args[3],
        4 => call.args[4],
        5 => call.args[5],
        _ => 0,
    }
}

/// The value that the call wrote through the pointer argument at this position; [`UNKNOWN_U64`] if it cannot be read.
#[inline(always)]
fn out(call: &InflightCall, position: u8) -> u64 {
    match read::user::<u64>(arg(call, position)) {
        Some(value) => value,
        None => {
            count_drop(DropReason::ResultUnreadable);
            UNKNOWN_U64
        }
    }
}

#[inline(always)]
fn follow_device(
    process: *mut ProcessEntry,
    thread: u64,
    op: u16,
    cookie: Cookie,
    call: &InflightCall,
    inside: bool,
) {
    if op == Op::SetDevice as u16 {
        device::select(process, thread, call.args[0] as i32);
        return;
    }
    if op == Op::PopContext as u16 {
        device::pop(thread);
        return;
    }
    let context = if cookie.handle_is_result() {
        // The new context becomes the current one, too: cuCtxCreate pushes it, aclrtCreateContext replaces the current
        // one.
        let context = out(call, cookie.handle());
        let created = op != Op::PrimaryContext as u16;
        device::learn_context(process, context, arg(call, cookie.size()) as i32, created);
        context
    } else {
        arg(call, cookie.handle())
    };
    if op == Op::PushContext as u16 {
        device::push(process, thread, context, inside);
    } else if op == Op::SetContext as u16 {
        device::select_context(process, thread, context, inside);
    }
}

/// Notes where the memory of a stream or of a pool lies: a stream's on the device on which it was made, and
/// a pool's where the call that makes or names the pool says.
#[inline(always)]
fn follow_order(
    process: *mut ProcessEntry,
    thread: u64,
    op: u16,
    cookie: Cookie,
    call: &InflightCall,
) {
    let lies = if op == Op::NewStream as u16 {
        of_thread(process, thread).0
    } else if cookie.size() != NO_ARG {
        arg(call, cookie.size()) as i32
    } else if cookie.ptr() != NO_ARG {
        place(arg(call, cookie.ptr()))
    } else {
        // cudaMemPoolProps: location {type, id} at 8.
        place(arg(call, cookie.extra()).wrapping_add(8))
    };
    let handle = out(call, cookie.handle());
    device::learn_order(process, handle, lies);
}

/// Where stream-ordered memory is allocated: where its pool has its memory, else on the stream's device. The default streams (0 to 2)
/// are those of the thread's device.
#[inline(always)]
fn ordered(process: *mut ProcessEntry, cookie: Cookie, call: &InflightCall) -> i32 {
    if cookie.op() != Op::AsyncAlloc as u16 {
        return DEVICE_UNKNOWN;
    }
    if cookie.handle() != NO_ARG {
        return device::of_order(process, arg(call, cookie.handle()));
    }
    let stream = arg(call, cookie.stream());
    if stream <= 2 {
        DEVICE_UNKNOWN
    } else {
        device::of_order(process, stream)
    }
}

/// The device that the thread has selected, and how that is known (`header.flags`).
#[inline(always)]
fn of_thread(process: *mut ProcessEntry, thread: u64) -> (i32, u8) {
    let current = device::current(thread);
    if let Some(device) = current.device() {
        return (device, CALL_DEVICE_KNOWN | CALL_DEVICE_BY_THREAD);
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (device, full) = unsafe { ((*process).default_device, (*process).full) };
    // If the table had no room for some thread's device, no thread is certain to have selected none.
    if device == DEVICE_UNKNOWN
        || current.is_elsewhere()
        || full & (1 << DropReason::DeviceTableFull as u32) != 0
    {
        (DEVICE_UNKNOWN, 0)
    } else {
        (device, CALL_DEVICE_KNOWN)
    }
}

/// Whether what the call makes belongs to the context in which it is made, and goes with it; or whether the call resets the device.
#[inline(always)]
fn is_of_context(cookie: Cookie) -> bool {
    let op = cookie.op();
    let is_extra_free = cookie.extra() == NO_ARG || cookie.size_mode() == SizeMode::Pitch as u8;
    is_extra_free
        && (op == Op::Alloc as u16
            || op == Op::ManagedAlloc as u16
            || op == Op::HostAlloc as u16
            || op == Op::HostRegister as u16
            || op == Op::ArrayAlloc as u16
            || op == Op::IpcOpen as u16
            || op == Op::Reset as u16)
}

/// The device that a reset names, by its ordinal (cuDevicePrimaryCtxReset) or by a context (cuCtxDestroy).
#[inline(always)]
fn reset_device(process: *mut ProcessEntry, cookie: Cookie, call: &InflightCall) -> Option<i32> {
    if cookie.op() != Op::Reset as u16 {
        return None;
    }
    let device = if cookie.size() != NO_ARG {
        arg(call, cookie.size()) as i32
    } else if cookie.handle() != NO_ARG {
        device::of_context(process, arg(call, cookie.handle()))
    } else {
        DEVICE_UNKNOWN
    };
    if device == DEVICE_UNKNOWN {
        None
    } else {
        Some(device)
    }
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn send(
    process: *mut ProcessEntry,
    tid: u32,
    cookie: Cookie,
    call: &InflightCall,
    status: i32,
    nested: u32,
    place: native::Place,
) {
    let thread = thread_of(process, tid);
    let Some(found) = inflight::found(thread) else {
        count_drop(DropReason::ReturnWithoutEntry);
        return;
    };
    let done = status == 0;
    let ptr = if cookie.ptr_mode() == PtrMode::Value as u8 {
        arg(call, cookie.ptr())
    } else if cookie.ptr_mode() == PtrMode::Out as u8 && done {
        out(call, cookie.ptr())
    } else {
        0
    };
    found.keep::<PTR>(ptr);
    // The cookie is read anew for each value, so that what was decided by it before is nothing that the verifier knows.
    let cookie = found.cookie();
    let handle = if cookie.handle() == NO_ARG {
        0
    } else if !cookie.handle_is_result() {
        arg(call, cookie.handle())
    } else if done {
        out(call, cookie.handle())
    } else {
        0
    };
    found.keep::<HANDLE>(handle);
    let cookie = found.cookie();
    let stream = if cookie.stream() == NO_ARG {
        UNKNOWN_U64
    } else {
        arg(call, cookie.stream())
    };
    found.keep::<STREAM>(stream);
    let cookie = found.cookie();
    let extra = if is_of_context(cookie) {
        device::current(thread).context()
    } else {
        0
    };
    found.keep::<EXTRA>(extra);
    let cookie = found.cookie();
    let size = if cookie.size() == NO_ARG && cookie.size_mode() != SizeMode::Extent as u8 {
        0
    } else if cookie.size_mode() == SizeMode::Value as u8 {
        if cookie.extra() != NO_ARG {
            found.keep::<EXTRA>(arg(call, cookie.extra()));
        }
        arg(call, cookie.size())
    } else if !done {
        0
    } else if cookie.size_mode() == SizeMode::Pitch as u8 {
        out(call, cookie.extra()).wrapping_mul(arg(call, cookie.size()))
    } else if cookie.size_mode() == SizeMode::Extent as u8 {
        // The result is a cudaPitchedPtr: {ptr, pitch, …}.
        match read::user::<u64>(arg(call, cookie.ptr()).wrapping_add(8)) {
            Some(pitch) => pitch.wrapping_mul(call.aside),
            None => {
                count_drop(DropReason::ResultUnreadable);
                0
            }
        }
    } else {
        found.keep::<EXTRA>(out(call, cookie.extra()));
        out(call, cookie.size())
    };
    found.keep::<SIZE>(size);
    let cookie = found.cookie();
    let (told, inner) = if cookie.told() == AscendExtra::Flags as u8
        || cookie.told() == AscendExtra::Properties as u8
    {
        (word(cookie, call), found.kept::<SIZE>())
    } else if cookie.apart() && nested > 0 && done {
        let ptr = found.kept::<PTR>();
        let of = if ptr != 0 {
            ptr
        } else {
            found.kept::<HANDLE>()
        };
        inflight::told(thread, of)
    } else {
        (0, 0)
    };
    let by_hal = if told != 0 || cookie.told() == AscendExtra::Flags as u8 {
        found.keep::<EXTRA>(told);
        // The runtime may ask the driver for more than it was asked for itself; the driver's size is what the memory
        // has.
        found.keep::<SIZE>(inner);
        CALL_HAL
    } else {
        0
    };
    found.keep::<DEVICE>((by_hal as u64) << 32);
    let cookie = found.cookie();
    let by_argument = CALL_DEVICE_KNOWN | CALL_DEVICE_BY_ARGUMENT;
    let lies = ordered(process, cookie, call);
    let is_created = cookie.op() == Op::Create as u16
        && call.aside != 0
        && cookie.told() != AscendExtra::Properties as u8;
    let (device, flags) = if lies == device::OF_HOST || is_created && call.aside == CREATED_OF_HOST
    {
        (DEVICE_UNKNOWN, CALL_OF_HOST)
    } else if is_created {
        (call.aside as i32 - 1, by_argument)
    } else if lies != DEVICE_UNKNOWN {
        (lies, by_argument)
    } else if let Some(device) = reset_device(process, cookie, call) {
        (device, by_argument)
    } else {
        of_thread(process, thread)
    };
    found.keep::<DEVICE>(found.kept::<DEVICE>() | device as u32 as u64 | (flags as u64) << 32);
    let cookie = found.cookie();
    let time_ns = call.time_ns;
    // The stack at the return equals the stack at the entry without the function itself.
    let op = cookie.op();
    let comes = op == Op::Alloc as u16
        || op == Op::AsyncAlloc as u16
        || op == Op::ManagedAlloc as u16
        || op == Op::HostAlloc as u16
        || op == Op::Create as u16;
    let stack = if comes {
        stack::stack(process, tid, place, found.kept::<SIZE>())
    } else {
        STACK_NONE
    };
    let cookie = found.cookie();
    let decided = found.kept::<DEVICE>();
    let flags = (decided >> 32) as u8;
    emit::<CallRecord>(process, tid, KIND_CALL, flags, stack, |record| {
        // SAFETY: `record` is the reservation, as large as CallRecord; every field is written.
        unsafe {
            (*record).site = cookie.site();
            (*record).status = status;
            (*record).device = decided as u32 as i32;
            (*record).op = cookie.op();
            (*record).nested = nested as u16;
            (*record).ptr = found.kept::<PTR>();
            (*record).size = found.kept::<SIZE>();
            (*record).stream = found.kept::<STREAM>();
            (*record).handle = found.kept::<HANDLE>();
            (*record).extra = found.kept::<EXTRA>();
            (*record).duration_ns = (*record).header.time_ns.wrapping_sub(time_ns);
        }
    });
}
