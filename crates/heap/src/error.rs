//! Why a reading of a process's objects failed.

use std::io;

/// Why there is no reading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The states of the interpreter's threads cannot be read.
    #[error("the interpreter's threads cannot be read")]
    Threads {
        /// The error of the read that failed.
        #[source]
        source: io::Error,
    },
    /// There is no dictionary with the module `__main__` in the state of the interpreter.
    #[error("the interpreter's modules were not found")]
    NoModules,
}
