//! Records as they cross the ring buffer and lie in the journal.
//!
//! Every record begins with a [`RecordHeader`] and is a multiple of 8 bytes long. Readers skip
//! kinds that they do not know by `len`. All integers have the byte order of the machine that
//! wrote them (the journal's header names it).
//!
//! A record is declared once, by `record!`: its number, its layout and the length that it had at first. New fields are added at its end,
//! and 0 must be what they mean where they are not there. So each build reads what other builds wrote: of a longer record the part that it knows,
//! and of a shorter one all that is there.

use core::mem::{offset_of, size_of};

/// Version of the layouts in this module; a reader refuses another. A field that is added at the end of a record does not change it.
pub const RECORD_VERSION: u8 = 3;

/// "Not known" for a device ordinal.
pub const DEVICE_UNKNOWN: i32 = -1;
/// "Not known" for a byte count or address.
pub const UNKNOWN_U64: u64 = u64::MAX;

/// torch_npu's workspace allocator took or gave back memory: [`ReportRecord`].
pub const KIND_WORKSPACE: u16 = 13;
/// Records of processes that a journal no longer keeps stood here: only a [`RecordHeader`], whose `sequence` says how many. Written by the
/// journal, never sent by a probe.
pub const KIND_LEFT_OUT: u16 = 0xff;
/// Kinds from here on are written by the daemon only: a header and UTF-8 JSON, padded with NUL.
pub const KIND_DAEMON_FIRST: u16 = 0x100;

/// What readers need to know of a record.
pub trait Record: Copy {
    /// Its number.
    const KIND: u16;
    /// Bytes that it had when it was first written: every record of this kind has as many.
    const FIRST_LEN: usize;
}

/// Declares a record, its number and its first length; user space can read and write it as bytes.
macro_rules! record {
    (
        $(#[doc = $doc:literal])+
        #[kind($kind:ident = $number:literal)]
        #[first_len($first:literal)]
        pub struct $name:ident { $($fields:tt)* }
    ) => {
        #[doc = concat!("Number of a [`", stringify!($name), "`].")]
        pub const $kind: u16 = $number;

        $(#[doc = $doc])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            feature = "zerocopy",
            derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)
        )]
        pub struct $name { $($fields)* }

        impl $crate::Record for $name {
            const KIND: u16 = $kind;
            const FIRST_LEN: usize = $first;
        }

        const _: () = {
            assert!(size_of::<$name>() >= $first);
            assert!(size_of::<$name>().is_multiple_of(8));
            assert!(align_of::<$name>() == 8);
        };
    };
}
pub(crate) use record;

/// The first 48 bytes of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "zerocopy",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)
)]
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

record! {
    /// One outermost allocator call of the runtime or driver, sent when it returned.
    #[kind(KIND_CALL = 1)]
    #[first_len(112)]
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
}

record! {
    /// A call of `c10::reportMemoryUsageToProfiler` for a device other than the CPU, or of torch_npu's
    /// `reportMemoryDataToNpuProfiler`.
    #[kind(KIND_REPORT = 2)]
    #[first_len(88)]
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
}

record! {
    /// A call of `c10::reportOutOfMemoryToProfiler`.
    #[kind(KIND_OOM = 3)]
    #[first_len(80)]
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

record! {
    /// A call of PyTorch's `DeviceCachingAllocator::record_trace`.
    #[kind(KIND_TRACE = 4)]
    #[first_len(128)]
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
}

/// Registers in a [`CalibrationRecord`].
pub const CALIBRATION_REGISTERS: usize = 9;
/// Stack words in a [`CalibrationRecord`].
pub const CALIBRATION_STACK: usize = 48;

record! {
    /// A [`TraceRecord`] and what is needed to find where blocks and totals lie.
    #[kind(KIND_CALIBRATION = 5)]
    #[first_len(592)]
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
}

/// `ProcessRecord::what`: a child was forked; `other` is its tgid.
pub const PROCESS_FORK: u32 = 1;
/// The process executed another image.
pub const PROCESS_EXEC: u32 = 2;
/// The thread group's leader ended; the process has ended when its pidfd says so.
pub const PROCESS_EXIT: u32 = 3;

record! {
    /// A change in a process's life, seen by a scheduler tracepoint.
    #[kind(KIND_PROCESS = 6)]
    #[first_len(64)]
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
}

record! {
    /// The dynamic linker called its debugger hook: mappings may have changed.
    #[kind(KIND_MAPPINGS = 7)]
    #[first_len(48)]
    pub struct MappingsRecord {
        /// Common part.
        pub header: RecordHeader,
    }
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

record! {
    /// A function was entered that names a moment, or is one.
    #[kind(KIND_MARK = 11)]
    #[first_len(192)]
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
}

record! {
    /// How many kernels the process has launched, sent before the next allocation or mark.
    #[kind(KIND_LAUNCHES_SO_FAR = 12)]
    #[first_len(56)]
    pub struct LaunchesRecord {
        /// Common part.
        pub header: RecordHeader,
        /// Since the counting began.
        pub count: u64,
    }
}

const _: () = {
    assert!(size_of::<RecordHeader>() == 48);
    assert!(offset_of!(RecordHeader, process) == 8);
    assert!(offset_of!(RecordHeader, time_ns) == 16);
    assert!(offset_of!(CallRecord, ptr) == 64);
    assert!(offset_of!(TraceRecord, addr) == 64);
    assert!(offset_of!(CalibrationRecord, registers) == 128);
};
