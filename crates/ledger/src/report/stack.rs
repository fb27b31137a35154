//! A stack in answers: its frames, or a word that says why there are none.

use std::sync::Arc;

/// The thread ran no Python code.
const NO_PYTHON: &str = "no_python";

/// Words for the reasons why there is no stack. The index of a word is the number of the reason in `state::stacks`.
pub(crate) const MISSING: [&str; 7] = [
    "not_taken",
    NO_PYTHON,
    "unreadable",
    "busy",
    "lost",
    "before_attach",
    "not_sampled",
];

/// What kind of code a frame belongs to.
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
    /// What kind of code it belongs to.
    pub kind: FrameKind,
    /// Name of the function (Python: `co_name`); empty where it is not known.
    pub name: Arc<str>,
    /// Source file (Python: `co_filename`); for compiled code without line information the path of its library or
    /// program.
    pub file: Arc<str>,
    /// Line in the file, from 1; 0 where it is not known.
    pub line: u32,
}

impl Frame {
    /// Whether it belongs to the program itself: Python code that is neither in an installed package nor in Python's own library.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.kind == FrameKind::Python
            && self.line > 0
            && memscope_units::is_own(&self.name, &self.file)
    }
}

/// The words that [`Stack::missing`] can be.
#[must_use]
pub fn missing_words() -> &'static [&'static str] {
    &MISSING
}

/// A stack with the names of its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Frames, innermost first. If there are none, `missing` says why.
    pub frames: Vec<Frame>,
    /// Outer frames were cut off, or a frame in the middle could not be read.
    pub truncated: bool,
    /// Why there are no frames: one of [`missing_words`], which do not change between versions.
    pub missing: Option<&'static str>,
}

impl Stack {
    /// Whether the thread ran Python code; `None` where that was not seen.
    #[must_use]
    pub fn ran_python(&self) -> Option<bool> {
        if self.frames.is_empty() {
            return (self.missing == Some(NO_PYTHON)).then_some(false);
        }
        let mut kinds = self.frames.iter().map(|frame| frame.kind);
        Some(kinds.any(|kind| kind == FrameKind::Python))
    }
}
