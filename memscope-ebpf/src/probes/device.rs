//! Follows which device each thread has selected, since `cudaMalloc` does not say on which device it allocates.

use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memscope_common::{DEVICE_UNKNOWN, DropReason, ProcessEntry};

use crate::emit::count_full;

/// Most contexts on the stack of a thread that are followed. A power of two.
const STACK: usize = 4;

/// The devices of a thread's stack of contexts. The entry at `depth` is the current device; the entries below it belong
/// to the contexts under the current one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ThreadDevice {
    depth: u32,
    reserved: u32,
    devices: [i32; STACK],
}

/// Key of a context of a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextKey {
    context: u64,
    /// Handle of the process, so that contexts from an earlier attach are not used in a later one.
    process: u64,
}

/// Most threads whose device is followed, of all processes together.
const THREADS_MOST: u32 = 1 << 16;
/// Most contexts whose device is known, of all processes together.
const CONTEXTS_MOST: u32 = 1 << 14;

#[map]
static THREAD_DEVICE: HashMap<u64, ThreadDevice> = HashMap::with_max_entries(THREADS_MOST, 0);
#[map]
static CONTEXTS: HashMap<ContextKey, i32> = HashMap::with_max_entries(CONTEXTS_MOST, 0);

/// The device that the thread selected in a call that we saw.
#[inline(always)]
pub fn current(thread: u64) -> Option<i32> {
    let thread = THREAD_DEVICE.get_ptr(&thread)?;
    // SAFETY: this points into a map value to which only this thread writes.
    let device = unsafe { (*thread).devices[(*thread).depth as usize & (STACK - 1)] };
    if device == DEVICE_UNKNOWN {
        None
    } else {
        Some(device)
    }
}

/// Notes that the thread has selected a device.
#[inline(always)]
pub fn select(process: *mut ProcessEntry, key: u64, device: i32) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
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

/// Notes that the thread has pushed a context of this device on top of the current one.
#[inline(always)]
pub fn push(process: *mut ProcessEntry, key: u64, device: i32) {
    if THREAD_DEVICE.get_ptr_mut(&key).is_none() {
        select(process, key, DEVICE_UNKNOWN);
    }
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
        unsafe {
            (*thread).depth = ((*thread).depth + 1) & (STACK as u32 - 1);
            (*thread).devices[(*thread).depth as usize & (STACK - 1)] = device;
        }
    }
}

/// Notes that the thread has popped its current context.
#[inline(always)]
pub fn pop(key: u64) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
        unsafe {
            if (*thread).depth == 0 {
                (*thread).devices[0] = DEVICE_UNKNOWN;
            } else {
                (*thread).depth -= 1;
            }
        }
    }
}

/// Notes the device that a context belongs to.
#[inline(always)]
pub fn learn_context(process: *mut ProcessEntry, context: u64, device: i32) {
    let key = key_of(process, context);
    if CONTEXTS.insert(&key, &device, 0).is_err() {
        count_full(process, DropReason::DeviceTableFull);
    }
}

/// The device that a context belongs to; `DEVICE_UNKNOWN` if that was not seen.
#[inline(always)]
pub fn of_context(process: *mut ProcessEntry, context: u64) -> i32 {
    let key = key_of(process, context);
    match CONTEXTS.get_ptr(&key) {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Some(device) => unsafe { *device },
        None => DEVICE_UNKNOWN,
    }
}

/// Removes the entry of a thread that has ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = THREAD_DEVICE.remove(&thread);
}

#[inline(always)]
fn key_of(process: *mut ProcessEntry, context: u64) -> ContextKey {
    ContextKey {
        context,
        // SAFETY: this points into a map value, which stays valid while the program runs.
        process: unsafe { (*process).handle } as u64,
    }
}

/// Removes a context that was destroyed, since another one may later lie at its address.
#[inline(always)]
pub fn forget_context(process: *mut ProcessEntry, context: u64) {
    let _ = CONTEXTS.remove(&key_of(process, context));
}
