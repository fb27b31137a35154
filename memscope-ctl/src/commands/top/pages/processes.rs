//! The view of all processes.

use super::{limits, size, size_known};
use crate::commands::top::page::{Cell, Chart, Opens, Page, Row, Tone, course, number, text};
use crate::render::{
    command_line, device_of_kind, growth, peaks_of, rank, totals_from, totals_of, whose,
};
use crate::units::{self, bytes, maybe_bytes, nanoseconds};
use memscope_proto::v1;
use std::time::Duration;

/// Characters of a command line that are kept; the window shows as many as it has room for.
const COMMAND: usize = 120;

/// What is known of one process.
pub(in crate::commands::top) struct Known<'a> {
    pub(in crate::commands::top) process: &'a v1::Process,
    pub(in crate::commands::top) stats: Option<&'a v1::StatsResponse>,
    pub(in crate::commands::top) course: Option<&'a v1::FluctuationResponse>,
    pub(in crate::commands::top) verdict: Option<&'a v1::LeaksResponse>,
}

/// What a process is known by: its pid may be another's later.
pub(in crate::commands::top) fn key(process: &v1::Process, device: usize) -> String {
    let facts = process.facts.as_ref();
    let (pid, start) = facts.map_or((0, 0), |facts| (facts.pid, facts.start_ticks));
    format!("{pid} {start} {device}")
}

