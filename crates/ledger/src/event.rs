//! Events: the decoded form of records. The ledger learns everything from events.

mod call;
mod hal;
mod marks;
mod operator;
mod region;
mod shed;

pub use call::{Call, CallOp, Layer};
pub use hal::{HalFacts, HalModule, HalPage, HalSpace};
pub use marks::{Finding, Mark, MarkKind, MarkSource};
pub use memscope_vendors::Vendor;
pub use operator::{Launch, Operator, OperatorPart, Touched};
pub use region::{Domain, Region, RegionChange, Workspace};
pub use shed::{Shed, ShedPart};

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The daemon's number for one memory image of one process (pid, start time, generation). It is never used again
/// within a journal; 0 stands for no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessHandle(pub u32);

/// Place of an event in the log: the journal's epoch and the running number in it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct EventId {
    /// The journal, given by the boot time of its start in nanoseconds.
    pub epoch: u64,
    /// Number of the record in that journal, from 1.
    pub sequence: u64,
}

/// One thing that happened in a traced process or on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Place in the log.
    pub id: EventId,
    /// When it happened, `CLOCK_BOOTTIME` in nanoseconds.
    pub time_ns: u64,
    /// Process that the event belongs to; 0 for events of the machine.
    pub process: ProcessHandle,
    /// Thread id in the initial pid namespace (0: none).
    pub tid: u32,
    /// How many records of this process had been lost when this one was made.
    pub lost_before: u64,
    /// Python stack of the thread at the event.
    pub stack: StackRef,
    /// Logarithm to base 2 of the sampling interval of stacks, in bytes: a block smaller than the interval stands for
    /// as many blocks of its size as fit into the interval. 0: every block stands for itself only.
    pub sampling: u8,
    /// What happened.
    pub body: Body,
}

/// The stack of an event, or why it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackRef {
    /// Stacks were not asked for.
    #[default]
    NotTaken,
    /// The thread runs no Python code.
    NoPython,
    /// Memory that is needed to walk the stack could not be read.
    Unreadable,
    /// All buffers for walking stacks were in use.
    Busy,
    /// Stacks are sampled, and this one was not among those that are taken.
    NotSampled,
    /// Identity of the stack; an earlier [`Body::Stack`] has its frames.
    Id(u64),
}

/// What a device is, whatever number a process has for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware {
    /// UUID of the device: `GPU-…`, also where the process was given only a part of it.
    pub uuid: String,
    /// UUID of the part of the device that the process was given (MIG): `MIG-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    /// Address on the PCI bus, as the kernel writes it: `0000:01:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
}

impl Hardware {
    /// The name that no other device, and no other part of one, has.
    #[must_use]
    pub fn name(&self) -> &str {
        self.mig_uuid.as_deref().unwrap_or(&self.uuid)
    }
}

/// The devices, and the parts of devices, on which NVML says that the process has a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsOn {
    /// All of them, in no order that means anything.
    pub devices: Vec<Hardware>,
}

/// Memory of a device, as NVML reports it, in bytes. All but its size is known only where it is certain which device of
/// the machine is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTotal {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// All memory of the device.
    pub total_bytes: u64,
    /// What nobody uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// What the driver keeps from everybody, for itself and the device's own firmware: a part of `total_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// What the driver says that this process uses: what its allocators hold, and the driver's context for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    /// What the device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
}

/// What happened, with its details.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A process is traced from now on.
    Attached(Box<ProcessFacts>),
    /// Probes of the process were placed, or placed again: which ways in are in use.
    Placed(Box<Placement>),
    /// Tracing ended on request; the process lives on.
    Detached,
    /// The process ended.
    Exited,
    /// The process executes another program: all that it held is gone, and this handle has ended.
    Replaced,
    /// The process forked. The child is not traced unless it is attached itself.
    Forked {
        /// Thread group id of the child.
        child: u32,
    },
    /// Something that cannot be seen, or can be seen again.
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
    /// Memory of a device, as NVML reports it.
    DeviceTotal(DeviceTotal),
    /// Where the process runs, as NVML says it. Written when it changes, and with each question: which device is meant by a number may follow
    /// from what the process uses by then.
    RunsOn(RunsOn),
    /// One part of a reading: what a device's pool held at one moment, read from the allocator's own structures.
    Held(Box<HeldPart>),
    /// A stack, to which later events refer by its identity.
    Stack(Box<StackSeen>),
    /// Name and lines of a code object that occurs in stacks.
    Code(Box<CodeName>),
    /// File and functions at an address of compiled code.
    Native(Box<NativeName>),
    /// A code object that occurs in stacks is about to be freed: another one may be created at its address. Its name
    /// may come in a later event.
    CodeDied {
        /// Address of the code object.
        code: u64,
    },
    /// A reading of the allocator's own structures succeeded: what it cost.
    ReadingCost(ReadingCost),
    /// Records were lost, and no record has come since that would say so; `lost_before` of this event says how many
    /// were lost in all.
    Lost,
    /// A mark: the program, a library in it or somebody outside has named this moment.
    Mark(Box<Mark>),
    /// A finding was made in the process's memory, or is withdrawn.
    Finding(Box<Finding>),
    /// A part of what was kept of the process was given up, because the daemon's memory was short.
    Shed(Shed),
    /// How many kernels the process has launched so far, where they are counted.
    Launches {
        /// Kernels launched since the counting began.
        count: u64,
    },
    /// A kernel or a graph is launched, where launches are told.
    Launch(Box<Launch>),
    /// An operator of the framework begins, ends, or uses memory, where operators are followed.
    Operator(Box<Operator>),
    /// A runtime or driver call returned.
    Call(Call),
    /// PyTorch's allocator reported a block and its totals.
    Report(PoolReport),
    /// PyTorch's allocator reported that it is out of memory.
    Oom(PoolOom),
    /// torch_npu's workspace allocator took memory from the runtime, or gave it back.
    Workspace(Workspace),
    /// A domain of mstx was created.
    Domain(Domain),
    /// A pool that reports its own memory through mstx took memory, handed it out, or got it back.
    Region(Region),
    /// An entry of PyTorch's allocator trace.
    Trace(PoolTrace),
}

