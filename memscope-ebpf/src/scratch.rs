//! The buffers for walking a stack. They lie in a map, since the stack of a BPF program has only 512 bytes.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use core::intrinsics::{AtomicOrdering, atomic_xchg};
use core::ptr::write_volatile;
use memscope_common::{CodeRecord, FRAME_BYTES, StackRecord, THREAD_STATE_BYTES, WINDOW};

/// State of a walk. It lies in a map on purpose, since the verifier knows nothing of a map's contents. If it knew these
/// values, it would follow the walk once for each combination of them.
#[repr(C)]
pub struct Walk {
    /// Address of the current frame; 0: there is none.
    pub frame: u64,
    /// Address of the innermost frame.
    pub first: u64,
    pub hash: u64,
    /// First address of the window, and the largest distance from it at which a whole frame lies in the window.
    pub base: u64,
    pub reach: u64,
    /// Address of the newest chunk of the data stack.
    pub chunk: u64,
    /// Number of frames in the record.
    pub count: u64,
    /// 1 if a frame could not be read.
    pub broken: u64,
    /// 1 if the table of code objects had no room for one of them.
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
    /// Why there are no Python frames: a `STACK_*` constant.
    pub why: u64,
    /// `header.flags` of the record.
    pub flags: u64,
    pub id: u64,
    pub walk: Walk,
    /// Time in nanoseconds at which the walk began; 0 if it is not timed.
    pub began: u64,
    pub sampling: u64,
    pub state: [u8; THREAD_STATE_BYTES + FRAME_BYTES],
    /// Some bytes longer than what is read, so that an offset within a frame never points outside.
    pub window: [u8; WINDOW + FRAME_BYTES + 8],
    pub stack: StackRecord,
    pub code: CodeRecord,
}

/// Most walks that may be under way on one processor at a time. There can be several, since another task may interrupt
/// a program during its walk.
pub const WALKS: u32 = 4;

#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(WALKS, 0);

/// Claims buffers for a walk: their index, and the buffers. `None` if all are in use.
#[inline(always)]
pub fn claim() -> Option<(u32, *mut Scratch)> {
    for index in 0..WALKS {
        let scratch = SCRATCH.get_ptr_mut(index)?;
        // SAFETY: this points into a map value, which stays valid while the program runs.
        let before =
            unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*scratch).busy, 1) };
        if before == 0 {
            return Some((index, scratch));
        }
    }
    None
}

/// Gives the buffers back.
#[inline(always)]
pub fn release(scratch: *mut Scratch) {
    // SAFETY: this points into a map value that this program has claimed.
    unsafe { write_volatile(&raw mut (*scratch).busy, 0) };
}
