//! Errors of examining a process.

use std::io;
use std::path::PathBuf;

/// Why a process could not be examined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// There is no such process, or it ended while it was read.
    #[error("process {pid} does not exist (or has just ended)")]
    NoSuchProcess {
        /// Process id as asked for.
        pid: u32,
    },
    /// The number names a thread, not a process.
    #[error("{pid} is a thread of process {process}: name the process")]
    ThreadId {
        /// Number as asked for.
        pid: u32,
        /// The process that the thread belongs to.
        process: u32,
    },
    /// The process has ended and waits for its parent.
    #[error("process {pid} has ended (a zombie that its parent has not collected)")]
    Zombie {
        /// Process id.
        pid: u32,
    },
    /// The main thread has ended while other threads run on. Then the process's memory cannot be
    /// reached by the process's pid.
    #[error(
        "the main thread of process {pid} has ended while others run on; it cannot be followed"
    )]
    MainThreadEnded {
        /// Process id.
        pid: u32,
    },
    /// The pid belongs to a thread of the kernel, which has no user memory.
    #[error("{pid} is a kernel thread: it has no user memory")]
    KernelThread {
        /// Process id.
        pid: u32,
    },
    /// The process ended while it was read, and its pid was given to another process.
    #[error("process {pid} ended while it was read, and its number names another process now")]
    Reused {
        /// Process id.
        pid: u32,
    },
    /// The kernel refuses access to the process.
    #[error("not permitted to read {path} of process {pid}: run as root, or as its owner with CAP_SYS_PTRACE", path = .path.display())]
    NotPermitted {
        /// Process id.
        pid: u32,
        /// File that was to be read.
        path: PathBuf,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
    /// A library of the process cannot be searched.
    #[error("cannot search {path}")]
    Library {
        /// Path of the library, as the process sees it.
        path: String,
        /// What is wrong with it.
        #[source]
        source: crate::elf::ElfError,
    },
    /// Reading failed in another way.
    #[error("cannot read {path} of process {pid}", path = .path.display())]
    Read {
        /// Process id.
        pid: u32,
        /// File that was to be read.
        path: PathBuf,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
    /// A file of `/proc` does not have the form that we know.
    #[error("{path} of process {pid} has an unknown form: {what}", path = .path.display())]
    Malformed {
        /// Process id.
        pid: u32,
        /// File that was to be read.
        path: PathBuf,
        /// What the file should contain, in words for the message.
        what: &'static str,
    },
    /// A fault of our own: reading the process's files ended in a panic.
    #[error("reading the files of process {pid} met a bug in memscoped, which its log describes")]
    Fault {
        /// Process id.
        pid: u32,
    },
    /// The process runs code for another machine.
    #[error(
        "process {pid} runs code of an unsupported machine ({machine}); on this one memscope traces {}",
        std::env::consts::ARCH
    )]
    UnsupportedMachine {
        /// Process id.
        pid: u32,
        /// Machine or kind of file, in words for the message.
        machine: String,
    },
}

impl SiteError {
    /// The error for memory of a process that could not be opened.
    pub fn memory(pid: u32, source: io::Error) -> SiteError {
        SiteError::proc_read(pid, format!("/proc/{pid}/mem"), source)
    }

    /// The error for a failed read under `/proc/<pid>`.
    pub(crate) fn proc_read(pid: u32, path: impl Into<PathBuf>, source: io::Error) -> SiteError {
        let path = path.into();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => SiteError::NoSuchProcess { pid },
            Some(libc::EPERM | libc::EACCES) => SiteError::NotPermitted { pid, path, source },
            _ => SiteError::Read { pid, path, source },
        }
    }
}
