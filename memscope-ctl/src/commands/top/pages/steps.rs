//! The view of steps.

use super::{about, count, limits, size_known};
use crate::commands::top::page::{Cell, Chart, Page, Row, Tone, number};
use crate::render::steps::summary;
use crate::render::{CourseKnown, device};
use crate::units::{bytes, grouped, nanoseconds, signed_bytes, unknown};
use memscope_proto::v1;
use std::collections::BTreeMap;

/// The last steps, the newest first, and the course of their floors and peaks.
pub(in crate::commands::top) fn page(answer: &v1::StepsResponse) -> Page {
    let mut page = Page {
        about: about(answer.process.as_ref(), answer.pid),
        as_of: Some(answer.as_of),
        columns: vec![
            number("STEP", 0),
            number("FLOOR", 0),
            number("PEAK", 0),
            number("RISE OF FLOOR", 1),
            number("TIME", 2),
            number("AT ITS END", 3),
            number("RESERVED", 4),
            number("USED OF IT", 7),
            number("DEVICE", 5),
            number("ALLOCS", 6),
            number("FREES", 8),
        ],
        nothing: "No step is known yet.".to_owned(),
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    if let Some(known) = &answer.summary {
        page.says.push(Cell::text(summary(known).trim_end()));
    }
    for one in &answer.devices {
        let known = CourseKnown::of(one.source(), &answer.coverage);
        let words = format!(
            "Device {}: the floor changes by {} a step; {} allocations, {} frees.",
            device(one.device),
            known.compared(signed_bytes(one.floor_bytes_per_step.round() as i64)),
            known.count(grouped(one.allocs)),
            known.count(grouped(one.frees))
        );
        page.says.push(Cell::text(words).toned(Tone::Quiet));
    }
    let mut before: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    type Levels = (CourseKnown, [Vec<u64>; 2]);
    let mut levels: BTreeMap<Option<i32>, Levels> = BTreeMap::new();
    for row in &answer.rows {
        let known = CourseKnown::of(row.source(), &answer.coverage);
        let rise = before.insert(row.device, row.min_allocated_bytes);
        page.rows.push(self::row(row, rise, known));
        let new = || (known, Default::default());
        let (_, [floors, peaks]) = levels.entry(row.device).or_insert_with(new);
        floors.push(row.min_allocated_bytes);
        peaks.push(row.max_allocated_bytes);
    }
    page.rows.reverse();
    for (of, (known, [floors, peaks])) in levels {
        page.charts
            .push(chart("floor", of, floors, |low| known.lowest(low)));
        page.charts
            .push(chart("peak", of, peaks, |high| known.highest(high)));
    }
    page
}

/// The course of one level of each step on a device.
fn chart(what: &str, of: Option<i32>, levels: Vec<u64>, say: impl Fn(String) -> String) -> Chart {
    let (low, high) = (levels.iter().min(), levels.iter().max());
    let title = format!(
        "{what} of each of the last {} steps on device {}: {} to {}",
        levels.len(),
        device(of),
        say(bytes(low.copied().unwrap_or_default())),
        say(bytes(high.copied().unwrap_or_default()))
    );
    Chart { title, levels }
}

/// A step. `before` is the floor of the step before, where there is one.
fn row(row: &v1::StepRow, before: Option<u64>, known: CourseKnown) -> Row {
    let rise = before.map(|before| row.min_allocated_bytes.wrapping_sub(before).cast_signed());
    let passed = row.to_boot_ns.saturating_sub(row.from_boot_ns);
    let used = match row.reserved_at_max_bytes {
        0 => None,
        reserved => Some(row.max_allocated_bytes as f64 / reserved as f64 * 100.0),
    };
    let level = |say: &dyn Fn(CourseKnown, String) -> String, level: u64| {
        size_known(say(known, bytes(level)), Some(level))
    };
    let counted = |times: u64| Cell::number(known.count(grouped(times)), Some(times as f64));
    Row {
        key: format!("{} {}", row.step, device(row.device)),
        cells: vec![
            count(row.step),
            level(&CourseKnown::lowest, row.min_allocated_bytes),
            level(&CourseKnown::highest, row.max_allocated_bytes),
            Cell::number(
                rise.map_or_else(String::new, |rise| known.compared(signed_bytes(rise))),
                rise.map(|rise| rise as f64),
            ),
            Cell::number(nanoseconds(passed), Some(passed as f64)),
            level(&CourseKnown::level, row.end_allocated_bytes),
            level(&CourseKnown::highest, row.max_reserved_bytes),
            Cell::number(
                used.map_or_else(unknown, |used| known.compared(format!("{used:.1} %"))),
                used,
            ),
            Cell::text(device(row.device)),
            counted(row.allocs),
            counted(row.frees),
        ],
        location: None,
        pid: None,
        opens: None,
    }
}
