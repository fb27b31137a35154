//! Frames of a thread, one read after the other: the slow and plain way, as a measure for faster ones.

use std::collections::HashSet;

use memscope_memory::Memory;

use crate::layout::{
    INSTRUCTION_ADDRESS, KIND_CFRAME, KIND_CURRENT_FRAME, KIND_FRAME_OBJECT, Layout, NONE,
};
use crate::text::part;
use crate::thread::at;

/// No stack is followed further.
pub const MAX_FRAMES: usize = 1024;

/// One frame, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawFrame {
    /// Its own address.
    pub frame: u64,
    /// Its code object.
    pub code: u64,
    /// Its instruction: see [`crate::FrameLayout::instruction_is`]. [`crate::Code`] makes a line of it.
    pub instruction: u64,
    /// Whose it is; 0 before 3.11.
    pub owner: u8,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// At the outermost frame.
    Outermost,
    /// After [`MAX_FRAMES`].
    Limit,
    /// At a frame that was seen before: the chain is damaged, or changed while it was read.
    Cycle,
    /// At memory that cannot be read.
    Unreadable {
        /// Where.
        address: u64,
    },
}

/// The frames of a thread, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Without the interpreter's own, but with those that [`crate::Code::is_entered`] refuses.
    pub frames: Vec<RawFrame>,
    /// Whether that is all of them.
    pub end: End,
}

/// Follows the frames of a thread state. Total on any memory: it ends, and says how.
pub(crate) fn walk<M: Memory + ?Sized>(memory: &M, layout: &Layout, state: u64) -> Walk {
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

/// A frame from its bytes ([`crate::FrameLayout::size`] of them), with the address of the one that called it.
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

/// The innermost frame of a thread state, 0 for none; or what could not be read.
fn innermost<M: Memory + ?Sized>(memory: &M, layout: &Layout, state: u64) -> Result<u64, u64> {
    let read = |address: u64| memory.read_u64(address).map_err(|_| address);
    let first = read(at(state, layout.thread.frame))?;
    match layout.kind {
        KIND_FRAME_OBJECT | KIND_CURRENT_FRAME => Ok(first),
        KIND_CFRAME => read(at(first, layout.thread.cframe_frame)),
        _ => Err(state),
    }
}
