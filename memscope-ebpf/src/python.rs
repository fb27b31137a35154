//! Python stacks: walks CPython's frames, and sends the names of code objects that are about to be freed.
//!
//! The call of a helper costs far more than what it copies, so the walk reads the interpreter's data stack in
//! large windows and follows the frames inside the copy. The instruction pointer of a frame lies inside
//! its code object, so a hash of these pointers identifies the stack.

use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_ktime_get_boot_ns, bpf_loop, bpf_map_delete_elem,
    bpf_map_lookup_elem, bpf_map_update_elem, bpf_probe_read_user,
};
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::{Array, HashMap};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use core::ptr::{addr_of, read_volatile, write_volatile};
use memscope_common::{
    CODE_KEPT, CODE_KEPT_BITS, CODE_LINES, CODE_OBJECT, CODE_PAGE, CODE_TEXT, CodeRecord,
    DropReason, ENTRY_ALWAYS, ENTRY_INTERNAL, FRAME_BYTES, FRAME_ENTRY, KIND_CODE, MOST_FRAMES,
    PYTHON_CFRAME, PYTHON_FRAME_OBJECTS, PYTHONS, ProcessEntry, PythonEntry, PythonFrame,
    RECORD_VERSION, RecordHeader, STACK_NO_FRAMES, STACK_NONE, STACK_UNREADABLE,
    THREAD_STATE_BYTES, WINDOW,
};

use crate::emit::{count_drop, live_process, note_full, send_copy};
use crate::identity::mix;
use crate::own_stack;
use crate::probes::ids;
use crate::read;
use crate::scratch::{Scratch, claim, release};

/// Offset in `struct task_struct` of the field with the thread pointer of user space. The daemon takes it from the
/// kernel's BTF and sets it before it loads the program. On aarch64 the kernel writes the field when the thread is
/// switched out; that is enough, since a thread's pointer never changes.
#[unsafe(no_mangle)]
static TASK_TLS_OFFSET: u64 = 0;

const CODES_MOST: u32 = 1 << 16;

#[map]
static PYTHON: Array<PythonEntry> = Array::with_max_entries(PYTHONS, 0);
#[map]
static CODES: HashMap<[u64; 2], u64> = HashMap::with_max_entries(CODES_MOST, 0);

/// In [`CODES`]: the code object was in a stack.
const CODE_SEEN: u64 = 1;
/// In [`CODES`]: a code object that was at this address has died, and that could not be sent.
const CODE_END_UNTOLD: u64 = 2;

/// Copies user memory; false if that fails.
#[inline(always)]
fn copy(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: `to` points into a buffer of at least `len` bytes; the helper fills it or fails.
    unsafe { bpf_probe_read_user(to as *mut c_void, len, from as *const c_void) == 0 }
}

/// The word at an offset of a buffer. The daemon has checked that the offsets of a layout are small enough; the mask
/// shows this to the verifier.
#[inline(always)]
fn field(buffer: *const u8, offset: u32, mask: u32) -> u64 {
    // SAFETY: the offset is below the mask, and the buffer is at least eight bytes longer than that.
    unsafe { read_volatile(buffer.add((offset & mask) as usize) as *const u64) }
}

const FRAME_MASK: u32 = FRAME_BYTES as u32 - 1;
const STATE_MASK: u32 = THREAD_STATE_BYTES as u32 - 1;

/// Argument of the loop's steps, which must lie on the program's stack.
#[repr(C)]
struct Context {
    scratch: *mut Scratch,
}

/// What a walk does with each frame: add it to the hash, or keep it in the record.
const HASH: u8 = 0;
const KEEP: u8 = 1;

/// Smallest size in bytes of a chunk of the data stack.
const CHUNK: u64 = 16 << 10;
const PAGE: u64 = 4096;

