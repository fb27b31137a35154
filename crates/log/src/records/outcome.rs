//! What becomes of a record.

use crate::records::site::SiteDefined;
use memscope_ledger::event::{Event, EventId, ProcessHandle};
use std::sync::Arc;

/// What became of a record.
#[derive(Debug)]
pub enum Outcome {
    /// An event for the ledger.
    Decoded(Event),
    /// Something that is not the ledger's, but may be the daemon's to act upon.
    Notice(Notice),
    /// A whole record without use for us; not an error.
    Skipped(Skipped),
    /// The record is not what it says; count it.
    Malformed(Malformed),
}

/// Something for the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Place in the log.
    pub id: EventId,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Whose; 0 for no process of ours.
    pub process: ProcessHandle,
    /// Thread id in the initial pid namespace (0: none).
    pub tid: u32,
    /// How many records of this process had been lost when this one was made.
    pub lost_before: u64,
    /// What.
    pub what: What,
}

/// What a [`Notice`] says.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A process executed another image; the daemon decides what ends and begins by that.
    Exec {
        /// Thread group id in the initial namespace.
        tgid: u32,
    },
    /// A thread group's leader ended; the process has ended when its pidfd says so.
    LeaderExited {
        /// Thread group id in the initial namespace.
        tgid: u32,
    },
    /// A process that has no handle forked. Forks of traced processes are events.
    ForkedElsewhere {
        /// Thread group id of the parent.
        tgid: u32,
        /// Thread group id of the child.
        child: u32,
    },
    /// The dynamic linker may have mapped or unmapped objects.
    MappingsChanged,
    /// A site; the decoder has taken it into its table.
    SiteDefined(SiteDefined),
}

/// Why a whole record is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Skipped {
    /// A kind that this version does not know.
    #[error("kind {0:#x} is not known")]
    UnknownKind(u16),
    /// Written with newer layouts.
    #[error("record version {found} is newer than {known}")]
    NewerVersion {
        /// Version of the record.
        found: u8,
        /// The newest that we know.
        known: u8,
    },
    /// A call at a site whose definition was not seen.
    #[error("site {0} is not defined")]
    UnknownSite(u32),
    /// A call at a site that is not a runtime or driver function.
    #[error("site {0} is not a runtime or driver function")]
    NotACall(u32),
    /// An operation that this version does not know.
    #[error("operation {0} is not known")]
    UnknownOp(u16),
    /// A call whose result could not be read from the process's memory.
    #[error("the call's result could not be read")]
    Unreadable,
    /// An operation that only selects a device or context.
    #[error("operation {0} changes no memory")]
    NoMemoryOp(u16),
    /// A device type other than CUDA and HIP.
    #[error("device type {0} is not followed")]
    DeviceType(i32),
    /// A report that does not name its device.
    #[error("a report without a device")]
    NoDevice,
    /// A report without the allocator's totals.
    #[error("a report without totals")]
    NoTotals,
    /// A trace action that this version does not know.
    #[error("trace action {0} is not known")]
    UnknownAction(i32),
    /// A mark of a kind or source that is not known.
    #[error("a mark of kind or source {0} is not known")]
    UnknownMark(u16),
    /// A change of a pool's memory that this version does not know.
    #[error("a change {0} of a region is not known")]
    UnknownRegion(u16),
    /// A region or heap of less than nothing.
    #[error("a region without a size")]
    NoSize,
    /// A change in a process's life that this version does not know.
    #[error("process change {0} is not known")]
    UnknownChange(u32),
    /// A record of memory that belongs to no process of ours.
    #[error("a record of no process of ours")]
    NoProcess,
    /// A repeated record that tells nothing new.
    #[error("repeated, and known already")]
    Repeated,
}

impl Skipped {
    /// A stable word for counters.
    pub fn code(self) -> &'static str {
        match self {
            Skipped::UnknownKind(_) => "unknown_kind",
            Skipped::NewerVersion { .. } => "newer_version",
            Skipped::UnknownSite(_) => "unknown_site",
            Skipped::NotACall(_) => "site_is_no_call",
            Skipped::UnknownOp(_) => "unknown_operation",
            Skipped::Unreadable => "result_unreadable",
            Skipped::NoMemoryOp(_) => "no_memory_operation",
            Skipped::DeviceType(_) => "device_type",
            Skipped::NoDevice => "no_device",
            Skipped::NoTotals => "no_totals",
            Skipped::UnknownAction(_) => "unknown_action",
            Skipped::UnknownMark(_) => "unknown_mark",
            Skipped::UnknownRegion(_) => "unknown_region",
            Skipped::NoSize => "no_size",
            Skipped::UnknownChange(_) => "unknown_change",
            Skipped::NoProcess => "no_process",
            Skipped::Repeated => "repeated",
        }
    }

    /// Whether something about memory was lost with it (the others are other people's or known).
    pub fn is_loss(self) -> bool {
        !matches!(
            self,
            Skipped::NoMemoryOp(_)
                | Skipped::DeviceType(_)
                | Skipped::NoProcess
                | Skipped::Repeated
        )
    }
}

/// Why bytes are not the record that they say.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the fields need.
    #[error("{found} bytes are too few")]
    Short {
        /// Bytes there.
        found: usize,
    },
    /// The length field is no record's length.
    #[error("a length of {said} is no record's")]
    LengthField {
        /// What the field says.
        said: usize,
    },
    /// The length field and the bytes differ.
    #[error("the record says {said} bytes, {found} are there")]
    Length {
        /// What the field says.
        said: usize,
        /// Bytes there.
        found: usize,
    },
    /// The kind has another length in this version.
    #[error("kind {kind:#x} is {expected} bytes long, not {found}")]
    Size {
        /// The kind.
        kind: u16,
        /// Its length.
        expected: usize,
        /// The record's.
        found: usize,
    },
    /// No version has this number.
    #[error("version {0} does not exist")]
    Version(u8),
    /// A field holds what it cannot hold.
    #[error("{field} cannot be {value}")]
    Value {
        /// Field.
        field: &'static str,
        /// What it holds.
        value: i64,
    },
    /// The JSON of a daemon's record cannot be read.
    #[error("kind {kind:#x} does not hold its JSON")]
    Json {
        /// The kind.
        kind: u16,
        /// Why.
        #[source]
        source: Arc<serde_json::Error>,
    },
}
