//! Reports: the answers. Plain data; `None` is "unknown", never zero by default.
//!
//! Units are suffixes: `_bytes`, `_ns` (boot time unless `_unix_ns`).

mod component;
mod leaks;
mod marks;
mod region;
mod steps;

pub use component::{Component, Holder};
pub use leaks::*;
pub use marks::{KeptMark, MarkOrigin, MarkRow, MarksReport, OriginMarks};
pub use region::{RegionPool, RegionsOnDevice};
use serde::{Deserialize, Serialize};
pub use steps::*;

use std::sync::Arc;

use crate::event::{
    AllocatorFacts, Backend, CoverageNote, EventId, Placement, ProcessFacts, ProcessHandle,
    ReadingCost, Vendor,
};

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

/// The levels of one device of a process; the same numbers as in [`DeviceStats`].
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

/// Quantiles and buckets of a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Smallest, mean, largest.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// (upper bound, inclusive; count) in powers of two, empty buckets left out.
    pub buckets: Vec<(u64, u64)>,
}

/// Calls of one function that failed with one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Function name.
    pub function: String,
    /// Status as returned.
    pub status: i32,
    /// How often.
    pub count: u64,
    /// Bytes asked for, summed.
    pub bytes: u64,
}

/// Counts of one kind of driver-level memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverBytes {
    /// Live allocations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What one device holds for one process.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStats {
    /// Ordinal within the process; `None`: allocations whose device is not known.
    pub device: Option<i32>,
    /// Whose device; `None`: nothing has told yet.
    pub vendor: Option<Vendor>,
    /// Where `allocated_bytes` and `reserved_bytes` come from.
    pub source: Source,
    /// Bytes handed out, baseline included.
    pub allocated_bytes: Option<u64>,
    /// Bytes taken from the driver for the pool (pool), or held from the driver (driver).
    pub reserved_bytes: Option<u64>,
    /// Largest `allocated_bytes` since the attach.
    pub peak_allocated_bytes: Option<u64>,
    /// Largest `reserved_bytes` since the attach.
    pub peak_reserved_bytes: Option<u64>,
    /// The part of `allocated_bytes` that was there before the attach and still lives.
    pub baseline_bytes: Option<u64>,
    /// Requested (not rounded) bytes of live blocks that we know, at level `trace`.
    pub requested_bytes: Option<u64>,
    /// Blocks freed by the program but still in use by a stream.
    pub pending_free_bytes: Option<u64>,
    /// Live blocks that we know: seen to come, or read.
    pub live_blocks: u64,
    /// Device memory, from cudaMemGetInfo calls seen or NVML.
    pub total_bytes: Option<u64>,
    /// Free bytes of the device, from cudaMemGetInfo calls seen or NVML, and when.
    pub free_bytes: Option<(u64, u64)>,
    /// Allocations from runtime and driver that we saw and that live.
    pub driver: DriverBytes,
    /// The part of `driver` that is not the framework pool's.
    pub direct: DriverBytes,
    /// Who holds `direct`, on Ascend: the part of it whose owner the driver was seen to be told, by the driver's number.
    pub components: Vec<Component>,
    /// Stream-ordered allocations in `driver`.
    pub async_pool: DriverBytes,
    /// Managed memory in `driver`.
    pub managed: DriverBytes,
    /// Physical memory (cuMemCreate) in `driver`.
    pub physical: DriverBytes,
    /// Imports (IPC, shareable handles): never part of the sums; bytes only where known.
    pub imported: DriverBytes,
    /// Pool segments known, at level `trace`.
    pub segments: Option<u64>,
    /// Blocks (pool) or allocations (driver) that came since the attach.
    pub alloc_count: u64,
    /// … that went.
    pub free_count: u64,
    /// Frees of blocks that we never saw come, and their bytes where known.
    pub orphan_free_count: u64,
    /// See `orphan_free_count`.
    pub orphan_free_bytes: u64,
    /// Out-of-memory reports.
    pub oom_count: u64,
    /// Times a total of the allocator's differed from ours and was taken over.
    pub resync_count: u64,
    /// Sizes of blocks allocated, bytes.
    pub sizes: Distribution,
    /// Lifetimes of blocks freed, nanoseconds. Those of blocks that were not seen to come are not known.
    pub lifetimes: Distribution,
    /// How many live blocks of `baseline_bytes` are known one by one; `None`: no reading told of any.
    pub baseline_blocks: Option<u64>,
    /// Readings of the allocator's structures that were taken over.
    pub readings: u64,
    /// Readings that were too old, contradicted the totals, or were never complete.
    pub readings_refused: u64,
}

