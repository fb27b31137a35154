//! Encodes events as records, for recordings that are not made by probes: an import.
//!
//! This is the reverse of decoding: [`crate::records::Decoder`] decodes the result of [`encode`] to the same event.
//! Calls need the number of a site, whose definition must come before them in the journal.

use crate::records::begun::{header, stack};
use crate::records::daemon::{Clock, DaemonRecord, EncodeError, Launches, Stamp};
use crate::records::hal;
use crate::records::kernel::{action_number, call_op, has_context};
use crate::records::region;
use memscope_common::{
    CALL_DEVICE_BY_ARGUMENT, CALL_DEVICE_KNOWN, CALL_HAL, CALL_OF_HOST, CallRecord, DEVICE_UNKNOWN,
    KIND_WORKSPACE, OomRecord, Op, ReportRecord, TRACE_HAS_BLOCK, TRACE_HAS_POOL, TRACE_HAS_TOTALS,
    TRACE_NO_DEVICE, TraceRecord, UNKNOWN_U64,
};
use memscope_ledger::event::{
    Body, Call, Event, PoolOom, PoolReport, PoolTrace, TraceAction, Workspace,
};
use zerocopy::{Immutable, IntoBytes};

/// `c10::DeviceType` of CUDA. It is used for the devices of every vendor.
const DEVICE_TYPE: i32 = 1;

/// Encodes an event. `None` for an event that only probes report (forks, freed code objects, operators). `site` is the number of the site
/// of a call's function. A part of a reading must be as small as [`crate::records::held_parts`] makes them.
///
/// # Errors
/// A text in the event is too long even after cutting.
pub fn encode(event: &Event, site: u32) -> Result<Option<Vec<u8>>, EncodeError> {
    let daemon = match &event.body {
        Body::Report(report) => return Ok(bytes(pool_report(event, report))),
        Body::Oom(oom) => return Ok(bytes(pool_oom(event, oom))),
        Body::Trace(trace) => return Ok(bytes(pool_trace(event, trace))),
        Body::Workspace(workspace) => return Ok(bytes(workspace_record(event, workspace))),
        Body::Domain(domain) => return Ok(bytes(region::domain_record(event, domain))),
        Body::Region(one) => return Ok(bytes(region::region_record(event, one))),
        Body::Call(call) => return Ok(call_record(event, call, site).and_then(bytes)),
        Body::Attached(facts) => DaemonRecord::Attached(facts.clone()),
        Body::Placed(placement) => DaemonRecord::Placed((**placement).clone()),
        Body::Detached => DaemonRecord::Detached,
        Body::Exited => DaemonRecord::Exited,
        Body::Replaced => DaemonRecord::Replaced,
        Body::Coverage(note) => DaemonRecord::Coverage(note.clone()),
        Body::Backend(backend) => DaemonRecord::Backend(backend.clone()),
        Body::Allocator(facts) => DaemonRecord::Allocator(facts.clone()),
        Body::Clock { unix_ns } => DaemonRecord::Clock(Clock { unix_ns: *unix_ns }),
        Body::DeviceTotal(total) => DaemonRecord::DeviceTotal(total.clone()),
        Body::RunsOn(places) => DaemonRecord::RunsOn(places.clone()),
        Body::ReadingCost(cost) => DaemonRecord::ReadingCost(*cost),
        Body::Lost => DaemonRecord::Lost,
        Body::Code(name) => DaemonRecord::Code((**name).clone()),
        Body::Stack(seen) => DaemonRecord::Stack(seen.clone()),
        Body::Native(name) => DaemonRecord::Native((**name).clone()),
        Body::Mark(mark) => DaemonRecord::Mark((**mark).clone()),
        Body::Launches { count } => DaemonRecord::Launches(Launches { count: *count }),
        Body::Shed(shed) => DaemonRecord::Shed(*shed),
        Body::Finding(finding) => DaemonRecord::Finding((**finding).clone()),
        Body::Held(part) => DaemonRecord::Held((**part).clone()),
        Body::Forked { .. } | Body::CodeDied { .. } | Body::Launch(_) | Body::Operator(_) => {
            return Ok(None);
        }
    };
    let stamp = Stamp {
        process: event.process,
        tid: event.tid,
        time_ns: event.time_ns,
        lost_before: event.lost_before,
    };
    Ok(Some(daemon.encode_of(stamp, stack(event))?))
}

