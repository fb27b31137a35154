//! Offsets of the fields in CPython's structures, as plain numbers, for code that walks frames.

use serde::{Deserialize, Serialize};

/// Offset of a field that this version does not have.
pub const NONE: u32 = u32::MAX;

/// [`Layout::kind`] of 3.9 and 3.10: the thread state points to a `PyFrameObject`; `f_back` links the frames.
pub const KIND_FRAME_OBJECT: u32 = 1;
/// [`Layout::kind`] of 3.11 and 3.12: the thread state points to a `_PyCFrame`, and that to the current frame.
pub const KIND_CFRAME: u32 = 2;
/// [`Layout::kind`] from 3.13 on: the thread state points to the current frame.
pub const KIND_CURRENT_FRAME: u32 = 3;

/// [`FrameLayout::instruction_is`] of 3.9: the offset in bytes of the frame's last instruction (32 bits, −1 before the
/// first).
pub const INSTRUCTION_BYTES: u32 = 1;
/// [`FrameLayout::instruction_is`] of 3.10: the same offset in units of two bytes.
pub const INSTRUCTION_UNITS: u32 = 2;
/// [`FrameLayout::instruction_is`] from 3.11 on: the address of an instruction, which lies in the frame's code object.
pub const INSTRUCTION_ADDRESS: u32 = 3;

/// [`CodeLayout::lines_are`] of 3.9: `co_lnotab`.
pub const LINES_LNOTAB: u32 = 1;
/// [`CodeLayout::lines_are`] of 3.10: `co_linetable` in its first form.
pub const LINES_RANGES: u32 = 2;
/// [`CodeLayout::lines_are`] from 3.11 on: `co_linetable` as a table of locations.
pub const LINES_LOCATIONS: u32 = 3;

/// All offsets that are needed to walk frames. They are in bytes; [`NONE`] where a version has no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// How a thread state leads to its frames: `KIND_*`.
    pub kind: u32,
    /// Minor version of Python 3.
    pub minor: u32,
    /// Offsets in `_PyRuntimeState` and `PyInterpreterState`.
    pub runtime: RuntimeLayout,
    /// Offsets in `PyThreadState`.
    pub thread: ThreadLayout,
    /// Offsets in `PyFrameObject` or `_PyInterpreterFrame`.
    pub frame: FrameLayout,
    /// Offsets in `_PyStackChunk`.
    pub chunk: ChunkLayout,
    /// Offsets in `PyCodeObject`.
    pub code: CodeLayout,
    /// Offsets in `PyUnicodeObject`.
    pub text: TextLayout,
    /// Offsets in `PyBytesObject`.
    pub bytes: BytesLayout,
}

/// Offsets for the lists that lead to all thread states.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuntimeLayout {
    /// In `_PyRuntime`: pointer to the first interpreter.
    pub interpreters: u32,
    /// In an interpreter: pointer to the next one.
    pub next: u32,
    /// In an interpreter: pointer to its newest thread state.
    pub threads: u32,
    /// In `_PyRuntime`: where `autoTSSkey` ({is initialised, key}, 32 bits each) is expected. The key that is used in
    /// the end has been proven. [`NONE`] from 3.15 on.
    pub thread_key: u32,
}

/// Offsets in a thread state.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadLayout {
    /// Pointer to the next thread state of the same interpreter.
    pub next: u32,
    /// Pointer to its interpreter.
    pub interpreter: u32,
    /// The thread's `pthread_self` (64 bits), which on x86-64 equals its `fsbase`.
    pub id: u32,
    /// The kernel's number of the thread, in its own PID namespace.
    pub native_id: u32,
    /// Pointer to the frame or to the `_PyCFrame`: [`Layout::kind`] says to which.
    pub frame: u32,
    /// In the `_PyCFrame`: pointer to the current frame.
    pub cframe_frame: u32,
    /// Pointer to the newest piece of the data stack.
    pub chunk: u32,
}

