//! Code objects, which give a frame its name, and say which line an instruction belongs to.

use std::io;

use memscope_memory::Memory;

use crate::layout::{INSTRUCTION_ADDRESS, INSTRUCTION_UNITS, LINES_LOCATIONS, Layout, NONE};
use crate::lines::{LineRange, LineRanges};
use crate::text::{self, Shape, Text, part};

/// Largest number of characters that are read of a name.
pub const MAX_TEXT: usize = 4096;
/// Largest number of bytes that are read of a table of lines: enough for some 20,000 lines of one function. A program can give each of
/// its code objects as long a table as it likes.
pub const MAX_LINES: usize = 1 << 16;

/// A code object, read from a process or decoded from captured bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Address of the object in the process.
    pub address: u64,
    /// `co_filename`.
    pub file_name: Text,
    /// `co_name`, which is the name that PyTorch's recorder shows.
    pub name: Text,
    /// `co_qualname`, from 3.11 on.
    pub qualified_name: Option<Text>,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// The table of lines, of the form [`Code::lines_are`].
    pub lines: Vec<u8>,
    /// Form of the table of lines: `LINES_*` (see [`crate::layout`]).
    pub lines_are: u32,
    /// Whether `lines` is only the beginning of the table. Instructions after its end have no known line.
    pub lines_truncated: bool,
    /// Address at which the instructions begin; 0 before 3.11, where a frame has the offset of its instruction.
    pub first_instruction: u64,
    /// Size of the instructions in bytes, where the object says it (from 3.11 on).
    pub length: Option<u64>,
    /// Offset in bytes of the first instruction that is the function's own; 0 before 3.11.
    pub first_traceable: u64,
    /// Form in which a frame stores its instruction: `INSTRUCTION_*` (see [`crate::layout`]).
    pub instruction_is: u32,
    owner_generator: u32,
}

/// Captured bytes from which a code object can be decoded without its process.
#[derive(Clone, Copy, Debug)]
pub struct RawCode<'a> {
    /// Address that the object had in the process.
    pub address: u64,
    /// The object itself: at least [`crate::CodeLayout::size`] bytes.
    pub object: &'a [u8],
    /// The string object to which [`crate::CodeLayout::file_name`] leads, with its characters. It may be truncated.
    pub file_name: &'a [u8],
    /// The same for the function's name.
    pub name: &'a [u8],
    /// The same for the qualified name, if it was captured.
    pub qualified_name: Option<&'a [u8]>,
    /// The bytes object to which [`crate::CodeLayout::lines`] leads, with its header. It may be truncated.
    pub lines: &'a [u8],
}

/// Why a code object could not be read or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// A part of the object could not be read.
    #[error("{what} at {address:#x} cannot be read")]
    Read {
        /// The part, in words for the message (`the name`).
        what: &'static str,
        /// Address at which it should be.
        address: u64,
        /// Error from reading.
        #[source]
        source: io::Error,
    },
    /// A part is not what it should be: the code object was freed, or there never was one at this address.
    #[error("{what} of the code object at {address:#x} is none")]
    Malformed {
        /// The part, in words for the message (`the name`).
        what: &'static str,
        /// Address of the code object.
        address: u64,
    },
}

const FILE_NAME: &str = "the file name";
const NAME: &str = "the name";
const QUALIFIED_NAME: &str = "the qualified name";
const LINES: &str = "the table of lines";

/// The fields of the object itself; names and the table of lines as addresses.
struct Fields {
    first_line: i32,
    file_name: u64,
    name: u64,
    qualified_name: u64,
    lines: u64,
    first_traceable: u64,
    length: Option<u64>,
}

impl Fields {
    fn read(layout: &Layout, object: &[u8]) -> Option<Fields> {
        let code = &layout.code;
        let word = |at| part(object, at).map(u64::from_le_bytes);
        let number = |at| part(object, at).map(i32::from_le_bytes);
        let units = |units: u64| units.checked_mul(u64::from(code.unit));
        Some(Fields {
            first_line: number(code.first_line)?,
            file_name: word(code.file_name)?,
            name: word(code.name)?,
            qualified_name: match code.qualified_name {
                NONE => 0,
                at => word(at)?,
            },
            lines: word(code.lines)?,
            first_traceable: match code.first_traceable {
                NONE => 0,
                at => units(u64::try_from(number(at)?).ok()?)?,
            },
            length: match code.units {
                NONE => None,
                at => Some(units(word(at)?)?),
            },
        })
    }
}

