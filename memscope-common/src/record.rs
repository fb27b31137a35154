//! Records as they are sent over the ring buffer and stored in the journal.
//!
//! Every record begins with a [`RecordHeader`] and is a multiple of 8 bytes long. Readers use `len`
//! to skip records of kinds that they do not know. All integers have the byte order of the machine
//! that wrote them (the journal's header names it).
//!
//! A record is declared once, by `record!`: its number, its layout and the length that its first version had. New
//! fields are added at its end, and their value 0 must mean the same as their absence. So each build can read what
//! other builds wrote: of a longer record it reads the part that it knows, and missing fields of a shorter one are 0.

use core::mem::{offset_of, size_of};

/// Version of the layouts in this module; a reader refuses any other version. It stays the same when a field is added
/// at the end of a record.
pub const RECORD_VERSION: u8 = 3;

/// Device ordinal that means "not known".
pub const DEVICE_UNKNOWN: i32 = -1;
/// Byte count or address that means "not known".
pub const UNKNOWN_U64: u64 = u64::MAX;

/// Number of a [`ReportRecord`] that says that torch_npu's workspace allocator took memory or gave it back.
pub const KIND_WORKSPACE: u16 = 13;
/// Number of a record that stands in place of records that a journal no longer keeps. It is only a [`RecordHeader`],
/// whose `sequence` says how many event numbers are missing. The journal writes it; no probe sends it.
pub const KIND_LEFT_OUT: u16 = 0xff;
/// Kinds from this number on are written by the daemon only. Such a record is a header and UTF-8 JSON, padded with NUL.
pub const KIND_DAEMON_FIRST: u16 = 0x100;

/// What readers need to know about a type of record.
pub trait Record: Copy {
    /// Number of the record in `RecordHeader::kind`.
    const KIND: u16;
    /// Length in bytes of the first version of the record. Every record of this kind has at least this length.
    const FIRST_LEN: usize;
}

/// Declares a record with its number and its first length; user space can read and write it as bytes.
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
    /// Always zero.
    pub reserved: u16,
    /// The daemon's handle of the process; 0: the process is not traced.
    pub process: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Time in nanoseconds of `CLOCK_BOOTTIME`.
    pub time_ns: u64,
    /// Running number of this record among all that the programs tried to send for the process, from 1. 0 in records
    /// that are not counted.
    pub sequence: u64,
    /// Number of records of this process that had been lost when this one was made.
    pub lost_before: u64,
    /// Stack of the call: its identity within the process, or a constant such as [`crate::STACK_NONE`]. In an event's
    /// record the bits from [`crate::STACK_BITS`] on hold the sampling interval.
    pub stack: u64,
}

/// `header.flags` of a call: the device in the record is known for certain.
pub const CALL_DEVICE_KNOWN: u8 = 1;
/// `header.flags` of a call: the device is known because the thread selected it in a call that we saw.
pub const CALL_DEVICE_BY_THREAD: u8 = 2;
/// `header.flags` of a call: the device is known because the call itself names it (as `cuMemCreate`'s location does).
pub const CALL_DEVICE_BY_ARGUMENT: u8 = 4;
/// `header.flags` of a call: `extra` of this allocation is the word of flags given to Ascend's driver, see
/// [`crate::hal`].
pub const CALL_HAL: u8 = 8;
/// `header.flags` of a call: the memory is the host's and on no device (a location or pool of the host).
pub const CALL_OF_HOST: u8 = 16;

