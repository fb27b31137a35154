//! Shapes and names of the BPF maps.

/// Names of maps and programs in the BPF object.
pub mod name {
    /// Ring buffer of records.
    pub const RING: &str = "RING";
    /// Hash table from a tgid to an index into `SLOTS`.
    pub const PROCESSES: &str = "PROCESSES";
    /// Array of [`super::SLOTS`] entries of [`super::ProcessEntry`]. It is also mapped into the daemon's memory:
    /// the daemon changes single fields while the programs count in others.
    pub const SLOTS: &str = "SLOTS";
    /// Hash table from a [`super::thread_key`] to an [`super::InflightThread`].
    pub const INFLIGHT: &str = "INFLIGHT";
    /// Hash table from a [`super::thread_key`] to the devices of the thread's current and pushed contexts.
    pub const THREAD_DEVICE: &str = "THREAD_DEVICE";
    /// Hash table from a context (pointer and process handle) to its device ordinal, with a mark if the program made the context.
    pub const CONTEXTS: &str = "CONTEXTS";
    /// Array of counters of losses, indexed by [`super::DropReason`].
    pub const DROPS: &str = "DROPS";
    /// Array of [`crate::PYTHONS`] entries of [`crate::PythonEntry`].
    pub const PYTHON: &str = "PYTHON";
    /// Hash table of the code objects that were seen in stacks; the key is (process handle, address).
    pub const CODES: &str = "CODES";
    /// Hash table from a [`super::thread_key`] to a [`crate::RegionCall`].
    pub const REGION_CALLS: &str = "REGION_CALLS";
    /// Hash table of the rules of unwinding, from a [`crate::rule_key`] to a [`crate::Rule`].
    pub const RULES: &str = "RULES";
    /// Array of [`crate::SIGNATURES`] entries of [`crate::Signature`].
    pub const SIGNATURES: &str = "SIGNATURES";
    /// Hash table from a process handle to a [`crate::StorageEntry`].
    pub const STORAGES: &str = "STORAGES";
    /// Hash table from a [`super::thread_key`] to a [`crate::OperatorCall`].
    pub const OPERATOR_CALLS: &str = "OPERATOR_CALLS";
    /// Array with one [`super::GlobalConfig`].
    pub const CONFIG: &str = "CONFIG";
}

/// Version of what lies in the maps. It changes whenever the meaning of an entry changes, or its layout at the same size: a daemon takes
/// over maps that another one has pinned only if both have the same version and the same shapes.
pub const MAPS_VERSION: u32 = 5;

/// Default size of the ring buffer in bytes. With 120 bytes per record it holds about 140,000 records.
pub const RING_BYTES_DEFAULT: u32 = 16 << 20;

/// `ProcessEntry::flags`: the programs send records of this process.
pub const PROCESS_LIVE: u32 = 1;
/// `ProcessEntry::flags`: send calibration records for `record_trace`.
pub const CALIBRATE: u32 = 2;
/// `ProcessEntry::flags`: send a record when the process forks.
pub const FOLLOW_FORKS: u32 = 4;
/// `ProcessEntry::flags`: the offsets of the allocator's totals are a guess that is not proven yet.
pub const ON_TRIAL: u32 = 8;
/// `ProcessEntry::flags`: a free that completes at once is told by one record ([`crate::TRACE_COMPLETES`]).
pub const FREES_AT_ONCE: u32 = 16;
/// `GlobalConfig::flags`: send a record when any process executes an image or forks.
pub const WATCH_ALL: u32 = 1;

/// Place for "it is not known where the block is held". Places below [`PLACE_STACK`] are indices into the
/// calibration record's registers; places from [`PLACE_STACK`] on are words of its stack.
pub const NOWHERE: u8 = 0xff;
/// Place of the first word of the stack (on x86-64 the return address).
pub const PLACE_STACK: u8 = 16;

/// How many processes can be traced at a time.
pub const SLOTS: u32 = 4096;

/// In `stack_sampling`: no stacks are taken, until they are wanted again. The death of code is followed all the same, since stacks that
/// were taken name it.
pub const STACKS_OFF: u32 = 1 << 8;