/// Reads a code object. Any memory can be read: what is read is limited, and damage gives an error. The caller must
/// know whether the object at this address is still the one that a frame referred to.
pub fn read_code<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    address: u64,
) -> Result<Code, CodeError> {
    let mut object = vec![0; layout.code.size as usize];
    read(memory, "the code object", address, &mut object)?;
    let fields = Fields::read(layout, &object).ok_or(CodeError::Malformed {
        what: "the header",
        address,
    })?;
    let file_name = read_text(memory, layout, FILE_NAME, fields.file_name, address)?;
    let name = read_text(memory, layout, NAME, fields.name, address)?;
    let qualified_name = match layout.code.qualified_name {
        NONE => None,
        _ => Some(read_text(
            memory,
            layout,
            QUALIFIED_NAME,
            fields.qualified_name,
            address,
        )?),
    };
    let mut header = vec![0; layout.bytes.data as usize];
    read(memory, LINES, fields.lines, &mut header)?;
    let length = lines_length(layout, &header).ok_or(CodeError::Malformed {
        what: LINES,
        address,
    })?;
    let kept = usize::try_from(length).map_or(MAX_LINES, |length| length.min(MAX_LINES));
    let mut lines = vec![0; kept];
    let data = fields.lines.wrapping_add(u64::from(layout.bytes.data));
    read(memory, LINES, data, &mut lines)?;
    Ok(Code::new(
        layout,
        address,
        &fields,
        file_name,
        name,
        qualified_name,
        (lines, (kept as u64) < length),
    ))
}

fn read<M: Memory + ?Sized>(
    memory: &M,
    what: &'static str,
    address: u64,
    buffer: &mut [u8],
) -> Result<(), CodeError> {
    memory
        .read(address, buffer)
        .map_err(|source| CodeError::Read {
            what,
            address,
            source,
        })
}

/// Reads the string object at this address, at most [`MAX_TEXT`] characters of it.
pub fn read_string<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    address: u64,
) -> Result<Text, CodeError> {
    read_text(memory, layout, "a string", address, address)
}

fn read_text<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    what: &'static str,
    at: u64,
    address: u64,
) -> Result<Text, CodeError> {
    let malformed = CodeError::Malformed { what, address };
    let mut header = vec![0; header_size(layout)];
    read(memory, what, at, &mut header)?;
    let Some(shape) = text::shape(&layout.text, &header) else {
        return Err(malformed);
    };
    let data = match shape.data {
        Some(offset) => at.wrapping_add(u64::from(offset)),
        None => memory
            .read_u64(at.wrapping_add(u64::from(layout.text.data_pointer)))
            .map_err(|source| CodeError::Read {
                what,
                address: at,
                source,
            })?,
    };
    let characters = usize::try_from(shape.length).map_or(MAX_TEXT, |length| length.min(MAX_TEXT));
    let mut bytes = vec![0; characters * shape.width as usize];
    read(memory, what, data, &mut bytes)?;
    Ok(text::decode(shape, &bytes))
}

/// Number of bytes, from the beginning of a string object, that contain its length and state.
fn header_size(layout: &Layout) -> usize {
    (layout.text.length + 8).max(layout.text.state + 4) as usize
}

fn lines_length(layout: &Layout, header: &[u8]) -> Option<u64> {
    part(header, layout.bytes.length)
        .map(u64::from_le_bytes)
        .filter(|length| *length <= i64::MAX as u64)
}

