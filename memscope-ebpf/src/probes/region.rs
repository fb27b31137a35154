//! Probes on mstx's functions for memory, by which programs report pools of their own.
//!
//! Each function has a probe at its entry and one at its return. What is unregistered is reported at the entry, before
//! another thread can be given the same address. What is registered is reported at the return, when its handle is
//! known. In the very first call the library looks for tools, and then the function calls itself once through a
//! pointer. That counts as one call and is reported once.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::macros::{map, uprobe, uretprobe};
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use core::ffi::c_void;
use memscope_common::{
    DEVICE_UNKNOWN, DOMAIN_NAME, DomainRecord, DropReason, HEAP_CAME, HEAP_WENT, KIND_DOMAIN,
    KIND_REGION, ProcessEntry, REGION_CAME, REGION_WENT, REGION_WENT_BY_HANDLE, REGIONS_TOLD,
    RegionCall, RegionOp, RegionRecord, STACK_NONE,
};

use super::ids;
use crate::emit::{count_drops, count_full, emit, live_process, tell_launches, thread_of};
use crate::{own_stack, read};

/// Most threads that are in calls of mstx at the same time, of all processes together.
const REGION_CALLS_MOST: u32 = 1 << 15;

/// The call that each thread is inside of. A call that was left by a long jump stays here until the thread's next call,
/// or the thread's end.
#[map]
static REGION_CALLS: HashMap<u64, RegionCall> = HashMap::with_max_entries(REGION_CALLS_MOST, 0);

/// `MSTX_MEM_REGION_REF_TYPE_HANDLE` of mstx's header.
const BY_HANDLE: u32 = 1;

/// `mstxMemVirtualRangeDesc_t`: a word with the device in its lower half, the address, the size.
type Range = [u64; 3];

/// The fields of one record.
struct RegionValues {
    what: u16,
    ptr: u64,
    size: u64,
    handle: u64,
    heap: u64,
    device: i32,
    untold: u32,
}

/// Entry of one of the functions of [`RegionOp`].
#[uprobe]
pub fn region_entry(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let op = read::cookie(&ctx).op() as u64;
    let args = read::args(&ctx);
    let call = RegionCall {
        op,
        sp: read::sp(&ctx),
        args: [args[0], args[1]],
    };
    let thread = thread_of(process, tid);
    if let Some(outer) = REGION_CALLS.get_ptr(&thread) {
        // SAFETY: this points into a map value; only this thread writes to its entry.
        let outer = unsafe { &*outer };
        // The function calls itself: its frame lies deeper, or is the same if it has jumped.
        let same = outer.args[0] == args[0] && outer.args[1] == args[1];
        if outer.op == op && same && call.sp <= outer.sp {
            return 0;
        }
    }
    if REGION_CALLS.insert(&thread, &call, 0).is_err() {
        count_full(process, DropReason::InflightFull);
    }
    if op == RegionOp::HeapUnregister as u64 {
        let told = RegionValues {
            handle: call.args[1],
            ..nothing(HEAP_WENT)
        };
        send(process, tid, call.args[0], &told);
    } else if op == RegionOp::Unregister as u64 {
        unregister(process, tid, call.args[0], call.args[1]);
    }
    0
}

/// Return of one of the functions of [`RegionOp`].
#[uretprobe]
pub fn region_return(ctx: RetProbeContext) -> u32 {
    own_stack::keep();
    let ctx = ProbeContext::new(ctx.as_ptr());
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let thread = thread_of(process, tid);
    let Some(call) = REGION_CALLS.get_ptr(&thread) else {
        // Either the function had called itself and the inner return has removed the entry, or the function was entered
        // before the probes were attached.
        return 0;
    };
    // SAFETY: as in `region_entry`.
    let call = unsafe { *call };
    let _ = REGION_CALLS.remove(&thread);
    // A stored call that was left without returning belongs to another function, or its frame lies deeper.
    if call.op != read::cookie(&ctx).op() as u64 || read::entry_sp(&ctx) > call.sp {
        return 0;
    }
    let [domain, description] = call.args;
    let result = read::result(&ctx);
    if call.op == RegionOp::Domain as u64 {
        // The only argument of this function is the name.
        name_domain(process, tid, domain, result);
    } else if call.op == RegionOp::HeapRegister as u64 {
        heap(process, tid, domain, description, result);
    } else if call.op == RegionOp::Register as u64 {
        tell_launches(process, tid);
        register(process, tid, domain, description);
    }
    0
}

#[inline(always)]
fn nothing(what: u16) -> RegionValues {
    RegionValues {
        what,
        ptr: 0,
        size: 0,
        handle: 0,
        heap: 0,
        device: DEVICE_UNKNOWN,
        untold: 0,
    }
}

