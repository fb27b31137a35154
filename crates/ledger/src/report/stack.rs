//! A stack as answers have it: its frames, or the word that says why there are none.

use std::sync::Arc;

/// Why there is no stack: a word for each reason, by the number under which `state::stacks` keeps it.
pub(crate) const MISSING: [&str; 7] = [
    "not_taken",
    "no_python",
    "unreadable",
    "busy",
    "lost",
    "before_attach",
    "not_sampled",
];

/// What a frame is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// Python code.
    Python,
    /// Compiled code.
    Native,
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// What it is of.
    pub kind: FrameKind,
    /// Function (Python: `co_name`). Empty where it is not known.
    pub name: Arc<str>,
    /// Source file (Python: `co_filename`); for compiled code without line information its object's path.
    pub file: Arc<str>,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
}

impl Frame {
    /// Whether it is of the program itself: Python code in a file, and of no installed package and not of Python's own library.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let library = ["/site-packages/", "/dist-packages/", "/lib/python3"]
            .iter()
            .any(|part| self.file.contains(part));
        self.kind == FrameKind::Python && self.line > 0 && !library && !self.file.starts_with('<')
    }
}

/// The words that a stack without frames can say in `missing`.
#[must_use]
pub fn missing_words() -> &'static [&'static str] {
    &MISSING
}

/// A stack as it was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Innermost first. Empty: see `missing`.
    pub frames: Vec<Frame>,
    /// Outer frames were cut off, or a frame in the middle could not be read.
    pub truncated: bool,
    /// Why there are no frames (`no_python`, `unreadable`, `busy`, `lost`, `not_taken`), a stable word.
    pub missing: Option<&'static str>,
}