/// Offsets in a frame, and how its fields are to be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FrameLayout {
    /// Number of bytes, from the beginning of a frame, that contain all fields named here.
    pub size: u32,
    /// Pointer to the code object, with tags in the bits [`FrameLayout::code_tags`].
    pub code: u32,
    /// Bits of that word that must be cleared to get the pointer.
    pub code_tags: u32,
    /// Pointer to the frame that called this one, 0 for none. From 3.11 on it also leads across calls of C functions.
    pub previous: u32,
    /// The frame's instruction.
    pub instruction: u32,
    /// Form in which the instruction is stored: `INSTRUCTION_*`.
    pub instruction_is: u32,
    /// Owner of the frame: 8 bits.
    pub owner: u32,
    /// Value of the owner for the frames of generators: these also exist while they are suspended, and are complete
    /// from the beginning.
    pub owner_generator: u32,
    /// Frames whose owner has this value or a higher one are the interpreter's own, and must be skipped.
    pub owner_internal: u32,
    /// Beginning of the local variables. [`NONE`] for 3.9 and 3.10, where they are the last word of the frame object's fixed part.
    pub locals: u32,
}

/// Offsets in a piece of the data stack, on which most frames lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkLayout {
    /// Pointer to the piece below.
    pub previous: u32,
    /// Size of the piece in bytes, header included.
    pub size: u32,
    /// Beginning of the data.
    pub data: u32,
}

/// Offsets in a code object, and how its fields are to be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeLayout {
    /// Number of bytes, from the beginning of a code object, that contain all fields named here.
    pub size: u32,
    /// Pointer to the object's type.
    pub object_type: u32,
    /// Number of code units (64 bits); [`NONE`] before 3.11.
    pub units: u32,
    /// Size of a code unit in bytes (a size, not an offset).
    pub unit: u32,
    /// Line of the `def`: 32 bits, signed.
    pub first_line: u32,
    /// Pointer to the name of the file.
    pub file_name: u32,
    /// Pointer to the name of the function.
    pub name: u32,
    /// Pointer to the qualified name (`Class.method`); [`NONE`] before 3.11.
    pub qualified_name: u32,
    /// Pointer to the bytes object with the table of lines.
    pub lines: u32,
    /// Form of the table of lines: `LINES_*`.
    pub lines_are: u32,
    /// Index of the first instruction that is the function's own (32 bits). While a frame is at an earlier instruction
    /// it is still being made, and Python does not show it. [`NONE`] before 3.11.
    pub first_traceable: u32,
    /// Beginning of the instructions; [`NONE`] before 3.11.
    pub instructions: u32,
}

/// Offsets in a string object, and how its state is to be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TextLayout {
    /// Number of characters: 64 bits.
    pub length: u32,
    /// The state: 32 bits.
    pub state: u32,
    /// Position, in the state, of the three bits that give the bytes of one character (1, 2 or 4).
    pub kind_shift: u32,
    /// Bit of the state that says that the characters follow the header.
    pub compact: u32,
    /// Bit of the state that says that all characters are ASCII.
    pub ascii: u32,
    /// Beginning of the characters of a compact string that is ASCII.
    pub ascii_data: u32,
    /// Beginning of the characters of a compact string that is not ASCII.
    pub compact_data: u32,
    /// Pointer to the characters of a string that is not compact.
    pub data_pointer: u32,
}

/// Offsets in a bytes object.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BytesLayout {
    /// Number of bytes: 64 bits.
    pub length: u32,
    /// Beginning of the bytes.
    pub data: u32,
}

impl Layout {
    /// The address of the code object, from the word at [`FrameLayout::code`].
    pub fn code_address(&self, word: u64) -> u64 {
        word & !u64::from(self.frame.code_tags)
    }

    /// Whether a frame of this owner is the interpreter's own, which stands for no Python code.
    pub fn is_internal(&self, owner: u8) -> bool {
        u32::from(owner) >= self.frame.owner_internal
    }

    /// The instruction of a frame, from the bytes at [`FrameLayout::instruction`].
    pub(crate) fn instruction(&self, word: u64) -> u64 {
        match self.frame.instruction_is {
            INSTRUCTION_ADDRESS => word,
            // Before 3.11 it is a signed number of 32 bits.
            _ => i64::from(word as u32 as i32) as u64,
        }
    }
}