/// All processes, a row for each device of each.
pub(in crate::commands::top) fn page(all: &[Known<'_>]) -> Page {
    let mut page = Page {
        about: match all.len() {
            1 => "1 process".to_owned(),
            all => format!("{all} processes"),
        },
        as_of: all.iter().filter_map(|one| Some(one.stats?.as_of)).max(),
        columns: vec![
            number("PID", 0),
            text("WHAT", 0, 28),
            number("DEVICE", 3),
            number("ALLOCATED", 0),
            number("RESERVED", 2),
            number("GROWS BY", 1),
            number("FULL IN", 4),
            text("VERDICT", 0, 12),
            course("COURSE", 5),
            number("PEAK", 6),
            number("FREE ON DEVICE", 7),
            number("STEP", 8),
            number("RANK", 9),
            text("WHOSE", 10, 10),
            text("LEVEL", 11, 8),
        ],
        nothing: "No process is traced: sudo memscope-ctl attach --pid PID (memscope-ctl doctor lists those that use a device)."
            .to_owned(),
        ..Page::default()
    };
    for one in all {
        if let Some(stats) = one.stats {
            page.limits.extend(limits(&stats.coverage));
        }
        let devices = one
            .stats
            .map(|stats| stats.devices.as_slice())
            .unwrap_or_default();
        for (place, device) in devices.iter().enumerate() {
            page.rows.push(row(one, Some(device), place));
        }
        if devices.is_empty() {
            page.rows.push(row(one, None, 0));
        }
    }
    page.limits.sort();
    page.limits.dedup();
    page
}

fn row(one: &Known<'_>, device: Option<&v1::DeviceStats>, place: usize) -> Row {
    let process = one.process;
    let facts = process.facts.clone().unwrap_or_default();
    let is_first = place == 0;
    // What is true of the whole process stands in the row of its first device only.
    let of_process = |cell: Cell| if is_first { cell } else { Cell::default() };
    type Exactness = fn(&v1::DeviceStats, &[v1::CoverageNote]) -> crate::render::Known;
    let of_device = |exactness: Exactness, bytes: fn(&v1::DeviceStats) -> Option<u64>| {
        let (device, stats) = device.zip(one.stats)?;
        let words = exactness(device, &stats.coverage).say(maybe_bytes(bytes(device)));
        Some(size_known(words, bytes(device)))
    };
    let allocated = of_device(totals_of, |device| device.allocated_bytes)
        .unwrap_or_else(|| size(process.allocated_bytes));
    let reserved = of_device(totals_of, |device| device.reserved_bytes)
        .unwrap_or_else(|| size(process.reserved_bytes));
    let peak = of_device(peaks_of, |device| device.peak_allocated_bytes).unwrap_or_default();
    let full = one.verdict.and_then(|verdict| verdict.seconds_to_full);
    let left = full.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let step = one.verdict.and_then(|verdict| verdict.steps.as_ref());
    let step_ns = step.and_then(|steps| steps.median_ns);
    let grows_by = match process.growing_lines.unwrap_or_default() {
        0 => None,
        _ => process.growth_bytes_per_step.or(process.growth_bytes_per_s),
    };
    Row {
        key: key(process, place),
        cells: vec![
            Cell::number(facts.pid.to_string(), Some(-f64::from(facts.pid))),
            Cell::text(command_line(&facts.cmdline, &facts.comm, COMMAND)),
            device.map_or_else(Cell::default, |device| {
                Cell::text(device_of_kind(device.device, device.device_kind.as_deref()))
            }),
            allocated,
            reserved,
            of_process(Cell::number(growth(process), grows_by)),
            // What is full soonest comes first.
            of_process(Cell::number(
                left.map(units::duration).unwrap_or_default(),
                full.map(|seconds| -seconds),
            )),
            of_process(verdict(one)),
            Cell::course(levels(one.course, device.and_then(|device| device.device))),
            peak,
            device.map_or_else(Cell::default, |device| size(device.free_bytes)),
            of_process(Cell::number(
                step_ns.map(nanoseconds).unwrap_or_default(),
                step_ns.map(|ns| ns as f64),
            )),
            of_process(Cell::text(rank(process))),
            of_process(Cell::text(whose(process))),
            of_process(Cell::text(facts.level().to_string()).toned(Tone::Quiet)),
        ],
        location: None,
        pid: Some(facts.pid),
        opens: Some(Opens::Leaks),
    }
}

/// Whether it grows, in a few words.
fn verdict(one: &Known<'_>) -> Cell {
    let state = one.process.state();
    if state != v1::ProcessState::Attached {
        return Cell::number(state.to_string(), Some(0.0)).toned(Tone::Quiet);
    }
    let Some(verdict) = one.verdict else {
        return Cell::default();
    };
    let (judged, sure) = (verdict.process_verdict(), verdict.confidence());
    // What needs a look comes first.
    let (order, tone) = match judged {
        v1::ProcessVerdict::Growing => (3.0 + sure.unwrap_or(0.0), Tone::Loud),
        v1::ProcessVerdict::TooEarly => (2.0, Tone::Quiet),
        v1::ProcessVerdict::Steady => (1.5, Tone::Quiet),
        v1::ProcessVerdict::NothingRead | v1::ProcessVerdict::Unspecified => (1.0, Tone::Quiet),
    };
    Cell::number(crate::render::verdict(judged, sure, false), Some(order)).toned(tone)
}

/// The highest level of each interval of a device's course.
fn levels(course: Option<&v1::FluctuationResponse>, device: Option<i32>) -> Vec<u64> {
    let devices = course
        .map(|course| course.devices.as_slice())
        .unwrap_or_default();
    let found = devices.iter().find(|one| one.device == device);
    let intervals = found
        .map(|one| one.intervals.as_slice())
        .unwrap_or_default();
    intervals
        .iter()
        .map(|one| one.max_allocated_bytes)
        .collect()
}

/// The courses of a process, one for each device.
pub(in crate::commands::top) fn charts(course: &v1::FluctuationResponse) -> Vec<Chart> {
    let of_device = course.devices.iter().filter_map(|one| {
        let overall = one.overall.as_ref()?;
        let levels = levels(Some(course), one.device);
        let (low, high) = (levels.iter().min()?, levels.iter().max()?);
        let passed = overall.to_boot_ns.saturating_sub(overall.from_boot_ns);
        let known = totals_from(one.source(), &course.coverage);
        Some(Chart {
            title: format!(
                "pid {}, device {}: {} to {} in the last {}",
                course.pid,
                crate::render::device(one.device),
                known.say(bytes(*low)),
                known.say(bytes(*high)),
                nanoseconds(passed)
            ),
            levels,
        })
    });
    of_device.collect()
}
