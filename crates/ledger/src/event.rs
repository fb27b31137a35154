//! Events: the decoded form of records. Everything that the ledger ever learns comes as one.

mod call;
mod hal;
mod marks;
mod region;

pub use call::{Call, CallOp, Layer};
pub use hal::{HalFacts, HalModule, HalPage, HalSpace};
pub use marks::{Finding, Mark, MarkKind, MarkSource};
pub use memscope_vendors::Vendor;
pub use region::{Domain, Region, RegionChange, Workspace};

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The daemon's number for one memory image of one process: (tgid, start time, generation). Never
/// reused within a journal; 0 is no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessHandle(pub u32);

/// Place of an event in the log: the journal's epoch and the running number in it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct EventId {
    /// Which journal (boot-time nanoseconds of its start).
    pub epoch: u64,
    /// Number of the record in it, from 1.
    pub sequence: u64,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Place in the log.
    pub id: EventId,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Whose; 0 for events of the machine.
    pub process: ProcessHandle,
    /// Thread id in the initial pid namespace (0: none).
    pub tid: u32,
    /// How many records of this process had been lost when this one was made.
    pub lost_before: u64,
    /// The Python stack that it came from.
    pub stack: StackRef,
    /// Its stack stands for two to the power of this many bytes, if it has fewer; 0: for itself.
    pub sampling: u8,
    /// What.
    pub body: Body,
}

/// Which stack an event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackRef {
    /// None was wanted.
    #[default]
    NotTaken,
    /// The thread runs no Python code.
    NoPython,
    /// Memory that is needed to walk it could not be read.
    Unreadable,
    /// All buffers for walks were in use.
    Busy,
    /// Stacks are sampled, and it was none of those that are taken.
    NotSampled,
    /// The one that a [`Body::Stack`] before it has told of.
    Id(u64),
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A process is traced from now on.
    Attached(Box<ProcessFacts>),
    /// Probes of the process were (re)placed; says which ways in are in use.
    Placed(Box<Placement>),
    /// Tracing ended on request; the process lives on.
    Detached,
    /// The process ended.
    Exited,
    /// The process runs another image: whatever it held is gone, this handle has ended.
    Replaced,
    /// The process forked; the child's memory image is not ours unless it is attached.
    Forked {
        /// Thread group id of the child.
        child: u32,
    },
    /// Something that we could not see, or can see again.
    Coverage(CoverageNote),
    /// Which allocator PyTorch uses, as read from the process.
    Backend(Backend),
    /// What was read about PyTorch's allocator, when it changed.
    Allocator(Box<AllocatorFacts>),
    /// A pair of clock readings.
    Clock {
        /// `CLOCK_REALTIME` at `time_ns`, nanoseconds since 1970.
        unix_ns: u64,
    },
    /// Memory of a device from NVML.
    DeviceTotal {
        /// Ordinal within the process.
        device: i32,
        /// All of it, bytes.
        total_bytes: u64,
        /// What nobody uses, bytes; `None` where it is not certain which device of the machine this is.
        free_bytes: Option<u64>,
    },
    /// What a device's pool held at one moment, read from the allocator's own structures; one part of it.
    Held(Box<HeldPart>),
    /// A stack that the next events refer to by its identity.
    Stack(Box<StackSeen>),
    /// What names a code object in stacks.
    Code(Box<CodeName>),
    /// What is at an address of compiled code.
    Native(Box<NativeName>),
    /// A code object that was in stacks is about to be freed: its address may come to name another. What
    /// named it may follow.
    CodeDied {
        /// Its address.
        code: u64,
    },
    /// A reading of the allocator's own structures ended well: what it took.
    ReadingCost(ReadingCost),
    /// Records were lost, which no record that came since could tell; how many in all, the header says.
    Lost,
    /// A moment that the program, a library in it or somebody outside has named.
    Mark(Box<Mark>),
    /// Something was found in its memory that is worth an alert, or is no longer so.
    Finding(Box<Finding>),
    /// Kernels that the process has launched so far, where they are counted.
    Launches {
        /// Since the counting began.
        count: u64,
    },
    /// A runtime or driver call returned.
    Call(Call),
    /// PyTorch's allocator reported a block and its totals.
    Report(PoolReport),
    /// PyTorch's allocator reported that it is out of memory.
    Oom(PoolOom),
    /// torch_npu's workspace allocator took memory from the runtime, or gave it back.
    Workspace(Workspace),
    /// A domain of mstx was made.
    Domain(Domain),
    /// A pool that tells of itself through mstx took memory, handed it out, or got it back.
    Region(Region),
    /// An entry of PyTorch's allocator trace.
    Trace(PoolTrace),
}

