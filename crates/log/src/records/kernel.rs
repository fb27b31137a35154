//! The records that BPF programs write.

use crate::records::bytes::{Bytes, Header, at_least, check, read};
use crate::records::hal::{self, Visible};
use crate::records::launch::Kernels;
use crate::records::outcome::{Malformed, Skipped, What};
use crate::records::region;
use crate::records::said::{Said, ended_by_nul};
use crate::records::site::SiteDefined;
use core::mem::{offset_of, size_of};
use foldhash::HashMap;
use memscope_common::{
    CALL_DEVICE_BY_ARGUMENT, CALL_DEVICE_BY_THREAD, CALL_DEVICE_KNOWN, CALL_HAL, CALL_OF_HOST,
    CODE_KEPT, CODE_KEPT_BITS, CODE_LINES, CODE_OBJECT, CODE_TEXT, CalibrationRecord, CallRecord,
    CodeRecord, FRAME_ENTRY, KIND_CALIBRATION, KIND_CALL, KIND_CODE, KIND_DOMAIN, KIND_LAUNCH,
    KIND_LAUNCHES_SO_FAR, KIND_MAPPINGS, KIND_MARK, KIND_OOM, KIND_OPERATOR, KIND_PROCESS,
    KIND_REGION, KIND_REPORT, KIND_STACK, KIND_STACK_COPY, KIND_TRACE, KIND_WORKSPACE,
    LaunchRecord, LaunchesRecord, MARK_BEGIN, MARK_END, MARK_INSTANT, MARK_NAME, MARK_STEP,
    MappingsRecord, MarkRecord, OPERATOR_BEGIN, OPERATOR_END, OPERATOR_GIVEN, OPERATOR_RETURNED,
    OomRecord, Op, OperatorRecord, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, ProcessRecord,
    PythonFrame, ReportRecord, STACK_AT_ENTRY, STACK_BITS, STACK_BROKEN, STACK_BUSY, STACK_HEAD,
    STACK_MASK, STACK_NO_FRAMES, STACK_NONE, STACK_NOT_SAMPLED, STACK_TRUNCATED, STACK_UNFINISHED,
    STACK_UNREADABLE, StackCopyRecord, StackRecord, TRACE_HAS_BLOCK, TRACE_HAS_POOL,
    TRACE_HAS_TOTALS, TRACE_NO_DEVICE, TRACE_ON_TRIAL, TraceRecord, UNKNOWN_U64,
};
use memscope_ledger::event::{
    Body, Call, CallOp, Launch, Mark, MarkKind, MarkSource, Operator, OperatorPart, PoolOom,
    PoolReport, PoolTrace, ProcessHandle, StackRef, StackSeen, Touched, TraceAction, Vendor,
    Workspace,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// `c10::DeviceType` of CUDA. ROCm builds report it as well.
const DEVICE_TYPE_CUDA: i32 = 1;
/// `c10::DeviceType` of HIP.
const DEVICE_TYPE_HIP: i32 = 6;
/// `c10::DeviceType` of backends outside PyTorch (PrivateUse1), such as torch_npu.
const DEVICE_TYPE_PRIVATE: i32 = 20;

/// What the decoder keeps of a site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) definition: SiteDefined,
    pub(crate) function: Arc<str>,
}

/// What records refer to.
pub(crate) struct Known<'s> {
    pub(crate) sites: &'s HashMap<u32, Site>,
    /// The kernels of the record's process that have names.
    pub(crate) kernels: Option<&'s Kernels>,
    pub(crate) visible: &'s Visible,
}

