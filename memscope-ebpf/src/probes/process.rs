//! Probes on processes that fork, execute another image or end, and on the dynamic linker's debugger hook.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use aya_ebpf::macros::{raw_tracepoint, uprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext};
use core::ffi::c_void;
use core::ptr::{addr_of, read_volatile, write_volatile};
use memscope_common::{
    FOLLOW_FORKS, KIND_MAPPINGS, KIND_PROCESS, MappingsRecord, PROCESS_EXEC, PROCESS_EXIT,
    PROCESS_FORK, PROCESS_LIVE, ProcessRecord, WATCH_ALL,
};

use super::{device, ids, operator, region};
use crate::emit::{
    CONFIG, emit_last, emit_unowned, emit_urgent, known_process, live_process, thread_of,
};
use crate::{inflight, own_stack};

/// Offset of `tgid` in `struct task_struct`. The daemon takes it from the kernel's BTF and sets it before it loads the
/// programs.
#[unsafe(no_mangle)]
static TASK_TGID_OFFSET: u64 = 0;

#[inline(always)]
fn watch_all() -> bool {
    match CONFIG.get(0) {
        Some(config) => config.flags & WATCH_ALL != 0,
        None => false,
    }
}

#[inline(always)]
fn write(record: *mut ProcessRecord, what: u32, tgid: u32, other: u32) {
    // SAFETY: the reservation is as large as ProcessRecord; every field behind the header is written.
    unsafe {
        (*record).what = what;
        (*record).tgid = tgid;
        (*record).other = other;
        (*record).reserved = 0;
    }
}

/// Removes what is kept of a thread that has ended, or whose calls have.
#[inline(always)]
fn forget(thread: u64) {
    inflight::forget(thread);
    device::forget(thread);
    region::forget(thread);
    operator::forget(thread);
}

/// The tracepoint `sched_process_fork(parent, child)`. It also fires for new threads, which are ignored.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    let (tgid, tid) = ids();
    let process = known_process(tgid);
    let follow = match process {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Some(p) => unsafe { (*p).flags & FOLLOW_FORKS != 0 },
        None => false,
    };
    if !follow && !watch_all() {
        return 0;
    }
    // SAFETY: the second argument of this tracepoint is a task_struct.
    let child_task = unsafe { *(ctx.as_ptr() as *const u64).add(1) };
    let mut child: u32 = 0;
    // SAFETY: the helper reads four bytes of kernel memory into `child`, or fails.
    let failed = unsafe {
        bpf_probe_read_kernel(
            (&raw mut child) as *mut c_void,
            4,
            (child_task + read_volatile(addr_of!(TASK_TGID_OFFSET))) as *const c_void,
        )
    };
    if failed != 0 || child == tgid {
        return 0;
    }
    match process {
        Some(process) if follow => {
            emit_urgent::<ProcessRecord>(process, tid, KIND_PROCESS, |r| {
                write(r, PROCESS_FORK, tgid, child)
            });
        }
        _ => emit_unowned::<ProcessRecord>(tid, KIND_PROCESS, |r| {
            write(r, PROCESS_FORK, tgid, child)
        }),
    }
    0
}

/// The tracepoint `sched_process_exec`. The memory image of a traced process is gone then, so no more records of it are
/// sent.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(_ctx: RawTracePointContext) -> i32 {
    let (tgid, tid) = ids();
    match known_process(tgid) {
        Some(process) => {
            // Before the daemon hears of it, since it may then set flags of its own.
            // SAFETY: this points into a map value, which stays valid while the program runs.
            unsafe { (*process).flags &= !PROCESS_LIVE };
            emit_last::<ProcessRecord>(process, tid, KIND_PROCESS, |r| {
                write(r, PROCESS_EXEC, tgid, 0)
            });
            forget(thread_of(process, tid));
        }
        None => {
            if watch_all() {
                emit_unowned::<ProcessRecord>(tid, KIND_PROCESS, |r| {
                    write(r, PROCESS_EXEC, tgid, 0)
                });
            }
        }
    }
    0
}

/// The tracepoint `sched_process_exit`, which fires for every thread.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(_ctx: RawTracePointContext) -> i32 {
    let (tgid, tid) = ids();
    let Some(process) = known_process(tgid) else {
        return 0;
    };
    forget(thread_of(process, tid));
    if tgid == tid {
        emit_last::<ProcessRecord>(process, tid, KIND_PROCESS, |r| {
            write(r, PROCESS_EXIT, tgid, 0)
        });
    }
    0
}

/// Entry of the dynamic linker's `_dl_debug_state`: objects were mapped or unmapped.
#[uprobe]
pub fn linker_hook(_ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    if let Some(process) = live_process(tgid) {
        // One notice is enough until the daemon has looked. Otherwise a process that calls this function in a loop would
        // keep the daemon busy and fill the ring for everyone.
        // SAFETY: this points into a map value, which stays valid while the program runs.
        let told = unsafe { &raw mut (*process).mappings_told };
        // SAFETY: the same.
        if unsafe { read_volatile(told) } != 0 {
            return 0;
        }
        // This is set before the notice is sent: after it, the daemon may have cleared it already.
        // SAFETY: the same.
        unsafe { write_volatile(told, 1) };
        if !emit_urgent::<MappingsRecord>(process, tid, KIND_MAPPINGS, |_| {}) {
            // SAFETY: the same.
            unsafe { write_volatile(told, 0) };
        }
    }
    0
}
