//! The view of steps.

use super::{about, count, limits, size};
use crate::commands::top::page::{Cell, Chart, Page, Row, Tone, number};
use crate::render::device;
use crate::render::steps::summary;
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
        let words = format!(
            "Device {}: the floor changes by {} a step; {} allocations, {} frees.",
            device(one.device),
            signed_bytes(one.floor_bytes_per_step.round() as i64),
            grouped(one.allocs),
            grouped(one.frees)
        );
        page.says.push(Cell::text(words).toned(Tone::Quiet));
    }
    let mut before: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    let mut levels: BTreeMap<Option<i32>, [Vec<u64>; 2]> = BTreeMap::new();
    for row in &answer.rows {
        let rise = before.insert(row.device, row.min_allocated_bytes);
        page.rows.push(self::row(row, rise));
        let [floors, peaks] = levels.entry(row.device).or_default();
        floors.push(row.min_allocated_bytes);
        peaks.push(row.max_allocated_bytes);
    }
    page.rows.reverse();
    for (of, both) in levels {
        for (what, levels) in ["floor", "peak"].iter().zip(both) {
            let (low, high) = (levels.iter().min(), levels.iter().max());
            let title = format!(
                "{what} of each of the last {} steps on device {}: {} to {}",
                levels.len(),
                device(of),
                bytes(low.copied().unwrap_or_default()),
                bytes(high.copied().unwrap_or_default())
            );
            page.charts.push(Chart { title, levels });
        }
    }
    page
}

/// A step. `before` is the floor of the step before, where it is known.
fn row(row: &v1::StepRow, before: Option<u64>) -> Row {
    let rise = before.map(|before| row.min_allocated_bytes.wrapping_sub(before).cast_signed());
    let passed = row.to_boot_ns.saturating_sub(row.from_boot_ns);
    let used = match row.reserved_at_max_bytes {
        0 => None,
        reserved => Some(row.max_allocated_bytes as f64 / reserved as f64 * 100.0),
    };
    Row {
        key: format!("{} {}", row.step, device(row.device)),
        cells: vec![
            count(row.step),
            size(Some(row.min_allocated_bytes)),
            size(Some(row.max_allocated_bytes)),
            Cell::number(
                rise.map_or_else(String::new, signed_bytes),
                rise.map(|rise| rise as f64),
            ),
            Cell::number(nanoseconds(passed), Some(passed as f64)),
            size(Some(row.end_allocated_bytes)),
            size(Some(row.max_reserved_bytes)),
            Cell::number(
                used.map_or_else(unknown, |used| format!("{used:.1} %")),
                used,
            ),
            Cell::text(device(row.device)),
            count(row.allocs),
            count(row.frees),
        ],
        location: None,
        pid: None,
        opens: None,
    }
}
