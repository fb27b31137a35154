//! How CPython's frames are walked: where an interpreter keeps what, and how stacks and the code
//! objects in them cross the ring.

use crate::RecordHeader;

/// Interpreters (by layout) that are known at a time.
pub const PYTHONS: u32 = 64;
/// Frames of a stack that are sent; deeper ones are cut off at the outer end.
pub const MOST_FRAMES: usize = 1024;
/// Bytes of the data stack that are read at once.
pub const WINDOW: usize = 8192;
/// Most bytes of a frame that are looked at. Offsets in a frame are below it.
pub const FRAME_BYTES: usize = 128;
/// Most bytes of a thread state that are read. Offsets in it are below it.
pub const THREAD_STATE_BYTES: usize = 512;

/// `RecordHeader::stack`: none was taken.
pub const STACK_NONE: u64 = 0;
/// No Python frame: the thread runs no Python, or has no thread state.
pub const STACK_NO_FRAMES: u64 = 1;
/// Memory that the walk needs could not be read.
pub const STACK_UNREADABLE: u64 = 2;
/// All buffers of the processor were in use by walks that had been interrupted.
pub const STACK_BUSY: u64 = 3;
/// Stacks are sampled, and this allocation was none of those whose stack is taken.
pub const STACK_NOT_SAMPLED: u64 = 4;
/// Identities of stacks begin here.
pub const STACK_FIRST: u64 = 16;
/// Bits of an identity. In an event's header lie above them: the logarithm to base 2 of how many bytes one sampled
/// stack stands for; 0: every allocation's stack was taken.
pub const STACK_BITS: u32 = 58;
/// An identity's bits.
pub const STACK_MASK: u64 = (1 << STACK_BITS) - 1;

/// `PythonEntry::kind`: the walk is off.
pub const PYTHON_NONE: u32 = 0;
/// 3.9 and 3.10: a list of frame objects.
pub const PYTHON_FRAME_OBJECTS: u32 = 1;
/// 3.11 and 3.12: `tstate->cframe->current_frame`.
pub const PYTHON_CFRAME: u32 = 2;
/// 3.13 and later: `tstate->current_frame`.
pub const PYTHON_CURRENT_FRAME: u32 = 3;

/// One interpreter's layout. All offsets in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonEntry {
    /// `PYTHON_*`.
    pub kind: u32,
    /// Reads that lead from a thread's `fsbase` to its state, 1 to 3.
    pub tls_reads: u32,
    /// What is added before each of them.
    pub tls_offsets: [i64; 3],
    /// In the thread state: the frame, the cframe, or the current frame.
    pub tstate_frame: u32,
    /// In the thread state: the newest chunk of the data stack.
    pub tstate_chunk: u32,
    /// In the cframe: the current frame.
    pub cframe_frame: u32,
    /// In a frame: the code object (its address may have tag bits).
    pub frame_code: u32,
    /// In a frame: the one that called it.
    pub frame_previous: u32,
    /// In a frame: the instruction pointer (frame objects: the 32-bit index of the last instruction).
    pub frame_instruction: u32,
    /// In a frame: its owner, a byte; of no matter where no owner is left out.
    pub frame_owner: u32,
    /// Owners from this one on: their frames are the interpreter's own and are left out. 256: none is.
    pub owner_internal: u32,
    /// Tag bits of the code object's address.
    pub code_tags: u64,
    /// Bytes of a code object that hold all that is needed; at most [`CODE_OBJECT`].
    pub code_size: u32,
    /// In a code object: the file's name, a string object.
    pub code_filename: u32,
    /// In a code object: the name, a string object.
    pub code_name: u32,
    /// In a code object: the line table, a bytes object.
    pub code_line_table: u32,
    /// Bytes of a frame up to the end of the last field in use; at most [`FRAME_BYTES`].
    pub frame_bytes: u32,
    /// What tells that compiled code called a frame: in a frame, a byte that says so; [`ENTRY_ALWAYS`]: all are;
    /// [`ENTRY_INTERNAL`]: a frame of the interpreter's own comes before it.
    pub frame_entry: u32,
    /// Bytes of a thread state up to the end of the last field in use; at most [`THREAD_STATE_BYTES`]. What lies behind the
    /// state may be memory that nobody has touched yet, and reading that fails.
    pub tstate_bytes: u32,
    /// Always 0: the size is a multiple of eight without holes.
    pub reserved: u32,
}

/// `PythonEntry::frame_entry`: each frame is called by compiled code.
pub const ENTRY_ALWAYS: u32 = 0xffff_ffff;
/// `PythonEntry::frame_entry`: frames of the interpreter's own lie between.
pub const ENTRY_INTERNAL: u32 = 0;
/// `PythonFrame::code`, a bit: compiled code called this frame.
pub const FRAME_ENTRY: u64 = 1;

/// A stack that was seen for the first time.
pub const KIND_STACK: u16 = 8;
/// A code object that had been seen in a stack is about to be freed.
pub const KIND_CODE: u16 = 9;

/// `header.flags` of a stack: there were more frames.
pub const STACK_TRUNCATED: u8 = 1;
/// `header.flags` of a stack: a frame in the middle could not be read; what is there is right.
pub const STACK_BROKEN: u8 = 2;

/// One frame of Python code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    /// Address of the code object, and [`FRAME_ENTRY`]. Address 0: the table of code objects was full, so nobody will tell
    /// of this one's death, and what lies at its address may not be named.
    pub code: u64,
    /// Address of the instruction; frame objects: the index of the last instruction.
    pub instruction: u64,
}

/// A stack; `header.stack` is its identity. The record ends behind the last frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackRecord {
    /// Common part.
    pub header: RecordHeader,
    /// How many frames of Python code follow.
    pub count: u32,
    /// How many frames of compiled code follow them, each a word.
    pub natives: u32,
    /// Innermost first.
    pub frames: [PythonFrame; MOST_FRAMES],
}

/// Bytes of a stack's record without frames.
pub const STACK_HEAD: usize = core::mem::offset_of!(StackRecord, frames);

/// Bytes kept of a code object itself.
pub const CODE_OBJECT: usize = 256;
/// Bytes kept of a string object.
pub const CODE_TEXT: usize = 320;
/// Bytes kept of a line table.
pub const CODE_LINES: usize = 4096;

/// What names a dying code object: raw bytes of the objects that it refers to, head included.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CodeRecord {
    /// Common part.
    pub header: RecordHeader,
    /// Address of the code object.
    pub code: u64,
    /// Which of the four parts could be read, a bit each, in the order below.
    pub readable: u64,
    /// The object itself.
    pub object: [u8; CODE_OBJECT],
    /// String object of the file's name.
    pub filename: [u8; CODE_TEXT],
    /// String object of the name.
    pub name: [u8; CODE_TEXT],
    /// Bytes object of the line table.
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