#[inline(always)]
fn name_domain(process: *mut ProcessEntry, tid: u32, name: u64, handle: u64) {
    emit::<DomainRecord>(process, tid, KIND_DOMAIN, 0, STACK_NONE, |record| {
        // SAFETY: the reservation is as large as DomainRecord; every field is written.
        unsafe {
            (*record).handle = handle;
            (*record).reserved = 0;
            (*record).name = [0; DOMAIN_NAME];
            let to = (&raw mut (*record).name).cast::<c_void>();
            let read = bpf_probe_read_user_str(to, DOMAIN_NAME as u32, name as *const c_void);
            // The result counts the NUL; it is negative if the name cannot be read.
            (*record).name_len = if read > 0 { read as u32 - 1 } else { 0 };
        }
    });
}

/// Reports a heap that was registered. `mstxMemHeapDesc_t` has usage and type, then a pointer to a range.
#[inline(always)]
fn heap(process: *mut ProcessEntry, tid: u32, domain: u64, description: u64, handle: u64) {
    let range = match read::user::<u64>(description.wrapping_add(8)) {
        Some(range) => read::user::<Range>(range),
        None => None,
    };
    let Some([device, ptr, size]) = range else {
        crate::emit::untold(process, DropReason::ResultUnreadable);
        return;
    };
    let told = RegionValues {
        ptr,
        size,
        handle,
        device: device as i32,
        ..nothing(HEAP_CAME)
    };
    send(process, tid, domain, &told);
}

/// Reports regions that were registered. `mstxMemRegionsRegisterBatch_t` has heap, type, count, ranges, and the address
/// to which the handles are written. A program that uses neither heaps nor handles may leave the first and the last
/// unset.
#[inline(always)]
fn register(process: *mut ProcessEntry, tid: u32, domain: u64, batch: u64) {
    let Some([heap, _, count, ranges, handles]) = read::user::<[u64; 5]>(batch) else {
        crate::emit::untold(process, DropReason::ResultUnreadable);
        return;
    };
    // The loop always runs to REGIONS_TOLD. If it ended at the count, older verifiers (6.1) might not know its bound.
    for index in 0..REGIONS_TOLD as u64 {
        if index >= count {
            continue;
        }
        let Some([device, ptr, size]) = read::user::<Range>(ranges.wrapping_add(index * 24)) else {
            crate::emit::untold(process, DropReason::ResultUnreadable);
            continue;
        };
        let handle = read::user::<u64>(handles.wrapping_add(index * 8)).unwrap_or(0);
        let told = RegionValues {
            what: REGION_CAME,
            ptr,
            size,
            handle,
            heap,
            device: device as i32,
            untold: untold(index, count),
        };
        send(process, tid, domain, &told);
    }
}

/// Reports regions that are unregistered. `mstxMemRegionsUnregisterBatch_t` has count and references;
/// `mstxMemRegionRef_t` has a type, then a pointer or a handle.
#[inline(always)]
fn unregister(process: *mut ProcessEntry, tid: u32, domain: u64, batch: u64) {
    let Some([count, references]) = read::user::<[u64; 2]>(batch) else {
        crate::emit::untold(process, DropReason::ResultUnreadable);
        return;
    };
    // The loop always runs to REGIONS_TOLD. If it ended at the count, older verifiers (6.1) might not know its bound.
    for index in 0..REGIONS_TOLD as u64 {
        if index >= count {
            continue;
        }
        let Some([kind, value]) = read::user::<[u64; 2]>(references.wrapping_add(index * 16))
        else {
            crate::emit::untold(process, DropReason::ResultUnreadable);
            continue;
        };
        let by_handle = kind as u32 == BY_HANDLE;
        let told = RegionValues {
            ptr: if by_handle { 0 } else { value },
            handle: if by_handle { value } else { 0 },
            untold: untold(index, count),
            ..nothing(if by_handle {
                REGION_WENT_BY_HANDLE
            } else {
                REGION_WENT
            })
        };
        send(process, tid, domain, &told);
    }
}

/// Number of regions of a call that get no record, for the record with this index: not 0 only for the last record. They
/// are counted as lost, too.
#[inline(always)]
fn untold(index: u64, count: u64) -> u32 {
    let most = REGIONS_TOLD as u64;
    if index + 1 < most || count <= most {
        return 0;
    }
    let more = count - most;
    count_drops(DropReason::RegionsUntold, more);
    if more > u32::MAX as u64 {
        u32::MAX
    } else {
        more as u32
    }
}

#[inline(always)]
fn send(process: *mut ProcessEntry, tid: u32, domain: u64, told: &RegionValues) {
    emit::<RegionRecord>(process, tid, KIND_REGION, 0, STACK_NONE, |record| {
        // SAFETY: the reservation is as large as RegionRecord; every field is written.
        unsafe {
            (*record).domain = domain;
            (*record).ptr = told.ptr;
            (*record).size = told.size;
            (*record).handle = told.handle;
            (*record).heap = told.heap;
            (*record).device = told.device;
            (*record).what = told.what;
            (*record).reserved = 0;
            (*record).untold = told.untold;
            (*record).reserved_too = 0;
        }
    });
}

/// Removes the entry of a thread that has ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = REGION_CALLS.remove(&thread);
}