/// Decodes a kernel record whose header has been read and whose length has been checked.
pub(crate) fn decode(header: &Header, record: &[u8], known: &Known<'_>) -> Result<Said, Malformed> {
    let site = |site| known.sites.get(&site);
    Ok(match header.kind {
        KIND_CALL => call(header, &read(header, record)?, site, known.visible),
        KIND_REPORT => report(header, &read(header, record)?),
        KIND_WORKSPACE => workspace(header, &read(header, record)?),
        KIND_DOMAIN => region::domain(header, &read(header, record)?),
        KIND_REGION => region::region(header, &read(header, record)?),
        KIND_OOM => oom(header, &read(header, record)?)?,
        KIND_TRACE => trace(header, &read(header, record)?),
        KIND_CALIBRATION => trace(header, &read::<CalibrationRecord>(header, record)?.trace),
        KIND_PROCESS => process(header, &read(header, record)?),
        KIND_STACK => stack(header, Bytes(record))?,
        KIND_CODE => code_died(header, Bytes(record))?,
        KIND_LAUNCHES_SO_FAR => launches(header, &read(header, record)?),
        KIND_LAUNCH => launch(header, &read(header, record)?, known),
        KIND_MARK => mark(header, &read(header, record)?),
        KIND_OPERATOR => operator(header, &read(header, record)?, site),
        KIND_MAPPINGS => {
            read::<MappingsRecord>(header, record)?;
            Said::Notice(What::MappingsChanged)
        }
        kind => Said::Skip(Skipped::UnknownKind(kind)),
    })
}

/// The address of the pool's block that a record is about; `None` for a record of another kind. Nothing else of the record is looked at.
pub fn block_address(header: &Header, record: &[u8]) -> Option<u64> {
    let at = match header.kind {
        KIND_TRACE => offset_of!(TraceRecord, addr),
        KIND_REPORT => offset_of!(ReportRecord, ptr),
        _ => return None,
    };
    let bytes = record.get(at..at + 8)?;
    bytes.try_into().ok().map(u64::from_ne_bytes)
}

fn launches(header: &Header, record: &LaunchesRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    Said::Event(Body::Launches {
        count: record.count,
    })
}

fn launch(header: &Header, record: &LaunchRecord, known: &Known<'_>) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let Some(site) = known.sites.get(&record.site) else {
        return Said::Skip(Skipped::UnknownSite(record.site));
    };
    Said::Event(Body::Launch(Box::new(Launch {
        function: Arc::clone(&site.function),
        kernel: known.kernels.and_then(|all| all.name(record.handle)),
    })))
}

fn operator<'s>(
    header: &Header,
    record: &OperatorRecord,
    site: impl FnOnce(u32) -> Option<&'s Site>,
) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let part = match record.what {
        OPERATOR_BEGIN => OperatorPart::Begin,
        OPERATOR_GIVEN => OperatorPart::Given,
        OPERATOR_RETURNED => OperatorPart::Returned,
        OPERATOR_END => OperatorPart::End,
        other => return Said::Skip(Skipped::UnknownOp(other)),
    };
    let Some(site) = site(record.site) else {
        return Said::Skip(Skipped::UnknownSite(record.site));
    };
    let told = record.storages.iter().take(usize::from(record.count));
    Said::Event(Body::Operator(Box::new(Operator {
        name: Arc::clone(&site.function),
        part,
        memory: (0..)
            .zip(told)
            .map(|(bit, ptr)| Touched {
                ptr: *ptr,
                writes: record.writes >> bit & 1 == 1,
            })
            .collect(),
        unknown: record.untold,
    })))
}

