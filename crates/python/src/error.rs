//! Errors of the search for an interpreter.

use std::io;

use memscope_site::SiteError;
use memscope_site::elf::ElfError;
use memscope_site::mapped::OpenError;

use crate::version::Version;

/// Why a process's interpreter cannot be walked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PythonError {
    /// The process itself could not be inspected.
    #[error(transparent)]
    Process(#[from] SiteError),
    /// No file that the process has mapped is a CPython interpreter.
    #[error("the process has no Python interpreter mapped")]
    NoInterpreter,
    /// A file that looks like an interpreter could not be opened.
    #[error("{path} looks like a Python interpreter and cannot be opened")]
    Open {
        /// Path of the file, as the process sees it.
        path: String,
        /// Error from opening the file.
        #[source]
        source: OpenError,
    },
    /// A file that looks like an interpreter is no ELF file that we can read.
    #[error("{path} looks like a Python interpreter and cannot be read")]
    File {
        /// Path of the file, as the process sees it.
        path: String,
        /// What is wrong with the file.
        #[source]
        source: ElfError,
    },
    /// The symbols and sections that would lead to the interpreter's state were removed from the file.
    #[error("{path} is a stripped Python interpreter: it lacks {missing}")]
    Stripped {
        /// Path of the file, as the process sees it.
        path: String,
        /// Symbols and sections that were looked for.
        missing: &'static str,
    },
    /// The process has an interpreter mapped, but it has not been started yet, or has been shut down.
    #[error("the interpreter in {path} is not initialised (not yet, or no longer)")]
    NotInitialized {
        /// Path of the file, as the process sees it.
        path: String,
    },
    /// More than one interpreter is running in the process.
    #[error("the process runs several Python interpreters at once: {}", paths.join(", "))]
    Several {
        /// Paths of their files, as the process sees them.
        paths: Vec<String>,
    },
    /// This crate does not support the version.
    #[error(
        "CPython {version} is not supported (releases and release candidates of 3.9 to 3.15 are)"
    )]
    Unsupported {
        /// Version of the interpreter.
        version: Version,
    },
    /// The interpreter was built without the GIL. Then every object has another layout, and each thread has its own
    /// copy of the instructions.
    #[error("CPython {version} without the GIL (free-threaded) is not supported")]
    FreeThreaded {
        /// Version of the interpreter.
        version: Version,
    },
    /// There is no evidence of the version, or the process's memory fits none or several of the possible versions.
    #[error("the version of the interpreter in {path} cannot be found out: {tried}")]
    UnknownVersion {
        /// Path of the file, as the process sees it.
        path: String,
        /// What was tried, in words for the message.
        tried: String,
    },
    /// The process's memory is not laid out as it should be for this version; perhaps it is a modified build.
    #[error("the interpreter in {path} is not laid out as CPython {version} should be: {what}")]
    Layout {
        /// Path of the file, as the process sees it.
        path: String,
        /// Version that the interpreter claims to be.
        version: Version,
        /// What does not fit, in words for the message.
        what: String,
    },
    /// The place where a thread keeps its own thread state could not be found, or could not be proven.
    #[error(
        "how the threads of CPython {version} in {path} find their own state cannot be told: {what}"
    )]
    ThreadState {
        /// Path of the file, as the process sees it.
        path: String,
        /// Version of the interpreter.
        version: Version,
        /// What was tried, in words for the message.
        what: String,
    },
    /// The search read more of the process's memory than it may. Nobody else is served meanwhile.
    #[error(
        "the search for its interpreter was given up after {most} reads of its memory: it has too many threads and frames, or they do not fit"
    )]
    TooManyReads {
        /// The most reads that a search makes.
        most: u64,
    },
    /// Memory of the interpreter that must exist could not be read.
    #[error("the interpreter's memory cannot be read at {address:#x}")]
    Memory {
        /// Address in the process.
        address: u64,
        /// Error from reading.
        #[source]
        source: io::Error,
    },
}
