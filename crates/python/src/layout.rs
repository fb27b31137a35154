//! Where things lie in a CPython's structures: plain numbers, for whoever walks.

/// There is no such field in this version.
pub const NONE: u32 = u32::MAX;

/// 3.9, 3.10: the thread state points to a `PyFrameObject`; `f_back` links them.
pub const KIND_FRAME_OBJECT: u32 = 1;
/// 3.11, 3.12: the thread state points to a `_PyCFrame`, and that to the current frame.
pub const KIND_CFRAME: u32 = 2;
/// From 3.13 on: the thread state points to the current frame.
pub const KIND_CURRENT_FRAME: u32 = 3;

/// 3.9: a frame holds the offset in bytes of its last instruction (32 bits, −1 before the first).
pub const INSTRUCTION_BYTES: u32 = 1;
/// 3.10: the same in units of two bytes.
pub const INSTRUCTION_UNITS: u32 = 2;
/// From 3.11 on: a frame holds the address of an instruction, which lies in its code object.
pub const INSTRUCTION_ADDRESS: u32 = 3;

/// 3.9: `co_lnotab`.
pub const LINES_LNOTAB: u32 = 1;
/// 3.10: `co_linetable` in its first form.
pub const LINES_RANGES: u32 = 2;
/// From 3.11 on: the table of locations.
pub const LINES_LOCATIONS: u32 = 3;

/// Everything that walking needs. Offsets are in bytes; [`NONE`] where there is no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How a thread state leads to its frames: `KIND_*`.
    pub kind: u32,
    /// The minor version of Python 3.
    pub minor: u32,
    /// `_PyRuntimeState` and `PyInterpreterState`.
    pub runtime: RuntimeLayout,
    /// `PyThreadState`.
    pub thread: ThreadLayout,
    /// `PyFrameObject` or `_PyInterpreterFrame`.
    pub frame: FrameLayout,
    /// `_PyStackChunk`.
    pub chunk: ChunkLayout,
    /// `PyCodeObject`.
    pub code: CodeLayout,
    /// `PyUnicodeObject`.
    pub text: TextLayout,
    /// `PyBytesObject`.
    pub bytes: BytesLayout,
}

/// The lists that lead to all thread states.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuntimeLayout {
    /// In `_PyRuntime`: the first interpreter.
    pub interpreters: u32,
    /// In an interpreter: the next one.
    pub next: u32,
    /// In an interpreter: its newest thread state.
    pub threads: u32,
    /// In `_PyRuntime`: `autoTSSkey`, {is initialised, key}, 32 bits each, as far as is known; the
    /// key that is used is proven. [`NONE`] from 3.15 on.
    pub thread_key: u32,
}

/// A thread state.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadLayout {
    /// The next thread state of the same interpreter.
    pub next: u32,
    /// Its interpreter.
    pub interpreter: u32,
    /// The thread's `pthread_self`, which is its `fsbase`: 64 bits.
    pub id: u32,
    /// The thread's number in the kernel, as its own PID namespace counts.
    pub native_id: u32,
    /// The frame, or the `_PyCFrame`: what it is says [`Layout::kind`].
    pub frame: u32,
    /// In the `_PyCFrame`: the current frame.
    pub cframe_frame: u32,
    /// The newest piece of the data stack.
    pub chunk: u32,
}

/// A frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameLayout {
    /// Bytes from the beginning of a frame that hold all the fields named here.
    pub size: u32,
    /// The code object, with tags in [`FrameLayout::code_tags`].
    pub code: u32,
    /// Bits to clear in that word.
    pub code_tags: u32,
    /// The frame that called this one, 0 for none. From 3.11 on this also crosses C functions.
    pub previous: u32,
    /// The instruction.
    pub instruction: u32,
    /// What is there: `INSTRUCTION_*`.
    pub instruction_is: u32,
    /// Whose frame it is: 8 bits.
    pub owner: u32,
    /// Frames of this owner hold while they are suspended, too, and are complete from the beginning.
    pub owner_generator: u32,
    /// Frames with this owner or a higher one are the interpreter's own: to be skipped.
    pub owner_internal: u32,
}

/// A piece of the data stack, on which most frames lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkLayout {
    /// The piece below.
    pub previous: u32,
    /// Its size in bytes, header included.
    pub size: u32,
    /// Where its data begin.
    pub data: u32,
}

/// A code object.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeLayout {
    /// Bytes from its beginning that hold all fields named here.
    pub size: u32,
    /// Its type, as of every object.
    pub object_type: u32,
    /// Number of code units (64 bits); [`NONE`] before 3.11.
    pub units: u32,
    /// Bytes of a code unit.
    pub unit: u32,
    /// Line of the `def`: 32 bits, signed.
    pub first_line: u32,
    /// Name of the file.
    pub file_name: u32,
    /// Name of the function.
    pub name: u32,
    /// Name with the names around it; [`NONE`] before 3.11.
    pub qualified_name: u32,
    /// The bytes object with the table of lines.
    pub lines: u32,
    /// What is in it: `LINES_*`.
    pub lines_are: u32,
    /// The index of the first instruction that is the function's own (32 bits); before it a frame is
    /// still being made, and Python does not show it. [`NONE`] before 3.11.
    pub first_traceable: u32,
    /// Where the instructions begin; [`NONE`] before 3.11.
    pub instructions: u32,
}

/// A string.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TextLayout {
    /// Number of characters: 64 bits.
    pub length: u32,
    /// The state: 32 bits.
    pub state: u32,
    /// Shift of the bytes of one character (1, 2, 4; three bits wide) in the state.
    pub kind_shift: u32,
    /// The bit that says that the characters follow the header.
    pub compact: u32,
    /// The bit that says that all characters are ASCII.
    pub ascii: u32,
    /// Where ASCII characters begin.
    pub ascii_data: u32,
    /// Where other characters begin.
    pub compact_data: u32,
    /// Pointer to the characters of a string that is not compact.
    pub data_pointer: u32,
}

/// A bytes object.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BytesLayout {
    /// Number of bytes: 64 bits.
    pub length: u32,
    /// Where they begin.
    pub data: u32,
}

impl Layout {
    /// The code object's address in a frame's word.
    pub fn code_address(&self, word: u64) -> u64 {
        word & !u64::from(self.frame.code_tags)
    }

    /// A frame of this owner is the interpreter's own and stands for no Python code.
    pub fn is_internal(&self, owner: u8) -> bool {
        u32::from(owner) >= self.frame.owner_internal
    }

    /// The instruction of a frame, from the bytes at [`FrameLayout::instruction`].
    pub(crate) fn instruction(&self, word: u64) -> u64 {
        match self.frame.instruction_is {
            INSTRUCTION_ADDRESS => word,
            // 32 bits, signed.
            _ => i64::from(word as u32 as i32) as u64,
        }
    }
}