/// One part of a reading: what one device's pool held at one moment, as the allocator's own structures say. The reading
/// was accepted only because its sums equal the allocator's totals at that moment. So it has a place in the order of
/// the pool's events, which `at_ns` gives: events of the device up to that time are in it, later ones are not. It may
/// reach the log after later events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldPart {
    /// Moment that the reading describes, `CLOCK_BOOTTIME` in nanoseconds.
    pub at_ns: u64,
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of the per-device allocator object, as in [`PoolTrace::allocator`]; 0: not known.
    #[serde(default)]
    pub allocator: u64,
    /// Number of this part, from 0.
    pub part: u32,
    /// How many parts the reading has. It counts only when all of them have come, in order.
    pub parts: u32,
    /// The allocator's total of allocated bytes at that moment.
    pub total_allocated: u64,
    /// The allocator's total of reserved bytes at that moment.
    pub total_reserved: u64,
    /// Segments by address. A long segment may continue in the next part: same address, further blocks.
    pub segments: Vec<HeldSegment>,
}

/// A stack as the BPF programs saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackSeen {
    /// Identity of the stack within the process.
    pub id: u64,
    /// Frames of Python code, innermost first: (address of the code object, instruction, as [`CodeName::line`] takes
    /// it).
    pub frames: Vec<(u64, u64)>,
    /// Indices into `frames`, ascending, of the frames that were called by compiled code; empty where that was not
    /// recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<u32>,
    /// Frames of compiled code, innermost first: the return address of each call. For a function that was just entered
    /// it is the address of its second byte, so that the address minus 1 lies in the right instruction for all frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub natives: Vec<u64>,
    /// The stack had more frames, or one of them could not be read.
    pub truncated: bool,
    /// The outer frames of compiled code are still missing: a later event with the same identity has them.
    #[serde(default)]
    pub unfinished: bool,
    /// This event completes an unfinished stack: only its `natives` and `truncated` count, and they replace the earlier
    /// ones.
    #[serde(default)]
    pub completes: bool,
}

/// Beginning of the name of the interpreter's function that executes Python code: in a stack of both kinds of frames, a frame of it
/// stands for the frames of Python up to the next of [`StackSeen::entries`].
pub const INTERPRETER: &str = "_PyEval_EvalFrameDefault";

/// File and functions at an address of compiled code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NativeName {
    /// The address, as in [`StackSeen::natives`].
    pub address: u64,
    /// Path of the file that is mapped there; empty if it is not known.
    pub module: Arc<str>,
    /// The same address as the file itself numbers its addresses.
    pub offset: u64,
    /// Build id of the file, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: String,
    /// Functions at the address, innermost first: those that were inlined there, and last the function that contains
    /// them.
    pub functions: Vec<NativeFunction>,
}

/// One function at an address of compiled code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NativeFunction {
    /// Demangled name; empty if the file does not have it.
    pub name: Arc<str>,
    /// Source file, where there is debugging information; else empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub file: Arc<str>,
    /// Line in the source file; 0 if it is not known.
    #[serde(default, skip_serializing_if = "is_none")]
    pub line: u32,
}

fn is_none(line: &u32) -> bool {
    *line == 0
}