record! {
    /// One outermost allocator call of the runtime or driver, sent when it returned.
    #[kind(KIND_CALL = 1)]
    #[first_len(112)]
    pub struct CallRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Number that the daemon gave to the site (see the journal's site definitions).
        pub site: u32,
        /// Status that the call returned; 0 is success in every API covered.
        pub status: i32,
        /// Device ordinal, or [`DEVICE_UNKNOWN`].
        pub device: i32,
        /// [`crate::Op`] as a number.
        pub op: u16,
        /// Number of allocator calls inside this one, which get no records.
        pub nested: u16,
        /// Pointer that the call returned or was given (allocation, free, target of a mapping).
        pub ptr: u64,
        /// Bytes asked for. For pitched memory: the pitch that the call chose × rows. With [`CALL_HAL`]: bytes that the
        /// driver was asked for.
        pub size: u64,
        /// Raw value of the stream, or [`UNKNOWN_U64`] where the call has none.
        pub stream: u64,
        /// Pool, context, physical handle or array, depending on the operation.
        pub handle: u64,
        /// Offset, flags or second result, depending on the operation; with [`CALL_HAL`] the driver's word of flags. Where the memory
        /// belongs to a context, and in a reset: the thread's context, with 1 added if the program made it; 0 for a primary context.
        pub extra: u64,
        /// Time from the entry of the call to its return, in nanoseconds.
        pub duration_ns: u64,
    }
}

