//! What a snapshot says, whatever file it was read from.

use std::sync::Arc;

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The function's name.
    pub function: Arc<str>,
    /// Its source file, or its library.
    pub file: Arc<str>,
    /// The line; 0 if it is not known.
    pub line: u64,
}

impl Frame {
    fn is_python(&self) -> bool {
        !memscope_units::is_compiled(&self.function, &self.file, self.line)
    }

    /// Whether it belongs to the program itself: Python code that is neither in an installed package nor in Python's library.
    fn is_own(&self) -> bool {
        self.is_python() && self.line > 0 && memscope_units::is_own(&self.function, &self.file)
    }

    /// The frame as one line of text.
    pub(crate) fn text(&self) -> String {
        match self.line {
            0 => format!("{} ({})", self.function, self.file),
            line => format!("{} ({}:{line})", self.function, self.file),
        }
    }
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Handed out.
    Active,
    /// Freed by the program, and a stream may still use it.
    Pending,
    /// Free.
    Inactive,
}

/// A block. Sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Its size, rounded up by the pool.
    pub size: u64,
    /// The size that was asked for, if the file says it.
    pub requested: Option<u64>,
    /// Its state.
    pub state: State,
    /// Index of its stack in [`Picture::stacks`].
    pub stack: Option<u32>,
}

/// A segment. Its size is bytes.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of its first byte.
    pub address: u64,
    /// Number of bytes that it reserves.
    pub size: u64,
    /// Whether it can grow: then it is all that is mapped without a gap.
    pub expandable: bool,
    /// The blocks in it, handed out or free, by address.
    pub blocks: Vec<Block>,
}

/// What an entry of the trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block is free again.
    Free,
    /// The pool took a segment from the driver.
    Grow,
    /// The pool gave a segment back.
    Shrink,
    /// The pool mapped memory to a segment that can grow.
    Map,
    /// The pool took memory away from such a segment.
    Unmap,
    /// Something else, which changes no level.
    Other,
}

/// An entry of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// Where.
    pub address: u64,
    /// Bytes; of blocks those that were asked for.
    pub size: u64,
    /// When, microseconds since 1970, if the file says it.
    pub time_us: Option<u64>,
    /// Index of the stack in [`Picture::stacks`].
    pub stack: Option<u32>,
}

/// What follows from a trace. Whoever makes a picture judges that, and says why in its notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// The course of blocks and segments, and the peaks.
    #[default]
    All,
    /// The course of blocks. What was reserved before the end is not known, as at the level `blocks`.
    Blocks,
    /// Neither a course nor a peak.
    Nothing,
}

/// The trace of one device, the oldest entry first.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// The entries as the allocator recorded them, oldest first.
    pub entries: Vec<Entry>,
    /// What follows from them.
    pub known: Known,
}

/// All that a report needs of one snapshot, with each different stack once.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The segments with their blocks.
    pub segments: Vec<Segment>,
    /// The traces of the devices that have one.
    pub traces: Vec<Trace>,
    /// Stacks, innermost frame first.
    pub stacks: Vec<Arc<[Frame]>>,
    /// What limits the numbers, as the file says it.
    pub notes: Vec<String>,
}

impl Picture {
    /// The frames of a stack; none if there is no such stack.
    pub(crate) fn frames(&self, stack: Option<u32>) -> &[Frame] {
        let found = stack.and_then(|stack| self.stacks.get(stack as usize));
        found.map_or(&[], |frames| frames)
    }

    /// The traces that have entries.
    pub(crate) fn traced(&self) -> impl Iterator<Item = &Trace> {
        self.traces.iter().filter(|trace| !trace.entries.is_empty())
    }

    /// Those of them from which a course follows.
    pub(crate) fn courses(&self) -> impl Iterator<Item = &Trace> {
        self.traced().filter(|trace| trace.known != Known::Nothing)
    }

    /// The blocks that are handed out, with their device.
    pub(crate) fn active(&self) -> impl Iterator<Item = (i32, &Block)> {
        self.blocks()
            .filter(|(_, block)| block.state == State::Active)
    }

    /// All blocks, with their device.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (i32, &Block)> {
        self.segments
            .iter()
            .flat_map(|segment| segment.blocks.iter().map(|block| (segment.device, block)))
    }
}

/// The program's own line of a stack: the innermost of its own frames, else the innermost of Python, else the innermost of all.
pub(crate) fn own_line(frames: &[Frame]) -> Option<&Frame> {
    let own = frames.iter().find(|frame| frame.is_own());
    let python = || frames.iter().find(|frame| frame.is_python());
    own.or_else(python).or_else(|| frames.first())
}
