//! Which device a thread's next allocation goes to: `cudaMalloc` does not say.

use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memscope_common::{DEVICE_UNKNOWN, DropReason, ProcessEntry};

use crate::emit::count_full;

/// How many pushed contexts are followed per thread.
const STACK: usize = 4;

/// Current devices of a thread: the last one counts, those before it are of pushed contexts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ThreadDevice {
    depth: u32,
    reserved: u32,
    devices: [i32; STACK],
}

/// A context of a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextKey {
    context: u64,
    /// Its handle: contexts of an earlier attach are none of a later one's.
    process: u64,
}

#[map]
static THREAD_DEVICE: HashMap<u64, ThreadDevice> = HashMap::with_max_entries(65536, 0);
#[map]
static CONTEXTS: HashMap<ContextKey, i32> = HashMap::with_max_entries(16384, 0);

/// The device that the thread chose in a call that we saw.
#[inline(always)]
pub fn current(thread: u64) -> Option<i32> {
    let thread = THREAD_DEVICE.get_ptr(&thread)?;
    // SAFETY: a map value that only this thread writes.
    let device = unsafe { (*thread).devices[(*thread).depth as usize & (STACK - 1)] };
    if device == DEVICE_UNKNOWN {
        None
    } else {
        Some(device)
    }
}

/// The thread selected a device.
#[inline(always)]
pub fn select(process: *mut ProcessEntry, key: u64, device: i32) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: as above.
        unsafe { (*thread).devices[(*thread).depth as usize & (STACK - 1)] = device };
        return;
    }
    let mut thread = ThreadDevice {
        depth: 0,
        reserved: 0,
        devices: [DEVICE_UNKNOWN; STACK],
    };
    thread.devices[0] = device;
    if THREAD_DEVICE.insert(&key, &thread, 0).is_err() {
        count_full(process, DropReason::DeviceTableFull);
    }
}

/// The thread pushed a context (of this device) over the current one.
#[inline(always)]
pub fn push(process: *mut ProcessEntry, key: u64, device: i32) {
    if THREAD_DEVICE.get_ptr_mut(&key).is_none() {
        select(process, key, DEVICE_UNKNOWN);
    }
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: as above.
        unsafe {
            (*thread).depth = ((*thread).depth + 1) & (STACK as u32 - 1);
            (*thread).devices[(*thread).depth as usize & (STACK - 1)] = device;
        }
    }
}

/// The thread popped its current context.
#[inline(always)]
pub fn pop(key: u64) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: as above.
        unsafe {
            if (*thread).depth == 0 {
                (*thread).devices[0] = DEVICE_UNKNOWN;
            } else {
                (*thread).depth -= 1;
            }
        }
    }
}

/// A context turned out to be of a device.
#[inline(always)]
pub fn learn_context(process: *mut ProcessEntry, context: u64, device: i32) {
    let key = key_of(process, context);
    if CONTEXTS.insert(&key, &device, 0).is_err() {
        count_full(process, DropReason::DeviceTableFull);
    }
}

/// The device of a context, where it was learnt.
#[inline(always)]
pub fn of_context(process: *mut ProcessEntry, context: u64) -> i32 {
    let key = key_of(process, context);
    match CONTEXTS.get_ptr(&key) {
        // SAFETY: a map value.
        Some(device) => unsafe { *device },
        None => DEVICE_UNKNOWN,
    }
}

/// Forgets a thread that ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = THREAD_DEVICE.remove(&thread);
}

#[inline(always)]
fn key_of(process: *mut ProcessEntry, context: u64) -> ContextKey {
    ContextKey {
        context,
        // SAFETY: a map value.
        process: unsafe { (*process).handle } as u64,
    }
}

/// A context was destroyed: another one may come to lie at its address.
#[inline(always)]
pub fn forget_context(process: *mut ProcessEntry, context: u64) {
    let _ = CONTEXTS.remove(&key_of(process, context));
}
