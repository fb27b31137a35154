//! Why a process is attached, and processes that wait for it.

use memscope_ledger::event::CoverageNote;
use memscope_rpc::{AttachOptions, Caller};

/// How a process came to be attached.
pub(super) struct Cause {
    pub(super) options: AttachOptions,
    pub(super) rule: Option<u64>,
    pub(super) children: bool,
    /// Whether to attach even if no device library is mapped yet.
    pub(super) wait: bool,
    pub(super) generation: u32,
    /// Coverage note about what happened before the probes were live.
    pub(super) late: Option<CoverageNote>,
}

/// A process that is to be attached because a traced one led to it: as its parent, or as what it was before it executed another image.
pub(super) struct Followed {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    /// The traced process that led to it.
    pub(super) from: u32,
    /// User of that process, whose share of the tracer's time this takes.
    pub(super) uid: u32,
    pub(super) caller: Caller,
    pub(super) cause: Cause,
}