/// Reads the window again so that it ends with the current frame. On the newest chunk it begins as far below as the
/// window and the chunk allow; else (an older chunk, a generator's frame, a frame object) it begins at the beginning of
/// the page. The result 1 means that the memory could not be read.
#[inline(always)]
fn refill(scratch: *mut Scratch) -> i64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*scratch).walk };
    let frame = walk.frame;
    let end = frame.wrapping_add(walk.frame_bytes as u64);
    let mut base = frame & !(PAGE - 1);
    if frame.wrapping_sub(walk.chunk) < CHUNK {
        base = end.wrapping_sub(WINDOW as u64);
        if base < walk.chunk {
            base = walk.chunk;
        }
    }
    let mut len = end.wrapping_sub(base);
    if len > WINDOW as u64 {
        len = WINDOW as u64;
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let window = unsafe { &raw mut (*scratch).window } as *mut u8;
    if !copy(window, len as u32, base) {
        walk.broken = 1;
        return 1;
    }
    walk.base = base;
    walk.reach = frame.wrapping_sub(base);
    0
}

/// Most frames that one step adds to the hash. There are several, since the call of a step costs as much as several
/// frames.
const TOGETHER: u32 = 8;

/// One step of hashing: adds some frames inside the window to the hash, then moves the window if that is necessary. The
/// result 1 ends the loop.
#[inline(always)]
fn hash_some(scratch: *mut Scratch) -> i64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*scratch).walk };
    let (base, reach) = (walk.base, walk.reach);
    let (previous, instruction) = (
        (walk.frame_previous & FRAME_MASK) as usize,
        (walk.frame_instruction & FRAME_MASK) as usize,
    );
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let window = unsafe { &raw const (*scratch).window as *const u8 };
    let (mut frame, mut hash) = (walk.frame, walk.hash);
    for _ in 0..TOGETHER {
        // The outermost frame's caller has the address 0, which is never inside the window, so the loop ends there,
        // too.
        let at = frame.wrapping_sub(base);
        if at > reach {
            break;
        }
        // SAFETY: the window is longer than the mask by the largest offset and one word.
        unsafe {
            let from = window.add((at & (WINDOW as u64 - 1)) as usize);
            hash = mix(hash, read_volatile(from.add(instruction) as *const u64));
            frame = read_volatile(from.add(previous) as *const u64);
        }
    }
    walk.hash = hash;
    walk.frame = frame;
    if frame == 0 {
        return 1;
    }
    if frame.wrapping_sub(base) > reach {
        return refill(scratch);
    }
    0
}

/// One step of a walk: takes one frame, or moves the window. The result 1 ends the loop.
#[inline(always)]
fn step<const WHAT: u8>(scratch: *mut Scratch) -> i64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*scratch).walk };
    // The outer frames are left out, and the record says so, since there is one more.
    if walk.frame == 0 || WHAT != HASH && walk.count >= MOST_FRAMES as u64 {
        return 1;
    }
    let at = walk.frame.wrapping_sub(walk.base);
    if at > walk.reach {
        return refill(scratch);
    }
    // SAFETY: this points into a map value. The window is longer than the mask by the largest offset and one word.
    let from = unsafe {
        (&raw const (*scratch).window as *const u8).add((at & (WINDOW as u64 - 1)) as usize)
    };
    let previous = field(from, walk.frame_previous, FRAME_MASK);
    let instruction = field(from, walk.frame_instruction, FRAME_MASK);
    if WHAT == HASH {
        // In frame objects the instruction is only an index, which does not identify the code object.
        walk.hash = mix(walk.hash, field(from, walk.frame_code, FRAME_MASK));
        walk.hash = mix(walk.hash, instruction & 0xffff_ffff);
    } else {
        let code = field(from, walk.frame_code, FRAME_MASK) & !walk.code_tags;
        let owner = field(from, walk.frame_owner, FRAME_MASK) & 0xff;
        if owner < walk.owner_internal as u64 {
            let entry = match walk.frame_entry {
                ENTRY_INTERNAL => false,
                ENTRY_ALWAYS => true,
                at => field(from, at, FRAME_MASK) & 0xff != 0,
            };
            keep(scratch, code, instruction, entry);
        } else {
            mark_entry(scratch);
        }
    }
    walk.frame = previous;
    0
}

