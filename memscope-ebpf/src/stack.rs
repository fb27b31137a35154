//! Takes the stacks of allocations, of Python and of compiled code: gives each stack an identity, and sends it once.

use aya_ebpf::helpers::generated::{
    bpf_get_prandom_u32, bpf_ktime_get_boot_ns, bpf_ktime_get_ns, bpf_loop,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use core::ffi::c_void;
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    DropReason, KIND_STACK, MOST_FRAMES, MOST_NATIVE, ProcessEntry, PythonFrame, RECORD_VERSION,
    RecordHeader, STACK_AT_ENTRY, STACK_BITS, STACK_BROKEN, STACK_BUSY, STACK_HEAD, STACK_NONE,
    STACK_NOT_SAMPLED, STACK_TIMED, STACK_TRUNCATED, STACK_UNFINISHED, STACKS_OFF, StackRecord,
};

use crate::emit::{add, count_drop, send_copy};
use crate::identity::{finish, mix};
use crate::native::{self, Natives, Place};
use crate::python;
use crate::scratch::{Scratch, claim, release};

/// Number of identities that are remembered as sent. After a collision a stack is only sent again.
const SEEN_SLOTS: u32 = 1 << 16;

#[map]
static SEEN: Array<u64> = Array::with_max_entries(SEEN_SLOTS, 0);

/// Takes the stack of an allocation of `bytes` bytes, and sends it if it is new. The result is what an event's header
/// holds: the identity, and above it the sampling interval. It is `STACK_NONE` if no stacks are taken in this process.
#[inline(always)]
pub fn stack(process: *mut ProcessEntry, tid: u32, place: Place, bytes: u64) -> u64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (python, native, sampling) = unsafe {
        (
            (*process).python,
            (*process).native,
            (*process).stack_sampling,
        )
    };
    if python == 0 && native == 0 || sampling & STACKS_OFF != 0 {
        return STACK_NONE;
    }
    let sampling = sampling & SAMPLING_MASK;
    // The stack is taken with a probability of the allocation's size divided by the sampling interval.
    if sampling != 0 && bytes < 1 << sampling {
        // SAFETY: the helper takes no arguments.
        let random = unsafe { bpf_get_prandom_u32() } as u64 & ((1 << sampling) - 1);
        if random >= bytes {
            return STACK_NOT_SAMPLED;
        }
    }
    let Some((index, scratch)) = claim() else {
        return STACK_BUSY;
    };
    // These values go through the map, since the verifier knows nothing of its contents. Otherwise it would follow the
    // walk once for each outcome of what was decided so far.
    // SAFETY: these point into map values, which stay valid while the program runs.
    unsafe {
        write_volatile(&raw mut (*scratch).sampling, sampling as u64);
        let timed = add(&raw mut (*process).stacks, 1) & (STACK_TIMED - 1) == 0;
        let began = if timed { bpf_ktime_get_ns() } else { 0 };
        write_volatile(&raw mut (*scratch).began, began);
    }
    let id = take(process, tid, index, scratch, &place);
    // SAFETY: these point into map values, which stay valid while the program runs.
    let sampling = unsafe {
        let began = read_volatile(&raw const (*scratch).began);
        if began != 0 {
            let took = bpf_ktime_get_ns().wrapping_sub(began);
            add(&raw mut (*process).stack_ns, took * STACK_TIMED);
        }
        read_volatile(&raw const (*scratch).sampling)
    };
    release(scratch);
    id | sampling << STACK_BITS
}

/// Mask of the logarithm of the sampling interval; so the largest interval is 2 GiB.
const SAMPLING_MASK: u32 = 31;

/// Sets a flag in the stack's record.
#[inline(always)]
fn flag(scratch: *mut Scratch, flag: u8) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    unsafe {
        let flags = read_volatile(&raw const (*scratch).flags);
        write_volatile(&raw mut (*scratch).flags, flags | flag as u64);
    }
}

