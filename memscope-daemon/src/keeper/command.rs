//! Commands to the keeper, and the messages that it sends to the tracer.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use memscope_ledger::Ledger;
use memscope_ledger::event::{NativeName, ProcessHandle};
use memscope_ledger::report::AsOf;
use memscope_log::records::{DaemonRecord, What};

use super::status::KeeperStatus;
use super::taking::Taking;
use crate::ingest::ring::Ring;
use crate::native::Jobs;
use crate::probe::calibrate::Layout;
use crate::probe::slot::Slot;
use crate::python::Names;

/// A question to the ledger, as of the moment at which it is asked.
pub type Question = Box<dyn FnOnce(&mut Ledger, AsOf) + Send>;

/// Work on the triggers; it gets `None` if no snapshots are taken.
pub type TriggerWork = Box<dyn FnOnce(Option<&mut Taking>) + Send>;

/// A command to the keeper.
pub enum Command {
    /// Read this ring from now on.
    Ring {
        /// The ring.
        ring: Box<Ring>,
        /// Where an earlier daemon's journal ends, if it has read this ring.
        position: Option<u64>,
        /// Processes that this daemon does not trace on, with the moment up to which they were traced, in nanoseconds of boot time. Their
        /// end is written before anything else: at no later moment is what they had then taken for what they have.
        untraced: Vec<(ProcessHandle, u64)>,
        /// Receives a message when everything that lay in it is applied.
        done: Sender<()>,
    },
    /// Append one of the daemon's own records to the log and apply it.
    Append {
        /// Process that the record is about; 0 for the machine.
        process: ProcessHandle,
        /// The record.
        record: DaemonRecord,
    },
    /// Append records about the machine, all at once, and report when they are applied.
    Define {
        /// The records, in order.
        records: Vec<DaemonRecord>,
        /// Gets a message when they are applied.
        done: Sender<()>,
    },
    /// A process is traced from now on.
    Watch {
        /// Handle of the process.
        process: ProcessHandle,
        /// Its pid, for readers of events.
        pid: u32,
        /// Its real, effective and saved user ids, for readers of events.
        uids: [u32; 3],
        /// Its Kubernetes namespace, for readers of events.
        namespace: Option<Arc<str>>,
        /// The process's slot, which has the programs' counters for it.
        slot: Slot,
    },
    /// Python stacks are taken of this process.
    Python {
        /// Handle of the process.
        process: ProcessHandle,
        /// Finds the names of the code objects in its stacks.
        names: Box<Names>,
    },
    /// Stacks of compiled code are taken of this process.
    Native {
        /// Handle of the process.
        process: ProcessHandle,
        /// Takes the pieces of stacks that must be unwound, and the addresses that must be named.
        jobs: Jobs,
    },
    /// The outer frames of a stack have been unwound from the piece that the programs sent.
    Unwound {
        /// Process that the stack belongs to.
        process: ProcessHandle,
        /// Identity of the stack.
        stack: u64,
        /// Return addresses of the outer frames, innermost first.
        frames: Vec<u64>,
        /// Whether the outermost frame is among them.
        whole: bool,
    },
    /// Names of addresses of compiled code have been found.
    Named {
        /// Process that the addresses belong to.
        process: ProcessHandle,
        /// The addresses with their names.
        names: Vec<NativeName>,
    },
    /// Addresses of compiled code could not be handed over to be named, since too many wait already.
    Unnamed {
        /// Process that the addresses belong to.
        process: ProcessHandle,
        /// The addresses.
        addresses: Vec<u64>,
    },
    /// A rule of unwinding found no room in the programs' table.
    NoRule,
    /// Code was unmapped or replaced by other code: addresses in these ranges must be named again.
    Moved {
        /// Process in which it happened.
        process: ProcessHandle,
        /// First address of each range, and the address behind its last one.
        ranges: Vec<(u64, u64)>,
    },
    /// Search for the layout of PyTorch's allocator in this process.
    Calibrate {
        /// Handle of the process.
        process: ProcessHandle,
        /// Layout that was proven for the same file before.
        known: Option<Layout>,
    },
    /// The call of `record_trace` in `free_block` has no probe any more: completed frees are told by others.
    FreesSettled {
        /// Handle of the process.
        process: ProcessHandle,
    },
    /// That call gets a probe again, in the library of another allocator.
    FreesUnsettled {
        /// Handle of the process.
        process: ProcessHandle,
    },
    /// Read what is left of a process's records, and drop its slot.
    Unwatch {
        /// Handle of the process.
        process: ProcessHandle,
        /// Gets a message when this is done.
        done: Sender<()>,
    },
    /// Answer a question.
    Ask(Question),
    /// Change or list the triggers, if snapshots are taken.
    Triggers(TriggerWork),
    /// Report the keeper's status.
    Status(tokio::sync::oneshot::Sender<KeeperStatus>),
    /// Read everything, close the journal and end.
    Stop,
}

/// A message of the keeper to the tracer.
#[derive(Debug)]
pub enum KeeperMessage {
    /// Something happened to a process or its mappings.
    Notice {
        /// The process; 0 if it is not traced.
        process: ProcessHandle,
        /// What happened.
        what: What,
    },
    /// A traced process forked.
    Forked {
        /// Handle of the parent.
        process: ProcessHandle,
        /// Process id of the child.
        child: u32,
    },
    /// Records of this process were lost.
    Lost {
        /// Handle of the process.
        process: ProcessHandle,
    },
    /// A process took too much of the daemon's memory. It must not be traced any more.
    GivenUp {
        /// Handle of the process.
        process: ProcessHandle,
    },
    /// The allocator's layout is proven, so that one probe is enough.
    Proven {
        /// Handle of the process.
        process: ProcessHandle,
        /// The layout.
        layout: Layout,
    },
    /// The allocator's layout cannot be found.
    NotCalibrated {
        /// Handle of the process.
        process: ProcessHandle,
        /// The reason, in words.
        reason: String,
    },
}