/// Settings and counters of one traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEntry {
    /// The daemon's handle of the process.
    pub handle: u32,
    /// Bits: [`PROCESS_LIVE`], [`CALIBRATE`], [`FOLLOW_FORKS`], [`ON_TRIAL`], [`FREES_AT_ONCE`].
    pub flags: u32,
    /// Number of events that the programs have tried to tell so far: one for a record, two with [`crate::TRACE_COMPLETES`].
    pub sequence: u64,
    /// Number of events of records that could not be sent.
    pub lost: u64,
    /// Device of a thread that was not seen to choose one: 0 where that is certain (the process has only one device, or
    /// has been traced since before it loaded the runtime); else [`crate::DEVICE_UNKNOWN`].
    pub default_device: i32,
    /// Offset in PyTorch's allocator object of the current number of allocated bytes; 0: it is not known, and neither
    /// is `reserved_offset`.
    pub allocated_offset: u32,
    /// Offset in PyTorch's allocator object of the current number of reserved bytes.
    pub reserved_offset: u32,
    /// Offset of the address field in PyTorch's `Block`; the rounded size lies 24 bytes before it and the
    /// requested size 16 bytes before it. 0: it is not known.
    pub block_ptr_offset: u16,
    /// Place that holds the pointer to the block when `record_trace` is called for `alloc`, or [`NOWHERE`].
    pub alloc_place: u8,
    /// Place that holds the pointer to the block when `record_trace` is called for `free_requested`, or [`NOWHERE`].
    pub free_place: u8,
    /// Index into `PYTHON`, plus 1. 0: no Python stacks are taken.
    pub python: u32,
    /// Not 0: stacks of compiled code are taken.
    pub native: u32,
    /// Value that is mixed into the identities of stacks. After it has changed, every stack has a new identity and is
    /// sent again.
    pub stack_salt: u64,
    /// Number of code objects that were seen in stacks and have been freed since. It is mixed into the identities of
    /// stacks as well, since another code object may now lie at the same address.
    pub code_deaths: u64,
    /// Most frames of a stack that are sent: this limit applies to Python's frames and to those of compiled code each.
    pub stack_depth: u32,
    /// Logarithm to base 2 of the sampling interval, which is the number of allocated bytes for which one stack is
    /// taken on average. 0: the stack of every allocation is taken. [`STACKS_OFF`]: none is taken for now.
    pub stack_sampling: u32,
    /// Number of stacks that were taken.
    pub stacks: u64,
    /// Estimated total time for taking these stacks, in nanoseconds: one in [`STACK_TIMED`] is timed and counted
    /// [`STACK_TIMED`] times.
    pub stack_ns: u64,
    /// Number of kernels that the process has launched on its devices, if launches are counted.
    pub launches: u64,
    /// Value of `launches` that was last sent in a [`crate::LaunchesRecord`].
    pub launches_told: u64,
    /// Tables that had no room for something of this process: bit n stands for the [`DropReason`] with number n.
    pub full: u64,
    /// Not 0: the daemon was told that code was mapped or unmapped, and has not looked at the mappings since. The programs set it, and
    /// the daemon clears it before it looks.
    pub mappings_told: u32,
    /// Not 0: the daemon sleeps, and the process's next record wakes it. Only the daemon writes it.
    pub wake: u32,
    /// Bytes of the ring that the process's records have taken so far, as [`ring_bytes`] counts them.
    pub ring_taken: u64,
    /// How many of these bytes the daemon has read and given back. Only the daemon writes it.
    pub ring_read: u64,
}

/// Bytes that a record of this length takes in the ring: the kernel puts a head of 8 bytes before it, and rounds up.
pub const fn ring_bytes(len: u64) -> u64 {
    (len + 8).next_multiple_of(8)
}

/// With fewer unread bytes than this, a process's records are not limited.
pub const RING_UNLIMITED: u64 = 4096;
/// A process may have at most this many times as many unread bytes in the ring as are free. So there is always room
/// for a process that sends little, whatever another one does, and a process that is alone may still fill 16 of 17 parts.
pub const RING_SHARE: u64 = 16;

