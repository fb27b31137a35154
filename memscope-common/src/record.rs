//! Records as they cross the ring buffer and lie in the journal.
//!
//! Every record begins with a [`RecordHeader`] and is a multiple of 8 bytes long. Readers skip
//! kinds that they do not know by `len`. All integers have the byte order of the machine that
//! wrote them (the journal's header names it).

/// Version of the layouts in this module; a reader refuses a newer one.
pub const RECORD_VERSION: u8 = 3;

/// "Not known" for a device ordinal.
pub const DEVICE_UNKNOWN: i32 = -1;
/// "Not known" for a byte count or address.
pub const UNKNOWN_U64: u64 = u64::MAX;

/// A runtime or driver call that returned: [`CallRecord`].
pub const KIND_CALL: u16 = 1;
/// `c10::reportMemoryUsageToProfiler` was entered: [`ReportRecord`].
pub const KIND_REPORT: u16 = 2;
/// `c10::reportOutOfMemoryToProfiler` was entered: [`OomRecord`].
pub const KIND_OOM: u16 = 3;
/// PyTorch's `record_trace` was entered: [`TraceRecord`].
pub const KIND_TRACE: u16 = 4;
/// As [`KIND_TRACE`], with the caller's registers, while offsets are being found: [`CalibrationRecord`].
pub const KIND_CALIBRATION: u16 = 5;
/// A process forked, executed another image or ended: [`ProcessRecord`].
pub const KIND_PROCESS: u16 = 6;
/// The dynamic linker mapped or unmapped objects: [`MappingsRecord`].
pub const KIND_MAPPINGS: u16 = 7;
/// A moment was named: [`MarkRecord`].
pub const KIND_MARK: u16 = 11;
/// Kernels were launched: [`LaunchesRecord`].
pub const KIND_LAUNCHES_SO_FAR: u16 = 12;
/// torch_npu's workspace allocator took or gave back memory: [`ReportRecord`].
pub const KIND_WORKSPACE: u16 = 13;
/// Records of processes that a journal no longer keeps stood here: only a [`RecordHeader`], whose `sequence` says how many. Written by the
/// journal, never sent by a probe.
pub const KIND_LEFT_OUT: u16 = 0xff;
/// Kinds from here on are written by the daemon only: a header and UTF-8 JSON, padded with NUL.
pub const KIND_DAEMON_FIRST: u16 = 0x100;

/// The first 48 bytes of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Length of the whole record in bytes, a multiple of 8.
    pub len: u16,
    /// One of the `KIND_*` constants.
    pub kind: u16,
    /// [`RECORD_VERSION`] of the writer.
    pub version: u8,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// Zero.
    pub reserved: u16,
    /// The daemon's handle of the process (0: no process of ours).
    pub process: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Number of this record among all that the process tried to send, from 1.
    pub sequence: u64,
    /// How many records of this process had been lost when this one was made.
    pub lost_before: u64,
    /// Stack of the call: its identity within the process, or a `STACK_*` constant.
    pub stack: u64,
}

/// `header.flags` of a call: the device in the record is backed by evidence.
pub const CALL_DEVICE_KNOWN: u8 = 1;
/// … because the thread selected it in a call that we saw.
pub const CALL_DEVICE_BY_THREAD: u8 = 2;
/// … because the call itself names it (`cuMemCreate`'s location).
pub const CALL_DEVICE_BY_ARGUMENT: u8 = 4;
/// `extra` of an allocation is what Ascend's driver was told about it: see [`crate::hal`].
pub const CALL_HAL: u8 = 8;

