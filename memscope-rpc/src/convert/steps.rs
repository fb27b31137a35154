//! The answer to `steps`.

use super::{coverage, event_id, source};
use memscope_ledger::report::{
    Frame, StepDevice, StepGap, StepRow, StepSource, StepSummary, StepsReport,
};
use memscope_proto::v1;

/// At most `survivors` of the blocks that outlived their step.
pub(crate) fn steps(report: StepsReport, survivors: usize) -> v1::StepsResponse {
    let counted = report.launches.is_some();
    v1::StepsResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: event_id(report.as_of),
        lost_records: report.process.lost_records,
        summary: Some(summary(report.summary)),
        lines: report
            .lines
            .into_iter()
            .map(|one| v1::StepLine {
                name: one.name,
                count: one.count,
                line: one.line.as_ref().map(line),
            })
            .collect(),
        devices: report.devices.into_iter().map(device).collect(),
        rows: report.rows.into_iter().map(row).collect(),
        launches: report.launches,
        survivor_count: report.survivor_count,
        survivor_bytes: report.survivor_bytes,
        survivors: report
            .survivors
            .into_iter()
            .take(survivors)
            .map(|one| v1::StepSurvivor {
                device: one.device,
                address: one.addr,
                size_bytes: one.size,
                step: one.step,
                launches_before: counted.then_some(one.launches_before),
            })
            .collect(),
        unchecked_blocks: report.unchecked_blocks,
        process: Some(super::process::process(report.process)),
        coverage: coverage(report.coverage),
    }
}

pub(super) fn summary(summary: StepSummary) -> v1::StepSummary {
    let source = match summary.source {
        StepSource::Unknown => v1::StepSource::Unknown,
        StepSource::Pattern => v1::StepSource::Pattern,
        StepSource::Backward => v1::StepSource::Backward,
        StepSource::Optimizer => v1::StepSource::Optimizer,
        StepSource::Profiler => v1::StepSource::Profiler,
        StepSource::Mark => v1::StepSource::Mark,
        StepSource::Named => v1::StepSource::Named,
    };
    v1::StepSummary {
        source: source.into(),
        count: summary.count,
        median_ns: summary.median_ns,
        evidence: summary.evidence,
    }
}

pub(super) fn line(frame: &Frame) -> v1::CodeLine {
    v1::CodeLine {
        file: frame.file.to_string(),
        line: frame.line,
        name: frame.name.to_string(),
    }
}

fn row(row: StepRow) -> v1::StepRow {
    v1::StepRow {
        step: row.step,
        steps: row.steps,
        from_boot_ns: row.from_ns,
        to_boot_ns: row.to_ns,
        device: row.device,
        source: source(row.source).into(),
        min_allocated_bytes: row.min_allocated_bytes,
        max_allocated_bytes: row.max_allocated_bytes,
        end_allocated_bytes: row.end_allocated_bytes,
        max_reserved_bytes: row.max_reserved_bytes,
        reserved_at_max_bytes: row.reserved_at_max_bytes,
        allocs: row.allocs,
        frees: row.frees,
        allocated_bytes: row.allocated_bytes,
        freed_bytes: row.freed_bytes,
    }
}

fn gap(gap: StepGap) -> v1::StepGap {
    v1::StepGap {
        step: gap.step,
        min_bytes: gap.min_bytes,
        max_bytes: gap.max_bytes,
        ratio: gap.ratio,
    }
}

fn quantiles([p5, p50, p95]: [u64; 3]) -> v1::StepQuantiles {
    v1::StepQuantiles { p5, p50, p95 }
}

fn device(device: StepDevice) -> v1::StepDevice {
    v1::StepDevice {
        device: device.device,
        source: source(device.source).into(),
        steps: device.steps,
        smallest_gap: device.smallest_gap.map(gap),
        largest_gap: device.largest_gap.map(gap),
        min_bytes: Some(quantiles(device.min_bytes)),
        max_bytes: Some(quantiles(device.max_bytes)),
        floor_bytes_per_step: device.floor_bytes_per_step,
        allocs: device.allocs,
        frees: device.frees,
    }
}
