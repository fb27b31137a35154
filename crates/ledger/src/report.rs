//! Reports: the plain data in answers. `None` means "unknown"; an unknown number is never 0.
//!
//! The suffix of a name gives its unit: `_bytes`, `_ns` (boot time unless `_unix_ns`).

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

use crate::event::{AllocatorFacts, CoverageNote, EventId, ProcessFacts, ProcessHandle};
use memscope_proto::v1;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The moment that an answer describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsOf {
    /// `CLOCK_BOOTTIME`, nanoseconds: every event up to here is in the answer.
    pub boot_ns: u64,
    /// The same moment, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The last event applied.
    pub event: EventId,
}

/// Whether a process is traced, or why it is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// The process is traced.
    Attached,
    /// Tracing ended on request.
    Detached,
    /// The process ended.
    Exited,
    /// The process executed another program.
    Replaced,
    /// It took too much of the daemon's memory, so it is not traced any more and nothing is kept of what it held.
    GivenUp,
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
    /// Device memory that the program took from the runtime or the driver.
    Driver,
    /// Page-locked host memory that the runtime or the driver handed out.
    Host,
}

/// Summary of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSummary {
    /// The daemon's handle of the process.
    pub handle: ProcessHandle,
    /// Facts about the process that were read at the attach.
    pub facts: ProcessFacts,
    /// Whether it is traced, or why not.
    pub state: ProcessState,
    /// Boot time of the attach, nanoseconds.
    pub attached_ns: u64,
    /// Boot time of the end of the process or of its tracing, nanoseconds; `None` while it is traced.
    pub ended_ns: Option<u64>,
    /// Allocated bytes on all devices together; `None` if they are not known on one of them, or if allocations may be
    /// missing in the sum.
    pub allocated_bytes: Option<u64>,
    /// Reserved bytes on all devices together; `None` as for `allocated_bytes`.
    pub reserved_bytes: Option<u64>,
    /// Number of records of the process that have been lost so far.
    pub lost_records: u64,
    /// Number of events that were applied to the process.
    pub events: u64,
    /// Whether it is traced from its start on and has loaded no library of a device so far.
    pub waits_for_device: bool,
}

impl ProcessSummary {
    /// The process's identity and owner, by which the server decides who may see it.
    #[must_use]
    pub fn who(&self) -> Who {
        Who {
            handle: self.handle,
            pid: self.facts.pid,
            uids: self.facts.uids,
            is_live: self.state == ProcessState::Attached,
            namespace: self.facts.kubernetes_namespace().map(Into::into),
        }
    }

    /// Whether both are of the same memory image: of one process, which has executed no other program in between. Handles do not tell,
    /// because a daemon that was started anew gives others.
    #[must_use]
    pub fn has_the_image_of(&self, other: &ProcessSummary) -> bool {
        let image = |of: &ProcessFacts| memscope_proto::Image {
            pid: of.pid,
            start_ticks: of.start_ticks,
            generation: of.generation.into(),
            number: of.image,
        };
        image(&self.facts).is(&image(&other.facts))
    }
}

/// What limits a comparison of two moments of one process: nobody traced it all the time between them.
pub fn attached_anew(
    one: (&ProcessSummary, AsOf),
    other: (&ProcessSummary, AsOf),
) -> Option<v1::CoverageNote> {
    let (earlier, later) = match one.1.boot_ns <= other.1.boot_ns {
        true => (one, other),
        false => (other, one),
    };
    let (process, as_of) = later;
    // Blocks of two images are not told apart by their places.
    let is_gap = process.has_the_image_of(earlier.0) && process.attached_ns > earlier.1.boot_ns;
    is_gap.then(|| {
        let ago = as_of.boot_ns.saturating_sub(process.attached_ns);
        let at = memscope_units::moment(as_of.unix_ns.saturating_sub(ago));
        let note = CoverageNote {
            code: "attached_anew".to_owned(),
            text: format!(
                "between the two moments it was not traced until it was attached anew at {at}: a block at the place of an earlier one counts \
                 as one that stayed, and stacks from before are not known any more"
            ),
        };
        note.into()
    })
}

/// Identity and owner of a process, by which the server decides who may see its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The daemon's handle of the process.
    pub handle: ProcessHandle,
    /// Process id.
    pub pid: u32,
    /// Real, effective and saved user id at the attach.
    pub uids: [u32; 3],
    /// Whether it is traced now.
    pub is_live: bool,
    /// Kubernetes' namespace of its pod, where that is known from the machine and not from the process itself.
    pub namespace: Option<Arc<str>>,
}

/// Allocated and reserved bytes of one device of a process; the same numbers as in [`v1::DeviceStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Bytes handed out.
    pub allocated_bytes: Option<u64>,
    /// Bytes that the pool holds from the driver; where there is no pool, all that is held from the driver.
    pub reserved_bytes: Option<u64>,
    /// Number of out-of-memory reports so far.
    pub oom_count: u64,
}

/// What of a process nothing tells as long as it is watched at this level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden {
    /// How often memory ran out.
    pub ooms: bool,
    /// The bytes handed out.
    pub allocated: bool,
    /// The bytes that the pool holds from the driver.
    pub reserved: bool,
}

/// Whether the blocks that a process held before its attach are known one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// They are known: they were read, or there were none.
    Known,
    /// They are not known yet; a reading may still show them.
    Awaited,
    /// They are not known, and no reading will show them.
    Unknown,
}

/// An interval in which records were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Boot time of the last record before the loss, nanoseconds.
    pub from_ns: u64,
    /// Boot time of the first record after the loss, nanoseconds.
    pub to_ns: u64,
    /// Number of records that were lost.
    pub records: u64,
}