/// Marks the frame that was kept last as called by compiled code.
#[inline(always)]
fn mark_entry(scratch: *mut Scratch) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let at = (unsafe { (*scratch).walk.count }.wrapping_sub(1) & (MOST_FRAMES as u64 - 1)) as usize;
    // SAFETY: this points into a map value, and the index is below the array's length.
    unsafe {
        let frame = (&raw mut (*scratch).stack.frames as *mut PythonFrame).add(at);
        let code = read_volatile(&raw const (*frame).code);
        write_volatile(&raw mut (*frame).code, code | FRAME_ENTRY);
    }
}

#[inline(always)]
fn keep(scratch: *mut Scratch, code: u64, instruction: u64, entry: bool) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*scratch).walk };
    let at = (walk.count & (MOST_FRAMES as u64 - 1)) as usize;
    // SAFETY: this points into a map value, and the index is below the array's length.
    unsafe {
        let frame = (&raw mut (*scratch).stack.frames as *mut PythonFrame).add(at);
        let code = code | if entry { FRAME_ENTRY } else { 0 };
        write_volatile(frame, PythonFrame { code, instruction });
    }
    walk.count += 1;
    let key = [walk.handle, code];
    // SAFETY: key and value lie on the program's stack; the map is this program's own, and so is the buffer with the
    // frame.
    unsafe {
        let codes = &raw const CODES as *mut c_void;
        let key = &raw const key as *const c_void;
        let known = bpf_map_lookup_elem(codes, key).cast::<u64>();
        let nameless = match known.is_null() {
            true => {
                let seen = CODE_SEEN;
                bpf_map_update_elem(codes, key, &raw const seen as *const c_void, 0) != 0
            }
            false => *known == CODE_END_UNTOLD,
        };
        if nameless {
            count_drop(DropReason::CodeTableFull);
            // The end of this code object would not be reported, so a later object at its address would get its name. Or the end of
            // an earlier one at its address was not, and this one would get that one's. Therefore it gets no name.
            let frame = (&raw mut (*scratch).stack.frames as *mut PythonFrame).add(at);
            write_volatile(&raw mut (*frame).code, if entry { FRAME_ENTRY } else { 0 });
            walk.full = 1;
        }
    }
}

#[inline(never)]
extern "C" fn step_hash(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: `bpf_loop` calls this with the structure given to it, which points to a map value.
    let scratch = unsafe { (*context).scratch };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { (*scratch).walk.kind } == PYTHON_FRAME_OBJECTS {
        return step::<HASH>(scratch);
    }
    hash_some(scratch)
}

#[inline(never)]
extern "C" fn step_keep(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: as in `step_hash`.
    step::<KEEP>(unsafe { (*context).scratch })
}