/// A part of what one device's pool held at one moment, as its own structures said. The reading was
/// accepted only because its sums equalled the allocator's totals and nothing was allocated or freed
/// while it was read; so it stands at one place in the order of the pool's events, which is told by
/// `at_ns`: events of the device up to then are in it, later ones are not. It may reach the log later
/// than that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldPart {
    /// The moment, `CLOCK_BOOTTIME`, nanoseconds.
    pub at_ns: u64,
    /// Device ordinal.
    pub device: i32,
    /// The per-device allocator object, as in [`PoolTrace::allocator`]; 0: not told.
    #[serde(default)]
    pub allocator: u64,
    /// Number of this part, from 0.
    pub part: u32,
    /// How many parts the reading has; it counts only when all have come, in order.
    pub parts: u32,
    /// The allocator's totals at that moment.
    pub total_allocated: u64,
    /// The allocator's totals at that moment.
    pub total_reserved: u64,
    /// Segments by address. A long segment may go on in the next part: same address, further blocks.
    pub segments: Vec<HeldSegment>,
}

/// A stack as the programs saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackSeen {
    /// Its identity.
    pub id: u64,
    /// Code object and instruction of each frame of Python code, innermost first.
    pub frames: Vec<(u64, u64)>,
    /// Which of them compiled code called, ascending; empty where that was not looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<u32>,
    /// Frames of compiled code, innermost first: the address behind the call, of a function that is just entered the
    /// one behind its first byte.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub natives: Vec<u64>,
    /// There were more frames, or one could not be read.
    pub truncated: bool,
    /// The outer frames of compiled code are found elsewhere and told later, under the same identity.
    #[serde(default)]
    pub unfinished: bool,
    /// This is that: only `natives` and `truncated` count, and replace what was told.
    #[serde(default)]
    pub completes: bool,
}

/// What is at an address of compiled code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NativeName {
    /// The address as in [`StackSeen::natives`].
    pub address: u64,
    /// The file that it lies in; empty: none is known.
    pub module: Arc<str>,
    /// The address in the file's own numbering.
    pub offset: u64,
    /// Build id of the file, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: String,
    /// The function, and before it those that were inlined into it, innermost first.
    pub functions: Vec<NativeFunction>,
}

/// One function at an address of compiled code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NativeFunction {
    /// Its name, demangled; empty: the file does not tell.
    pub name: Arc<str>,
    /// Source file, where there is debugging information.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub file: Arc<str>,
    /// Line in it; 0: not known.
    #[serde(default, skip_serializing_if = "is_none")]
    pub line: u32,
}

fn is_none(line: &u32) -> bool {
    *line == 0
}

/// What names a code object in stacks, and its lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeName {
    /// Its address.
    pub code: u64,
    /// Told when it died, which has the last word: the number of that [`Body::CodeDied`]. Otherwise it is the
    /// object that the address names where this stands in the log.
    pub died: Option<u64>,
    /// `co_name`.
    pub name: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// `co_firstlineno`.
    pub first_line: u32,
    /// What a frame's instruction is counted from: an address, or 0.
    pub origin: u64,
    /// Bytes in one step of a frame's instruction: 1 for addresses and byte offsets.
    pub unit: u32,
    /// Frames whose instruction lies before this offset are still being made: Python does not show them.
    pub entered_at: u32,
    /// Where lines begin: (offset in bytes, line; 0 for none), ascending.
    pub lines: Vec<(u32, u32)>,
    /// The line table was longer than what could be kept: lines behind it are not known.
    pub lines_cut: bool,
}

