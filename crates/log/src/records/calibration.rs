//! Reads from trace records what is needed to find where PyTorch's allocator keeps its totals.

use crate::records::bytes::{check, read};
use crate::records::kernel::trace_action;
use memscope_common::{
    CALIBRATION_REGISTERS, CALIBRATION_STACK, CalibrationRecord, KIND_CALIBRATION, KIND_TRACE,
    RECORD_VERSION, TRACE_EXPECTED, TRACE_HAS_TOTALS, TraceRecord,
};
use memscope_ledger::event::{ProcessHandle, TraceAction};

/// What a calibration record has in addition to its trace entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The process that called.
    pub process: ProcessHandle,
    /// Id of the thread that called, in the initial pid namespace.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// PyTorch's action; `None` if this version does not know its number.
    pub action: Option<TraceAction>,
    /// Address of the per-device allocator object.
    pub allocator: u64,
    /// Address in the trace entry.
    pub addr: u64,
    /// Size in the trace entry, in bytes.
    pub size: u64,
    /// Registers that may still hold values of the caller.
    pub registers: [u64; CALIBRATION_REGISTERS],
    /// Return address, which identifies the call site.
    pub caller: u64,
    /// Words of the caller's frame, beginning with the word of the return address.
    pub stack: [u64; CALIBRATION_STACK],
}

/// Allocated and reserved bytes in a trace record, from wherever they were read. Events leave out totals from a place
/// that is still on trial; this function returns them. `None` for any other record, and if nothing was read.
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

/// Whether the programs expect that the free which a trace record requests completes at once.
pub fn is_expected_to_complete(record: &[u8]) -> bool {
    let Ok(header) = check(record) else {
        return false;
    };
    matches!(header.kind, KIND_TRACE | KIND_CALIBRATION)
        && header.version == RECORD_VERSION
        && header.flags & TRACE_EXPECTED != 0
}

/// Reads the registers of a calibration record; `None` for any other record. The trace entry in it is decoded by
/// [`crate::records::Decoder::decode`] as usual.
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
