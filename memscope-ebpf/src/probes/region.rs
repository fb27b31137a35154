//! mstx's functions for memory: programs tell through them of pools of their own.
//!
//! Each has a probe at its entry and one at its return. What goes is told of at the entry, before another thread can be
//! given the same address; what comes at the return, when its handle is known. A function of the library calls itself
//! once, through a pointer, when the first call of all looks for tools: that is one call, and told of once.

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
use crate::emit::{
    count_drop, count_drops, count_full, emit, live_process, tell_launches, thread_of,
};
use crate::read;

/// One call for each thread. One that was left by a jump stays until the thread's next call, or its end.
#[map]
static REGION_CALLS: HashMap<u64, RegionCall> = HashMap::with_max_entries(32768, 0);

/// `MSTX_MEM_REGION_REF_TYPE_HANDLE`.
const BY_HANDLE: u32 = 1;

/// `mstxMemVirtualRangeDesc_t`: the device in the lower half of the first word, address, size.
type Range = [u64; 3];

/// One record.
struct RegionValues {
    what: u16,
    ptr: u64,
    size: u64,
    handle: u64,
    heap: u64,
    device: i32,
    untold: u32,
}

/// A function of [`RegionOp`] was entered.
#[uprobe]
pub fn region_entry(ctx: ProbeContext) -> u32 {
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
        // SAFETY: a map value; only this thread writes to its entry.
        let outer = unsafe { &*outer };
        // Deeper, or in the same frame where the function has jumped.
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

/// It returned.
#[uretprobe]
pub fn region_return(ctx: RetProbeContext) -> u32 {
    let ctx = ProbeContext::new(ctx.as_ptr());
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let thread = thread_of(process, tid);
    let Some(call) = REGION_CALLS.get_ptr(&thread) else {
        // The outer one of two, or it was entered before the probes stood.
        return 0;
    };
    // SAFETY: as above.
    let call = unsafe { *call };
    let _ = REGION_CALLS.remove(&thread);
    // One that was left without returning is of another function or lies deeper.
    if call.op != read::cookie(&ctx).op() as u64 || read::entry_sp(&ctx) > call.sp {
        return 0;
    }
    let [domain, description] = call.args;
    let result = read::result(&ctx);
    if call.op == RegionOp::Domain as u64 {
        // The only argument is the name.
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
            // With the NUL; negative where it cannot be read.
            (*record).name_len = if read > 0 { read as u32 - 1 } else { 0 };
        }
    });
}

/// `mstxMemHeapDesc_t`: usage and type, then a pointer to a range.
#[inline(always)]
fn heap(process: *mut ProcessEntry, tid: u32, domain: u64, description: u64, handle: u64) {
    let range = match read::user::<u64>(description.wrapping_add(8)) {
        Some(range) => read::user::<Range>(range),
        None => None,
    };
    let Some([device, ptr, size]) = range else {
        count_drop(DropReason::ResultUnreadable);
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

/// `mstxMemRegionsRegisterBatch_t`: heap, type, count, ranges, where the handles go. A program that wants none may leave
/// heap and the last unset.
#[inline(always)]
fn register(process: *mut ProcessEntry, tid: u32, domain: u64, batch: u64) {
    let Some([heap, _, count, ranges, handles]) = read::user::<[u64; 5]>(batch) else {
        count_drop(DropReason::ResultUnreadable);
        return;
    };
    // Without a way out of the loop: of one that ends with the count, older verifiers (6.1) may lose the bound.
    for index in 0..REGIONS_TOLD as u64 {
        if index >= count {
            continue;
        }
        let Some([device, ptr, size]) = read::user::<Range>(ranges.wrapping_add(index * 24)) else {
            count_drop(DropReason::ResultUnreadable);
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

/// `mstxMemRegionsUnregisterBatch_t`: count, references. `mstxMemRegionRef_t`: type, then a pointer or a handle.
#[inline(always)]
fn unregister(process: *mut ProcessEntry, tid: u32, domain: u64, batch: u64) {
    let Some([count, references]) = read::user::<[u64; 2]>(batch) else {
        count_drop(DropReason::ResultUnreadable);
        return;
    };
    // Without a way out of the loop: of one that ends with the count, older verifiers (6.1) may lose the bound.
    for index in 0..REGIONS_TOLD as u64 {
        if index >= count {
            continue;
        }
        let Some([kind, value]) = read::user::<[u64; 2]>(references.wrapping_add(index * 16))
        else {
            count_drop(DropReason::ResultUnreadable);
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

/// How many regions of a call the record with this number cannot tell of: the last one says it.
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

/// Forgets a thread that ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = REGION_CALLS.remove(&thread);
}