fn call<'s>(
    header: &Header,
    record: &CallRecord,
    site: impl FnOnce(u32) -> Option<&'s Site>,
    visible: &Visible,
) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let Some(op) = Op::from_u16(record.op) else {
        return Said::Skip(Skipped::UnknownOp(record.op));
    };
    let Some(op) = call_op(op) else {
        return Said::Skip(Skipped::NoMemoryOp(record.op));
    };
    let Some(site) = site(record.site) else {
        return Said::Skip(Skipped::UnknownSite(record.site));
    };
    let Some(layer) = site.definition.layer else {
        return Said::Skip(Skipped::NotACall(record.site));
    };
    if record.ptr == UNKNOWN_U64 || record.handle == UNKNOWN_U64 {
        return Said::Skip(Skipped::Unreadable);
    }
    let known = CALL_DEVICE_KNOWN | CALL_DEVICE_BY_THREAD | CALL_DEVICE_BY_ARGUMENT;
    let hal = (header.flags & CALL_HAL != 0).then(|| hal::facts(record.extra));
    let by_hal = hal.and_then(|told| visible.ordinal(&told));
    let named = header.flags & known != 0 && record.device >= 0;
    let vendor = site.definition.vendor.unwrap_or_default();
    // With an allocation, `extra` is the driver's word of flags, or the context to which the memory belongs.
    let (context, extra) = match hal {
        Some(_) => (0, 0),
        None if has_context(vendor, op) => (record.extra, 0),
        None => (0, record.extra),
    };
    Said::Event(Body::Call(Call {
        function: Arc::clone(&site.function),
        layer,
        vendor,
        op,
        status: record.status,
        device: by_hal.or(named.then_some(record.device)),
        ptr: record.ptr,
        size: match record.size {
            UNKNOWN_U64 => 0,
            size => size,
        },
        stream: (record.stream != UNKNOWN_U64).then_some(record.stream),
        handle: record.handle,
        extra,
        context,
        of_host: header.flags & CALL_OF_HOST != 0,
        hal,
        nested: u32::from(record.nested),
        duration_ns: record.duration_ns,
    }))
}

/// Whether a record of this operation says in which context the thread was.
pub(crate) fn has_context(vendor: Vendor, op: CallOp) -> bool {
    vendor != Vendor::Ascend
        && matches!(
            op,
            CallOp::Alloc
                | CallOp::ManagedAlloc
                | CallOp::HostAlloc
                | CallOp::HostRegister
                | CallOp::ArrayAlloc
                | CallOp::IpcOpen
                | CallOp::Reset
        )
}

/// The ledger's name for an operation; `None` for operations that only select a device or context.
pub fn call_op(op: Op) -> Option<CallOp> {
    Some(match op {
        Op::Alloc => CallOp::Alloc,
        Op::Free => CallOp::Free,
        Op::AsyncAlloc => CallOp::AsyncAlloc,
        Op::AsyncFree => CallOp::AsyncFree,
        Op::ManagedAlloc => CallOp::ManagedAlloc,
        Op::HostAlloc => CallOp::HostAlloc,
        Op::HostFree => CallOp::HostFree,
        Op::HostRegister => CallOp::HostRegister,
        Op::HostUnregister => CallOp::HostUnregister,
        Op::Reserve => CallOp::Reserve,
        Op::ReserveFree => CallOp::ReserveFree,
        Op::Create => CallOp::Create,
        Op::Release => CallOp::Release,
        Op::Map => CallOp::Map,
        Op::Unmap => CallOp::Unmap,
        Op::Retain => CallOp::Retain,
        Op::Import => CallOp::Import,
        Op::IpcOpen => CallOp::IpcOpen,
        Op::IpcClose => CallOp::IpcClose,
        Op::MemInfo => CallOp::MemInfo,
        Op::Reset => CallOp::Reset,
        Op::ArrayAlloc => CallOp::ArrayAlloc,
        Op::ArrayFree => CallOp::ArrayFree,
        Op::SetDevice
        | Op::SetContext
        | Op::PushContext
        | Op::PopContext
        | Op::PrimaryContext
        | Op::NewStream
        | Op::PoolOf => {
            return None;
        }
    })
}

/// Why a record of a pool is not for the ledger, if it is not.
fn foreign(header: &Header, device_type: i32, device: i32, totals: [u64; 2]) -> Option<Skipped> {
    if header.process == 0 {
        Some(Skipped::NoProcess)
    } else if !matches!(
        device_type,
        DEVICE_TYPE_CUDA | DEVICE_TYPE_HIP | DEVICE_TYPE_PRIVATE
    ) {
        Some(Skipped::DeviceType(device_type))
    } else if device < 0 {
        Some(Skipped::NoDevice)
    } else if totals.contains(&UNKNOWN_U64) {
        Some(Skipped::NoTotals)
    } else {
        None
    }
}

