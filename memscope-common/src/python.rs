//! How CPython's frames are walked: where an interpreter keeps the fields that the walk needs, and
//! how stacks and the code objects in them are sent over the ring.

use crate::RecordHeader;

/// Most layouts of interpreters that the table holds at a time.
pub const PYTHONS: u32 = 64;
/// Most Python frames in one stack; deeper stacks are cut off at the outer end.
pub const MOST_FRAMES: usize = 1024;
/// Most bytes of the data stack that are read in one call.
pub const WINDOW: usize = 8192;
/// Most bytes of a frame that are read. All offsets in a frame are below this number.
pub const FRAME_BYTES: usize = 128;
/// Most bytes of a thread state that are read. All offsets in it are below this number.
pub const THREAD_STATE_BYTES: usize = 512;

/// `RecordHeader::stack`: no stack was taken.
pub const STACK_NONE: u64 = 0;
/// `RecordHeader::stack`: there is no Python frame. The thread runs no Python, or has no thread state.
pub const STACK_NO_FRAMES: u64 = 1;
/// `RecordHeader::stack`: memory that the walk needs could not be read.
pub const STACK_UNREADABLE: u64 = 2;
/// `RecordHeader::stack`: all buffers of the processor were in use by walks that had been interrupted.
pub const STACK_BUSY: u64 = 3;
/// `RecordHeader::stack`: stacks are sampled, and this allocation was not among those whose stack is taken.
pub const STACK_NOT_SAMPLED: u64 = 4;
/// Smallest identity of a stack; smaller numbers are the constants above.
pub const STACK_FIRST: u64 = 16;
/// Number of bits of an identity. In an event's header the bits above them hold the logarithm to base 2 of the sampling
/// interval, which is the number of allocated bytes that one sampled stack stands for; 0: the stack of every
/// allocation was taken.
pub const STACK_BITS: u32 = 58;
/// Mask of the bits of an identity.
pub const STACK_MASK: u64 = (1 << STACK_BITS) - 1;

/// `PythonEntry::kind`: the entry is empty, and nothing is walked.
pub const PYTHON_NONE: u32 = 0;
/// `PythonEntry::kind`, for 3.9 and 3.10: the thread state points to a list of frame objects.
pub const PYTHON_FRAME_OBJECTS: u32 = 1;
/// `PythonEntry::kind`, for 3.11 and 3.12: the frame is `tstate->cframe->current_frame`.
pub const PYTHON_CFRAME: u32 = 2;
/// `PythonEntry::kind`, for 3.13 and later: the frame is `tstate->current_frame`.
pub const PYTHON_CURRENT_FRAME: u32 = 3;

/// Layout of one interpreter. All offsets are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonEntry {
    /// How a thread state leads to its frames: one of `PYTHON_*`.
    pub kind: u32,
    /// Number of reads that lead from a thread's `fsbase` to its state, 1 to 3.
    pub tls_reads: u32,
    /// Offset that is added before each of these reads.
    pub tls_offsets: [i64; 3],
    /// In the thread state: offset of the pointer to the frame object, the cframe, or the current frame.
    pub tstate_frame: u32,
    /// In the thread state: offset of the pointer to the newest chunk of the data stack.
    pub tstate_chunk: u32,
    /// In the cframe: offset of the pointer to the current frame.
    pub cframe_frame: u32,
    /// In a frame: offset of the pointer to the code object (which may have tag bits).
    pub frame_code: u32,
    /// In a frame: offset of the pointer to the frame that called it.
    pub frame_previous: u32,
    /// In a frame: offset of the instruction pointer (in frame objects: of the 32-bit index of the last instruction).
    pub frame_instruction: u32,
    /// In a frame: offset of its owner, a byte. It does not matter if no frames are left out because of their owner.
    pub frame_owner: u32,
    /// Frames whose owner is at least this number are the interpreter's own and are left out. 256: no frames are left
    /// out.
    pub owner_internal: u32,
    /// Tag bits of the code object's address.
    pub code_tags: u64,
    /// Number of bytes of a code object that contain all fields that are needed; at most [`CODE_OBJECT`].
    pub code_size: u32,
    /// In a code object: offset of the pointer to the file's name, a string object.
    pub code_filename: u32,
    /// In a code object: offset of the pointer to the name, a string object.
    pub code_name: u32,
    /// In a code object: offset of the pointer to the line table, a bytes object.
    pub code_line_table: u32,
    /// Number of bytes of a frame up to the end of the last field that is used; at most [`FRAME_BYTES`].
    pub frame_bytes: u32,
    /// How to tell that compiled code called a frame. [`ENTRY_ALWAYS`]: it called all of them. [`ENTRY_INTERNAL`]: the
    /// frame is followed, towards the outer end, by a frame of the interpreter's own. Any other number is the offset in
    /// a frame of a byte that is not 0 then.
    pub frame_entry: u32,
    /// Number of bytes of a thread state up to the end of the last field that is used; at most [`THREAD_STATE_BYTES`].
    /// More must not be read: the memory behind the state may never have been touched, and reading that fails.
    pub tstate_bytes: u32,
    /// Always 0. It fills the structure up to a multiple of eight bytes.
    pub reserved: u32,
}

