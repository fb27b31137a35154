//! The events made so far, and names that other modules need as well.

use memscope_ledger::event::{Body, Event, EventId, ProcessHandle, StackRef};

/// Prefix of the names of marks that were `SYSTEM` rows.
pub const SYSTEM_MARK: &str = "msmemscope: ";

/// Names of the driver's functions in imported calls, in this order: allocate and free device memory, register and
/// unregister page-locked memory.
pub const FUNCTIONS: [&str; 4] = [
    "halMemAlloc",
    "halMemFree",
    "aclrtHostRegister",
    "aclrtHostUnregister",
];

/// The events made so far.
pub(super) struct Log {
    pub(super) epoch: u64,
    pub(super) now_ns: u64,
    pub(super) events: Vec<Event>,
}

impl Log {
    pub(super) fn push(&mut self, process: ProcessHandle, tid: u32, stack: StackRef, body: Body) {
        self.events.push(Event {
            id: EventId {
                epoch: self.epoch,
                sequence: self.events.len() as u64 + 1,
            },
            time_ns: self.now_ns,
            process,
            tid,
            lost_before: 0,
            stack,
            sampling: 0,
            body,
        });
    }
}
