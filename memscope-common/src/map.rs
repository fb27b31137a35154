//! Shapes and names of the BPF maps.

/// Names of maps and programs in the BPF object.
pub mod name {
    /// Ring buffer of records.
    pub const RING: &str = "RING";
    /// tgid → index into `SLOTS`.
    pub const PROCESSES: &str = "PROCESSES";
    /// [`super::SLOTS`] times [`super::ProcessEntry`], mapped into the daemon's memory as well: it
    /// changes single fields while programs count in others.
    pub const SLOTS: &str = "SLOTS";
    /// [`super::thread_key`] → [`super::InflightThread`].
    pub const INFLIGHT: &str = "INFLIGHT";
    /// [`super::thread_key`] → device and context of the thread.
    pub const THREAD_DEVICE: &str = "THREAD_DEVICE";
    /// (context pointer, process handle) → device ordinal.
    pub const CONTEXTS: &str = "CONTEXTS";
    /// Counters by [`super::DropReason`].
    pub const DROPS: &str = "DROPS";
    /// [`crate::PYTHONS`] times [`crate::PythonEntry`].
    pub const PYTHON: &str = "PYTHON";
    /// Code objects that were seen in stacks: (process handle, address).
    pub const CODES: &str = "CODES";
    /// [`super::thread_key`] → [`crate::RegionCall`].
    pub const REGION_CALLS: &str = "REGION_CALLS";
    /// Rules of unwinding by [`crate::rule_key`], each a [`crate::Rule`].
    pub const RULES: &str = "RULES";
    /// One [`super::GlobalConfig`].
    pub const CONFIG: &str = "CONFIG";
}

/// Default size of the ring buffer: at 120 bytes a record about 70,000 records.
pub const RING_BYTES_DEFAULT: u32 = 16 << 20;

/// `ProcessEntry::flags`: records are wanted.
pub const PROCESS_LIVE: u32 = 1;
/// `ProcessEntry::flags`: send calibration records for `record_trace`.
pub const CALIBRATE: u32 = 2;
/// `ProcessEntry::flags`: say when the process forks.
pub const FOLLOW_FORKS: u32 = 4;
/// `ProcessEntry::flags`: where the allocator keeps its totals is a guess that is still on trial.
pub const ON_TRIAL: u32 = 8;
/// `GlobalConfig::flags`: say when any process executes an image or forks.
pub const WATCH_ALL: u32 = 1;

/// "No place known that holds the block." Places below [`PLACE_STACK`] are indices into the
/// calibration record's registers, those from it on are words of its stack.
pub const NOWHERE: u8 = 0xff;
/// Place of the first stack word (on x86-64 the return address).
pub const PLACE_STACK: u8 = 16;

/// How many processes can be traced at a time.
pub const SLOTS: u32 = 4096;

/// One traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEntry {
    /// The daemon's handle.
    pub handle: u32,
    /// `PROCESS_LIVE`, `CALIBRATE`, …
    pub flags: u32,
    /// Records that were to be sent so far.
    pub sequence: u64,
    /// Records that could not be sent.
    pub lost: u64,
    /// Device of a thread that never chose one: 0 when we saw the runtime being loaded, else
    /// [`crate::DEVICE_UNKNOWN`].
    pub default_device: i32,
    /// Offset in PyTorch's allocator object of the allocated bytes' current value; the reserved
    /// bytes' follows at `reserved_offset`. 0: not known.
    pub allocated_offset: u32,
    /// Offset of the reserved bytes' current value.
    pub reserved_offset: u32,
    /// Offset of the address field in PyTorch's `Block`; the rounded size lies 24 bytes and the
    /// requested size 16 bytes before it. 0: not known.
    pub block_ptr_offset: u16,
    /// Place that holds the block on `alloc`, or [`NOWHERE`].
    pub alloc_place: u8,
    /// The same for `free_requested`.
    pub free_place: u8,
    /// Index into `PYTHON`, plus 1. 0: no Python stacks are taken.
    pub python: u32,
    /// 1: stacks of compiled code are taken.
    pub native: u32,
    /// Mixed into the identities of stacks: another value has every stack sent again.
    pub stack_salt: u64,
    /// Counts the code objects seen in stacks that have died: mixed in as well, since another code
    /// object may lie at the same address.
    pub code_deaths: u64,
    /// Most frames of a stack, of Python and of compiled code each.
    pub stack_depth: u32,
    /// Logarithm to base 2 of how many bytes one stack is taken for; 0: every allocation's is taken.
    pub stack_sampling: u32,
    /// Stacks taken.
    pub stacks: u64,
    /// Nanoseconds of that, put together from one in [`STACK_TIMED`] of them.
    pub stack_ns: u64,
    /// Kernels launched, where they are counted.
    pub launches: u64,
    /// As many were told of.
    pub launches_told: u64,
    /// Which losses befell this process, a bit for each [`DropReason`] (its number): tables that had no room for it.
    pub full: u64,
}

