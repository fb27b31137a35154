//! The stacks of allocations, of Python and of compiled code: gives each an identity and sends it once.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_loop, bpf_ringbuf_output};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xchg};
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    CodeRecord, DropReason, FRAME_BYTES, KIND_STACK, MOST_FRAMES, MOST_NATIVE, ProcessEntry,
    PythonFrame, RECORD_VERSION, RecordHeader, STACK_AT_ENTRY, STACK_BROKEN, STACK_BUSY,
    STACK_FIRST, STACK_HEAD, STACK_NONE, STACK_TRUNCATED, STACK_UNFINISHED, StackRecord,
    THREAD_STATE_BYTES, WINDOW,
};

use crate::emit::{RING, count_drop};
use crate::native::{self, Natives, Place, Walked};
use crate::python;

/// Buffers of one walk.
#[repr(C)]
pub struct Scratch {
    busy: u64,
    /// Always 0, which the verifier does not know: a walk whose fields begin as constants would be
    /// verified anew for each frame.
    pub zero: u64,
    pub state: [u8; THREAD_STATE_BYTES + FRAME_BYTES],
    /// Some bytes more than are read, so that an offset within a frame never leads outside.
    pub window: [u8; WINDOW + FRAME_BYTES + 8],
    pub stack: StackRecord,
    pub code: CodeRecord,
}

/// A program may be interrupted in its walk by another task on the same processor: so many walks may
/// be under way at a time.
pub const WALKS: u32 = 4;
/// Identities that are remembered as sent. A collision only sends a stack again.
const SEEN_SLOTS: u32 = 1 << 16;

#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(WALKS, 0);
#[map]
static SEEN: Array<u64> = Array::with_max_entries(SEEN_SLOTS, 0);

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;

/// Adds a word to a hash.
#[inline(always)]
pub fn mix(hash: u64, value: u64) -> u64 {
    let hash = hash.wrapping_add(value).wrapping_mul(K2);
    hash ^ (hash >> 32)
}

/// An identity made of a hash.
#[inline(always)]
pub fn finish(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 29)).wrapping_mul(K1);
    let hash = hash ^ (hash >> 32);
    if hash < STACK_FIRST {
        hash + STACK_FIRST
    } else {
        hash
    }
}

/// Buffers for a walk, and their number.
#[inline(always)]
pub fn claim() -> Option<(u32, *mut Scratch)> {
    for index in 0..WALKS {
        let scratch = SCRATCH.get_ptr_mut(index)?;
        // SAFETY: a map value.
        let before =
            unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*scratch).busy, 1) };
        if before == 0 {
            return Some((index, scratch));
        }
    }
    None
}

/// Gives them back.
#[inline(always)]
pub fn release(scratch: *mut Scratch) {
    // SAFETY: a map value that this program has claimed.
    unsafe { write_volatile(&raw mut (*scratch).busy, 0) };
}

/// The identity of the current thread's stack; sends the stack if it is new. `STACK_NONE` where the
/// process's stacks are not wanted.
#[inline(always)]
pub fn stack(process: *mut ProcessEntry, tid: u32, place: Place) -> u64 {
    // SAFETY: a map value.
    let (python, native) = unsafe { ((*process).python, (*process).native) };
    if python == 0 && native == 0 {
        return STACK_NONE;
    }
    let Some((index, scratch)) = claim() else {
        return STACK_BUSY;
    };
    let id = take(process, tid, index, scratch, &place);
    release(scratch);
    id
}