fn report(header: &Header, record: &ReportRecord) -> Said {
    let totals = [record.total_allocated, record.total_reserved];
    if let Some(why) = foreign(header, record.device_type, record.device, totals) {
        return Said::Skip(why);
    }
    Said::Event(Body::Report(PoolReport {
        device: record.device,
        ptr: record.ptr,
        size: record.size,
        total_allocated: record.total_allocated,
        total_reserved: record.total_reserved,
    }))
}

fn workspace(header: &Header, record: &ReportRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    Said::Event(Body::Workspace(Workspace {
        device: (record.device >= 0).then_some(record.device),
        ptr: record.ptr,
        size: record.size,
    }))
}

fn oom(header: &Header, record: &OomRecord) -> Result<Said, Malformed> {
    let totals = [record.total_allocated, record.total_reserved];
    if let Some(why) = foreign(header, record.device_type, record.device, totals) {
        return Ok(Said::Skip(why));
    }
    Ok(Said::Event(Body::Oom(PoolOom {
        device: record.device,
        size: u64::try_from(record.size).map_err(|_| Malformed::Value {
            field: "size",
            value: record.size,
        })?,
        total_allocated: record.total_allocated,
        total_reserved: record.total_reserved,
    })))
}

/// Logarithm to base 2 of the sampling interval in bytes; 0: the stack of every allocation is taken.
pub(crate) fn sampling(stack: u64) -> u8 {
    (stack >> STACK_BITS) as u8
}

/// The stack that a header names.
pub(crate) fn stack_ref(stack: u64) -> StackRef {
    match stack & STACK_MASK {
        STACK_NONE => StackRef::NotTaken,
        STACK_NO_FRAMES => StackRef::NoPython,
        STACK_UNREADABLE => StackRef::Unreadable,
        STACK_BUSY => StackRef::Busy,
        STACK_NOT_SAMPLED => StackRef::NotSampled,
        id => StackRef::Id(id),
    }
}

fn stack(header: &Header, raw: Bytes) -> Result<Said, Malformed> {
    if header.process == 0 {
        return Ok(Said::Skip(Skipped::NoProcess));
    }
    let count = raw.u32(offset_of!(StackRecord, count))? as usize;
    let natives = raw.u32(offset_of!(StackRecord, natives))? as usize;
    let frame = size_of::<PythonFrame>();
    let expected = STACK_HEAD
        .saturating_add(count.saturating_mul(frame))
        .saturating_add(natives.saturating_mul(size_of::<u64>()));
    if header.len != expected {
        return Err(Malformed::Size {
            kind: header.kind,
            expected,
            found: header.len,
        });
    }
    let mut seen = StackSeen {
        id: header.stack,
        frames: Vec::with_capacity(count),
        natives: Vec::with_capacity(natives),
        truncated: header.flags & (STACK_TRUNCATED | STACK_BROKEN) != 0,
        unfinished: header.flags & STACK_UNFINISHED != 0,
        ..StackSeen::default()
    };
    for index in 0..count {
        let at = STACK_HEAD + index * frame;
        let code = raw.u64(at + offset_of!(PythonFrame, code))?;
        if code & FRAME_ENTRY != 0 {
            seen.entries.push(index as u32);
        }
        let instruction = raw.u64(at + offset_of!(PythonFrame, instruction))?;
        seen.frames.push((code & !FRAME_ENTRY, instruction));
    }
    for index in 0..natives {
        let at = STACK_HEAD + count * frame + index * size_of::<u64>();
        seen.natives.push(raw.u64(at)?);
    }
    if header.flags & STACK_AT_ENTRY != 0
        && let Some(first) = seen.natives.first_mut()
    {
        // All other addresses are return addresses, behind their instruction. Adding 1 makes the first one alike.
        *first = first.wrapping_add(1);
    }
    Ok(Said::Event(Body::Stack(Box::new(seen))))
}

