//! Errors of the search for a layout and of readings.

use std::io;

/// Why no layout was found or no reading was made. There are no partial results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// There is nothing yet from which a layout could be found. Try again when the process has allocated.
    #[error("nothing to find yet: {what}")]
    NothingYet {
        /// What is missing, in words.
        what: &'static str,
    },
    /// The structures do not look like any that this reader recognises.
    #[error("layout not found: {what}")]
    LayoutNotFound {
        /// What was not found, in words.
        what: String,
    },
    /// The process changed its state during every attempt.
    #[error("raced {attempts} times, lastly: {last}")]
    Raced {
        /// Number of attempts.
        attempts: u32,
        /// What did not fit in the last attempt, in words.
        last: String,
    },
    /// The process did not change anything, and yet the structures do not agree with the allocator's own totals. So the
    /// layout is not right, or not any more. Find it again.
    #[error("the structures contradict the allocator's own numbers: {what}")]
    Contradicted {
        /// The contradiction, in words.
        what: String,
    },
    /// Memory that must exist cannot be read: the process has ended, or access is not permitted.
    #[error("{what} at {address:#x} cannot be read")]
    Unreadable {
        /// What was to be read, in words.
        what: &'static str,
        /// Address of the memory in the traced process.
        address: u64,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
}