impl CodeName {
    /// The offset of a frame's instruction in bytes; negative before the first one.
    fn offset(&self, instruction: u64) -> i64 {
        let steps = if self.origin == 0 {
            // A number of 32 bits, signed.
            i64::from(instruction as u32 as i32)
        } else {
            instruction.wrapping_sub(self.origin) as i64
        };
        if steps < 0 {
            steps
        } else {
            steps.saturating_mul(i64::from(self.unit))
        }
    }

    /// Whether the frame has come to its function's own instructions.
    pub fn is_entered(&self, instruction: u64) -> bool {
        self.entered_at == 0 || self.offset(instruction) >= i64::from(self.entered_at)
    }

    /// The line of an instruction; 0 if it is not known.
    pub fn line(&self, instruction: u64) -> u32 {
        let Ok(at) = u32::try_from(self.offset(instruction)) else {
            return self.first_line;
        };
        let place = self.lines.partition_point(|(from, _)| *from <= at);
        place
            .checked_sub(1)
            .and_then(|place| self.lines.get(place))
            .map_or(0, |(_, line)| *line)
    }
}

/// What one reading of all of a process' devices took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingCost {
    /// When the last device was read, `CLOCK_BOOTTIME`, nanoseconds.
    pub at_ns: u64,
    /// From the first look to the accepted one, pauses between attempts included, nanoseconds.
    pub duration_ns: u64,
    /// Bytes read from the process, attempts that came to nothing included.
    pub bytes_read: u64,
    /// Attempts during which the process changed what was being read.
    pub raced: u32,
}

/// A segment of a reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldSegment {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Raw stream.
    pub stream: u64,
    /// In the large pool.
    pub large: bool,
    /// Private pool id, `(0, 0)` is the default one.
    pub pool: (u64, u64),
    /// Made of mapped chunks.
    pub expandable: bool,
    /// Blocks in use by address: (address, rounded bytes, requested bytes or 0 where they are not known, freed but
    /// still used by a stream). What lies between them is free.
    pub blocks: Vec<(u64, u64, u64, bool)>,
    /// Where the address space begins that it is mapped in, where it is expandable; 0: not told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub space: u64,
    /// Free room by address, with the bytes that were asked for at its last use, where not 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<(u64, u64)>,
    /// The same of room without memory next to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holes: Vec<(u64, u64)>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Depth of observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No probe in the process: its allocator's own structures are read from time to time.
    Read,
    /// Runtime and driver calls.
    Segments,
    /// And the framework pool's reports: rounded sizes and totals.
    Blocks,
    /// And its trace: requested sizes, streams, segments, pending frees.
    Trace,
}

/// Which allocator hands out device memory in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "name")]
pub enum Backend {
    /// Not known yet, or no PyTorch in the process.
    #[default]
    Unknown,
    /// PyTorch is there and its native caching allocator is in use.
    Native,
    /// Native, with `PYTORCH_NO_CUDA_MEMORY_CACHING` set: every tensor is a cudaMalloc.
    Uncached,
    /// `backend:cudaMallocAsync`.
    MallocAsync,
    /// Another class: its name.
    Other(String),
}

/// What was read about PyTorch's allocator beside its blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatorFacts {
    /// Number of devices that PyTorch found; 0: it has not looked yet, or it is not known.
    #[serde(default)]
    pub devices: u32,
    /// How it was told to be, where that could be read.
    #[serde(default)]
    pub settings: Option<AllocatorSettings>,
}

