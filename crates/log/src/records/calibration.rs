//! What is read of trace records to find out where PyTorch's allocator keeps its totals.

use crate::records::bytes::Bytes;
use crate::records::kernel::{sized, trace_action};
use core::mem::offset_of;
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

fn words(raw: Bytes, at: usize, into: &mut [u64]) -> Option<()> {
    for (index, word) in into.iter_mut().enumerate() {
        *word = raw.u64(at + index * size_of::<u64>()).ok()?;
    }
    Some(())
}

/// Allocated and reserved bytes as a trace record has them, from wherever they were read: what is on trial is told by no event.
/// `None` for any other record, and where nothing was read.
pub fn totals_on_trial(record: &[u8]) -> Option<(u64, u64)> {
    let header = crate::records::bytes::check(record).ok()?;
    let at = match header.kind {
        KIND_TRACE => 0,
        KIND_CALIBRATION => offset_of!(CalibrationRecord, trace),
        _ => return None,
    };
    let field = |offset| Bytes(record).u64(at + offset).ok();
    let was_read = header.version == RECORD_VERSION && header.flags & TRACE_HAS_TOTALS != 0;
    let allocated = field(offset_of!(TraceRecord, total_allocated))?;
    let reserved = field(offset_of!(TraceRecord, total_reserved))?;
    was_read.then_some((allocated, reserved))
}

/// Reads a calibration record's registers; `None` for any other record. The trace entry in it comes
/// out of [`crate::records::Decoder::decode`] as usual.
pub fn calibration(record: &[u8]) -> Option<Calibration> {
    let header = crate::records::bytes::check(record).ok()?;
    if header.kind != KIND_CALIBRATION || header.version != RECORD_VERSION {
        return None;
    }
    sized::<CalibrationRecord>(&header).ok()?;
    let raw = Bytes(record);
    let mut registers = [0; CALIBRATION_REGISTERS];
    words(
        raw,
        offset_of!(CalibrationRecord, registers),
        &mut registers,
    )?;
    let mut stack = [0; CALIBRATION_STACK];
    words(raw, offset_of!(CalibrationRecord, stack), &mut stack)?;
    let trace = offset_of!(CalibrationRecord, trace);
    let field = |offset| raw.u64(trace + offset).ok();
    Some(Calibration {
        process: ProcessHandle(header.process),
        tid: header.tid,
        time_ns: header.time_ns,
        action: trace_action(raw.i32(trace + offset_of!(TraceRecord, action)).ok()?),
        allocator: field(offset_of!(TraceRecord, allocator))?,
        addr: field(offset_of!(TraceRecord, addr))?,
        size: field(offset_of!(TraceRecord, size))?,
        registers,
        stack,
        caller: raw.u64(offset_of!(CalibrationRecord, caller)).ok()?,
    })
}
