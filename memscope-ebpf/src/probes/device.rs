//! Follows which device and which context each thread has selected, since `cudaMalloc` does not say where it allocates; and where
//! streams and pools have their memory, since a stream-ordered allocation is not made on the thread's device, but there.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap};
use memscope_common::{DEVICE_UNKNOWN, DropReason, ProcessEntry};

use crate::emit::count_full;

/// Most contexts on the stack of a thread that are followed. A power of two. While more are pushed, the device
/// of the thread is not known.
const STACK: usize = 4;

/// What a thread has selected, in one word: the context's address in the bits up to [`HANDLE_BITS`], the device plus 1 above it (0: not
/// known), and the three marks. 0 where the thread has selected nothing.
type Selected = u64;

const HANDLE_BITS: u32 = 48;
const HANDLE: u64 = (1 << HANDLE_BITS) - 1;
const DEVICE: u64 = 0x1fff;
/// The thread is selecting a device, and had selected this before.
const OF_BEFORE: u64 = 1 << 61;
/// The program made this context with `cuCtxCreate` or a similar function, so it is not the primary one.
const CREATED: u64 = 1 << 62;
/// The runtime has selected this context by itself, so it is a primary one.
const BY_RUNTIME: u64 = 1 << 63;

/// The contexts of a thread. The entry at `depth` is the current one; the entries below it lie under it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ThreadDevice {
    depth: u64,
    selected: [Selected; STACK],
}

/// Key of a context, stream or pool of a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HandleKey {
    handle: u64,
    /// Handle of the process, so that contexts from an earlier attach are not used in a later one.
    process: u64,
}

/// Most threads whose device is followed, of all processes together.
const THREADS_MOST: u32 = 1 << 16;
/// Most contexts whose device is known, of all processes together.
const CONTEXTS_MOST: u32 = 1 << 14;
/// Number of streams and pools whose memory is known, of all processes together: those that were used last.
const ORDERS_KEPT: u32 = 1 << 13;

/// In a context's entry: the program made it.
const CONTEXT_CREATED: i32 = 1 << 16;
/// In the entry of a pool: its memory is the host's.
pub const OF_HOST: i32 = -2;

#[map]
static THREAD_DEVICE: HashMap<u64, ThreadDevice> = HashMap::with_max_entries(THREADS_MOST, 0);
#[map]
static CONTEXTS: HashMap<HandleKey, i32> = HashMap::with_max_entries(CONTEXTS_MOST, 0);
#[map]
static ORDERS: LruHashMap<HandleKey, i32> = LruHashMap::with_max_entries(ORDERS_KEPT, 0);

/// Where a thread is.
#[derive(Clone, Copy)]
pub struct Current(Selected);

impl Current {
    /// The device, if that is known.
    #[inline(always)]
    pub fn device(self) -> Option<i32> {
        let device = (self.0 >> HANDLE_BITS) & DEVICE;
        if device == 0 {
            None
        } else {
            Some(device as i32 - 1)
        }
    }

    /// Whether the program has selected a context whose device is not known. The runtime by itself selects that of the default device,
    /// if the thread has selected no other.
    #[inline(always)]
    pub fn is_elsewhere(self) -> bool {
        self.0 & HANDLE != 0 && self.0 & BY_RUNTIME == 0
    }

    /// The context that the thread has selected, if it is not known to be a device's primary one; else 0. The lowest bit says that the
    /// program made it.
    #[inline(always)]
    pub fn context(self) -> u64 {
        if self.0 & BY_RUNTIME != 0 || self.0 == HANDLE {
            // Of a context that lies too deep on the stack nothing is known.
            0
        } else {
            self.0 & HANDLE | (self.0 & CREATED != 0) as u64
        }
    }
}

#[inline(always)]
fn selection(handle: u64, device: i32) -> Selected {
    // A context's device is -1 where it is not known.
    let on = (device + 1) as u64 & DEVICE;
    handle & HANDLE | on << HANDLE_BITS
}

/// What the thread selected in calls that we saw.
#[inline(always)]
pub fn current(thread: u64) -> Current {
    let Some(thread) = THREAD_DEVICE.get_ptr(&thread) else {
        return Current(0);
    };
    // SAFETY: this points into a map value to which only this thread writes.
    unsafe {
        let depth = (*thread).depth;
        if depth >= STACK as u64 {
            // Something is selected, but not known.
            return Current(HANDLE);
        }
        Current((*thread).selected[depth as usize & (STACK - 1)])
    }
}

/// Sets the current entry of the thread.
#[inline(always)]
fn put(process: *mut ProcessEntry, key: u64, selected: Selected) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
        unsafe {
            let depth = (*thread).depth;
            if depth < STACK as u64 {
                (*thread).selected[depth as usize & (STACK - 1)] = selected;
            }
        }
        return;
    }
    let mut thread = ThreadDevice {
        depth: 0,
        selected: [0; STACK],
    };
    thread.selected[0] = selected;
    if THREAD_DEVICE.insert(&key, &thread, 0).is_err() {
        count_full(process, DropReason::DeviceTableFull);
    }
}

/// Notes that the thread begins to select a device by its number. What it has selected so far says nothing about that device.
#[inline(always)]
pub fn begin_select(process: *mut ProcessEntry, key: u64) {
    let before = current(key).0;
    if before & BY_RUNTIME != 0 {
        put(process, key, before | OF_BEFORE);
    }
}