/// Name, file and lines of a Python code object that occurs in stacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeName {
    /// Address of the code object.
    pub code: u64,
    /// Where the name was recorded at the object's death: the number of that [`Body::CodeDied`]. Such a name replaces
    /// every earlier one. `None`: the name is of the object that is at the address at this place in the log.
    pub died: Option<u64>,
    /// `co_name`.
    pub name: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// `co_firstlineno`.
    pub first_line: u32,
    /// Address from which a frame's instruction is counted, or 0 where the instruction is a number and no address.
    pub origin: u64,
    /// Bytes for each count of a frame's instruction: 1 for addresses and byte offsets.
    pub unit: u32,
    /// Offset in bytes of the function's first instruction of its own. Frames whose instruction lies before it are
    /// still being set up, and Python does not show them.
    pub entered_at: u32,
    /// Where lines begin, ascending: (offset in bytes, line; 0 for none).
    pub lines: Vec<(u32, u32)>,
    /// The line table was longer than the part that could be kept: lines after that part are not known.
    pub lines_cut: bool,
}

impl CodeName {
    /// The offset of a frame's instruction in bytes; negative before the first instruction.
    fn offset(&self, instruction: u64) -> i64 {
        let steps = if self.origin == 0 {
            // The instruction is a signed number of 32 bits.
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

    /// Whether a frame with this instruction has reached its function's own instructions.
    pub fn is_entered(&self, instruction: u64) -> bool {
        self.entered_at == 0 || self.offset(instruction) >= i64::from(self.entered_at)
    }

    /// The line of a frame's instruction; 0 if it is not known.
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

/// What one reading of all devices of a process cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingCost {
    /// When the last device was read, `CLOCK_BOOTTIME` in nanoseconds.
    pub at_ns: u64,
    /// Time from the first attempt to the accepted one, pauses between attempts included, nanoseconds.
    pub duration_ns: u64,
    /// Bytes read from the process, failed attempts included.
    pub bytes_read: u64,
    /// Attempts during which the process changed what was being read.
    pub raced: u32,
}

/// A segment of a reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldSegment {
    /// Address of the segment.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Raw stream that the segment belongs to.
    pub stream: u64,
    /// The segment belongs to the large pool (else to the small one).
    pub large: bool,
    /// Id of the private pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Which private pool it belongs to is not known, and `pool` says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool_untold: bool,
    /// The segment is expandable: it consists of mapped chunks.
    pub expandable: bool,
    /// Blocks in use by address: (address, rounded bytes, requested bytes or 0 where they are not known, whether the
    /// block was freed and a stream still uses it). The room between them is free.
    pub blocks: Vec<(u64, u64, u64, bool)>,
    /// Start of the address space in which an expandable segment is mapped; 0 if it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub space: u64,
    /// Free room by address: (address, bytes requested at its last use). Room of which the latter is 0 is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<(u64, u64)>,
    /// The same for address space without memory before and after the segment; each is listed with one segment only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holes: Vec<(u64, u64)>,
    /// Stacks that allocated blocks, by the blocks' addresses, ascending: (address, identity of the stack). Only a snapshot that was
    /// imported knows them; its stacks come before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<(u64, u64)>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How much of a process is watched. `Blocks` and `Trace` include the level before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// There is no probe in the process: its allocator's own structures are read from time to time.
    Read,
    /// Calls of the runtime and the driver.
    Segments,
    /// Also the reports of the framework's pool: rounded sizes and totals.
    Blocks,
    /// Also the trace of the framework's pool: requested sizes, streams, segments, pending frees.
    Trace,
}

/// Which allocator hands out device memory in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "name")]
pub enum Backend {
    /// Not known yet, or no PyTorch in the process.
    #[default]
    Unknown,
    /// PyTorch is in the process, and its native caching allocator is in use.
    Native,
    /// The native allocator with `PYTORCH_NO_CUDA_MEMORY_CACHING` set: it calls cudaMalloc for every tensor.
    Uncached,
    /// The allocator that PyTorch uses with the setting `backend:cudaMallocAsync`.
    MallocAsync,
    /// Another allocator: the name of its class.
    Other(String),
}

/// What was read about PyTorch's allocator as a whole, apart from its blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatorFacts {
    /// Number of devices that PyTorch found; 0 if PyTorch has not counted them yet, or if it is not known.
    #[serde(default)]
    pub devices: u32,
    /// The allocator's settings, where they could be read.
    #[serde(default)]
    pub settings: Option<AllocatorSettings>,
}

