//! The walk over a report, which writes PyTorch's keys in PyTorch's order.

use crate::settings;
use crate::sink::Sink;
use crate::{ExportError, Progress};
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{
    BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace, Stack,
};
use std::sync::Arc;

/// Largest device ordinal: PyTorch's device index is a signed byte.
const MOST_DEVICES: i32 = 127;

/// Number of blocks and trace entries between two reports of progress.
const TOLD_EVERY: u64 = 4096;

/// Progress of the walk.
struct Steps<'a> {
    done: u64,
    of: u64,
    tell: Progress<'a>,
}

impl Steps<'_> {
    fn add(&mut self, more: usize) {
        let before = self.done / TOLD_EVERY;
        self.done += more as u64;
        if self.done / TOLD_EVERY != before {
            (self.tell)(self.done, self.of);
        }
    }
}

pub(crate) fn write(
    report: &SnapshotReport,
    out: &mut impl Sink,
    tell: Progress<'_>,
) -> Result<(), ExportError> {
    let devices = devices(report)?;
    let blocks = report.segments.iter().map(|segment| segment.blocks.len());
    let mut steps = Steps {
        done: 0,
        of: (blocks.sum::<usize>() + report.trace.len()) as u64,
        tell,
    };
    out.begin_dict()?;
    out.key("segments")?;
    out.begin_list()?;
    for part in &report.segments {
        out.item()?;
        segment(part, &report.stacks, out)?;
        steps.add(part.blocks.len());
    }
    out.end_list()?;
    out.key("device_traces")?;
    out.begin_list()?;
    for device in 0..devices {
        out.item()?;
        out.begin_list()?;
        for entry in report.trace.iter().filter(|entry| entry.device == device) {
            out.item()?;
            trace(entry, &report.stacks, out)?;
            steps.add(1);
        }
        out.end_list()?;
    }
    out.end_list()?;
    out.key("allocator_settings")?;
    settings::write(report, out)?;
    for key in ["external_annotations", "host_segments", "host_traces"] {
        out.key(key)?;
        out.empty_list()?;
    }
    out.key("memscope")?;
    origin(report, out)?;
    out.end_dict()?;
    Ok(())
}

/// Length of the list of traces. It has a trace for each device that PyTorch found, and reaches at least up to the
/// largest ordinal in the report.
fn devices(report: &SnapshotReport) -> Result<i32, ExportError> {
    let found = i32::try_from(report.allocator.devices).unwrap_or(0);
    let mut devices = found.min(MOST_DEVICES + 1);
    for entry in &report.trace {
        if !(0..=MOST_DEVICES).contains(&entry.device) {
            return Err(ExportError::Device {
                device: entry.device,
                most: MOST_DEVICES,
            });
        }
        devices = devices.max(entry.device + 1);
    }
    for segment in &report.segments {
        if (0..=MOST_DEVICES).contains(&segment.device) {
            devices = devices.max(segment.device + 1);
        }
    }
    Ok(devices)
}

fn segment(
    segment: &SnapshotSegment,
    stacks: &[Arc<Stack>],
    out: &mut impl Sink,
) -> Result<(), ExportError> {
    let sum =
        |counts: fn(&SnapshotBlock) -> u64| -> u64 { segment.blocks.iter().map(counts).sum() };
    out.begin_dict()?;
    out.key("device")?;
    out.signed(i64::from(segment.device))?;
    out.key("address")?;
    out.int(segment.addr)?;
    out.key("total_size")?;
    out.int(segment.size)?;
    out.key("allocated_size")?;
    out.int(sum(|block| match block.state {
        BlockState::Active => block.size,
        BlockState::PendingFree | BlockState::Inactive => 0,
    }))?;
    out.key("active_size")?;
    out.int(sum(|block| match block.state {
        BlockState::Active | BlockState::PendingFree => block.size,
        BlockState::Inactive => 0,
    }))?;
    out.key("requested_size")?;
    out.int(sum(|block| match block.state {
        BlockState::Active | BlockState::PendingFree => requested(block),
        BlockState::Inactive => 0,
    }))?;
    out.key("stream")?;
    out.int(segment.stream)?;
    out.key("segment_type")?;
    out.word(if segment.large { "large" } else { "small" })?;
    out.key("segment_pool_id")?;
    out.pair(segment.pool)?;
    out.key("is_expandable")?;
    out.flag(segment.expandable)?;
    out.key("frames")?;
    out.empty_list()?;
    out.key("blocks")?;
    out.begin_list()?;
    for part in &segment.blocks {
        out.item()?;
        block(part, stacks, out)?;
    }
    out.end_list()?;
    out.end_dict()?;
    Ok(())
}

fn requested(block: &SnapshotBlock) -> u64 {
    match block.state {
        BlockState::Active | BlockState::PendingFree => block.requested.unwrap_or(block.size),
        BlockState::Inactive => block.requested.unwrap_or(0),
    }
}

