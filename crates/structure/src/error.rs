//! Why there is no reading.

use std::io;

/// Why a layout or a reading was not found. Never a half answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// There is nothing that a layout could be learned from: ask again when the process has
    /// allocated.
    #[error("nothing to find yet: {what}")]
    NothingYet {
        /// What is missing.
        what: &'static str,
    },
    /// The structures do not look like any that we can recognise.
    #[error("layout not found: {what}")]
    LayoutNotFound {
        /// What was not found.
        what: String,
    },
    /// The process changed its state in every attempt.
    #[error("raced {attempts} times, lastly: {last}")]
    Raced {
        /// How often it was tried.
        attempts: u32,
        /// What did not fit in the last attempt.
        last: String,
    },
    /// The process stood still and yet the structures do not agree with the allocator's own totals: the layout is
    /// not (or no longer) right. Find it again.
    #[error("the structures contradict the allocator's own numbers: {what}")]
    Contradicted {
        /// What contradicts what.
        what: String,
    },
    /// Memory that must be there cannot be read: the process ended, or refuses.
    #[error("{what} at {address:#x} cannot be read")]
    Unreadable {
        /// What was to be read.
        what: &'static str,
        /// Where.
        address: u64,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}
