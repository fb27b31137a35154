//! The answers to `leaks` and `fluctuation`.

use super::{coverage, event_id, source};
use memscope_ledger::report::{
    DeviceFluctuation, FluctuationReport, GivenBack, Interval, LeakGroup, LeakLine, LeakReport,
    LeakTogether, Space, Verdict,
};
use memscope_proto::v1;

/// At most `most` groups; how many were left out is said.
pub(crate) fn leaks(mut report: LeakReport, most: usize) -> v1::LeaksResponse {
    let omitted = report.groups.len().saturating_sub(most) as u64;
    report.groups.truncate(most);
    let omitted_lines = report.lines.len().saturating_sub(most) as u64;
    report.lines.truncate(most);
    v1::LeaksResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: event_id(report.as_of),
        lost_records: report.process.lost_records,
        groups: report.groups.into_iter().map(group).collect(),
        omitted_groups: report.omitted_groups + omitted,
        lines: report.lines.into_iter().map(line).collect(),
        omitted_lines: report.omitted_lines + omitted_lines,
        growing_lines: report.growing_lines,
        together: report.together.map(together),
        growing_groups: report.growing_groups,
        growing_bytes: report.growing_bytes,
        young: report.young.map(|young| v1::YoungGrowth {
            groups: young.groups,
            in_every_step: young.in_every_step,
            steps: young.steps,
            needed_steps: young.needed_steps,
        }),
        given_back: report.given_back.into_iter().map(given_back).collect(),
        watched_ns: report.watched_ns,
        seconds_to_full: report.seconds_to_full,
        process: Some(super::process::process(report.process)),
        coverage: coverage(report.coverage),
        steps: Some(super::steps::summary(report.steps)),
    }
}

/// Most frames of a group in an answer.
const FRAMES: usize = 64;

fn verdict(verdict: Verdict) -> v1::Verdict {
    match verdict {
        Verdict::Growing => v1::Verdict::Growing,
        Verdict::Undecided => v1::Verdict::Undecided,
        Verdict::Steady => v1::Verdict::Steady,
    }
}

fn line(line: LeakLine) -> v1::LeakLine {
    v1::LeakLine {
        device: line.device,
        source: space(line.space).into(),
        line: line.line.as_ref().map(super::steps::line),
        verdict: verdict(line.verdict).into(),
        confidence: line.confidence,
        groups: line.groups,
        growing_groups: line.growing_groups,
        stacks: line.stacks,
        smallest_bytes: line.smallest_bytes,
        largest_bytes: line.largest_bytes,
        live_count: line.live_count,
        live_bytes: line.live_bytes,
        growth_bytes: line.growth_bytes,
        growth_bytes_per_s: line.growth_bytes_per_s,
        growth_bytes_per_step: line.growth_bytes_per_step.map(|[_, middle, _]| middle),
        growth_bytes_per_step_low: line.growth_bytes_per_step.map(|[low, _, _]| low),
        growth_bytes_per_step_high: line.growth_bytes_per_step.map(|[_, _, high]| high),
        first_step: line.first_step,
        oldest_age_ns: line.oldest_age_ns,
        looks_like_kept_graph: line.looks_like_kept_graph,
        beside: line.beside,
        reason: line.reason,
        callers: line.callers.iter().map(super::steps::line).collect(),
    }
}

fn together(together: LeakTogether) -> v1::LeakTogether {
    v1::LeakTogether {
        line: Some(super::steps::line(&together.line)),
        lines: together.lines,
        growth_bytes: together.growth_bytes,
        growth_bytes_per_s: together.growth_bytes_per_s,
        growth_bytes_per_step: together.growth_bytes_per_step,
        looks_like_kept_graph: together.looks_like_kept_graph,
    }
}

fn group(group: LeakGroup) -> v1::LeakGroup {
    v1::LeakGroup {
        device: group.device,
        source: space(group.space).into(),
        beside: group.beside,
        stream: group.stream,
        size_bytes: group.size_bytes,
        live_count: group.live_count,
        live_bytes: group.live_bytes,
        growth_count: group.growth_count,
        growth_bytes: group.growth_bytes,
        growth_bytes_per_s: group.growth_bytes_per_s,
        oldest_age_ns: group.oldest_age_ns,
        newest_age_ns: group.newest_age_ns,
        verdict: verdict(group.verdict).into(),
        reason: group.reason,
        examples: group.examples,
        confidence: group.confidence,
        growth_bytes_per_step: group.growth_bytes_per_step.map(|[_, middle, _]| middle),
        growth_bytes_per_step_low: group.growth_bytes_per_step.map(|[low, _, _]| low),
        growth_bytes_per_step_high: group.growth_bytes_per_step.map(|[_, _, high]| high),
        first_step: group.first_step,
        freed_count: group.freed.0,
        freed_longest_steps: group.freed.1,
        line: group.line.as_ref().map(super::steps::line),
        frames: group
            .frames
            .iter()
            .take(FRAMES)
            .map(super::steps::line)
            .collect(),
    }
}

fn space(space: Space) -> v1::Source {
    match space {
        Space::Pool => v1::Source::Pool,
        Space::Driver => v1::Source::Driver,
        Space::Host => v1::Source::Host,
    }
}

fn given_back(back: GivenBack) -> v1::GivenBack {
    v1::GivenBack {
        device: back.device,
        source: space(back.space).into(),
        size_bytes: (back.size_bytes > 0).then_some(back.size_bytes),
        bytes: back.bytes,
        last_boot_ns: back.last_ns,
        step: back.step,
        first_step: back.first_step,
        reserved_unused_bytes: back.reserved_unused_bytes,
        line: back.line.as_ref().map(super::steps::line),
    }
}

pub(crate) fn fluctuation(report: FluctuationReport) -> v1::FluctuationResponse {
    v1::FluctuationResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: event_id(report.as_of),
        lost_records: report.process.lost_records,
        devices: report.devices.into_iter().map(device).collect(),
        process: Some(super::process::process(report.process)),
        coverage: coverage(report.coverage),
    }
}

fn device(device: DeviceFluctuation) -> v1::DeviceFluctuation {
    v1::DeviceFluctuation {
        device: device.device,
        source: source(device.source).into(),
        overall: Some(interval(device.overall)),
        swing: device.swing,
        floor_slope_bytes_per_s: device.floor_slope_bytes_per_s,
        intervals: device.intervals.into_iter().map(interval).collect(),
    }
}

fn interval(interval: Interval) -> v1::Interval {
    v1::Interval {
        from_boot_ns: interval.from_ns,
        to_boot_ns: interval.to_ns,
        min_allocated_bytes: interval.min_allocated_bytes,
        max_allocated_bytes: interval.max_allocated_bytes,
        min_reserved_bytes: interval.min_reserved_bytes,
        max_reserved_bytes: interval.max_reserved_bytes,
        allocs: interval.allocs,
        frees: interval.frees,
    }
}
