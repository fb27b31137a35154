//! Why no interpreter was found.

use std::io;

use memscope_site::SiteError;
use memscope_site::elf::ElfError;
use memscope_site::mapped::OpenError;

use crate::version::Version;

/// Why a process's interpreter cannot be walked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PythonError {
    /// The process could not be looked at.
    #[error(transparent)]
    Process(#[from] SiteError),
    /// Nothing mapped is a CPython.
    #[error("the process has no Python interpreter mapped")]
    NoInterpreter,
    /// A file that looks like an interpreter could not be opened.
    #[error("{path} looks like a Python interpreter and cannot be opened")]
    Open {
        /// As the process sees it.
        path: String,
        /// Why not.
        #[source]
        source: OpenError,
    },
    /// A file that looks like an interpreter is no ELF file that we can read.
    #[error("{path} looks like a Python interpreter and cannot be read")]
    File {
        /// As the process sees it.
        path: String,
        /// Why not.
        #[source]
        source: ElfError,
    },
    /// What would lead to the interpreter's state was removed from the file.
    #[error("{path} is a stripped Python interpreter: it lacks {missing}")]
    Stripped {
        /// As the process sees it.
        path: String,
        /// What was looked for.
        missing: &'static str,
    },
    /// There is an interpreter, and it has not been started, or has been ended.
    #[error("the interpreter in {path} is not initialised (not yet, or no longer)")]
    NotInitialized {
        /// As the process sees it.
        path: String,
    },
    /// More than one is running.
    #[error("the process runs several Python interpreters at once: {}", paths.join(", "))]
    Several {
        /// As the process sees them.
        paths: Vec<String>,
    },
    /// A version that this crate does not know.
    #[error(
        "CPython {version} is not supported (releases and release candidates of 3.9 to 3.15 are)"
    )]
    Unsupported {
        /// Which one.
        version: Version,
    },
    /// Built without the GIL: another layout of every object, and instructions in per-thread copies.
    #[error("CPython {version} without the GIL (free-threaded) is not supported")]
    FreeThreaded {
        /// Which one.
        version: Version,
    },
    /// Nothing says which version it is, or the versions that are said do not fit.
    #[error("the version of the interpreter in {path} cannot be found out: {tried}")]
    UnknownVersion {
        /// As the process sees it.
        path: String,
        /// What was tried.
        tried: String,
    },
    /// The process's memory is not laid out as this version's should be: a changed build, perhaps.
    #[error("the interpreter in {path} is not laid out as CPython {version} should be: {what}")]
    Layout {
        /// As the process sees it.
        path: String,
        /// What it says it is.
        version: Version,
        /// What does not fit.
        what: String,
    },
    /// Where a thread finds its own thread state could not be found, or not be proven.
    #[error(
        "how the threads of CPython {version} in {path} find their own state cannot be told: {what}"
    )]
    ThreadState {
        /// As the process sees it.
        path: String,
        /// Which one.
        version: Version,
        /// What was tried.
        what: String,
    },
    /// Memory that must be there could not be read.
    #[error("the interpreter's memory cannot be read at {address:#x}")]
    Memory {
        /// Where.
        address: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
}
