//! The events so far, and the names that both directions use.

use memscope_ledger::event::{Body, Event, EventId, ProcessHandle, StackRef};

/// Before the name of a mark that was a `SYSTEM` row.
pub const SYSTEM_MARK: &str = "msmemscope: ";

/// The driver's functions: of device memory and of page-locked memory, allocating and freeing.
pub const FUNCTIONS: [&str; 4] = [
    "halMemAlloc",
    "halMemFree",
    "aclrtHostRegister",
    "aclrtHostUnregister",
];

/// The events so far.
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
