//! Pairs the entry of a call with its return, by process handle, thread and stack pointer.
//!
//! A handle is new at each attach: a call that was entered during an earlier one is not what a later one's calls are
//! inside of. What a process leaves in the table is removed by the daemon when it is no longer traced.
//!
//! A frame that was left without returning (longjmp, an exception through it) is recognised by its
//! stack pointer: a live caller's frame lies above the callee's.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, PerCpuArray};
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    Cookie, DropReason, InflightCall, InflightThread, MAX_NESTING, Op, ProcessEntry,
};

use crate::emit::{count_drop, count_full};

#[map]
static INFLIGHT: HashMap<u64, InflightThread> = HashMap::with_max_entries(32768, 0);
/// A zeroed value to insert: it is too large for the stack.
#[map]
static EMPTY: PerCpuArray<InflightThread> = PerCpuArray::with_max_entries(1, 0);

/// Remembers a call; how many calls it is inside of, or `None` when it could not be kept.
#[inline(always)]
pub fn enter(process: *mut ProcessEntry, thread: u64, call: &InflightCall) -> Option<u32> {
    let thread = match INFLIGHT.get_ptr_mut(&thread) {
        Some(found) => found,
        None => {
            let empty = EMPTY.get_ptr(0)?;
            // SAFETY: a map value that nobody writes to.
            if INFLIGHT.insert(&thread, unsafe { &*empty }, 0).is_err() {
                count_full(process, DropReason::InflightFull);
                return None;
            }
            INFLIGHT.get_ptr_mut(&thread)?
        }
    };
    // SAFETY: a map value; only this thread writes to its entry, and a thread is in one probe at a time.
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
            // A function that only passes its arguments on jumps to the next one: both have the same frame, and both
            // will return. CANN's are made of such functions.
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
        // By way of the map: the compiler drops a mask that it can do without, and older verifiers (6.1) cannot.
        write_volatile(&raw mut (*thread).depth, depth as u32 + 1);
        let at = read_volatile(&raw const (*thread).depth).wrapping_sub(1) as usize;
        (*thread).calls[at & (MAX_NESTING - 1)] = *call;
        Some(depth as u32)
    }
}

/// Finds the call whose entry had this stack pointer, and forgets it and all inside it.
/// Returns the call, how many calls it was inside of, and the count of calls seen inside it.
#[inline(always)]
pub fn leave(thread: u64, sp: u64) -> Option<(InflightCall, u32, u32)> {
    let thread = INFLIGHT.get_ptr_mut(&thread)?;
    // SAFETY: as in `enter`.
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
                // The entry of this return was not kept; what is still in flight is outside it.
                return None;
            }
            depth -= 1;
        }
        None
    }
}

/// Notes that a call inside the outermost one was seen.
#[inline(always)]
pub fn note_nested(thread: u64) {
    if let Some(thread) = INFLIGHT.get_ptr_mut(&thread) {
        // SAFETY: as in `enter`.
        unsafe { (*thread).nested += 1 }
    }
}

/// Whether the calls that the thread is still inside of only select a device, or reset one: none of them allocates, so
/// that what is allocated inside is a call of its own.
#[inline(always)]
pub fn is_outermost_allocation(thread: u64, depth: u32) -> bool {
    let Some(thread) = INFLIGHT.get_ptr(&thread) else {
        return true;
    };
    let mut allocates = false;
    // Without a way out of the loop: of one that ends with the depth, older verifiers (6.1) lose the bound.
    for index in 0..MAX_NESTING {
        // SAFETY: as in `enter`.
        let op = Cookie(unsafe { (*thread).calls[index].cookie }).op();
        let selects = (op >= Op::Reset as u16) & (op <= Op::PrimaryContext as u16);
        allocates |= (index < depth as usize) & !selects;
    }
    !allocates
}

/// Keeps what the driver was told inside the outermost call, and what it gave.
#[inline(always)]
pub fn tell(thread: u64, told: u64, of: u64, size: u64) {
    if let Some(thread) = INFLIGHT.get_ptr_mut(&thread) {
        // SAFETY: as in `enter`.
        unsafe {
            (*thread).told = told;
            (*thread).told_of = of;
            (*thread).told_size = size;
        }
    }
}

/// What the driver was told of this pointer or handle inside the call that has just ended, and how much of it there is;
/// 0: nothing.
#[inline(always)]
pub fn told(thread: u64, of: u64) -> (u64, u64) {
    match INFLIGHT.get_ptr(&thread) {
        // SAFETY: as in `enter`.
        Some(thread) if unsafe { (*thread).told_of } == of => unsafe {
            ((*thread).told, (*thread).told_size)
        },
        _ => (0, 0),
    }
}

/// Forgets a thread that ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = INFLIGHT.remove(&thread);
}