/// Key of a thread of a traced process in the tables. It contains the process's handle, which is new at each attach, so
/// that what one attach left in a table is never used by a later one. A thread number alone would not do: the kernel
/// reuses thread numbers, and a thread goes on running while it is not traced.
pub const fn thread_key(process: u32, tid: u32) -> u64 {
    (process as u64) << 32 | tid as u64
}

/// Process handle that a [`thread_key`] contains.
pub const fn process_of_thread(key: u64) -> u32 {
    (key >> 32) as u32
}

/// One in this many stacks is timed. A power of two.
pub const STACK_TIMED: u64 = 64;

/// Settings for all programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalConfig {
    /// Bits: [`WATCH_ALL`].
    pub flags: u32,
    /// The daemon is woken when at least this many bytes of the ring are unread.
    pub wake_bytes: u32,
}

/// Most allocator calls inside each other that are paired with their returns (the deepest nesting seen is 3).
pub const MAX_NESTING: usize = 4;

/// An allocator call that has been entered.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightCall {
    /// Cookie of the entry probe.
    pub cookie: u64,
    /// Stack pointer at the entry. The return is paired with the entry by it, and it shows which frames were left by
    /// a long jump.
    pub sp: u64,
    /// `CLOCK_BOOTTIME` at the entry.
    pub time_ns: u64,
    /// First six arguments, which are passed in registers.
    pub args: [u64; 6],
    /// What was read at the entry beside the arguments: height × depth for `cudaMalloc3D`, the device plus 1 for
    /// `cuMemCreate` and `aclrtMallocPhysical` (0: not known, all ones: the host's memory), for Ascend's `halMemCreate` the word of [`crate::hal`].
    pub aside: u64,
}

/// The calls that a thread has entered and not yet left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightThread {
    /// Number of entries of `calls` that are in use.
    pub depth: u32,
    /// Number of allocator calls seen inside the outermost one.
    pub nested: u32,
    /// Word of flags ([`crate::hal`]) with which Ascend's driver was called inside the outermost call; 0: there was no
    /// such call.
    pub told: u64,
    /// Pointer or handle that the driver returned from that call.
    pub told_of: u64,
    /// Size in bytes of that call. The runtime may ask the driver for more than the program asked for.
    pub told_size: u64,
    /// The calls, outermost first.
    pub calls: [InflightCall; MAX_NESTING],
}

/// Why a record or an observation was lost. The number is an index into the `DROPS` map.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The ring was full.
    RingFull = 0,
    /// A table of calls in flight (the allocator's, or those of mstx) was full.
    InflightFull = 1,
    /// Calls were nested deeper than [`MAX_NESTING`].
    TooDeep = 2,
    /// A call returned whose entry was not seen or not kept.
    ReturnWithoutEntry = 3,
    /// A result could not be read from the process's memory.
    ResultUnreadable = 4,
    /// The table of threads' devices or of contexts was full.
    DeviceTableFull = 5,
    /// A new stack, or the names of a dying code object, could not be sent. A stack is sent when it is seen again.
    StackUnsent = 6,
    /// The table of code objects was full.
    CodeTableFull = 7,
    /// There was no room for the piece of a stack whose rules were not known yet, so the stack lacks its outer frames
    /// of compiled code.
    StackCopyUnsent = 8,
    /// A call of mstx named more regions than get a record each ([`crate::REGIONS_TOLD`]).
    RegionsUntold = 9,
    /// The process had taken its share of the ring already ([`RING_SHARE`]).
    RingShare = 10,
    /// What an operator is given could not be read, since all buffers for that were in use.
    OperatorUntold = 11,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DropReason; 12] = [
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
        DropReason::RingShare,
        DropReason::OperatorUntold,
    ];
    /// Name of the reason in what users see.
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
            DropReason::RingShare => "ring_share_taken",
            DropReason::OperatorUntold => "operator_untold",
        }
    }
}

const _: () = {
    assert!(core::mem::size_of::<ProcessEntry>() == 136);
    assert!(core::mem::size_of::<GlobalConfig>() == 8);
    assert!(core::mem::size_of::<InflightCall>() == 80);
    assert!(core::mem::size_of::<InflightThread>() == 32 + 80 * MAX_NESTING);
};
