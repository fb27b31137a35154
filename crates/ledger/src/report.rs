//! Reports: the answers. Plain data; `None` is "unknown", never zero by default.
//!
//! Units are suffixes: `_bytes`, `_ns` (boot time unless `_unix_ns`).

mod component;
mod marks;
mod region;
mod stack;
mod steps;

pub use component::{Component, Holder};
pub use marks::{KeptMark, MarkOrigin, OriginMarks};
pub use region::{RegionPool, RegionsOnDevice};
pub(crate) use stack::MISSING;
pub use stack::{Frame, FrameKind, Stack, missing_words};
pub use steps::*;

use crate::event::{AllocatorFacts, EventId, ProcessFacts, ProcessHandle};
use memscope_proto::v1;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The moment that an answer describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsOf {
    /// `CLOCK_BOOTTIME`, nanoseconds: every event up to here is in the answer.
    pub boot_ns: u64,
    /// The same moment, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The last event applied.
    pub event: EventId,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// Probes are live.
    Attached,
    /// Tracing ended on request.
    Detached,
    /// The process ended.
    Exited,
    /// It executed another image.
    Replaced,
}

/// Where the pool-level numbers of a device come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The framework allocator's own totals.
    Pool,
    /// The sum of the runtime and driver allocations that we saw.
    Driver,
}

/// What kind of memory a group of blocks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Space {
    /// Blocks of the framework's pool.
    Pool,
    /// Device memory that runtime or driver gave.
    Driver,
    /// Page-locked memory of the host that the runtime gave.
    Host,
}

/// One process among all.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSummary {
    /// Handle.
    pub handle: ProcessHandle,
    /// What was read at the attach.
    pub facts: ProcessFacts,
    /// State.
    pub state: ProcessState,
    /// Boot time of the attach.
    pub attached_ns: u64,
    /// Boot time of the end, if it has ended.
    pub ended_ns: Option<u64>,
    /// Sum over devices where known; `None` if unknown on any device with events.
    pub allocated_bytes: Option<u64>,
    /// See `allocated_bytes`.
    pub reserved_bytes: Option<u64>,
    /// Records lost so far.
    pub lost_records: u64,
    /// Events applied.
    pub events: u64,
}

impl ProcessSummary {
    /// Whose memory it is.
    #[must_use]
    pub fn who(&self) -> Who {
        Who {
            handle: self.handle,
            pid: self.facts.pid,
            uids: self.facts.uids,
            is_live: self.state == ProcessState::Attached,
        }
    }
}

/// Whose memory it is that a process's answers tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Handle.
    pub handle: ProcessHandle,
    /// Process id.
    pub pid: u32,
    /// Real, effective and saved user id at the attach.
    pub uids: [u32; 3],
    /// Its probes are live.
    pub is_live: bool,
}

/// The levels of one device of a process; the same numbers as in [`v1::DeviceStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Ordinal within the process.
    pub device: i32,
    /// Bytes handed out.
    pub allocated_bytes: Option<u64>,
    /// Bytes held from the driver for them.
    pub reserved_bytes: Option<u64>,
    /// Out-of-memory reports so far.
    pub oom_count: u64,
}

/// Whether what was there before an attach is known, block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// It was read, or nothing was there.
    Known,
    /// Not yet; a reading may tell.
    Awaited,
    /// No, and nothing will tell.
    Unknown,
}

/// An interval in which records were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Time of the last record before it.
    pub from_ns: u64,
    /// Time of the first record after it.
    pub to_ns: u64,
    /// How many were lost.
    pub records: u64,
}

/// Counts of one kind of driver-level memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverBytes {
    /// Live allocations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a group of live blocks looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Its floor keeps rising.
    Growing,
    /// Rising until lately, or too little seen.
    Undecided,
    /// Not growing.
    Steady,
}

/// State of a block, in PyTorch's words when exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Handed out.
    Active,
    /// Freed by the program, still used by a stream.
    PendingFree,
    /// Free room inside a segment.
    Inactive,
}

/// One block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// Address.
    pub addr: u64,
    /// Rounded bytes.
    pub size: u64,
    /// Requested bytes, where known; of free room, those of its last use, as PyTorch has it (0 where
    /// nothing is known of one).
    pub requested: Option<u64>,
    /// State.
    pub state: BlockState,
    /// When it came (0: not known).
    pub since_ns: u64,
    /// Index into `SnapshotReport::stacks`.
    pub stack: u32,
}

/// One segment.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotSegment {
    /// Device.
    pub device: i32,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Stream.
    pub stream: u64,
    /// In the large pool (else small).
    pub large: bool,
    /// Private pool id.
    pub pool: (u64, u64),
    /// Made of mapped chunks.
    pub expandable: bool,
    /// We saw it come from the driver. `false`: put together from blocks whose segment is older
    /// than the attach; its ends are the blocks' ends.
    pub seen: bool,
    /// Blocks by address; together they cover the segment.
    pub blocks: Vec<SnapshotBlock>,
}

/// One entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTrace {
    /// Action.
    pub action: crate::event::TraceAction,
    /// Device.
    pub device: i32,
    /// Address (oom: free bytes of the device).
    pub addr: u64,
    /// Bytes, as in `PoolTrace::size`.
    pub size: u64,
    /// Stream.
    pub stream: u64,
    /// Pool.
    pub pool: Option<(u64, u64)>,
    /// Boot time.
    pub time_ns: u64,
    /// Same moment since 1970.
    pub unix_ns: u64,
    /// Thread.
    pub tid: u32,
    /// Index into `SnapshotReport::stacks`.
    pub stack: u32,
}

/// The answer to `snapshot`.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotReport {
    /// Whose.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// Segments by device and address.
    pub segments: Vec<SnapshotSegment>,
    /// Trace, oldest first (the last entries kept).
    pub trace: Vec<SnapshotTrace>,
    /// Trace entries that are no longer kept.
    pub trace_dropped: u64,
    /// What is known of the allocator as a whole.
    pub allocator: AllocatorFacts,
    /// The stacks of blocks and entries. The first is that of what has none.
    pub stacks: Vec<Arc<Stack>>,
    /// What limits this answer.
    pub coverage: Vec<v1::CoverageNote>,
}

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What one stack allocated on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct StackRow {
    /// Device; `None`: not known.
    pub device: Option<i32>,
    /// Where the blocks came from.
    pub stack: Arc<Stack>,
    /// Live blocks (rounded bytes; memory taken from the driver directly counts as one block each).
    pub live: Tally,
    /// The same at the moment at which the device's allocated bytes were largest since the attach.
    pub peak: Tally,
    /// All that came since the attach.
    pub allocated: Tally,
    /// Live at the earlier moment, where one was asked for.
    pub before: Option<Tally>,
}

/// The answer to `stacks`.
#[derive(Clone, Debug, PartialEq)]
pub struct StackReport {
    /// Whose.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// The earlier moment, where one was asked for.
    pub from: Option<AsOf>,
    /// By live bytes, largest first.
    pub rows: Vec<StackRow>,
    /// What limits this answer.
    pub coverage: Vec<v1::CoverageNote>,
}