/// A thread of a traced process as the tables name it. A handle names one attach, so that what one attach left behind is
/// never taken for what another saw: the kernel gives thread numbers again, and a thread goes on while nobody looks.
pub const fn thread_key(process: u32, tid: u32) -> u64 {
    (process as u64) << 32 | tid as u64
}

/// The process handle in a [`thread_key`].
pub const fn process_of_thread(key: u64) -> u32 {
    (key >> 32) as u32
}

/// One stack in so many is timed.
pub const STACK_TIMED: u64 = 64;

/// Settings for all programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalConfig {
    /// `WATCH_ALL`.
    pub flags: u32,
    /// Wake the daemon when this many bytes lie unread.
    pub wake_bytes: u32,
}

/// How deep allocator calls may nest before we stop pairing (the deepest seen is 3).
pub const MAX_NESTING: usize = 4;

/// An allocator call that has been entered.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightCall {
    /// Cookie of the entry probe.
    pub cookie: u64,
    /// Stack pointer at the entry: what pairs the return, and shows frames that were left by a jump.
    pub sp: u64,
    /// `CLOCK_BOOTTIME` at the entry.
    pub time_ns: u64,
    /// The six register arguments.
    pub args: [u64; 6],
    /// Rows × depth for `cudaMalloc3D`, the device plus 1 for `cuMemCreate`, for Ascend's `halMemCreate` the word of
    /// [`crate::hal`].
    pub aside: u64,
}

/// The calls that a thread is inside of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightThread {
    /// How many entries of `calls` count.
    pub depth: u32,
    /// Allocator calls seen inside the outermost one.
    pub nested: u32,
    /// What Ascend's driver was told inside the outermost call ([`crate::hal`]); 0: nothing.
    pub told: u64,
    /// What it gave then: a pointer or a handle.
    pub told_of: u64,
    /// How much: the runtime may ask for more than it was asked for.
    pub told_size: u64,
    /// Outermost first.
    pub calls: [InflightCall; MAX_NESTING],
}

/// Why a record or an observation was lost: index into the `DROPS` map.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The ring was full.
    RingFull = 0,
    /// A table of calls in flight (the allocator's, or those of mstx) was full.
    InflightFull = 1,
    /// Calls nested deeper than [`MAX_NESTING`].
    TooDeep = 2,
    /// A return without its entry.
    ReturnWithoutEntry = 3,
    /// A result could not be read from the process's memory.
    ResultUnreadable = 4,
    /// The table of threads' devices or of contexts was full.
    DeviceTableFull = 5,
    /// A stack that was new found no room in the ring; it is sent at its next sight.
    StackUnsent = 6,
    /// The table of code objects was full.
    CodeTableFull = 7,
    /// A piece of a stack whose rules were not known yet found no room: the stack has no outer native frames.
    StackCopyUnsent = 8,
    /// A call of mstx named more regions than are told of ([`crate::REGIONS_TOLD`]).
    RegionsUntold = 9,
}

impl DropReason {
    /// All reasons, in order of their number.
    pub const ALL: [DropReason; 10] = [
        DropReason::RingFull,
        DropReason::InflightFull,
        DropReason::TooDeep,
        DropReason::ReturnWithoutEntry,
        DropReason::ResultUnreadable,
        DropReason::DeviceTableFull,
        DropReason::StackUnsent,
        DropReason::CodeTableFull,
        DropReason::StackCopyUnsent,
        DropReason::RegionsUntold,
    ];
    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::RingFull => "ring_full",
            DropReason::InflightFull => "inflight_table_full",
            DropReason::TooDeep => "calls_nested_too_deep",
            DropReason::ReturnWithoutEntry => "return_without_entry",
            DropReason::ResultUnreadable => "result_unreadable",
            DropReason::DeviceTableFull => "device_table_full",
            DropReason::StackUnsent => "stack_unsent",
            DropReason::CodeTableFull => "code_table_full",
            DropReason::StackCopyUnsent => "stack_copy_unsent",
            DropReason::RegionsUntold => "regions_untold",
        }
    }
}

const _: () = {
    assert!(core::mem::size_of::<ProcessEntry>() == 112);
    assert!(core::mem::size_of::<GlobalConfig>() == 8);
    assert!(core::mem::size_of::<InflightCall>() == 80);
    assert!(core::mem::size_of::<InflightThread>() == 32 + 80 * MAX_NESTING);
};
