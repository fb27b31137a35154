//! What others want of the keeper, and what it tells the tracer.

use std::sync::mpsc::Sender;

use memscope_ledger::Ledger;
use memscope_ledger::event::{NativeName, ProcessHandle};
use memscope_ledger::report::AsOf;
use memscope_log::records::{DaemonRecord, What};

use super::status::KeeperStatus;
use super::taking::Taking;
use crate::native::Jobs;
use crate::probe::calibrate::Layout;
use crate::probe::slot::Slot;
use crate::python::Names;

/// A question to the ledger.
pub type Question = Box<dyn FnOnce(&mut Ledger, AsOf) + Send>;

/// Work on the triggers, if there are any.
pub type TriggerWork = Box<dyn FnOnce(Option<&mut Taking>) + Send>;

/// What others want of the keeper.
pub enum Command {
    /// Append a record of the daemon's own and apply it.
    Append {
        /// Whose; 0 for the machine.
        process: ProcessHandle,
        /// What.
        record: DaemonRecord,
    },
    /// Append records of the machine's, all at once, and say when they are applied.
    Define {
        /// What; in order.
        records: Vec<DaemonRecord>,
        /// Told when done.
        done: Sender<()>,
    },
    /// A process is traced: this is the kernel's side of it.
    Watch {
        /// Handle.
        process: ProcessHandle,
        /// Its pid and uids, for readers of events.
        pid: u32,
        /// Real, effective, saved.
        uids: [u32; 3],
        /// Its counters.
        slot: Slot,
    },
    /// Python stacks are taken of this process, and this names the code objects in them.
    Python {
        /// Handle.
        process: ProcessHandle,
        /// Names them.
        names: Box<Names>,
    },
    /// Stacks of compiled code are taken of this process, and this finishes and names them.
    Native {
        /// Handle.
        process: ProcessHandle,
        /// Takes what is to be unwound and named.
        jobs: Jobs,
    },
    /// The outer frames of a stack that was to be finished.
    Unwound {
        /// Whose.
        process: ProcessHandle,
        /// The stack's identity.
        stack: u64,
        /// The frames, innermost first.
        frames: Vec<u64>,
        /// The outermost frame is among them.
        whole: bool,
    },
    /// Names of addresses of compiled code.
    Named {
        /// Whose.
        process: ProcessHandle,
        /// What is there.
        names: Vec<NativeName>,
    },
    /// Code that was there is gone, or other code is there: what was named in these ranges is to be named again.
    Moved {
        /// Whose.
        process: ProcessHandle,
        /// From, to.
        ranges: Vec<(u64, u64)>,
    },
    /// Look for the layout of PyTorch's allocator in this process.
    Calibrate {
        /// Handle.
        process: ProcessHandle,
        /// What was proven for the same file before.
        known: Option<Layout>,
    },
    /// Read what is left of a process's records, and let go of its slot.
    Unwatch {
        /// Handle.
        process: ProcessHandle,
        /// Told when done.
        done: Sender<()>,
    },
    /// Answer a question.
    Ask(Question),
    /// Change or show the triggers, if snapshots are taken by themselves.
    Triggers(TriggerWork),
    /// Say how you are.
    Status(tokio::sync::oneshot::Sender<KeeperStatus>),
    /// Read everything, close the journal and end.
    Stop,
}

/// What the keeper tells the tracer.
#[derive(Debug)]
pub enum KeeperMessage {
    /// Something happened to a process or its mappings.
    Notice {
        /// Whose; 0 for a process that is not traced.
        process: ProcessHandle,
        /// What.
        what: What,
    },
    /// A traced process forked.
    Forked {
        /// Parent.
        process: ProcessHandle,
        /// Child's pid.
        child: u32,
    },
    /// Records of this process were lost.
    Lost {
        /// Whose.
        process: ProcessHandle,
    },
    /// The allocator's layout is proven: one probe suffices.
    Proven {
        /// Whose.
        process: ProcessHandle,
        /// The layout.
        layout: Layout,
    },
    /// It cannot be found.
    NotCalibrated {
        /// Whose.
        process: ProcessHandle,
        /// Why.
        reason: String,
    },
}