/// One outermost allocator call of the runtime or driver, sent when it returned.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// Common part.
    pub header: RecordHeader,
    /// The daemon's number of the site (see the journal's site definitions).
    pub site: u32,
    /// The call's status; 0 is success for every API covered.
    pub status: i32,
    /// Device ordinal, or [`DEVICE_UNKNOWN`].
    pub device: i32,
    /// [`crate::Op`] as a number.
    pub op: u16,
    /// How many allocator calls inside this one were not sent.
    pub nested: u16,
    /// Result or argument pointer (allocation, free, map target).
    pub ptr: u64,
    /// Bytes asked for (pitched: pitch × rows, as the call decided; with [`CALL_HAL`] what the driver was asked for).
    pub size: u64,
    /// Raw stream value, or [`UNKNOWN_U64`] where the call has none.
    pub stream: u64,
    /// Pool, physical handle or array, by operation.
    pub handle: u64,
    /// Offset, flags or second result, by operation; with [`CALL_HAL`] what the driver was told.
    pub extra: u64,
    /// Time inside the call, nanoseconds.
    pub duration_ns: u64,
}

/// A call of `c10::reportMemoryUsageToProfiler` for a device other than the CPU, or of torch_npu's
/// `reportMemoryDataToNpuProfiler`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportRecord {
    /// Common part.
    pub header: RecordHeader,
    /// Block address.
    pub ptr: u64,
    /// Rounded block size in bytes; negative for a free.
    pub size: i64,
    /// Bytes allocated on the device after the call, by the allocator's own count.
    pub total_allocated: u64,
    /// Bytes reserved on the device after the call, by the allocator's own count.
    pub total_reserved: u64,
    /// `c10::DeviceType` (CUDA 1, HIP 6, PrivateUse1 20).
    pub device_type: i32,
    /// Device ordinal.
    pub device: i32,
}

/// A call of `c10::reportOutOfMemoryToProfiler`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomRecord {
    /// Common part.
    pub header: RecordHeader,
    /// Rounded request in bytes.
    pub size: i64,
    /// Bytes allocated at that moment.
    pub total_allocated: u64,
    /// Bytes reserved at that moment.
    pub total_reserved: u64,
    /// `c10::DeviceType`.
    pub device_type: i32,
    /// Device ordinal.
    pub device: i32,
}

/// `header.flags` of a trace record: `block_size` was read from the block whose address and
/// requested size equal the call's.
pub const TRACE_HAS_BLOCK: u8 = 1;
/// The totals were read from the allocator's statistics.
pub const TRACE_HAS_TOTALS: u8 = 2;
/// The pool id was on the stack of this variant.
pub const TRACE_HAS_POOL: u8 = 4;
/// This variant (torch 2.1) does not name the device.
pub const TRACE_NO_DEVICE: u8 = 8;
/// The totals were read from a place that is not proven yet: they are what proves it, and tell nothing.
pub const TRACE_ON_TRIAL: u8 = 16;

/// A call of PyTorch's `DeviceCachingAllocator::record_trace`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Common part.
    pub header: RecordHeader,
    /// `this`: the per-device allocator object.
    pub allocator: u64,
    /// PyTorch's action number (0 alloc, 1 free_requested, 2 free_completed, 3 segment_alloc,
    /// 4 segment_free, 5 segment_map, 6 segment_unmap, 7 snapshot, 8 oom).
    pub action: i32,
    /// Device ordinal, or [`DEVICE_UNKNOWN`].
    pub device: i32,
    /// Block or segment address (oom: free bytes of the device).
    pub addr: u64,
    /// Requested bytes (alloc, free), segment bytes, or the rounded request (oom).
    pub size: u64,
    /// Raw stream.
    pub stream: u64,
    /// Rounded size of the block, if `TRACE_HAS_BLOCK`; else 0.
    pub block_size: u64,
    /// The allocator's allocated bytes *as its memory held them at the call*, if `TRACE_HAS_TOTALS`:
    /// before the block is added for `alloc`, after it was taken off for `free_requested`.
    pub total_allocated: u64,
    /// The allocator's reserved bytes at the call, if `TRACE_HAS_TOTALS`.
    pub total_reserved: u64,
    /// `MempoolId_t`, if `TRACE_HAS_POOL`.
    pub pool: [u64; 2],
}

