//! Pairs the entry of a call with its return, by process handle, thread and stack pointer.
//!
//! A handle is new at each attach, so a call that was entered during an earlier attach never counts as the outer call
//! of a later one's calls. The daemon removes what a process leaves in the table when the process is no longer traced.
//!
//! A frame that was left without returning (longjmp, or an exception passed through it) is recognised by its
//! stack pointer, since a live caller's frame lies above the callee's.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, PerCpuArray};
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    Cookie, DropReason, InflightCall, InflightThread, MAX_NESTING, Op, ProcessEntry,
};

use crate::emit::{count_drop, count_full};

/// Most threads that are in calls at the same time, of all processes together.
const INFLIGHT_MOST: u32 = 1 << 15;

#[map]
static INFLIGHT: HashMap<u64, InflightThread> = HashMap::with_max_entries(INFLIGHT_MOST, 0);
/// A zeroed value that is inserted for new threads. It lies in a map, since it is too large for the program's stack.
#[map]
static EMPTY: PerCpuArray<InflightThread> = PerCpuArray::with_max_entries(1, 0);

/// Stores a call that was entered. The result is the number of calls that it is inside of, or `None` if there was no
/// room for it.
#[inline(always)]
pub fn enter(process: *mut ProcessEntry, thread: u64, call: &InflightCall) -> Option<u32> {
    let thread = match INFLIGHT.get_ptr_mut(&thread) {
        Some(found) => found,
        None => {
            let empty = EMPTY.get_ptr(0)?;
            // SAFETY: this points to a map value that nobody writes to.
            if INFLIGHT.insert(&thread, unsafe { &*empty }, 0).is_err() {
                count_full(process, DropReason::InflightFull);
                return None;
            }
            INFLIGHT.get_ptr_mut(&thread)?
        }
    };
    // SAFETY: this points into a map value. Only this thread writes to its entry, and a thread is in one probe at a
    // time.
    unsafe {
        let mut depth = (*thread).depth as usize;
        for _ in 0..MAX_NESTING {
            if depth == 0 || depth > MAX_NESTING {
                break;
            }
            let outer = &(*thread).calls[(depth - 1) & (MAX_NESTING - 1)];
            if outer.sp > call.sp {
                break;
            }
            // A function that only passes its arguments on jumps to the next function. Then both have the same frame,
            // and both return probes will fire. CANN has many such functions.
            if outer.sp == call.sp && outer.cookie != call.cookie && Cookie(call.cookie).apart() {
                break;
            }
            depth -= 1;
        }
        if depth >= MAX_NESTING {
            count_drop(DropReason::TooDeep);
            return None;
        }
        if depth == 0 {
            (*thread).nested = 0;
            (*thread).told = 0;
        }
        // The depth is written to the map and read back, because the compiler would otherwise remove the mask below as
        // unnecessary, and older verifiers (6.1) need it.
        write_volatile(&raw mut (*thread).depth, depth as u32 + 1);
        let at = read_volatile(&raw const (*thread).depth).wrapping_sub(1) as usize;
        (*thread).calls[at & (MAX_NESTING - 1)] = *call;
        Some(depth as u32)
    }
}

/// Finds the call whose entry had this stack pointer, and removes it and all calls inside it.
/// Returns the call, the number of calls that it was inside of, and the number of calls seen inside the outermost one.
#[inline(always)]
pub fn leave(thread: u64, sp: u64) -> Option<(InflightCall, u32, u32)> {
    let thread = INFLIGHT.get_ptr_mut(&thread)?;
    // SAFETY: for the same reasons as in `enter`.
    unsafe {
        let mut depth = (*thread).depth as usize;
        for _ in 0..MAX_NESTING {
            if depth == 0 || depth > MAX_NESTING {
                return None;
            }
            let call = &(*thread).calls[(depth - 1) & (MAX_NESTING - 1)];
            if call.sp == sp {
                let call = *call;
                depth -= 1;
                (*thread).depth = depth as u32;
                return Some((call, depth as u32, (*thread).nested));
            }
            if call.sp > sp {
                // The entry of this call was not kept; the calls that are still stored are outside it.
                return None;
            }
            depth -= 1;
        }
        None
    }
}

