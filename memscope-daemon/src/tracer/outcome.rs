//! How a reading ended, as the reading thread reports it to the tracer.

use memscope_proto::v1::BaselineRead;
use memscope_structure::Layout;

/// How a reading ended.
#[derive(Debug)]
pub enum ReadingOutcome {
    /// The ledger has accepted the reading.
    Taken {
        /// Where the structures lie, so that the next reading is faster.
        layout: Layout,
        /// Sums of what was found, and what the reading cost.
        found: BaselineRead,
        /// The structures are known to be no copy of the parent's: when the process was forked, its parent held nothing.
        is_own: bool,
    },
    /// The process does not hold anything yet from which a layout could be learned.
    NothingYet {
        /// See [`ReadingOutcome::Taken`].
        is_own: bool,
    },
    /// The structures are a copy of the parent's, which holds the memory.
    Copied {
        /// Process id of the parent.
        parent: u32,
    },
    /// They were a copy before, and nothing has shown that they are not: the parent may have given its memory back since, or have ended.
    StillCopied,
    /// There is no reading.
    Failed {
        /// The reason with its causes, as coverage notes show it.
        why: String,
        /// The layout, if it was found: the next attempt begins with it.
        layout: Option<Layout>,
    },
}