fn bytes(record: impl IntoBytes + Immutable) -> Option<Vec<u8>> {
    Some(record.as_bytes().to_vec())
}

fn pool_report(event: &Event, report: &PoolReport) -> ReportRecord {
    ReportRecord {
        header: header::<ReportRecord>(event, 0),
        ptr: report.ptr,
        size: report.size,
        total_allocated: report.total_allocated,
        total_reserved: report.total_reserved,
        device_type: DEVICE_TYPE,
        device: report.device,
    }
}

fn pool_trace(event: &Event, trace: &PoolTrace) -> TraceRecord {
    let of = |known: bool, flag: u8| if known { flag } else { 0 };
    let totals = trace.total_allocated.zip(trace.total_reserved);
    let flags = of(trace.block_size.is_some(), TRACE_HAS_BLOCK)
        | of(totals.is_some(), TRACE_HAS_TOTALS)
        | of(trace.pool.is_some(), TRACE_HAS_POOL)
        | of(trace.device.is_none(), TRACE_NO_DEVICE);
    let (allocated, reserved) = totals.unwrap_or_default();
    let block_size = trace.block_size.unwrap_or(0);
    TraceRecord {
        header: header::<TraceRecord>(event, flags),
        allocator: trace.allocator,
        action: action_number(trace.action),
        device: trace.device.unwrap_or(DEVICE_UNKNOWN),
        addr: trace.addr,
        size: trace.size,
        stream: trace.stream,
        block_size,
        // As the allocator's memory has them at the call; see the decoder.
        total_allocated: match trace.action {
            TraceAction::Alloc => allocated.saturating_sub(block_size),
            _ => allocated,
        },
        total_reserved: match trace.action {
            TraceAction::SegmentFree => reserved.saturating_add(trace.size),
            _ => reserved,
        },
        pool: trace.pool.unwrap_or_default().into(),
    }
}

fn workspace_record(event: &Event, workspace: &Workspace) -> ReportRecord {
    let mut record = pool_report(
        event,
        &PoolReport {
            device: workspace.device.unwrap_or(DEVICE_UNKNOWN),
            ptr: workspace.ptr,
            size: workspace.size,
            total_allocated: 0,
            total_reserved: 0,
        },
    );
    record.header.kind = KIND_WORKSPACE;
    record
}

fn pool_oom(event: &Event, oom: &PoolOom) -> OomRecord {
    OomRecord {
        header: header::<OomRecord>(event, 0),
        // A size that does not fit into a signed number is a request that no program makes.
        size: i64::try_from(oom.size).unwrap_or(i64::MAX),
        total_allocated: oom.total_allocated,
        total_reserved: oom.total_reserved,
        device_type: DEVICE_TYPE,
        device: oom.device,
    }
}

fn call_record(event: &Event, call: &Call, site: u32) -> Option<CallRecord> {
    // There are only a few dozen operations, so all numbers are tried.
    let op = (0..64).find(|number| Op::from_u16(*number).and_then(call_op) == Some(call.op))?;
    let by_argument = match call.device {
        Some(_) => CALL_DEVICE_KNOWN | CALL_DEVICE_BY_ARGUMENT,
        None => 0,
    };
    let (by_hal, extra) = match &call.hal {
        Some(facts) => (CALL_HAL, hal::word(facts)),
        None if has_context(call.vendor, call.op) => (0, call.context),
        None => (0, call.extra),
    };
    let of_host = if call.of_host { CALL_OF_HOST } else { 0 };
    Some(CallRecord {
        header: header::<CallRecord>(event, by_argument | by_hal | of_host),
        site,
        status: call.status,
        device: call.device.unwrap_or(DEVICE_UNKNOWN),
        op,
        nested: u16::try_from(call.nested).unwrap_or(u16::MAX),
        ptr: call.ptr,
        size: call.size,
        stream: call.stream.unwrap_or(UNKNOWN_U64),
        handle: call.handle,
        extra,
        duration_ns: call.duration_ns,
    })
}
