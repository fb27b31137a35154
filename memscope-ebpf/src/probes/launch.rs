//! Probes on functions that launch kernels: one that only counts, and one that tells each launch with the kernel's name.
//!
//! CUDA's driver is given a handle, which is the address of its own object for the kernel, and the object's second word is the
//! address of the kernel's name. That is not documented; whoever reads the records checks that it is a name.

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use core::hint::black_box;
use memscope_common::{
    KERNEL_NAME, KIND_KERNEL, KIND_LAUNCH, KernelRecord, LaunchRecord, ProcessEntry, STACK_NONE,
};

use super::ids;
use crate::emit::{add, emit, emit_sent, live_process};
use crate::{own_stack, read};

/// Most kernels that are remembered as named, of all processes together. The name of one that was forgotten is sent again.
const KERNELS_MOST: u32 = 1 << 14;
/// Where the driver's object for a kernel has the address of its name.
const NAME_AT: u64 = 8;

/// The kernels whose names were sent, by the process and the handle. The values tell names apart.
#[map]
static KERNELS: LruHashMap<[u64; 2], u64> = LruHashMap::with_max_entries(KERNELS_MOST, 0);

/// Entry of a function that launches a kernel on a device: it is counted.
#[uprobe]
pub fn launch(_ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, _) = ids();
    if let Some(process) = live_process(tgid) {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        add(unsafe { &raw mut (*process).launches }, 1);
    }
    0
}

/// Entry of a function that launches a kernel on a device: it is counted and told. The cookie says which argument is the
/// kernel's handle.
#[uprobe]
pub fn launch_told(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let cookie = read::cookie(&ctx);
    let [first, second, ..] = read::args(&ctx);
    // Both arguments are read before one is chosen. Otherwise the compiler computes an address in the context and reads from
    // that, which the verifier refuses.
    let (first, second) = (black_box(first), black_box(second));
    let handle = match cookie.handle() {
        0 => first,
        1 => second,
        _ => 0,
    };
    if handle != 0 {
        name(process, tid, handle);
    }
    let site = cookie.site();
    emit::<LaunchRecord>(process, tid, KIND_LAUNCH, 0, STACK_NONE, |record| {
        // SAFETY: the reservation is as large as LaunchRecord; every field is written.
        unsafe {
            (*record).handle = handle;
            (*record).site = site;
            (*record).reserved = 0;
        }
    });
    // It is counted after it was told, so that no other thread's count runs ahead of the records: what is ahead counts as lost.
    // SAFETY: this points into a map value, which stays valid while the program runs.
    add(unsafe { &raw mut (*process).launches }, 1);
    0
}

/// Sends the name of a kernel, unless it was sent already.
#[inline(always)]
fn name(process: *mut ProcessEntry, tid: u32, handle: u64) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let key = [unsafe { (*process).handle } as u64, handle];
    let Some(text) = read::user::<u64>(handle.wrapping_add(NAME_AT)) else {
        return;
    };
    // Handles are used again for other kernels. The name's place and its beginning tell them apart.
    let said = text.rotate_left(32) ^ read::user::<u64>(text).unwrap_or(0);
    // SAFETY: the value is one word.
    if unsafe { KERNELS.get(&key) }.is_some_and(|known| *known == said) {
        return;
    }
    let sent = emit_sent::<KernelRecord>(process, tid, KIND_KERNEL, |record| {
        // SAFETY: the reservation is as large as KernelRecord; what is behind the name's length has no meaning.
        unsafe {
            (*record).handle = handle;
            (*record).reserved = 0;
            let to = (&raw mut (*record).name).cast::<c_void>();
            let read = bpf_probe_read_user_str(to, KERNEL_NAME as u32, text as *const c_void);
            // The result counts the NUL; it is negative if the text cannot be read.
            (*record).name_len = if read > 0 { read as u32 - 1 } else { 0 };
        }
    });
    if sent {
        let _ = KERNELS.insert(&key, &said, 0);
    }
}