/// Writes a stack's frames, innermost first. If the stack was written before, only a reference is written, where the
/// encoding has references.
fn frames(number: u32, stacks: &[Arc<Stack>], out: &mut impl Sink) -> Result<(), ExportError> {
    let stack = stacks.get(number as usize);
    let Some(stack) = stack.filter(|stack| !stack.frames.is_empty()) else {
        return Ok(out.empty_list()?);
    };
    if out.refer(number)? {
        return Ok(());
    }
    out.begin_list()?;
    for frame in &stack.frames {
        out.item()?;
        out.begin_dict()?;
        out.key("name")?;
        out.name(&frame.name)?;
        out.key("filename")?;
        out.name(&frame.file)?;
        out.key("line")?;
        out.int(u64::from(frame.line))?;
        out.end_dict()?;
    }
    out.end_list()?;
    Ok(out.share(number)?)
}

fn block(
    block: &SnapshotBlock,
    stacks: &[Arc<Stack>],
    out: &mut impl Sink,
) -> Result<(), ExportError> {
    out.begin_dict()?;
    out.key("address")?;
    out.int(block.addr)?;
    out.key("size")?;
    out.int(block.size)?;
    out.key("requested_size")?;
    out.int(requested(block))?;
    out.key("state")?;
    out.word(match block.state {
        BlockState::Active => "active_allocated",
        BlockState::PendingFree => "active_pending_free",
        BlockState::Inactive => "inactive",
    })?;
    out.key("frames")?;
    frames(block.stack, stacks, out)?;
    out.end_dict()?;
    Ok(())
}

fn trace(
    entry: &SnapshotTrace,
    stacks: &[Arc<Stack>],
    out: &mut impl Sink,
) -> Result<(), ExportError> {
    out.begin_dict()?;
    out.key("action")?;
    out.word(action(entry.action))?;
    out.key(match entry.action {
        TraceAction::Oom => "device_free",
        _ => "addr",
    })?;
    out.int(entry.addr)?;
    out.key("size")?;
    out.int(entry.size)?;
    out.key("stream")?;
    out.int(entry.stream)?;
    out.key("time_us")?;
    out.int(entry.unix_ns / 1000)?;
    out.key("compile_context")?;
    out.word("N/A")?;
    out.key("user_metadata")?;
    out.word("")?;
    out.key("frames")?;
    frames(entry.stack, stacks, out)?;
    if let Some(pool) = entry.pool {
        out.key("pool_id")?;
        out.pair(pool)?;
    }
    out.end_dict()?;
    Ok(())
}

fn action(action: TraceAction) -> &'static str {
    match action {
        TraceAction::Alloc => "alloc",
        TraceAction::FreeRequested => "free_requested",
        TraceAction::FreeCompleted => "free_completed",
        TraceAction::SegmentAlloc => "segment_alloc",
        TraceAction::SegmentFree => "segment_free",
        TraceAction::SegmentMap => "segment_map",
        TraceAction::SegmentUnmap => "segment_unmap",
        TraceAction::Snapshot => "snapshot",
        TraceAction::Oom => "oom",
    }
}

fn origin(report: &SnapshotReport, out: &mut impl Sink) -> Result<(), ExportError> {
    out.begin_dict()?;
    out.key("version")?;
    out.word(env!("CARGO_PKG_VERSION"))?;
    out.key("pid")?;
    out.int(u64::from(report.process.facts.pid))?;
    // Together with the process id these name the memory image, so that one sees whether two files are of the same one.
    out.key("start_ticks")?;
    out.int(report.process.facts.start_ticks)?;
    out.key("generation")?;
    out.int(u64::from(report.process.facts.generation))?;
    if let Some(image) = report.process.facts.image {
        out.key("image")?;
        out.int(image)?;
    }
    // A later file of the same image tells by it whether the process was traced all the time between them.
    out.key("attached_unix_ns")?;
    let attached_ago = report
        .as_of
        .boot_ns
        .saturating_sub(report.process.attached_ns);
    out.int(report.as_of.unix_ns.saturating_sub(attached_ago))?;
    out.key("comm")?;
    out.text(&report.process.facts.comm)?;
    out.key("as_of_unix_ns")?;
    out.int(report.as_of.unix_ns)?;
    out.key("lost_records")?;
    out.int(report.process.lost_records)?;
    out.key("trace_dropped")?;
    out.int(report.trace_dropped)?;
    out.key("settings_from")?;
    out.word(settings::text(report).1.word())?;
    out.key("unseen_segments")?;
    out.begin_list()?;
    for segment in report.segments.iter().filter(|segment| !segment.seen) {
        out.item()?;
        out.int(segment.addr)?;
    }
    out.end_list()?;
    out.key("coverage")?;
    out.begin_list()?;
    for note in &report.coverage {
        out.item()?;
        out.begin_dict()?;
        out.key("code")?;
        out.text(&note.code)?;
        out.key("text")?;
        out.text(&note.text)?;
        out.key("affects")?;
        out.begin_list()?;
        let effect = memscope_ledger::effect(&note.code);
        for kind in effect.affects {
            out.item()?;
            out.word(kind.word())?;
        }
        out.end_list()?;
        out.key("lower_bound")?;
        out.flag(effect.lower_bound)?;
        out.end_dict()?;
    }
    out.end_list()?;
    out.end_dict()?;
    Ok(())
}
