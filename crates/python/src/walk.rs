//! Walks the frames of a thread by reading one after the other. This way is slow and simple; faster ones are compared
//! with it.

use std::collections::HashSet;

use memscope_memory::Memory;

use crate::layout::{
    INSTRUCTION_ADDRESS, KIND_CFRAME, KIND_CURRENT_FRAME, KIND_FRAME_OBJECT, Layout, NONE,
};
use crate::text::part;
use crate::thread::at;

/// Largest number of frames that are read of a stack.
pub const MAX_FRAMES: usize = 1024;

/// One frame, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawFrame {
    /// Address of the frame.
    pub frame: u64,
    /// Address of its code object.
    pub code: u64,
    /// Its instruction, in the form [`crate::FrameLayout::instruction_is`]. [`crate::Code::line`] gives the line.
    pub instruction: u64,
    /// Owner of the frame; 0 before 3.11.
    pub owner: u8,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// At the outermost frame.
    Outermost,
    /// After [`MAX_FRAMES`] frames.
    Limit,
    /// At a frame that was seen before: the chain is damaged, or changed while it was read.
    Cycle,
    /// At memory that cannot be read.
    Unreadable {
        /// Address that could not be read.
        address: u64,
    },
}

/// The frames of a thread, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The frames, without the interpreter's own, but with those for which [`crate::Code::is_entered`] is false.
    pub frames: Vec<RawFrame>,
    /// How the walk ended; [`End::Outermost`] if these are all frames.
    pub end: End,
}

/// Walks the frames of a thread state. On any memory the walk ends, and says how.
pub fn walk<M: Memory + ?Sized>(memory: &M, layout: &Layout, state: u64) -> Walk {
    let mut walk = Walk {
        frames: Vec::new(),
        end: End::Outermost,
    };
    let mut frame = match innermost(memory, layout, state) {
        Ok(frame) => frame,
        Err(address) => {
            walk.end = End::Unreadable { address };
            return walk;
        }
    };
    let mut seen = HashSet::new();
    let mut bytes = vec![0; layout.frame.size as usize];
    while frame != 0 {
        if !seen.insert(frame) {
            walk.end = End::Cycle;
            break;
        }
        if walk.frames.len() >= MAX_FRAMES || seen.len() > 2 * MAX_FRAMES {
            walk.end = End::Limit;
            break;
        }
        let Some((read, previous)) = memory
            .read(frame, &mut bytes)
            .ok()
            .and_then(|()| decode(layout, frame, &bytes))
        else {
            walk.end = End::Unreadable { address: frame };
            break;
        };
        if !layout.is_internal(read.owner) {
            walk.frames.push(read);
        }
        frame = previous;
    }
    walk
}

/// Decodes a frame from its bytes ([`crate::FrameLayout::size`] of them). Also returns the address of the frame that
/// called it, 0 for none. `None` if there are too few bytes.
pub fn decode(layout: &Layout, frame: u64, bytes: &[u8]) -> Option<(RawFrame, u64)> {
    let fields = &layout.frame;
    let word = |at| part(bytes, at).map(u64::from_le_bytes);
    let instruction = if fields.instruction_is == INSTRUCTION_ADDRESS {
        word(fields.instruction)?
    } else {
        u64::from(u32::from_le_bytes(part(bytes, fields.instruction)?))
    };
    let owner = match fields.owner {
        NONE => 0,
        at => part::<1>(bytes, at)?[0],
    };
    let read = RawFrame {
        frame,
        code: layout.code_address(word(fields.code)?),
        instruction: layout.instruction(instruction),
        owner,
    };
    Some((read, word(fields.previous)?))
}

/// The address of the innermost frame of a thread state, 0 for none.
///
/// # Errors
/// The address that could not be read.
fn innermost<M: Memory + ?Sized>(memory: &M, layout: &Layout, state: u64) -> Result<u64, u64> {
    let read = |address: u64| memory.read_u64(address).map_err(|_| address);
    let first = read(at(state, layout.thread.frame))?;
    match layout.kind {
        KIND_FRAME_OBJECT | KIND_CURRENT_FRAME => Ok(first),
        KIND_CFRAME => read(at(first, layout.thread.cframe_frame)),
        _ => Err(state),
    }
}
