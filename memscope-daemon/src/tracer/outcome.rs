//! How a reading ended, as the thread that reads tells it to the tracer.

use memscope_proto::v1::BaselineRead;
use memscope_structure::{Layout, Reader};

/// How a reading ended.
#[derive(Debug)]
pub enum ReadingOutcome {
    /// The ledger has it.
    Taken {
        /// It knows where things lie: the next reading is faster with it.
        reader: Box<Reader>,
        /// What was found.
        found: BaselineRead,
    },
    /// The process holds nothing from which a layout could be learned.
    NothingYet,
    /// There is none.
    Failed {
        /// The reason, with its causes, as coverage notes tell it.
        why: String,
        /// Where things lie, if that was found: the next attempt begins with it.
        layout: Option<Layout>,
    },
}