/// How PyTorch's allocator was told to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatorSettings {
    /// As it was told last, in the words of `PYTORCH_CUDA_ALLOC_CONF`.
    pub text: String,
    /// `max_split_size_mb`, in bytes; `u64::MAX`: there is none.
    pub max_split_bytes: u64,
    /// `garbage_collection_threshold`.
    pub collection_threshold: f64,
    /// `roundup_power2_divisions`, one number for each power of two from 1 MiB on.
    pub divisions: Vec<u64>,
}

/// What was read about a process when it was attached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Process id in its own namespace, where another.
    pub namespace_pid: Option<u32>,
    /// Start time in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_ticks: u64,
    /// Generation of the memory image (counts execs that we saw).
    pub generation: u32,
    /// Parent.
    pub parent_pid: u32,
    /// Real, effective, saved uid.
    pub uids: [u32; 3],
    /// `/proc/<pid>/comm`.
    pub comm: String,
    /// Command line.
    pub cmdline: Vec<String>,
    /// Path of the cgroup.
    pub cgroup: Option<String>,
    /// RANK, LOCAL_RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES, SLURM_*,
    /// PYTORCH_*ALLOC_CONF, …: name and value.
    pub environment: Vec<(String, String)>,
    /// Level asked for.
    pub level: Option<Level>,
    /// Marks with such a name tell of steps, as was asked for; `*` stands for any text.
    #[serde(default)]
    pub step_name: Option<String>,
    /// The attach came before any device library was in the process, so nothing was missed.
    pub from_start: bool,
}

/// Which ways in are in use after a placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of sites with a live probe.
    pub sites: u32,
    /// Ways into PyTorch, in words (`record_trace`, `reportMemoryUsageToProfiler`).
    pub ways: Vec<String>,
    /// PyTorch's caching allocator is in the process and a pool-level way in is live.
    pub pool_seen: bool,
    /// Libraries with sites.
    pub libraries: Vec<String>,
}

/// Something that limits what the numbers mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageNote {
    /// Stable word for programs (`attached_late`, `pool_not_seen`, `ipc_import`, …).
    pub code: String,
    /// One sentence for people.
    pub text: String,
}

/// `c10::reportMemoryUsageToProfiler`: a block came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Device ordinal.
    pub device: i32,
    /// Block address.
    pub ptr: u64,
    /// Rounded size; negative when the block was freed.
    pub size: i64,
    /// The allocator's own totals after the call.
    pub total_allocated: u64,
    /// The allocator's own totals after the call.
    pub total_reserved: u64,
}

/// `c10::reportOutOfMemoryToProfiler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOom {
    /// Device ordinal.
    pub device: i32,
    /// Rounded request in bytes.
    pub size: u64,
    /// The allocator's own totals at that moment.
    pub total_allocated: u64,
    /// The allocator's own totals at that moment.
    pub total_reserved: u64,
}

/// PyTorch's trace actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // PyTorch's own words
pub enum TraceAction {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    Oom,
}

/// One entry of PyTorch's allocator trace (`DeviceCachingAllocator::record_trace`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolTrace {
    /// Action.
    pub action: TraceAction,
    /// The per-device allocator object.
    pub allocator: u64,
    /// Device ordinal; `None` for variants that do not name it.
    pub device: Option<i32>,
    /// Block or segment address; `Oom`: the device's free bytes.
    pub addr: u64,
    /// Requested bytes (alloc, free_*), segment bytes (segment_*), rounded request (oom), total
    /// active bytes (snapshot).
    pub size: u64,
    /// Raw stream.
    pub stream: u64,
    /// Rounded size of the block, where it could be read in the same trap.
    pub block_size: Option<u64>,
    /// The allocator's totals *after* this action, where they could be read in the same trap (for
    /// `alloc` the decoder has added the block, as PyTorch counts it just after).
    pub total_allocated: Option<u64>,
    /// See `total_allocated`.
    pub total_reserved: Option<u64>,
    /// Private pool, `(0, 0)` is the default one.
    pub pool: Option<(u64, u64)>,
}
