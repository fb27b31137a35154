//! The buffers of one walk of a stack. They lie in a map, since a program's own stack has 512 bytes.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use core::intrinsics::{AtomicOrdering, atomic_xchg};
use core::ptr::write_volatile;
use memscope_common::{CodeRecord, FRAME_BYTES, StackRecord, THREAD_STATE_BYTES, WINDOW};

/// Where a walk stands. It lies in a map, of whose contents the verifier knows nothing: what it knew it would tell apart,
/// and follow the walk for each case anew.
#[repr(C)]
pub struct Walk {
    /// The frame at hand; 0: there is none.
    pub frame: u64,
    /// The innermost one.
    pub first: u64,
    pub hash: u64,
    /// The window: its first address, and the largest distance at which a frame lies whole in it.
    pub base: u64,
    pub reach: u64,
    /// The newest chunk of the data stack.
    pub chunk: u64,
    /// Frames in the record.
    pub count: u64,
    /// One could not be read.
    pub broken: u64,
    /// The table of code objects had no room for one.
    pub full: u64,
    pub kind: u32,
    pub frame_bytes: u32,
    pub frame_code: u32,
    pub frame_previous: u32,
    pub frame_instruction: u32,
    pub frame_owner: u32,
    pub owner_internal: u32,
    pub frame_entry: u32,
    pub code_tags: u64,
    pub handle: u64,
}

/// Buffers of one walk.
#[repr(C)]
pub struct Scratch {
    busy: u64,
    /// Why there are no frames of Python.
    pub why: u64,
    /// `header.flags` of the record.
    pub flags: u64,
    pub id: u64,
    pub walk: Walk,
    /// When the walk began, where it is timed.
    pub began: u64,
    pub sampling: u64,
    pub state: [u8; THREAD_STATE_BYTES + FRAME_BYTES],
    /// Some bytes more than are read, so that an offset within a frame never leads outside.
    pub window: [u8; WINDOW + FRAME_BYTES + 8],
    pub stack: StackRecord,
    pub code: CodeRecord,
}

/// A program may be interrupted in its walk by another task on the same processor: so many walks may
/// be under way at a time.
pub const WALKS: u32 = 4;

#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(WALKS, 0);

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