/// Count and bytes of one kind of memory that runtime or driver handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverBytes {
    /// Number of live allocations.
    pub count: u64,
    /// Bytes of all live allocations.
    pub bytes: u64,
}

/// Whether a group of live blocks grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The floor of the group keeps rising.
    Growing,
    /// The floor rose until lately, or the group was not watched for long enough.
    Undecided,
    /// The group does not grow.
    Steady,
}

/// State of a block. Exports use PyTorch's words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block is handed out.
    Active,
    /// The program has freed the block, and a stream still uses it.
    PendingFree,
    /// The block is free room inside a segment.
    Inactive,
}

/// One block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// Address of the block in the traced process.
    pub addr: u64,
    /// Size in bytes, rounded as the allocator rounds it.
    pub size: u64,
    /// Bytes that the program requested, where known. For free room these are the bytes of its last use, as PyTorch
    /// shows them (0 where no use of it is known).
    pub requested: Option<u64>,
    /// Whether it is handed out.
    pub state: BlockState,
    /// Boot time of the allocation, nanoseconds; 0 if it is not known.
    pub since_ns: u64,
    /// Index into `SnapshotReport::stacks`.
    pub stack: u32,
    /// Index into `SnapshotReport::labels`.
    pub labels: u16,
}

/// One segment of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotSegment {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of the segment in the traced process.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Raw stream that the segment belongs to.
    pub stream: u64,
    /// The segment belongs to the large pool (else to the small one).
    pub large: bool,
    /// Id of the private pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// The id was reported. Otherwise `pool` says nothing.
    pub pool_told: bool,
    /// The segment is expandable: it consists of mapped chunks.
    pub expandable: bool,
    /// The segment itself is known, from the trace, from a reading or from the driver's calls. `false`: it was put
    /// together from blocks whose segment is not known, and begins and ends where they do.
    pub seen: bool,
    /// Blocks by address, free room included; together they cover the segment.
    pub blocks: Vec<SnapshotBlock>,
}

/// One entry of the allocator's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTrace {
    /// What the allocator did.
    pub action: crate::event::TraceAction,
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of the block or segment; for `Oom` the free bytes of the device.
    pub addr: u64,
    /// Size in bytes, as in `PoolTrace::size`; where `reported` is set, the rounded size.
    pub size: u64,
    /// Only the report of the call came, as at the level `blocks`: neither its requested size nor its stream is known.
    pub reported: bool,
    /// Raw stream.
    pub stream: u64,
    /// Id of the private pool, where it is known.
    pub pool: Option<(u64, u64)>,
    /// Boot time of the entry, nanoseconds.
    pub time_ns: u64,
    /// The same time in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Thread that called the allocator.
    pub tid: u32,
    /// Index into `SnapshotReport::stacks`.
    pub stack: u32,
}

/// The answer to `snapshot`.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotReport {
    /// Process that the snapshot is of.
    pub process: ProcessSummary,
    /// Moment that the snapshot describes.
    pub as_of: AsOf,
    /// Segments, ordered by device and address.
    pub segments: Vec<SnapshotSegment>,
    /// Without a pool: physical memory that is mapped at no address, ordered by device. Each piece is a segment with one block,
    /// whose addresses are 0.
    pub unmapped: Vec<SnapshotSegment>,
    /// The last entries of the trace, oldest first.
    pub trace: Vec<SnapshotTrace>,
    /// Number of earlier trace entries that are no longer kept.
    pub trace_dropped: u64,
    /// What is known of the allocator as a whole.
    pub allocator: AllocatorFacts,
    /// The stacks of blocks and entries. The first one stands for "no stack was taken".
    pub stacks: Vec<Arc<Stack>>,
    /// The labels that the program gave its blocks, the outermost first. The first entry stands for none.
    pub labels: Vec<Vec<Arc<str>>>,
    /// Coverage notes: what limits the numbers of this answer.
    pub coverage: Vec<v1::CoverageNote>,
}

/// Count and bytes of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of blocks.
    pub count: u64,
    /// Bytes of all these blocks.
    pub bytes: u64,
}

/// What one stack allocated on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct StackRow {
    /// Ordinal of the device within the process; `None` if it is not known.
    pub device: Option<i32>,
    /// The stack that allocated the blocks.
    pub stack: Arc<Stack>,
    /// Blocks that live now (rounded bytes; each allocation taken from the driver directly counts as one block).
    pub live: Tally,
    /// Blocks that lived when the device's allocated bytes were largest since the attach.
    pub peak: Tally,
    /// All blocks that were allocated since the attach.
    pub allocated: Tally,
    /// Blocks that lived at the earlier moment, where one was asked for.
    pub before: Option<Tally>,
}

/// Memory that a process has from the driver beside its framework's pool, on one device and of one stack.
#[derive(Clone, Debug, PartialEq)]
pub struct BesidePool {
    /// Ordinal of the device within the process; `None` if it is not known.
    pub device: Option<i32>,
    /// The component of Ascend's software that holds it, by its name in the driver; `None` where the driver is told of none.
    pub component: Option<&'static str>,
    /// The stack that allocated it.
    pub stack: Arc<Stack>,
    /// What lives now.
    pub live: DriverBytes,
}

/// The answer to `stacks`.
#[derive(Clone, Debug, PartialEq)]
pub struct StackReport {
    /// Process that the answer is about.
    pub process: ProcessSummary,
    /// Moment that the answer describes.
    pub as_of: AsOf,
    /// The earlier moment, where one was asked for.
    pub from: Option<AsOf>,
    /// One row for each device and stack, largest live bytes first.
    pub rows: Vec<StackRow>,
    /// Coverage notes: what limits the numbers of this answer.
    pub coverage: Vec<v1::CoverageNote>,
}
