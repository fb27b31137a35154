//! What the BPF programs and user space must agree on: record layouts, the attach cookie, the
//! shapes of the maps, and the reasons for loss. The layouts consist of integers and byte arrays
//! only, and each is checked at compile time. Nothing here allocates, decodes or decides.
#![no_std]

mod cookie;
pub mod hal;
mod map;
mod native;
mod operator;
mod python;
mod record;
mod region;

pub use cookie::{
    AscendExtra, Cookie, MarkAbi, MarkForm, MarkSource, NO_ARG, Op, PtrMode, SizeMode, TorchAbi,
};
pub use map::{
    CALIBRATE, DropReason, FOLLOW_FORKS, FREES_AT_ONCE, GlobalConfig, InflightCall, InflightThread,
    MAPS_VERSION, MAX_NESTING, NOWHERE, ON_TRIAL, PLACE_STACK, PROCESS_LIVE, ProcessEntry,
    RING_BYTES_DEFAULT, RING_SHARE, RING_UNLIMITED, SLOTS, STACK_TIMED, STACKS_OFF, WATCH_ALL,
    name, process_of_thread, ring_bytes, thread_key,
};
pub use native::*;
pub use operator::*;
pub use python::*;
pub use record::{
    CALIBRATION_REGISTERS, CALIBRATION_STACK, CALL_DEVICE_BY_ARGUMENT, CALL_DEVICE_BY_THREAD,
    CALL_DEVICE_KNOWN, CALL_HAL, CALL_OF_HOST, CalibrationRecord, CallRecord, DEVICE_UNKNOWN,
    KERNEL_NAME, KIND_CALIBRATION, KIND_CALL, KIND_DAEMON_FIRST, KIND_KERNEL, KIND_LAUNCH,
    KIND_LAUNCHES_SO_FAR, KIND_LEFT_OUT, KIND_MAPPINGS, KIND_MARK, KIND_OOM, KIND_PROCESS,
    KIND_REPORT, KIND_TRACE, KIND_WORKSPACE, KernelRecord, LaunchRecord, LaunchesRecord,
    MARK_BEGIN, MARK_END, MARK_INSTANT, MARK_NAME, MARK_STEP, MappingsRecord, MarkRecord,
    OomRecord, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, ProcessRecord, RECORD_VERSION, Record,
    RecordHeader, ReportRecord, TRACE_COMPLETES, TRACE_ENDS_WAIT, TRACE_EXPECTED, TRACE_HAS_BLOCK,
    TRACE_HAS_POOL, TRACE_HAS_TOTALS, TRACE_NO_DEVICE, TRACE_ON_TRIAL, TraceRecord, UNKNOWN_U64,
};
pub use region::*;