/// Settings of PyTorch's allocator, as read from the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatorSettings {
    /// The settings that were applied last, as text in the form of `PYTORCH_CUDA_ALLOC_CONF`.
    pub text: String,
    /// `max_split_size_mb`, in bytes; `u64::MAX` if there is no limit.
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
    /// Process id in the process's own pid namespace, where that differs.
    pub namespace_pid: Option<u32>,
    /// Start time in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_ticks: u64,
    /// Number of execs that we saw since the attach.
    pub generation: u32,
    /// Number of the memory image: the same for each attach of one image, another one after an exec, whether or not we saw it. It
    /// fits into a number of JSON. `None` where it could not be read, and in recordings of older versions.
    #[serde(default)]
    pub image: Option<u64>,
    /// Process id of the parent.
    pub parent_pid: u32,
    /// Real, effective and saved user id.
    pub uids: [u32; 3],
    /// `/proc/<pid>/comm`.
    pub comm: String,
    /// Command line.
    pub cmdline: Vec<String>,
    /// Path of the cgroup.
    pub cgroup: Option<String>,
    /// Name of the machine; empty in recordings of older versions.
    #[serde(default)]
    pub host: String,
    /// What the machine calls its container; `None` outside of containers, and where the machine has no name for it.
    #[serde(default)]
    pub container: Option<ContainerNames>,
    /// Name and value of selected environment variables: RANK, LOCAL_RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES,
    /// ASCEND_RT_VISIBLE_DEVICES, SLURM_*, PYTORCH_*ALLOC_CONF, ….
    pub environment: Vec<(String, String)>,
    /// Level that was asked for.
    pub level: Option<Level>,
    /// Pattern for the names of marks that end steps, where one was given at the attach; `*` stands for any text.
    #[serde(default)]
    pub step_name: Option<String>,
    /// The attach came before any device library was in the process, so nothing was missed.
    pub from_start: bool,
}

/// What the machine on which a container runs calls it. Read from the folders in which kubelet keeps logs, or from the command line
/// of the program that watches over the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNames {
    /// Kubernetes' namespace of the pod.
    pub namespace: Option<String>,
    /// Name of the pod.
    pub pod: Option<String>,
    /// Name of the container, within its pod where there is one.
    pub name: Option<String>,
}

/// Which ways in are in use after a placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of sites with a live probe.
    pub sites: u32,
    /// Number of those that are operators of PyTorch, whose use of memory is followed.
    #[serde(default)]
    pub operators: u32,
    /// Names of the ways into PyTorch (`record_trace`, `reportMemoryUsageToProfiler`).
    pub ways: Vec<String>,
    /// PyTorch's caching allocator is in the process and a pool-level way in is live.
    pub pool_seen: bool,
    /// The ends of PyTorch's `record_function`s are probed, not only their beginnings.
    #[serde(default)]
    pub function_ends: bool,
    /// Paths of the libraries with sites.
    pub libraries: Vec<String>,
    /// The level that is reached from now on; `None` where it is what the attach said. Libraries that are loaded later
    /// can lack what a level needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Whether the first probes were in place before the process opened a device, so that nothing it takes was missed. It goes before
    /// [`ProcessFacts::from_start`]: a program that is linked with its libraries can be quicker than the probes. `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_first_memory: Option<bool>,
}

/// Something that limits what the numbers mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageNote {
    /// Stable word for programs (`attached_late`, `pool_not_seen`, `ipc_import`, …).
    pub code: String,
    /// One sentence for people.
    pub text: String,
}

/// A call of `c10::reportMemoryUsageToProfiler`: a block was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of the block.
    pub ptr: u64,
    /// Rounded size in bytes; negative when the block was freed.
    pub size: i64,
    /// The allocator's own total of allocated bytes after the call.
    pub total_allocated: u64,
    /// The allocator's own total of reserved bytes after the call.
    pub total_reserved: u64,
}

/// A call of `c10::reportOutOfMemoryToProfiler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOom {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Rounded request in bytes.
    pub size: u64,
    /// The allocator's own total of allocated bytes at that moment.
    pub total_allocated: u64,
    /// The allocator's own total of reserved bytes at that moment.
    pub total_reserved: u64,
}

/// What an entry of PyTorch's allocator trace reports.
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
    /// What the allocator did.
    pub action: TraceAction,
    /// Address of the per-device allocator object.
    pub allocator: u64,
    /// Ordinal of the device within the process; `None` where this version of PyTorch does not name it.
    pub device: Option<i32>,
    /// Address of the block or segment; for `Oom` the free bytes of the device.
    pub addr: u64,
    /// Requested bytes (alloc, free_*), segment bytes (segment_*), rounded request (oom), total
    /// active bytes (snapshot).
    pub size: u64,
    /// Raw stream.
    pub stream: u64,
    /// Rounded size of the block in bytes, where the probe could read it.
    pub block_size: Option<u64>,
    /// The allocator's total of allocated bytes *after* this action, where the probe could read it (for
    /// `alloc` the decoder has added the block, because PyTorch counts it just after the probe).
    pub total_allocated: Option<u64>,
    /// The allocator's total of reserved bytes after this action, where the probe could read it.
    pub total_reserved: Option<u64>,
    /// Id of the private pool, where it is known; `(0, 0)` is the default pool.
    pub pool: Option<(u64, u64)>,
}