#[inline(always)]
fn take(
    process: *mut ProcessEntry,
    tid: u32,
    index: u32,
    scratch: *mut Scratch,
    place: &Place,
) -> u64 {
    // SAFETY: map values.
    let (native, salt, deaths, handle, zero) = unsafe {
        (
            (*process).native,
            (*process).stack_salt,
            read_volatile(&raw const (*process).code_deaths),
            (*process).handle,
            read_volatile(&raw const (*scratch).zero),
        )
    };
    let mut hash = mix(mix(salt, deaths), handle as u64);
    let mut walk = match python::walk(process, scratch) {
        Ok(walk) => Some(walk),
        Err(why) if native == 0 => return why,
        Err(why) => {
            hash = mix(hash, why);
            None
        }
    };
    if let Some(walk) = &mut walk {
        hash = python::hash(walk, hash);
    }
    let mut walked = Walked {
        hash,
        count: zero,
        cut: false,
        copied: zero,
    };
    if native != 0 {
        native::walk(process, tid, index, place, &mut walked);
    }
    let (id, flags) = if walked.copied == 0 {
        (finish(walked.hash), 0)
    } else {
        (walked.copied, STACK_UNFINISHED)
    };
    let Some(seen) = SEEN.get_ptr_mut(((id >> 20) as u32) & (SEEN_SLOTS - 1)) else {
        return id;
    };
    // SAFETY: a map value.
    if unsafe { read_volatile(seen) } == id {
        return id;
    }
    let mut flags = flags;
    if walked.cut {
        flags |= STACK_TRUNCATED;
    }
    if native != 0 && place.is_entry() {
        flags |= STACK_AT_ENTRY;
    }
    let mut count = zero;
    if let Some(walk) = &mut walk {
        count = python::keep_all(walk, scratch);
        flags |= python::flags(walk);
    }
    if count > MOST_FRAMES as u64 {
        count = MOST_FRAMES as u64;
        flags |= STACK_TRUNCATED;
    }
    if send_stack(process, tid, id, flags, count, (index, scratch), &walked) {
        // SAFETY: a map value.
        unsafe { write_volatile(seen, id) };
    } else {
        count_drop(DropReason::StackUnsent);
    }
    id
}

const WORDS: u64 = MOST_FRAMES as u64 * 2;

/// Puts frames of compiled code behind those of Python.
#[repr(C)]
struct Append {
    from: *mut Natives,
    to: *mut Scratch,
    /// Words before.
    start: u64,
    count: u64,
}

#[inline(never)]
extern "C" fn step_append(index: u64, append: *mut Append) -> i64 {
    // SAFETY: the callback of `bpf_loop` with the structure given to it; both are map values, and the masks
    // keep the indices within.
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
    flags: u8,
    count: u64,
    (index, scratch): (u32, *mut Scratch),
    walked: &Walked,
) -> bool {
    let mut flags = flags;
    let mut natives = walked.count;
    if natives > MOST_NATIVE as u64 {
        natives = MOST_NATIVE as u64;
    }
    if natives > WORDS - count * 2 {
        natives = WORDS - count * 2;
        flags |= STACK_TRUNCATED;
    }
    if natives != 0
        && let Some(from) = native::buffers(index)
    {
        let mut append = Append {
            from,
            to: scratch,
            start: count * 2,
            count: natives,
        };
        // SAFETY: the callback and its structure, which outlives the call.
        unsafe {
            bpf_loop(
                MOST_NATIVE as u32,
                step_append as *const c_void as *mut c_void,
                &raw mut append as *mut c_void,
                0,
            );
        }
    }
    let mut len = STACK_HEAD as u64 + count * size_of::<PythonFrame>() as u64 + natives * 8;
    if len > size_of::<StackRecord>() as u64 {
        len = size_of::<StackRecord>() as u64;
    }
    // SAFETY: map values.
    unsafe {
        let record = &raw mut (*scratch).stack;
        (*record).header = RecordHeader {
            len: len as u16,
            kind: KIND_STACK,
            version: RECORD_VERSION,
            flags,
            reserved: 0,
            process: (*process).handle,
            tid,
            time_ns: bpf_ktime_get_boot_ns(),
            sequence: 0,
            lost_before: read_volatile(&raw const (*process).lost),
            stack: id,
        };
        (*record).count = count as u32;
        (*record).natives = natives as u32;
        bpf_ringbuf_output(
            &raw const RING as *mut c_void,
            record as *mut c_void,
            len,
            BPF_RB_NO_WAKEUP as u64,
        ) == 0
    }
}
