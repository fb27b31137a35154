//! What the threads for compiled code are asked to do.

use std::sync::mpsc::{Sender, SyncSender, TrySendError};

use memscope_ledger::event::ProcessHandle;

/// What is to be done.
pub enum Job {
    /// A process whose stacks are taken.
    Watch {
        /// Handle.
        process: ProcessHandle,
        /// Its number.
        pid: u32,
        /// Told when its code is known: what is taken before only fills the ring.
        ready: Sender<()>,
    },
    /// A piece of a stack, as the programs sent it.
    Copy(Vec<u8>),
    /// Addresses to be named, as in stacks.
    Name {
        /// Whose.
        process: ProcessHandle,
        /// Which.
        addresses: Vec<u64>,
    },
    /// Code was mapped or unmapped.
    Mapped(ProcessHandle),
    /// Its stacks are no longer taken.
    Forget(ProcessHandle),
}

/// Takes jobs.
pub type Jobs = SyncSender<Job>;

/// Hands a job over; false if there is no room.
pub fn hand(jobs: &Jobs, job: Job) -> bool {
    match jobs.try_send(job) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}
