//! Names for the code objects in Python stacks: read from the process, or from what the programs kept of a code
//! object that died. Also the interpreter's layout in the form that the programs use.

use std::io;

use memscope_common::{
    CODE_OBJECT, ENTRY_ALWAYS, ENTRY_INTERNAL, FRAME_BYTES, PYTHON_CFRAME, PYTHON_CURRENT_FRAME,
    PYTHON_FRAME_OBJECTS, PythonEntry, THREAD_STATE_BYTES,
};
use memscope_ledger::event::CodeName;
use memscope_log::records::DyingCode;
use memscope_python::layout::{KIND_CFRAME, KIND_CURRENT_FRAME, KIND_FRAME_OBJECT, Layout, NONE};
use memscope_python::{Code, Interpreter, RawCode};

use crate::works::{Hurried, name};

/// Why the programs cannot walk an interpreter whose layout is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitLayout {
    /// A field lies beyond the bytes that the programs read.
    #[error("{what} of this interpreter lies at {at}, beyond the {most} bytes that are read")]
    TooFar {
        /// The field, in words for the message.
        what: &'static str,
        /// Offset of the field, in bytes.
        at: u32,
        /// Number of bytes that the programs read.
        most: usize,
    },
    /// The programs do not know layouts of this kind.
    #[error("frames of kind {0} are not known")]
    Kind(u32),
}

fn within(what: &'static str, at: u32, most: usize) -> Result<u32, UnfitLayout> {
    if at == NONE {
        return Ok(0);
    }
    if at as usize + 8 > most {
        return Err(UnfitLayout::TooFar { what, at, most });
    }
    Ok(at)
}

/// Converts an interpreter's layout into the form that the programs use.
pub fn entry(interpreter: &Interpreter) -> Result<PythonEntry, UnfitLayout> {
    let Layout {
        thread,
        frame,
        code,
        kind,
        ..
    } = &interpreter.layout;
    let kind = match *kind {
        KIND_FRAME_OBJECT => PYTHON_FRAME_OBJECTS,
        KIND_CFRAME => PYTHON_CFRAME,
        KIND_CURRENT_FRAME => PYTHON_CURRENT_FRAME,
        other => return Err(UnfitLayout::Kind(other)),
    };
    let path = interpreter.thread_state.path();
    let state = |what, at| within(what, at, THREAD_STATE_BYTES);
    let field = |what, at| within(what, at, FRAME_BYTES);
    if frame.size as usize > FRAME_BYTES {
        return Err(UnfitLayout::TooFar {
            what: "the end of a frame's fields",
            at: frame.size,
            most: FRAME_BYTES,
        });
    }
    if code.size as usize > CODE_OBJECT {
        return Err(UnfitLayout::TooFar {
            what: "the end of a code object's fields",
            at: code.size,
            most: CODE_OBJECT,
        });
    }
    let tstate_frame = state("a thread state's frame", thread.frame)?;
    let tstate_chunk = state("a thread state's data stack", thread.chunk)?;
    Ok(PythonEntry {
        kind,
        tls_reads: path.reads,
        tls_offsets: path.offsets,
        tstate_frame,
        tstate_chunk,
        cframe_frame: if thread.cframe_frame == NONE {
            0
        } else {
            thread.cframe_frame
        },
        frame_code: field("a frame's code object", frame.code)?,
        frame_previous: field("a frame's caller", frame.previous)?,
        frame_instruction: field("a frame's instruction", frame.instruction)?,
        frame_owner: if frame.owner == NONE { 0 } else { frame.owner },
        owner_internal: if frame.owner == NONE {
            256
        } else {
            frame.owner_internal.min(256)
        },
        code_tags: u64::from(frame.code_tags),
        code_size: code.size,
        code_filename: code.file_name,
        code_name: code.name,
        code_line_table: code.lines,
        frame_bytes: frame.size,
        frame_entry: match kind {
            PYTHON_FRAME_OBJECTS => ENTRY_ALWAYS,
            // 3.11 has no frames of its own on the stack. It marks the first frame of a call in the byte before the
            // owner's.
            PYTHON_CFRAME if frame.owner != NONE && interpreter.version.minor == 11 => {
                field("a frame's entry", frame.owner)?.saturating_sub(1)
            }
            _ => ENTRY_INTERNAL,
        },
        tstate_bytes: tstate_frame.max(tstate_chunk) + 8,
        reserved: 0,
    })
}

/// Most code objects of which the names are asked for at once.
const AT_ONCE: usize = 4096;

/// Finds the names of the code objects of one process.
#[derive(Debug)]
pub struct Names {
    memory: Hurried,
    interpreter: Interpreter,
}

impl Names {
    /// Opens the memory of a process with this interpreter.
    pub fn open(pid: u32, interpreter: Interpreter) -> Result<Names, memscope_site::SiteError> {
        Ok(Names {
            memory: Hurried::open(pid)
                .map_err(|source| memscope_site::SiteError::memory(pid, source))?,
            interpreter,
        })
    }

    /// Reads code objects, of which those that cannot be read are left out. The caller must know whether the objects at these addresses were
    /// still the same ones. Also returns whether all could be asked for; the process may be held up, and answer later.
    pub fn read(&self, codes: &[u64]) -> (Vec<CodeName>, bool) {
        let (mut names, mut all_asked) = (Vec::new(), true);
        for some in codes.chunks(AT_ONCE) {
            match self.memory.names(self.interpreter.codes(), some) {
                Ok(read) => names.extend(read.into_iter().flatten()),
                Err(error) => {
                    tracing::debug!(%error, "code objects were not read");
                    // An answer that makes no sense makes none later either.
                    all_asked &= error.kind() == io::ErrorKind::InvalidData;
                }
            }
        }
        (names, all_asked)
    }

    /// Makes a name from what the programs kept of a code object that died with the event of this number.
    pub fn decode(&self, dying: &DyingCode<'_>, event: u64) -> Option<CodeName> {
        let raw = RawCode {
            address: dying.code,
            object: dying.object?,
            file_name: dying.filename?,
            name: dying.name?,
            qualified_name: None,
            lines: dying.lines?,
        };
        let found = Code::decode(&self.interpreter.layout, &raw).ok()?;
        Some(name(&found, Some(event)))
    }
}