impl Code {
    /// Decodes a code object from captured bytes, without its process.
    pub fn decode(layout: &Layout, raw: &RawCode<'_>) -> Result<Code, CodeError> {
        let address = raw.address;
        let malformed = |what| CodeError::Malformed { what, address };
        let fields = Fields::read(layout, raw.object).ok_or_else(|| malformed("the header"))?;
        let text = |what, object: &[u8]| -> Result<Text, CodeError> {
            let shape: Shape = text::shape(&layout.text, object).ok_or_else(|| malformed(what))?;
            // Characters outside of the string object were not captured.
            let data = shape.data.ok_or_else(|| malformed(what))?;
            let bytes = object.get(data as usize..).unwrap_or_default();
            Ok(text::decode(shape, bytes))
        };
        let length = lines_length(layout, raw.lines).ok_or_else(|| malformed(LINES))?;
        let lines = raw
            .lines
            .get(layout.bytes.data as usize..)
            .unwrap_or_default();
        let kept = usize::try_from(length).map_or(lines.len(), |length| length.min(lines.len()));
        Ok(Code::new(
            layout,
            address,
            &fields,
            text(FILE_NAME, raw.file_name)?,
            text(NAME, raw.name)?,
            match raw.qualified_name {
                Some(object) if layout.code.qualified_name != NONE => {
                    Some(text(QUALIFIED_NAME, object)?)
                }
                _ => None,
            },
            (lines[..kept].to_vec(), (kept as u64) < length),
        ))
    }

    fn new(
        layout: &Layout,
        address: u64,
        fields: &Fields,
        file_name: Text,
        name: Text,
        qualified_name: Option<Text>,
        (mut lines, lines_truncated): (Vec<u8>, bool),
    ) -> Code {
        if lines_truncated && layout.code.lines_are == LINES_LOCATIONS {
            // The last entry may lack bytes and then give a wrong line, so it is removed.
            let last = lines.iter().rposition(|byte| byte & 0x80 != 0);
            lines.truncate(last.unwrap_or(0));
        }
        Code {
            address,
            file_name,
            name,
            qualified_name,
            first_line: fields.first_line,
            lines,
            lines_are: layout.code.lines_are,
            lines_truncated,
            first_instruction: match layout.code.instructions {
                NONE => 0,
                offset => address.wrapping_add(u64::from(offset)),
            },
            length: fields.length,
            first_traceable: fields.first_traceable,
            instruction_is: layout.frame.instruction_is,
            owner_generator: layout.frame.owner_generator,
        }
    }

    /// The offset of a frame's instruction from the first one, in bytes; negative before the first.
    pub fn last_instruction(&self, instruction: u64) -> i64 {
        match self.instruction_is {
            INSTRUCTION_ADDRESS => instruction.wrapping_sub(self.first_instruction) as i64,
            INSTRUCTION_UNITS if (instruction as i64) >= 0 => {
                (instruction as i64).saturating_mul(2)
            }
            _ => instruction as i64,
        }
    }

    /// Whether the instruction may belong to this code object: it is one unit before the first (nothing was executed
    /// yet), or from the first to the last. If the object does not say its length, every instruction may belong to it.
    pub fn contains(&self, instruction: u64) -> bool {
        let at = self.last_instruction(instruction);
        match self.length {
            Some(length) => at == -2 || u64::try_from(at).is_ok_and(|at| at < length),
            None => true,
        }
    }

    /// Whether the frame has reached its function's own instructions. Before that it is still being made: Python does
    /// not show it, and we must not either.
    pub fn is_entered(&self, instruction: u64, owner: u8) -> bool {
        self.first_traceable == 0
            || u32::from(owner) == self.owner_generator
            || self.last_instruction(instruction)
                >= i64::try_from(self.first_traceable).unwrap_or(i64::MAX)
    }

    /// The line of a frame's instruction. It is the line that `PyCode_Addr2Line` returns, which PyTorch calls; `None`
    /// where that returns −1, because the instruction has no line.
    pub fn line(&self, instruction: u64) -> Option<u32> {
        let Ok(at) = u64::try_from(self.last_instruction(instruction)) else {
            return u32::try_from(self.first_line).ok();
        };
        self.line_ranges()
            .find(|range| at < range.end)
            .and_then(|range| range.line)
    }

    /// All ranges of instructions with their lines; the offsets are in bytes from the first instruction.
    pub fn line_ranges(&self) -> impl Iterator<Item = LineRange> {
        // The open end of a truncated table has no known line.
        let open = !self.lines_truncated;
        LineRanges::new(&self.lines, self.lines_are, self.first_line)
            .filter(move |range| open || range.end != u64::MAX)
    }
}