record! {
    /// A call of `c10::reportMemoryUsageToProfiler` for a device other than the CPU, or of torch_npu's
    /// `reportMemoryDataToNpuProfiler`.
    #[kind(KIND_REPORT = 2)]
    #[first_len(88)]
    pub struct ReportRecord {
        /// Header that all records have.
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
        /// Header that all records have.
        pub header: RecordHeader,
        /// Rounded request in bytes.
        pub size: i64,
        /// Bytes allocated on the device at that moment, by the allocator's own count.
        pub total_allocated: u64,
        /// Bytes reserved on the device at that moment, by the allocator's own count.
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
/// `header.flags` of a trace record: the totals were read from the allocator's statistics.
pub const TRACE_HAS_TOTALS: u8 = 2;
/// `header.flags` of a trace record: this variant of the function passes the pool's id, and it was read.
pub const TRACE_HAS_POOL: u8 = 4;
/// `header.flags` of a trace record: this variant of the function (torch 2.1) does not name the device.
pub const TRACE_NO_DEVICE: u8 = 8;
/// `header.flags` of a trace record: the totals were read from a place that is not proven yet. They serve only to prove
/// the place, and must not be used as totals.
pub const TRACE_ON_TRIAL: u8 = 16;
/// `header.flags` of a trace record for `free_requested`: the free completes at once, and no record of its own tells so.
/// The record takes two numbers. Only records in the ring have this flag: the daemon makes two records of one.
pub const TRACE_COMPLETES: u8 = 32;
/// `header.flags` of a trace record. For `free_requested`: the programs expect that the free completes at once, which
/// the next record of the thread proves. For `free_completed`: the record comes from the call in `free_block`, and an earlier
/// one may have told the same.
pub const TRACE_EXPECTED: u8 = 64;
/// `header.flags` of a trace record for `free_completed`: it comes from a call of `free_block` that ends a free which
/// waited for streams.
pub const TRACE_ENDS_WAIT: u8 = 128;

record! {
    /// A call of PyTorch's `DeviceCachingAllocator::record_trace`.
    #[kind(KIND_TRACE = 4)]
    #[first_len(128)]
    pub struct TraceRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Address of the allocator object of the device (`this`).
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
        /// Raw value of the stream.
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

/// Number of registers in a [`CalibrationRecord`].
pub const CALIBRATION_REGISTERS: usize = 9;
/// Number of words of the stack in a [`CalibrationRecord`].
pub const CALIBRATION_STACK: usize = 48;

record! {
    /// A [`TraceRecord`], with the registers and the part of the stack in which calibration looks for the block.
    #[kind(KIND_CALIBRATION = 5)]
    #[first_len(592)]
    pub struct CalibrationRecord {
        /// The record that would be sent without calibration.
        pub trace: TraceRecord,
        /// Registers that may still hold the caller's values: rbx, rbp, r12, r13, r14, r15, rax, r10,
        /// r11; on aarch64 x19 to x27.
        pub registers: [u64; CALIBRATION_REGISTERS],
        /// Return address of the call, which identifies the place in the allocator that made it.
        pub caller: u64,
        /// Words of the caller's frame; on x86-64 the first is the return address.
        pub stack: [u64; CALIBRATION_STACK],
    }
}

/// `ProcessRecord::what`: the process forked a child; `other` is the child's tgid.
pub const PROCESS_FORK: u32 = 1;
/// `ProcessRecord::what`: the process executed another image.
pub const PROCESS_EXEC: u32 = 2;
/// `ProcessRecord::what`: the leader of the thread group ended. The process itself has ended only when its pidfd says
/// so.
pub const PROCESS_EXIT: u32 = 3;

record! {
    /// A change in a process's life, seen by a scheduler tracepoint.
    #[kind(KIND_PROCESS = 6)]
    #[first_len(64)]
    pub struct ProcessRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// What happened: [`PROCESS_FORK`], [`PROCESS_EXEC`] or [`PROCESS_EXIT`].
        pub what: u32,
        /// Thread group id in the initial namespace.
        pub tgid: u32,
        /// For a fork, the thread group id of the child; else 0.
        pub other: u32,
        /// Always zero.
        pub reserved: u32,
    }
}

record! {
    /// The dynamic linker called its debugger hook: mappings may have changed.
    #[kind(KIND_MAPPINGS = 7)]
    #[first_len(48)]
    pub struct MappingsRecord {
        /// Header that all records have.
        pub header: RecordHeader,
    }
}

/// `MarkRecord::kind`: the mark names a single moment.
pub const MARK_INSTANT: u16 = 0;
/// `MarkRecord::kind`: a range begins.
pub const MARK_BEGIN: u16 = 1;
/// `MarkRecord::kind`: a range ends.
pub const MARK_END: u16 = 2;
/// `MarkRecord::kind`: a step ends and the next one begins.
pub const MARK_STEP: u16 = 3;

/// Most bytes of a mark's name that are kept.
pub const MARK_NAME: usize = 128;

record! {
    /// A function was entered that names a moment, or whose call is itself such a moment.
    #[kind(KIND_MARK = 11)]
    #[first_len(192)]
    pub struct MarkRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Number of the range, as the program's library gave it; 0: there is none.
        pub range: u64,
        /// Length of the name in bytes. If the program passes the length, this is the full length, which may be more
        /// than are kept. Of a name that ends with NUL it is the number of bytes that were kept.
        pub name_len: u32,
        /// Kind of the mark: one of the `MARK_*` constants; other values come from newer libraries.
        pub kind: u16,
        /// [`crate::MarkSource`] as a number.
        pub source: u16,
        /// First bytes of the name; the rest is zero.
        pub name: [u8; MARK_NAME],
    }
}

record! {
    /// Number of kernels that the process has launched on its devices so far. It is sent before the next allocation or
    /// mark.
    #[kind(KIND_LAUNCHES_SO_FAR = 12)]
    #[first_len(56)]
    pub struct LaunchesRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Kernels launched since the counting began.
        pub count: u64,
    }
}

/// Most bytes of a kernel's name in a [`KernelRecord`].
pub const KERNEL_NAME: usize = 2048;

record! {
    /// The name of a kernel that the process launches. It is sent before the first [`LaunchRecord`] with the kernel's handle,
    /// and again when the programs have forgotten that it was sent.
    #[kind(KIND_KERNEL = 17)]
    #[first_len(2112)]
    pub struct KernelRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// The driver's handle: the address of its object, whose second word is the address of the name.
        pub handle: u64,
        /// Length of the name in bytes, at most [`KERNEL_NAME`]; a longer name is cut off there.
        pub name_len: u32,
        /// Fills the word before the name, and is always zero.
        pub reserved: u32,
        /// First bytes of the name; what is behind `name_len` has no meaning.
        pub name: [u8; KERNEL_NAME],
    }
}

record! {
    /// A kernel or a graph is launched.
    #[kind(KIND_LAUNCH = 18)]
    #[first_len(64)]
    pub struct LaunchRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// The driver's handle of the kernel; 0 where the function launches none by name.
        pub handle: u64,
        /// Number of the function that launches.
        pub site: u32,
        /// Fills the last word of the record, and is always zero.
        pub reserved: u32,
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