/// `PythonEntry::frame_entry`: compiled code calls every frame.
pub const ENTRY_ALWAYS: u32 = 0xffff_ffff;
/// `PythonEntry::frame_entry`: where compiled code calls a frame, a frame of the interpreter's own lies between.
pub const ENTRY_INTERNAL: u32 = 0;
/// Bit of `PythonFrame::code`: compiled code called this frame.
pub const FRAME_ENTRY: u64 = 1;

/// Number of a [`StackRecord`]: a stack that was seen for the first time.
pub const KIND_STACK: u16 = 8;
/// Number of a [`CodeRecord`]: a code object that had been seen in a stack is about to be freed.
pub const KIND_CODE: u16 = 9;

/// `header.flags` of a stack: it had more frames than were sent.
pub const STACK_TRUNCATED: u8 = 1;
/// `header.flags` of a stack: one of its frames could not be read, and the walk ended there. The frames in the record
/// are right.
pub const STACK_BROKEN: u8 = 2;

/// One frame of Python code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    /// Address of the code object, with the bit [`FRAME_ENTRY`]. Address 0: the table of code objects was full. The end
    /// of this code object would not be reported, and another one could later lie at its address, so it must not be
    /// named.
    pub code: u64,
    /// Address of the instruction; for frame objects the index of the last instruction.
    pub instruction: u64,
}

/// A stack; `header.stack` is its identity. The record ends after the last frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackRecord {
    /// Header that all records have.
    pub header: RecordHeader,
    /// Number of frames of Python code in `frames`.
    pub count: u32,
    /// Number of frames of compiled code. They come right after those of Python code, each as one word with its
    /// address.
    pub natives: u32,
    /// The frames, innermost first.
    pub frames: [PythonFrame; MOST_FRAMES],
}

/// Length in bytes of a stack's record without frames.
pub const STACK_HEAD: usize = core::mem::offset_of!(StackRecord, frames);

/// Most bytes that are copied of a code object itself.
pub const CODE_OBJECT: usize = 256;
/// Most bytes that are copied of a string object.
pub const CODE_TEXT: usize = 320;
/// Most bytes that are copied of a line table.
pub const CODE_LINES: usize = 4096;
/// Size of a page. Where the page behind an object's beginning is not there, what lies on the first one is copied.
pub const CODE_PAGE: u64 = 4096;
/// Bit of `readable` from which on the numbers of bytes stand that were copied of file name, name and line table, for each in so many bits;
/// 0: all of them.
pub const CODE_KEPT: u32 = 16;
/// See [`CODE_KEPT`].
pub const CODE_KEPT_BITS: u32 = 16;

/// The names and lines of a code object that is about to be freed: raw bytes of it and of the objects that it refers
/// to, including their object headers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CodeRecord {
    /// Header that all records have.
    pub header: RecordHeader,
    /// Address of the code object.
    pub code: u64,
    /// Which of the four parts below could be read: bit 0 for the first of them, bit 3 for the last.
    pub readable: u64,
    /// The code object itself.
    pub object: [u8; CODE_OBJECT],
    /// The string object with the file's name.
    pub filename: [u8; CODE_TEXT],
    /// The string object with the name.
    pub name: [u8; CODE_TEXT],
    /// The bytes object with the line table.
    pub lines: [u8; CODE_LINES],
}

const _: () = {
    assert!(core::mem::size_of::<PythonEntry>() == 104);
    assert!(core::mem::size_of::<PythonFrame>() == 16);
    assert!(STACK_HEAD == 56);
    assert!(core::mem::size_of::<StackRecord>() < u16::MAX as usize);
    assert!(core::mem::size_of::<CodeRecord>() < u16::MAX as usize);
    assert!(core::mem::size_of::<CodeRecord>().is_multiple_of(8));
};
