//! Layouts of CPython 3.9 to 3.12, which do not describe themselves, and the few numbers that later versions leave out
//! of their description.
//!
//! The numbers were computed with `offsetof` by a C compiler from the headers of CPython 3.9.18, 3.10.13, 3.11.7,
//! 3.12.1, 3.13.0, 3.13.18, 3.14.10 and 3.15.2 (x86-64, no debug build, with the GIL). They are not trusted: everything
//! that can be checked in the running process is checked there before any frame is walked (see `prove`).

use crate::layout::{
    BytesLayout, ChunkLayout, CodeLayout, FrameLayout, INSTRUCTION_ADDRESS, INSTRUCTION_BYTES,
    INSTRUCTION_UNITS, KIND_CFRAME, KIND_FRAME_OBJECT, LINES_LNOTAB, LINES_LOCATIONS, LINES_RANGES,
    Layout, NONE, RuntimeLayout, TextLayout, ThreadLayout,
};

/// Owner of a generator's frame: `FRAME_OWNED_BY_GENERATOR`, from 3.11 on.
pub(crate) const OWNER_GENERATOR: u32 = 1;
/// The lowest owner that stands for the interpreter itself: `FRAME_OWNED_BY_CSTACK` in 3.12 and 3.13,
/// `FRAME_OWNED_BY_INTERPRETER` from 3.14 on.
pub(crate) const OWNER_INTERNAL: u32 = 3;
/// Number of bytes by which `_co_firsttraceable` stands before `co_code_adaptive`, from 3.11 on.
pub(crate) const TRACEABLE_BEFORE_CODE: u32 = 16;
/// `sizeof(_Py_CODEUNIT)`.
pub(crate) const UNIT: u32 = 2;

/// Layout of `_PyStackChunk`, which has never changed.
pub(crate) const CHUNK: ChunkLayout = ChunkLayout {
    previous: 0,
    size: 8,
    data: 24,
};

/// Offset of `_PyRuntime.autoTSSkey` in versions that describe themselves, because their description lacks it.
pub(crate) fn thread_key(minor: u8) -> u32 {
    match minor {
        13 => 2160,
        14 => 2336,
        _ => NONE,
    }
}

/// Layout of a string whose characters begin at these offsets. The bits of `PyASCIIObject.state` are the same in all
/// versions.
pub(crate) fn text(ascii_data: u32, compact_data: u32) -> TextLayout {
    TextLayout {
        length: 16,
        state: 32,
        kind_shift: 2,
        compact: 0x20,
        ascii: 0x40,
        ascii_data,
        compact_data,
        data_pointer: compact_data,
    }
}

const BYTES: BytesLayout = BytesLayout {
    length: 16,
    data: 32,
};

/// The layout of CPython 3.`minor`, if it is a version that does not describe itself (3.9 to 3.12); else `None`.
pub fn layout(minor: u8) -> Option<Layout> {
    match minor {
        9 => Some(linked(9, 104, INSTRUCTION_BYTES, LINES_LNOTAB)),
        10 => Some(linked(10, 96, INSTRUCTION_UNITS, LINES_RANGES)),
        11 => Some(PYTHON_3_11),
        12 => Some(PYTHON_3_12),
        _ => None,
    }
}

/// The layout of 3.9 and 3.10.
const fn linked(minor: u32, instruction: u32, instruction_is: u32, lines_are: u32) -> Layout {
    Layout {
        kind: KIND_FRAME_OBJECT,
        minor,
        runtime: RuntimeLayout {
            interpreters: 32,
            next: 0,
            threads: 8,
            thread_key: 584,
        },
        thread: ThreadLayout {
            next: 8,
            interpreter: 16,
            id: 176,
            native_id: NONE,
            frame: 24,
            cframe_frame: NONE,
            chunk: NONE,
        },
        frame: FrameLayout {
            size: instruction + 8,
            code: 32,
            code_tags: 0,
            previous: 24,
            instruction,
            instruction_is,
            owner: NONE,
            owner_generator: NONE,
            owner_internal: NONE,
            locals: NONE,
        },
        chunk: ChunkLayout {
            previous: NONE,
            size: NONE,
            data: NONE,
        },
        code: CodeLayout {
            size: 128,
            object_type: 8,
            units: NONE,
            unit: UNIT,
            first_line: 40,
            file_name: 104,
            name: 112,
            qualified_name: NONE,
            lines: 120,
            lines_are,
            first_traceable: NONE,
            instructions: NONE,
        },
        text: WIDE_TEXT,
        bytes: BYTES,
    }
}

/// Layout of strings up to 3.11, when a string could also have a `wchar_t` form.
const WIDE_TEXT: TextLayout = TextLayout {
    length: 16,
    state: 32,
    kind_shift: 2,
    compact: 0x20,
    ascii: 0x40,
    ascii_data: 48,
    compact_data: 72,
    data_pointer: 72,
};

const PYTHON_3_11: Layout = Layout {
    kind: KIND_CFRAME,
    minor: 11,
    runtime: RuntimeLayout {
        interpreters: 40,
        next: 0,
        threads: 16,
        thread_key: 592,
    },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        id: 152,
        native_id: 160,
        frame: 56,
        cframe_frame: 8,
        chunk: 296,
    },
    frame: FrameLayout {
        size: 72,
        code: 32,
        code_tags: 0,
        previous: 48,
        instruction: 56,
        instruction_is: INSTRUCTION_ADDRESS,
        owner: 69,
        owner_generator: OWNER_GENERATOR,
        owner_internal: OWNER_INTERNAL,
        locals: 72,
    },
    chunk: CHUNK,
    code: CodeLayout {
        size: 184,
        object_type: 8,
        units: 16,
        unit: UNIT,
        first_line: 72,
        file_name: 112,
        name: 120,
        qualified_name: 128,
        lines: 136,
        lines_are: LINES_LOCATIONS,
        first_traceable: 168,
        instructions: 184,
    },
    text: WIDE_TEXT,
    bytes: BYTES,
};

const PYTHON_3_12: Layout = Layout {
    kind: KIND_CFRAME,
    minor: 12,
    runtime: RuntimeLayout {
        interpreters: 40,
        next: 0,
        threads: 72,
        thread_key: 1544,
    },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        id: 136,
        native_id: 144,
        frame: 56,
        cframe_frame: 0,
        chunk: 232,
    },
    frame: FrameLayout {
        size: 72,
        code: 0,
        code_tags: 0,
        previous: 8,
        instruction: 56,
        instruction_is: INSTRUCTION_ADDRESS,
        owner: 70,
        owner_generator: OWNER_GENERATOR,
        owner_internal: OWNER_INTERNAL,
        locals: 72,
    },
    chunk: CHUNK,
    code: CodeLayout {
        size: 192,
        object_type: 8,
        units: 16,
        unit: UNIT,
        first_line: 68,
        file_name: 112,
        name: 120,
        qualified_name: 128,
        lines: 136,
        lines_are: LINES_LOCATIONS,
        first_traceable: 176,
        instructions: 192,
    },
    text: TextLayout {
        length: 16,
        state: 32,
        kind_shift: 2,
        compact: 0x20,
        ascii: 0x40,
        ascii_data: 40,
        compact_data: 56,
        data_pointer: 56,
    },
    bytes: BYTES,
};