/// A piece of a stack that could not be unwound, because a rule for an address in it was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackCopy<'a> {
    /// Process that the stack belongs to.
    pub process: ProcessHandle,
    /// Identity of the stack whose outer part this is.
    pub stack: u64,
    /// The address whose rule is missing.
    pub pc: u64,
    /// Stack pointer of the frame at `pc`.
    pub sp: u64,
    /// Frame pointer of the frame at `pc`.
    pub bp: u64,
    /// Address from which `bytes` was copied.
    pub base: u64,
    /// Contents of the stack from `base` on.
    pub bytes: &'a [u8],
}

/// Reads such a record; `None` for any other record.
pub fn stack_copy(record: &[u8]) -> Option<StackCopy<'_>> {
    let header = check(record).ok()?;
    if header.kind != KIND_STACK_COPY || at_least(&header, size_of::<StackCopyRecord>()).is_err() {
        return None;
    }
    let raw = Bytes(record);
    let len = usize::try_from(raw.u64(offset_of!(StackCopyRecord, len)).ok()?).ok()?;
    let from = offset_of!(StackCopyRecord, bytes);
    Some(StackCopy {
        process: ProcessHandle(header.process),
        stack: header.stack,
        pc: raw.u64(offset_of!(StackCopyRecord, pc)).ok()?,
        sp: raw.u64(offset_of!(StackCopyRecord, sp)).ok()?,
        bp: raw.u64(offset_of!(StackCopyRecord, bp)).ok()?,
        base: raw.u64(offset_of!(StackCopyRecord, base)).ok()?,
        bytes: record.get(from..from.checked_add(len)?)?,
    })
}

fn mark(header: &Header, record: &MarkRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let kind = match record.kind {
        MARK_INSTANT => MarkKind::Instant,
        MARK_BEGIN => MarkKind::Begin,
        MARK_END => MarkKind::End,
        MARK_STEP => MarkKind::Step,
        other => return Said::Skip(Skipped::UnknownMark(other)),
    };
    let source = match record.source {
        0 => MarkSource::Memscope,
        1 => MarkSource::Mstx,
        2 => MarkSource::Nvtx,
        3 => MarkSource::RecordFunction,
        4 => MarkSource::Backward,
        other => return Said::Skip(Skipped::UnknownMark(other)),
    };
    let told = record.name_len as usize;
    let kept = told.min(MARK_NAME);
    let bytes = record.name.get(..kept).unwrap_or_default();
    let name = ended_by_nul(bytes, told >= MARK_NAME - 1);
    Said::Event(Body::Mark(Box::new(Mark {
        kind,
        source,
        range: record.range,
        name: name.into(),
        // Of a name that ends with NUL, `name_len` counts only the bytes that were kept.
        cut: told > MARK_NAME || (told == MARK_NAME - 1 && kept == told),
    })))
}

fn code_died(header: &Header, raw: Bytes) -> Result<Said, Malformed> {
    at_least(header, size_of::<CodeRecord>())?;
    if header.process == 0 {
        return Ok(Said::Skip(Skipped::NoProcess));
    }
    let code = raw.u64(offset_of!(CodeRecord, code))?;
    Ok(Said::Event(Body::CodeDied { code }))
}

/// What was copied of a code object when it was freed. Only code that knows the interpreter can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DyingCode<'a> {
    /// Address of the code object.
    pub code: u64,
    /// The object itself, from its start, as far as it was copied.
    pub object: Option<&'a [u8]>,
    /// The string object of the file name, from its start, as far as it was copied.
    pub filename: Option<&'a [u8]>,
    /// The string object of the name, likewise.
    pub name: Option<&'a [u8]>,
    /// The bytes object of the line table, likewise.
    pub lines: Option<&'a [u8]>,
}

