//! Events as records, for recordings that are made of something else than probes: an import.
//!
//! The reverse of decoding: what [`encode`] writes, [`crate::records::Decoder`] reads as the same event. Calls need the number of a
//! site, whose definition must stand before them in the journal.

use crate::records::begun::{begun, put, stack};
use crate::records::daemon::{DaemonRecord, DeviceTotal, EncodeError, Stamp};
use crate::records::hal;
use crate::records::kernel::call_op;
use crate::records::region;
use core::mem::offset_of;
use memscope_common::{
    CALL_DEVICE_BY_ARGUMENT, CALL_DEVICE_KNOWN, CALL_HAL, CallRecord, DEVICE_UNKNOWN, KIND_CALL,
    KIND_OOM, KIND_REPORT, KIND_WORKSPACE, OomRecord, Op, RecordHeader, ReportRecord, UNKNOWN_U64,
};
use memscope_ledger::event::{Body, Call, Event, PoolOom, PoolReport, Workspace};

/// `c10::DeviceType` of CUDA: what the ledger calls a device, whosever it is.
const DEVICE_TYPE: i32 = 1;

/// The record of an event; `None` for an event that only probes tell of (traces, forks, deaths of code objects, parts of
/// readings). `site` is the number of a call's function.
///
/// # Errors
/// A text in it is too long even when it is cut.
pub fn encode(event: &Event, site: u32) -> Result<Option<Vec<u8>>, EncodeError> {
    let daemon = match &event.body {
        Body::Report(report) => return Ok(Some(pool_report(event, report))),
        Body::Oom(oom) => return Ok(Some(pool_oom(event, oom))),
        Body::Workspace(workspace) => return Ok(Some(workspace_record(event, workspace))),
        Body::Domain(domain) => return Ok(Some(region::domain_record(event, domain))),
        Body::Region(one) => return Ok(Some(region::region_record(event, one))),
        Body::Call(call) => return Ok(call_record(event, call, site)),
        Body::Attached(facts) => DaemonRecord::Attached(facts.clone()),
        Body::Placed(placement) => DaemonRecord::Placed((**placement).clone()),
        Body::Detached => DaemonRecord::Detached,
        Body::Exited => DaemonRecord::Exited,
        Body::Replaced => DaemonRecord::Replaced,
        Body::Coverage(note) => DaemonRecord::Coverage(note.clone()),
        Body::Backend(backend) => DaemonRecord::Backend(backend.clone()),
        Body::Allocator(facts) => DaemonRecord::Allocator(facts.clone()),
        Body::Clock { unix_ns } => DaemonRecord::Clock { unix_ns: *unix_ns },
        Body::DeviceTotal {
            device,
            total_bytes,
            free_bytes,
        } => DaemonRecord::DeviceTotal(DeviceTotal {
            device: *device,
            total_bytes: *total_bytes,
            free_bytes: *free_bytes,
        }),
        Body::ReadingCost(cost) => DaemonRecord::ReadingCost(*cost),
        Body::Lost => DaemonRecord::Lost,
        Body::Code(name) => DaemonRecord::Code((**name).clone()),
        Body::Stack(seen) => DaemonRecord::Stack(seen.clone()),
        Body::Native(name) => DaemonRecord::Native((**name).clone()),
        Body::Mark(mark) => DaemonRecord::Mark((**mark).clone()),
        Body::Launches { count } => DaemonRecord::Launches { count: *count },
        Body::Finding(finding) => DaemonRecord::Finding((**finding).clone()),
        Body::Forked { .. } | Body::Held(_) | Body::CodeDied { .. } | Body::Trace(_) => {
            return Ok(None);
        }
    };
    let mut record = daemon.encode(Stamp {
        process: event.process,
        tid: event.tid,
        time_ns: event.time_ns,
        lost_before: event.lost_before,
    })?;
    put(
        &mut record,
        offset_of!(RecordHeader, stack),
        &stack(event).to_ne_bytes(),
    );
    Ok(Some(record))
}

fn pool_report(event: &Event, report: &PoolReport) -> Vec<u8> {
    let mut record = begun::<ReportRecord>(event, KIND_REPORT, 0);
    put(
        &mut record,
        offset_of!(ReportRecord, size),
        &report.size.to_ne_bytes(),
    );
    for (at, number) in [
        (offset_of!(ReportRecord, ptr), report.ptr),
        (
            offset_of!(ReportRecord, total_allocated),
            report.total_allocated,
        ),
        (
            offset_of!(ReportRecord, total_reserved),
            report.total_reserved,
        ),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    for (at, number) in [
        (offset_of!(ReportRecord, device_type), DEVICE_TYPE),
        (offset_of!(ReportRecord, device), report.device),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    record
}

fn workspace_record(event: &Event, workspace: &Workspace) -> Vec<u8> {
    let report = PoolReport {
        device: workspace.device.unwrap_or(DEVICE_UNKNOWN),
        ptr: workspace.ptr,
        size: workspace.size,
        total_allocated: 0,
        total_reserved: 0,
    };
    let mut record = pool_report(event, &report);
    put(
        &mut record,
        offset_of!(RecordHeader, kind),
        &KIND_WORKSPACE.to_ne_bytes(),
    );
    record
}

fn pool_oom(event: &Event, oom: &PoolOom) -> Vec<u8> {
    let mut record = begun::<OomRecord>(event, KIND_OOM, 0);
    for (at, number) in [
        // More than a signed number holds is a request that nobody makes.
        (offset_of!(OomRecord, size), oom.size.min(i64::MAX as u64)),
        (offset_of!(OomRecord, total_allocated), oom.total_allocated),
        (offset_of!(OomRecord, total_reserved), oom.total_reserved),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    for (at, number) in [
        (offset_of!(OomRecord, device_type), DEVICE_TYPE),
        (offset_of!(OomRecord, device), oom.device),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    record
}

fn call_record(event: &Event, call: &Call, site: u32) -> Option<Vec<u8>> {
    // There are a few dozen operations.
    let op = (0..64).find(|number| Op::from_u16(*number).and_then(call_op) == Some(call.op))?;
    let by_argument = match call.device {
        Some(_) => CALL_DEVICE_KNOWN | CALL_DEVICE_BY_ARGUMENT,
        None => 0,
    };
    let (by_hal, extra) = match &call.hal {
        Some(facts) => (CALL_HAL, hal::word(facts)),
        None => (0, call.extra),
    };
    let flags = by_argument | by_hal;
    let mut record = begun::<CallRecord>(event, KIND_CALL, flags);
    put(
        &mut record,
        offset_of!(CallRecord, site),
        &site.to_ne_bytes(),
    );
    for (at, number) in [
        (offset_of!(CallRecord, status), call.status),
        (
            offset_of!(CallRecord, device),
            call.device.unwrap_or(DEVICE_UNKNOWN),
        ),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    let nested = u16::try_from(call.nested).unwrap_or(u16::MAX);
    for (at, number) in [
        (offset_of!(CallRecord, op), op),
        (offset_of!(CallRecord, nested), nested),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    for (at, number) in [
        (offset_of!(CallRecord, ptr), call.ptr),
        (offset_of!(CallRecord, size), call.size),
        (
            offset_of!(CallRecord, stream),
            call.stream.unwrap_or(UNKNOWN_U64),
        ),
        (offset_of!(CallRecord, handle), call.handle),
        (offset_of!(CallRecord, extra), extra),
        (offset_of!(CallRecord, duration_ns), call.duration_ns),
    ] {
        put(&mut record, at, &number.to_ne_bytes());
    }
    Some(record)
}