/// The answer to `stats`.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsReport {
    /// Whose.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// Allocator in use.
    pub backend: Backend,
    /// Ways in.
    pub placement: Placement,
    /// Per device, by ordinal, unknown last.
    pub devices: Vec<DeviceStats>,
    /// Pools that tell of themselves through mstx: no part of the numbers of the devices.
    pub region_pools: Vec<RegionPool>,
    /// Page-locked host memory.
    pub host: DriverBytes,
    /// Of it, registered (owned by the program).
    pub host_registered: DriverBytes,
    /// Who holds the rest of it, on Ascend.
    pub host_components: Vec<Component>,
    /// Address space reserved (no memory behind it).
    pub address_reserved: DriverBytes,
    /// Failed calls.
    pub failures: Vec<Failure>,
    /// Allocator calls inside others, counted once with the outer one.
    pub nested_calls: u64,
    /// Where records are missing (newest 64).
    pub gaps: Vec<Gap>,
    /// What the last reading of the allocator's structures took.
    pub reading: Option<ReadingCost>,
    /// What limits these numbers.
    pub coverage: Vec<CoverageNote>,
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

/// What to ask of `fluctuation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FluctuationQuery {
    /// How far back to look (0: all that is kept).
    pub window_ns: u64,
    /// Into how many intervals to cut it (0: 20).
    pub intervals: usize,
}

/// One interval of a pool's course.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Start, boot time.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// Smallest allocated bytes in it.
    pub min_allocated_bytes: u64,
    /// Largest.
    pub max_allocated_bytes: u64,
    /// Smallest reserved bytes.
    pub min_reserved_bytes: u64,
    /// Largest.
    pub max_reserved_bytes: u64,
    /// Allocations in it.
    pub allocs: u64,
    /// Frees in it.
    pub frees: u64,
}

/// How one device's pool breathes.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFluctuation {
    /// Device.
    pub device: Option<i32>,
    /// Source of the numbers.
    pub source: Source,
    /// Over the whole window.
    pub overall: Interval,
    /// `1 - min/max` of the allocated bytes over the window, 0..1.
    pub swing: f64,
    /// Change of the floor per second (robust slope of the intervals' minima), bytes.
    pub floor_slope_bytes_per_s: f64,
    /// Interval by interval; intervals without an event repeat the level.
    pub intervals: Vec<Interval>,
}

/// The answer to `fluctuation`.
#[derive(Clone, Debug, PartialEq)]
pub struct FluctuationReport {
    /// Whose.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// Per device.
    pub devices: Vec<DeviceFluctuation>,
    /// What limits this answer.
    pub coverage: Vec<CoverageNote>,
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
    pub coverage: Vec<CoverageNote>,
}

/// What a frame is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// Python code.
    Python,
    /// Compiled code.
    Native,
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// What it is of.
    pub kind: FrameKind,
    /// Function (Python: `co_name`). Empty where it is not known.
    pub name: Arc<str>,
    /// Source file (Python: `co_filename`); for compiled code without line information its object's path.
    pub file: Arc<str>,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
}

impl Frame {
    /// Whether it is of the program itself: Python code in a file, and of no installed package and not of Python's own library.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let library = ["/site-packages/", "/dist-packages/", "/lib/python3"]
            .iter()
            .any(|part| self.file.contains(part));
        self.kind == FrameKind::Python && self.line > 0 && !library && !self.file.starts_with('<')
    }
}

/// The words that a stack without frames can say in `missing`.
#[must_use]
pub fn missing_words() -> &'static [&'static str] {
    &crate::stacks::MISSING
}

/// A stack as it was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Innermost first. Empty: see `missing`.
    pub frames: Vec<Frame>,
    /// Outer frames were cut off, or a frame in the middle could not be read.
    pub truncated: bool,
    /// Why there are no frames (`no_python`, `unreadable`, `busy`, `lost`, `not_taken`), a stable word.
    pub missing: Option<&'static str>,
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
    pub coverage: Vec<CoverageNote>,
}