/// Reads the record of a code object that was freed; `None` for any other record.
pub fn dying_code(record: &[u8]) -> Option<DyingCode<'_>> {
    let header = check(record).ok()?;
    if header.kind != KIND_CODE || at_least(&header, size_of::<CodeRecord>()).is_err() {
        return None;
    }
    let raw = Bytes(record);
    let readable = raw.u64(offset_of!(CodeRecord, readable)).ok()?;
    let part = |bit: u32, at: usize, len: usize| {
        // Of the object itself, bit 0, there is all or nothing.
        let kept = bit.checked_sub(1).map_or(0, |bit| {
            readable >> (CODE_KEPT + CODE_KEPT_BITS * bit) & ((1 << CODE_KEPT_BITS) - 1)
        });
        let len = if kept == 0 {
            len
        } else {
            len.min(kept as usize)
        };
        (readable & (1 << bit) != 0)
            .then(|| record.get(at..at + len))
            .flatten()
    };
    Some(DyingCode {
        code: raw.u64(offset_of!(CodeRecord, code)).ok()?,
        object: part(0, offset_of!(CodeRecord, object), CODE_OBJECT),
        filename: part(1, offset_of!(CodeRecord, filename), CODE_TEXT),
        name: part(2, offset_of!(CodeRecord, name), CODE_TEXT),
        lines: part(3, offset_of!(CodeRecord, lines), CODE_LINES),
    })
}

/// The ledger's name for PyTorch's action number.
pub(crate) fn trace_action(number: i32) -> Option<TraceAction> {
    Some(match number {
        0 => TraceAction::Alloc,
        1 => TraceAction::FreeRequested,
        2 => TraceAction::FreeCompleted,
        3 => TraceAction::SegmentAlloc,
        4 => TraceAction::SegmentFree,
        5 => TraceAction::SegmentMap,
        6 => TraceAction::SegmentUnmap,
        7 => TraceAction::Snapshot,
        8 => TraceAction::Oom,
        _ => return None,
    })
}

/// PyTorch's number for an action.
pub(crate) fn action_number(action: TraceAction) -> i32 {
    // There are nine, so all numbers are tried.
    (0..)
        .map_while(|number| Some((number, trace_action(number)?)))
        .find(|(_, of)| *of == action)
        .map_or(-1, |(number, _)| number)
}

fn trace(header: &Header, record: &TraceRecord) -> Said {
    if header.process == 0 {
        return Said::Skip(Skipped::NoProcess);
    }
    let Some(action) = trace_action(record.action) else {
        return Said::Skip(Skipped::UnknownAction(record.action));
    };
    let has = |flag| header.flags & flag != 0;
    let block_size = has(TRACE_HAS_BLOCK).then_some(record.block_size);
    let told = has(TRACE_HAS_TOTALS) && !has(TRACE_ON_TRIAL);
    let in_memory = told.then_some(record.total_allocated);
    // PyTorch adds a new block to its totals just after recording it, and subtracts a freed block just before recording
    // it.
    let total_allocated = match action {
        TraceAction::Alloc => in_memory
            .zip(block_size)
            .and_then(|(total, block)| total.checked_add(block)),
        _ => in_memory,
    };
    // A segment is subtracted only after its free was recorded and the memory was given back.
    let total_reserved = match action {
        TraceAction::SegmentFree => record.total_reserved.checked_sub(record.size),
        _ => Some(record.total_reserved),
    }
    .filter(|_| told);
    Said::Event(Body::Trace(PoolTrace {
        action,
        allocator: record.allocator,
        device: (!has(TRACE_NO_DEVICE) && record.device >= 0).then_some(record.device),
        addr: record.addr,
        size: record.size,
        stream: record.stream,
        block_size,
        total_allocated,
        total_reserved,
        pool: has(TRACE_HAS_POOL).then_some(record.pool.into()),
    }))
}

fn process(header: &Header, record: &ProcessRecord) -> Said {
    let (tgid, child) = (record.tgid, record.other);
    match record.what {
        PROCESS_FORK if header.process == 0 => Said::Notice(What::ForkedElsewhere { tgid, child }),
        PROCESS_FORK => Said::Event(Body::Forked { child }),
        PROCESS_EXEC => Said::Notice(What::Exec { tgid }),
        PROCESS_EXIT => Said::Notice(What::LeaderExited { tgid }),
        other => Said::Skip(Skipped::UnknownChange(other)),
    }
}