/// Notes that the thread has selected a device by its number. The context that the runtime selected meanwhile is the device's primary one.
#[inline(always)]
pub fn select(process: *mut ProcessEntry, key: u64, device: i32) {
    let now = current(key).0;
    let handle = now & HANDLE;
    if now & BY_RUNTIME != 0 && now & OF_BEFORE == 0 && handle != 0 {
        learn_context(process, handle, device, false);
    }
    put(process, key, selection(0, device));
}

/// What a thread that selects this context has selected. `inside` another call it is the runtime that does so, and a context that is not
/// known is a primary one: that of the device that the thread has selected already, as far as is known.
#[inline(always)]
fn of_handle(process: *mut ProcessEntry, key: u64, context: u64, inside: bool) -> Selected {
    if context == 0 {
        return 0;
    }
    match CONTEXTS.get_ptr(&key_of(process, context)) {
        Some(known) => {
            // SAFETY: this points into a map value, which stays valid while the program runs.
            let known = unsafe { *known };
            let device = known & (CONTEXT_CREATED - 1);
            if known & CONTEXT_CREATED != 0 {
                selection(context, device) | CREATED
            } else {
                selection(0, device)
            }
        }
        None if inside => {
            let device = current(key).0 & (DEVICE << HANDLE_BITS);
            context & HANDLE | device | BY_RUNTIME
        }
        None => selection(context, DEVICE_UNKNOWN),
    }
}

/// Notes that the thread has selected a context.
#[inline(always)]
pub fn select_context(process: *mut ProcessEntry, key: u64, context: u64, inside: bool) {
    let selected = of_handle(process, key, context, inside);
    put(process, key, selected);
}

/// Notes that the thread has pushed a context on top of the current one.
#[inline(always)]
pub fn push(process: *mut ProcessEntry, key: u64, context: u64, inside: bool) {
    let selected = of_handle(process, key, context, inside);
    if THREAD_DEVICE.get_ptr_mut(&key).is_none() {
        put(process, key, 0);
    }
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
        unsafe { (*thread).depth += 1 };
    }
    put(process, key, selected);
}

/// Notes that the thread has popped its current context.
#[inline(always)]
pub fn pop(key: u64) {
    if let Some(thread) = THREAD_DEVICE.get_ptr_mut(&key) {
        // SAFETY: this points into a map value to which only this thread writes.
        unsafe {
            if (*thread).depth == 0 {
                (*thread).selected[0] = 0;
            } else {
                (*thread).depth -= 1;
            }
        }
    }
}

/// Notes the device that a context belongs to, and whether the program made the context.
#[inline(always)]
pub fn learn_context(process: *mut ProcessEntry, context: u64, device: i32, created: bool) {
    if device < 0 || device as u64 >= DEVICE {
        return;
    }
    let known = device | if created { CONTEXT_CREATED } else { 0 };
    if CONTEXTS
        .insert(&key_of(process, context), &known, 0)
        .is_err()
    {
        count_full(process, DropReason::DeviceTableFull);
    }
}

/// The device that a context belongs to; `DEVICE_UNKNOWN` if that was not seen.
#[inline(always)]
pub fn of_context(process: *mut ProcessEntry, context: u64) -> i32 {
    match CONTEXTS.get_ptr(&key_of(process, context)) {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Some(known) => unsafe { *known & (CONTEXT_CREATED - 1) },
        None => DEVICE_UNKNOWN,
    }
}

/// Removes a context that was destroyed, since another one may later lie at its address. If it is the thread's current one, it is popped.
#[inline(always)]
pub fn forget_context(process: *mut ProcessEntry, key: u64, context: u64) {
    let _ = CONTEXTS.remove(&key_of(process, context));
    let selected = current(key).0;
    if context != 0 && selected & HANDLE == context & HANDLE && selected & BY_RUNTIME == 0 {
        pop(key);
    }
}

/// Notes where a stream or a pool has its memory: a device, or [`OF_HOST`]. Where that is not known, what an earlier one at this address
/// had is forgotten.
#[inline(always)]
pub fn learn_order(process: *mut ProcessEntry, handle: u64, place: i32) {
    let key = key_of(process, handle);
    if place == DEVICE_UNKNOWN {
        let _ = ORDERS.remove(&key);
    } else {
        let _ = ORDERS.insert(&key, &place, 0);
    }
}

/// Where a stream or a pool has its memory: a device, [`OF_HOST`], or `DEVICE_UNKNOWN` if that was not seen.
#[inline(always)]
pub fn of_order(process: *mut ProcessEntry, handle: u64) -> i32 {
    match ORDERS.get_ptr(&key_of(process, handle)) {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Some(place) => unsafe { *place },
        None => DEVICE_UNKNOWN,
    }
}

/// Removes the entry of a thread that has ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = THREAD_DEVICE.remove(&thread);
}

#[inline(always)]
fn key_of(process: *mut ProcessEntry, handle: u64) -> HandleKey {
    HandleKey {
        handle,
        // SAFETY: this points into a map value, which stays valid while the program runs.
        process: unsafe { (*process).handle } as u64,
    }
}
