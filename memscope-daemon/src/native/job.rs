//! Jobs for the threads that handle stacks of compiled code.

use std::sync::mpsc::{Sender, SyncSender, TrySendError};

use memscope_ledger::event::ProcessHandle;
use memscope_log::records::stack_copy;

/// A job for these threads.
pub enum Job {
    /// Prepare for the stacks of a process.
    Watch {
        /// Handle of the process.
        process: ProcessHandle,
        /// Its pid.
        pid: u32,
        /// Gets a message when the code of the process is known. Stacks that are taken before only fill the ring.
        ready: Sender<()>,
    },
    /// Unwind a piece of a stack, as the programs sent it.
    Copy(Vec<u8>),
    /// Find the names of addresses.
    Name {
        /// Process that the addresses belong to.
        process: ProcessHandle,
        /// The addresses, as they are in stacks.
        addresses: Vec<u64>,
    },
    /// Code of this process was mapped or unmapped.
    Mapped(ProcessHandle),
    /// Stacks of this process are no longer taken.
    Forget(ProcessHandle),
}

impl Job {
    /// The process that it is about.
    pub fn process(&self) -> Option<ProcessHandle> {
        match self {
            Job::Watch { process, .. }
            | Job::Name { process, .. }
            | Job::Mapped(process)
            | Job::Forget(process) => Some(*process),
            Job::Copy(record) => stack_copy(record).map(|copy| copy.process),
        }
    }
}

/// Sends jobs to the thread `unwinder`.
pub type Jobs = SyncSender<Job>;

/// Queues a job without waiting. Returns false if there is no room or the thread has ended.
pub fn hand(jobs: &Jobs, job: Job) -> bool {
    match jobs.try_send(job) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}
