//! What a record becomes when it is decoded.

use crate::records::site::SiteDefined;
use memscope_ledger::event::{Event, EventId, ProcessHandle};
use std::sync::Arc;

/// What a record became when it was decoded.
#[derive(Debug)]
pub enum Outcome {
    /// An event for the ledger.
    Decoded(Event),
    /// Not an event of the ledger, but something that the daemon may have to act upon.
    Notice(Notice),
    /// A whole record that this version cannot or need not use. This is not an error.
    Skipped(Skipped),
    /// The content does not fit the record's kind. The caller should count it.
    Malformed(Malformed),
}

/// A message for the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Place of the record in the log.
    pub id: EventId,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Process that the record belongs to; 0: none of the traced processes.
    pub process: ProcessHandle,
    /// Thread id in the initial pid namespace (0: none).
    pub tid: u32,
    /// Number of records of this process that had been lost when this one was made.
    pub lost_before: u64,
    /// Content of the notice.
    pub what: What,
}

/// Content of a [`Notice`].
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A process executed another program. The daemon decides which process ends and which begins by that.
    Exec {
        /// Thread group id in the initial namespace.
        tgid: u32,
    },
    /// The leader of a thread group ended. The process has ended when its pidfd says so.
    LeaderExited {
        /// Thread group id in the initial namespace.
        tgid: u32,
    },
    /// A process that has no handle forked. Forks of traced processes are events instead.
    ForkedElsewhere {
        /// Thread group id of the parent.
        tgid: u32,
        /// Thread group id of the child.
        child: u32,
    },
    /// The dynamic linker may have mapped or unmapped files.
    MappingsChanged,
    /// The name of a kernel. The decoder has already added it to its table.
    KernelNamed,
    /// The definition of a site. The decoder has already added it to its table.
    SiteDefined(SiteDefined),
}

/// Why a whole record is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Skipped {
    /// This version does not know the kind.
    #[error("kind {0:#x} is not known")]
    UnknownKind(u16),
    /// The record was written with newer layouts.
    #[error("record version {found} is newer than {known}")]
    NewerVersion {
        /// Version of the record.
        found: u8,
        /// Newest version that this build can read.
        known: u8,
    },
    /// The record is a call at a site whose definition was not seen.
    #[error("site {0} is not defined")]
    UnknownSite(u32),
    /// The record is a call at a site that is not a runtime or driver function.
    #[error("site {0} is not a runtime or driver function")]
    NotACall(u32),
    /// This version does not know the operation.
    #[error("operation {0} is not known")]
    UnknownOp(u16),
    /// The result of a call could not be read from the process's memory.
    #[error("the call's result could not be read")]
    Unreadable,
    /// The operation only selects a device or context.
    #[error("operation {0} changes no memory")]
    NoMemoryOp(u16),
    /// The device type is not CUDA, HIP or PrivateUse1 (which torch_npu uses).
    #[error("device type {0} is not followed")]
    DeviceType(i32),
    /// A report does not name its device.
    #[error("a report without a device")]
    NoDevice,
    /// A report has no totals of the allocator.
    #[error("a report without totals")]
    NoTotals,
    /// This version does not know the trace action.
    #[error("trace action {0} is not known")]
    UnknownAction(i32),
    /// This version does not know the kind or source of a mark.
    #[error("a mark of kind or source {0} is not known")]
    UnknownMark(u16),
    /// This version does not know the change of a pool's memory.
    #[error("a change {0} of a region is not known")]
    UnknownRegion(u16),
    /// The size of a region or heap is negative.
    #[error("a region without a size")]
    NoSize,
    /// This version does not know the change in a process's life.
    #[error("process change {0} is not known")]
    UnknownChange(u32),
    /// The record does not belong to a traced process.
    #[error("a record of no process of ours")]
    NoProcess,
    /// A repeated record with nothing new.
    #[error("repeated, and known already")]
    Repeated,
}

impl Skipped {
    /// Stable code of the reason, for counters.
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

    /// Whether skipping the record may have lost information about a traced process's memory. The other reasons concern
    /// records without such information: of other processes or devices, without a change of memory, or known already.
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

/// Why bytes are not the record that their header describes.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Malformed {
    /// There are fewer bytes than the fields need.
    #[error("{found} bytes are too few")]
    Short {
        /// Number of bytes that are there.
        found: usize,
    },
    /// No record can have the length in the length field.
    #[error("a length of {said} is no record's")]
    LengthField {
        /// Value of the length field in bytes.
        said: usize,
    },
    /// The length field differs from the number of bytes.
    #[error("the record says {said} bytes, {found} are there")]
    Length {
        /// Value of the length field in bytes.
        said: usize,
        /// Number of bytes that are there.
        found: usize,
    },
    /// Records of this kind have another length.
    #[error("kind {kind:#x} is {expected} bytes long, not {found}")]
    Size {
        /// Kind of the record.
        kind: u16,
        /// Length that the kind requires, in bytes. For kinds that have grown, it is the shortest one.
        expected: usize,
        /// Length of the record in bytes.
        found: usize,
    },
    /// There is no version with this number.
    #[error("version {0} does not exist")]
    Version(u8),
    /// A field has a value that it cannot have.
    #[error("{field} cannot be {value}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: i64,
    },
    /// The JSON of a daemon's record cannot be read.
    #[error("kind {kind:#x} does not hold its JSON")]
    Json {
        /// Kind of the record.
        kind: u16,
        /// Error of the JSON parser.
        #[source]
        source: Arc<serde_json::Error>,
    },
}
