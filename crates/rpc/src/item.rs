//! An event on its way to a reader.

use memscope_ledger::event::Event;
use std::sync::Arc;

/// An event, with what is needed to send it to a reader.
#[derive(Clone, Debug)]
pub struct EventItem {
    /// What happened in the traced process, and when.
    pub event: Arc<Event>,
    /// Process id; `None`: the event belongs to no process.
    pub pid: Option<u32>,
    /// Real, effective and saved user id of the process; `None`: not known, or the event belongs to no process.
    pub uids: Option<[u32; 3]>,
    /// Kubernetes namespace of the process, where it has one and it is known.
    pub namespace: Option<Arc<str>>,
    /// Time of the event in nanoseconds since 1970, where it is known.
    pub unix_ns: Option<u64>,
    /// Number of events that this reader missed just before this one; set by [`crate::EventHub`].
    pub missed: u64,
}