/// What is found out about a call that has just ended, in the room that the call had among those of its thread, until the thread's next
/// call. From there each value comes back as one of which the verifier knows nothing: what follows is then looked at once, and not once for
/// each way in which the values before came about.
#[derive(Clone, Copy)]
pub struct Found(*mut InflightCall);

/// The room of the call that the thread has just left.
#[inline(always)]
pub fn found(thread: u64) -> Option<Found> {
    let thread = INFLIGHT.get_ptr_mut(&thread)?;
    // SAFETY: for the same reasons as in `enter`; the call that was there has ended.
    unsafe {
        let at = read_volatile(&raw const (*thread).depth) as usize & (MAX_NESTING - 1);
        Some(Found(&raw mut (*thread).calls[at]))
    }
}

impl Found {
    /// The cookie of the call.
    #[inline(always)]
    pub fn cookie(self) -> Cookie {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Cookie(unsafe { read_volatile(&raw const (*self.0).cookie) })
    }

    /// Keeps a value in one of the places where the call's arguments were.
    #[inline(always)]
    pub fn keep<const PLACE: usize>(self, value: u64) {
        // SAFETY: the same; only this thread writes there, and it is in this probe.
        unsafe { write_volatile(&raw mut (*self.0).args[PLACE], value) };
    }

    /// The value that was kept in this place.
    #[inline(always)]
    pub fn kept<const PLACE: usize>(self) -> u64 {
        // SAFETY: as in `keep`.
        unsafe { read_volatile(&raw const (*self.0).args[PLACE]) }
    }
}

/// Counts a call that was seen inside the outermost one.
#[inline(always)]
pub fn note_nested(thread: u64) {
    if let Some(thread) = INFLIGHT.get_ptr_mut(&thread) {
        // SAFETY: for the same reasons as in `enter`.
        unsafe { (*thread).nested += 1 }
    }
}

/// Whether all calls that the thread is still inside of only select or reset a device. None of these is an allocation,
/// so an allocation inside them gets a record of its own.
#[inline(always)]
pub fn is_outermost_allocation(thread: u64, depth: u32) -> bool {
    let Some(thread) = INFLIGHT.get_ptr(&thread) else {
        return true;
    };
    let mut allocates = false;
    // The loop always runs to MAX_NESTING. If it ended at the depth, older verifiers (6.1) would not know its bound.
    for index in 0..MAX_NESTING {
        // SAFETY: for the same reasons as in `enter`.
        let op = Cookie(unsafe { (*thread).calls[index].cookie }).op();
        let selects = (op >= Op::Reset as u16) & (op <= Op::PrimaryContext as u16);
        allocates |= (index < depth as usize) & !selects;
    }
    !allocates
}

/// Stores what Ascend's driver was called with inside the outermost call (`told` is its word of flags), and the pointer
/// or handle that it returned (`of`).
#[inline(always)]
pub fn tell(thread: u64, told: u64, of: u64, size: u64) {
    if let Some(thread) = INFLIGHT.get_ptr_mut(&thread) {
        // SAFETY: for the same reasons as in `enter`.
        unsafe {
            (*thread).told = told;
            (*thread).told_of = of;
            (*thread).told_size = size;
        }
    }
}

/// The driver's word of flags and the size in bytes, if the driver returned this pointer or handle inside the call that
/// has just ended; else zeros.
#[inline(always)]
pub fn told(thread: u64, of: u64) -> (u64, u64) {
    match INFLIGHT.get_ptr(&thread) {
        // SAFETY: for the same reasons as in `enter`.
        Some(thread) if unsafe { (*thread).told_of } == of => unsafe {
            ((*thread).told, (*thread).told_size)
        },
        _ => (0, 0),
    }
}

/// Removes the entry of a thread that has ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = INFLIGHT.remove(&thread);
}
