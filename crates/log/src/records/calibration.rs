//! What is read of trace records to find out where PyTorch's allocator keeps its totals.

use crate::records::bytes::{check, read};
use crate::records::kernel::trace_action;
use memscope_common::{
    CALIBRATION_REGISTERS, CALIBRATION_STACK, CalibrationRecord, KIND_CALIBRATION, KIND_TRACE,
    RECORD_VERSION, TRACE_HAS_TOTALS, TraceRecord,
};
use memscope_ledger::event::{ProcessHandle, TraceAction};

/// What a calibration record adds to its trace entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The process that called.
    pub process: ProcessHandle,
    /// Id of the thread that called, in the initial pid namespace.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// PyTorch's action; `None` if its number is not known.
    pub action: Option<TraceAction>,
    /// The per-device allocator object.
    pub allocator: u64,
    /// Address that the entry names.
    pub addr: u64,
    /// Size that the entry names.
    pub size: u64,
    /// Registers that may still hold the caller's values.
    pub registers: [u64; CALIBRATION_REGISTERS],
    /// Return address: which call site it was.
    pub caller: u64,
    /// Words of the caller's frame, from the return address's own word upwards.
    pub stack: [u64; CALIBRATION_STACK],
}

/// Allocated and reserved bytes as a trace record has them, from wherever they were read: what is on trial is told by no event.
/// `None` for any other record, and where nothing was read.
pub fn totals_on_trial(record: &[u8]) -> Option<(u64, u64)> {
    let header = check(record).ok()?;
    let trace = match header.kind {
        KIND_TRACE => read::<TraceRecord>(&header, record).ok()?,
        KIND_CALIBRATION => read::<CalibrationRecord>(&header, record).ok()?.trace,
        _ => return None,
    };
    let was_read = header.version == RECORD_VERSION && header.flags & TRACE_HAS_TOTALS != 0;
    was_read.then_some((trace.total_allocated, trace.total_reserved))
}

/// Reads a calibration record's registers; `None` for any other record. The trace entry in it comes
/// out of [`crate::records::Decoder::decode`] as usual.
pub fn calibration(record: &[u8]) -> Option<Calibration> {
    let header = check(record).ok()?;
    if header.kind != KIND_CALIBRATION || header.version != RECORD_VERSION {
        return None;
    }
    let CalibrationRecord {
        trace,
        registers,
        caller,
        stack,
    } = read(&header, record).ok()?;
    Some(Calibration {
        process: ProcessHandle(header.process),
        tid: header.tid,
        time_ns: header.time_ns,
        action: trace_action(trace.action),
        allocator: trace.allocator,
        addr: trace.addr,
        size: trace.size,
        registers,
        stack,
        caller,
    })
}