/// The current thread's innermost frame, and the newest chunk of its data stack; or the `STACK_*` constant that says
/// why there is none.
#[inline(always)]
fn leaf(layout: &PythonEntry, scratch: *mut Scratch) -> Result<(u64, u64), u64> {
    // SAFETY: this only reads the current task, at an offset that the kernel's BTF gives.
    let thread = unsafe {
        let task = bpf_get_current_task_btf() as u64;
        read_volatile((task + read_volatile(addr_of!(TASK_TLS_OFFSET))) as *const u64)
    };
    let mut state = thread;
    for step in 0..3 {
        if step as u32 >= layout.tls_reads {
            break;
        }
        let at = state.wrapping_add(layout.tls_offsets[step] as u64);
        let Some(next) = read::user::<u64>(at) else {
            return Err(STACK_UNREADABLE);
        };
        // The address of a thread-local block that the thread has not used yet has all bits set.
        if next == 0 || next == u64::MAX {
            return Err(STACK_NO_FRAMES);
        }
        state = next;
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let copied = unsafe { &raw mut (*scratch).state } as *mut u8;
    let mut len = layout.tstate_bytes;
    if len > THREAD_STATE_BYTES as u32 {
        len = THREAD_STATE_BYTES as u32;
    }
    if !copy(copied, len, state) {
        return Err(STACK_UNREADABLE);
    }
    let mut frame = field(copied, layout.tstate_frame, STATE_MASK);
    let chunk = field(copied, layout.tstate_chunk, STATE_MASK);
    if layout.kind == PYTHON_CFRAME {
        if frame == 0 {
            return Err(STACK_NO_FRAMES);
        }
        let Some(current) = read::user::<u64>(frame.wrapping_add(layout.cframe_frame as u64))
        else {
            return Err(STACK_UNREADABLE);
        };
        frame = current;
    }
    if frame == 0 {
        return Err(STACK_NO_FRAMES);
    }
    if layout.kind == PYTHON_FRAME_OBJECTS {
        return Ok((frame, 0));
    }
    Ok((frame, chunk))
}

/// Prepares the walk of the current thread's frames. If there are none, the walk's frame is 0 and `why` gives the
/// reason.
#[inline(always)]
pub fn begin(process: *mut ProcessEntry, scratch: *mut Scratch) {
    // SAFETY: these point into map values, which stay valid while the program runs.
    let (walk, python, handle) =
        unsafe { (&mut (*scratch).walk, (*process).python, (*process).handle) };
    walk.frame = 0;
    walk.first = 0;
    walk.count = 0;
    walk.broken = 0;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    unsafe { write_volatile(&raw mut (*scratch).why, STACK_NO_FRAMES) };
    let Some(layout) = PYTHON.get(python.wrapping_sub(1)) else {
        return;
    };
    match leaf(layout, scratch) {
        Ok((frame, chunk)) => {
            walk.frame = frame;
            walk.chunk = chunk;
        }
        // SAFETY: this points into a map value, which stays valid while the program runs.
        Err(why) => unsafe { write_volatile(&raw mut (*scratch).why, why) },
    }
    walk.first = walk.frame;
    // Nothing is in the window yet.
    walk.base = walk.frame.wrapping_add(1);
    walk.reach = 0;
    walk.kind = layout.kind;
    walk.frame_bytes = layout.frame_bytes;
    walk.frame_code = layout.frame_code;
    walk.frame_previous = layout.frame_previous;
    walk.frame_instruction = layout.frame_instruction;
    walk.frame_owner = layout.frame_owner;
    walk.owner_internal = layout.owner_internal;
    walk.frame_entry = layout.frame_entry;
    walk.code_tags = layout.code_tags;
    walk.handle = handle as u64;
}

/// Most steps of a walk. There are more steps than frames, since some steps only move the window.
const STEPS: u32 = MOST_FRAMES as u32 * 2;

/// Walks the frames and adds to a hash what identifies the stack.
#[inline(always)]
pub fn hash(scratch: *mut Scratch, hash: u64) -> u64 {
    let mut context = Context { scratch };
    // SAFETY: the callback gets the structure that it expects, which outlives the call; the map value is read as the
    // loop left it.
    unsafe {
        write_volatile(&raw mut (*scratch).walk.hash, hash);
        bpf_loop(
            STEPS,
            step_hash as *const c_void as *mut c_void,
            &raw mut context as *mut c_void,
            0,
        );
        read_volatile(&raw const (*scratch).walk.hash)
            .wrapping_add(read_volatile(&raw const (*scratch).walk.broken))
    }
}

/// Walks the frames again and puts them into the stack's record in the buffers.
#[inline(always)]
pub fn keep_all(process: *mut ProcessEntry, scratch: *mut Scratch) {
    let mut context = Context { scratch };
    // SAFETY: as in `hash`.
    unsafe {
        let walk = &mut (*scratch).walk;
        walk.frame = walk.first;
        // The frames have not changed since the first walk, as the thread is stopped in this trap. But the window is
        // somewhere else now.
        walk.base = walk.first.wrapping_add(1);
        walk.reach = 0;
        walk.broken = 0;
        walk.full = 0;
        bpf_loop(
            STEPS,
            step_keep as *const c_void as *mut c_void,
            &raw mut context as *mut c_void,
            0,
        );
        if read_volatile(&raw const (*scratch).walk.full) != 0 {
            note_full(process, DropReason::CodeTableFull);
        }
    }
}

/// Entry of `code_dealloc(code)`: a code object is about to be freed. If it was in a stack, its names are sent, and the
/// identities of stacks change, since another code object may later lie at its address.
#[uprobe]
pub fn python_code_dealloc(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let code = read::args(&ctx)[0];
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (handle, python) = unsafe { ((*process).handle, (*process).python) };
    let key = [handle as u64, code];
    // SAFETY: the key lies on the program's stack; the map is this program's own, and its values are one word.
    let was_untold = unsafe {
        let codes = &raw const CODES as *mut c_void;
        let key = &raw const key as *const c_void;
        let known = bpf_map_lookup_elem(codes, key).cast::<u64>();
        if known.is_null() {
            return 0;
        }
        let was_untold = *known == CODE_END_UNTOLD;
        bpf_map_delete_elem(codes, key);
        was_untold
    };
    if python == 0 {
        return 0;
    }
    crate::emit::add(
        // SAFETY: this points into a map value, which stays valid while the program runs.
        unsafe { &raw mut (*process).code_deaths },
        1,
    );
    let Some(layout) = PYTHON.get(python - 1) else {
        return 0;
    };
    let mut sent = false;
    if let Some((_, scratch)) = claim() {
        sent = send_code(process, tid, layout, code, was_untold, scratch);
        release(scratch);
    }
    if !sent {
        count_drop(DropReason::StackUnsent);
        // SAFETY: as above.
        unsafe {
            let codes = &raw const CODES as *mut c_void;
            let key = &raw const key as *const c_void;
            let untold = CODE_END_UNTOLD;
            bpf_map_update_elem(codes, key, &raw const untold as *const c_void, 0);
        }
    }
    0
}

/// Sends the names of a code object, or only that it dies if its address still stands for an earlier one, whose end was not told: then
/// they would be taken for that one's. Returns whether the record is in the ring.
#[inline(always)]
fn send_code(
    process: *mut ProcessEntry,
    tid: u32,
    layout: &PythonEntry,
    code: u64,
    only_end: bool,
    scratch: *mut Scratch,
) -> bool {
    let word = |offset: u32| read::user::<u64>(code.wrapping_add(offset as u64)).unwrap_or(0);
    let mut readable = 0;
    // SAFETY: these point into map values, which stay valid while the program runs.
    unsafe {
        let record = &raw mut (*scratch).code;
        let parts = [
            (
                layout.code_filename,
                (&raw mut (*record).filename) as *mut u8,
                CODE_TEXT,
            ),
            (
                layout.code_name,
                (&raw mut (*record).name) as *mut u8,
                CODE_TEXT,
            ),
            (
                layout.code_line_table,
                (&raw mut (*record).lines) as *mut u8,
                CODE_LINES,
            ),
        ];
        let mut size = layout.code_size;
        if size > CODE_OBJECT as u32 {
            size = CODE_OBJECT as u32;
        }
        if copy((&raw mut (*record).object) as *mut u8, size, code) {
            readable |= 1;
        }
        for (bit, (offset, to, most)) in parts.into_iter().enumerate() {
            let from = word(offset);
            if copy(to, most as u32, from) {
                readable |= 2 << bit;
                continue;
            }
            // The page behind may not be there, so what lies on the first one is taken, and the record says how much that is.
            let len = CODE_PAGE - (from & (CODE_PAGE - 1));
            if len < most as u64 && copy(to, (len & (CODE_PAGE - 1)) as u32, from) {
                readable |= 2 << bit | len << (CODE_KEPT + CODE_KEPT_BITS * bit as u32);
            }
        }
        (*record).header = RecordHeader {
            len: size_of::<CodeRecord>() as u16,
            kind: KIND_CODE,
            version: RECORD_VERSION,
            flags: 0,
            reserved: 0,
            process: (*process).handle,
            tid,
            time_ns: bpf_ktime_get_boot_ns(),
            sequence: 0,
            lost_before: read_volatile(&raw const (*process).lost),
            stack: STACK_NONE,
        };
        (*record).code = code;
        (*record).readable = if only_end { 0 } else { readable };
        send_copy(
            process,
            record as *mut c_void,
            size_of::<CodeRecord>() as u64,
        )
    }
}