#[inline(always)]
fn take(
    process: *mut ProcessEntry,
    tid: u32,
    index: u32,
    scratch: *mut Scratch,
    place: &Place,
) -> u64 {
    let Some(natives) = native::buffers(index) else {
        return STACK_BUSY;
    };
    python::begin(process, scratch);
    // SAFETY: these point into map values, which stay valid while the program runs.
    let (first, why, native) = unsafe {
        write_volatile(&raw mut (*scratch).flags, 0);
        write_volatile(&raw mut (*natives).walk.count, 0);
        (
            read_volatile(&raw const (*scratch).walk.frame),
            read_volatile(&raw const (*scratch).why),
            (*process).native,
        )
    };
    if first == 0 && native == 0 {
        return why;
    }
    // SAFETY: these point into map values, which stay valid while the program runs.
    let hash = unsafe {
        let salt = mix(
            (*process).stack_salt,
            read_volatile(&raw const (*process).code_deaths),
        );
        mix(mix(salt, (*process).handle as u64), why)
    };
    let hash = python::hash(scratch, hash);
    // SAFETY: this points into a map value, which stays valid while the program runs.
    unsafe { write_volatile(&raw mut (*scratch).id, finish(hash)) };
    if native != 0 {
        native::walk(process, natives, place, hash);
        // SAFETY: these point into map values, which stay valid while the program runs.
        let hash = unsafe { read_volatile(&raw const (*natives).walk.hash) };
        let (cut, unknown) = native::ended(natives);
        // SAFETY: this points into a map value, which stays valid while the program runs.
        unsafe { write_volatile(&raw mut (*scratch).id, finish(hash)) };
        if cut {
            flag(scratch, STACK_TRUNCATED);
        }
        if place.is_entry() {
            flag(scratch, STACK_AT_ENTRY);
        }
        if unknown {
            let copied = native::send_copy(process, tid, natives);
            if copied != 0 {
                flag(scratch, STACK_UNFINISHED);
                // SAFETY: this points into a map value, which stays valid while the program runs.
                unsafe { write_volatile(&raw mut (*scratch).id, copied) };
            }
        }
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let id = unsafe { read_volatile(&raw const (*scratch).id) };
    let Some(seen) = SEEN.get_ptr_mut(((id >> 20) as u32) & (SEEN_SLOTS - 1)) else {
        return id;
    };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { read_volatile(seen) } == id {
        return id;
    }
    python::keep_all(process, scratch);
    if send_stack(process, tid, id, scratch, natives) {
        // SAFETY: this points into a map value, which stays valid while the program runs.
        unsafe { write_volatile(seen, id) };
    } else {
        count_drop(DropReason::StackUnsent);
    }
    id
}

const WORDS: u64 = MOST_FRAMES as u64 * 2;

/// Arguments of the loop that copies the frames of compiled code behind those of Python.
#[repr(C)]
struct Append {
    from: *mut Natives,
    to: *mut Scratch,
    /// Index of the first word of the copy.
    start: u64,
    count: u64,
}

#[inline(never)]
extern "C" fn step_append(index: u64, append: *mut Append) -> i64 {
    // SAFETY: `bpf_loop` calls this with the structure given to it. Its pointers point to map values, and the masks
    // keep the indices below the lengths of the arrays.
    unsafe {
        let append = &*append;
        if index >= append.count {
            return 1;
        }
        let from = (&raw const (*append.from).frames as *const u64)
            .add((index & (MOST_NATIVE as u64 - 1)) as usize);
        let to = (&raw mut (*append.to).stack.frames as *mut u64)
            .add(((append.start + index) & (WORDS - 1)) as usize);
        write_volatile(to, read_volatile(from));
    }
    0
}

#[inline(always)]
fn send_stack(
    process: *mut ProcessEntry,
    tid: u32,
    id: u64,
    scratch: *mut Scratch,
    natives: *mut Natives,
) -> bool {
    // SAFETY: these point into map values, as the loops left them.
    let (broken, left, depth, mut count, mut native_count) = unsafe {
        (
            read_volatile(&raw const (*scratch).walk.broken),
            read_volatile(&raw const (*scratch).walk.frame),
            (*process).stack_depth as u64,
            read_volatile(&raw const (*scratch).walk.count),
            read_volatile(&raw const (*natives).walk.count),
        )
    };
    if broken != 0 {
        flag(scratch, STACK_BROKEN);
    }
    if left != 0 || count > depth || native_count > depth {
        flag(scratch, STACK_TRUNCATED);
    }
    count = min(count, min(depth, MOST_FRAMES as u64));
    native_count = min(native_count, min(depth, MOST_NATIVE as u64));
    if native_count > WORDS - count * 2 {
        native_count = WORDS - count * 2;
        flag(scratch, STACK_TRUNCATED);
    }
    let mut append = Append {
        from: natives,
        to: scratch,
        start: count * 2,
        count: native_count,
    };
    // SAFETY: the callback gets the structure that it expects, which outlives the call.
    unsafe {
        bpf_loop(
            MOST_NATIVE as u32,
            step_append as *const c_void as *mut c_void,
            &raw mut append as *mut c_void,
            0,
        );
    }
    let len = STACK_HEAD as u64 + count * size_of::<PythonFrame>() as u64 + native_count * 8;
    let len = min(len, size_of::<StackRecord>() as u64);
    // SAFETY: these point into map values, which stay valid while the program runs.
    unsafe {
        let record = &raw mut (*scratch).stack;
        (*record).header = RecordHeader {
            len: len as u16,
            kind: KIND_STACK,
            version: RECORD_VERSION,
            flags: read_volatile(&raw const (*scratch).flags) as u8,
            reserved: 0,
            process: (*process).handle,
            tid,
            time_ns: bpf_ktime_get_boot_ns(),
            sequence: 0,
            lost_before: read_volatile(&raw const (*process).lost),
            stack: id,
        };
        (*record).count = count as u32;
        (*record).natives = native_count as u32;
        send_copy(process, record as *mut c_void, len)
    }
}

#[inline(always)]
fn min(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}