/// Registers in a [`CalibrationRecord`].
pub const CALIBRATION_REGISTERS: usize = 9;
/// Stack words in a [`CalibrationRecord`].
pub const CALIBRATION_STACK: usize = 48;

/// A [`TraceRecord`] and what is needed to find where blocks and totals lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationRecord {
    /// The trace entry itself.
    pub trace: TraceRecord,
    /// Registers that may still hold the caller's values: rbx, rbp, r12, r13, r14, r15, rax, r10,
    /// r11; on aarch64 x19 to x27.
    pub registers: [u64; CALIBRATION_REGISTERS],
    /// Return address: which call site it was.
    pub caller: u64,
    /// Words of the caller's frame; on x86-64 the first is the return address.
    pub stack: [u64; CALIBRATION_STACK],
}

/// `ProcessRecord::what`: a child was forked; `other` is its tgid.
pub const PROCESS_FORK: u32 = 1;
/// The process executed another image.
pub const PROCESS_EXEC: u32 = 2;
/// The thread group's leader ended; the process has ended when its pidfd says so.
pub const PROCESS_EXIT: u32 = 3;

/// A change in a process's life, seen by a scheduler tracepoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Common part.
    pub header: RecordHeader,
    /// One of the `PROCESS_*` constants.
    pub what: u32,
    /// Thread group id in the initial namespace.
    pub tgid: u32,
    /// The child's thread group id for a fork.
    pub other: u32,
    /// Zero.
    pub reserved: u32,
}

/// The dynamic linker called its debugger hook: mappings may have changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingsRecord {
    /// Common part.
    pub header: RecordHeader,
}

/// `MarkRecord::kind`: a moment.
pub const MARK_INSTANT: u16 = 0;
/// A range begins.
pub const MARK_BEGIN: u16 = 1;
/// A range ends.
pub const MARK_END: u16 = 2;
/// A step ends and the next one begins.
pub const MARK_STEP: u16 = 3;

/// Bytes of a mark's name that are kept.
pub const MARK_NAME: usize = 128;

/// A function was entered that names a moment, or is one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRecord {
    /// Common part.
    pub header: RecordHeader,
    /// Number of the range, as the program's library gave it; 0: none.
    pub range: u64,
    /// Bytes of the name as the program has it, which may be more than are kept; of a name that ends with
    /// NUL, as many as were kept.
    pub name_len: u32,
    /// One of the `MARK_*` constants; others come from newer libraries.
    pub kind: u16,
    /// [`crate::MarkSource`] as a number.
    pub source: u16,
    /// The name's first bytes.
    pub name: [u8; MARK_NAME],
}

/// How many kernels the process has launched, sent before the next allocation or mark.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchesRecord {
    /// Common part.
    pub header: RecordHeader,
    /// Since the counting began.
    pub count: u64,
}

macro_rules! layout {
    ($type:ty, $size:expr) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            assert!(core::mem::size_of::<$type>() % 8 == 0);
            assert!(core::mem::align_of::<$type>() == 8);
        };
    };
}
layout!(RecordHeader, 48);
layout!(CallRecord, 48 + 16 + 48);
layout!(ReportRecord, 48 + 40);
layout!(OomRecord, 48 + 32);
layout!(TraceRecord, 48 + 16 + 64);
layout!(
    CalibrationRecord,
    128 + 8 * (CALIBRATION_REGISTERS + 1 + CALIBRATION_STACK)
);
layout!(ProcessRecord, 48 + 16);
layout!(MappingsRecord, 48);
layout!(LaunchesRecord, 48 + 8);
layout!(MarkRecord, 48 + 16 + MARK_NAME);
const _: () = {
    assert!(core::mem::offset_of!(RecordHeader, process) == 8);
    assert!(core::mem::offset_of!(RecordHeader, time_ns) == 16);
    assert!(core::mem::offset_of!(CallRecord, ptr) == 64);
    assert!(core::mem::offset_of!(TraceRecord, addr) == 64);
    assert!(core::mem::offset_of!(CalibrationRecord, registers) == 128);
};
