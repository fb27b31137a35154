//! The view of what grows in a process.

use super::{about, count, limits, size};
use crate::commands::leaks::table::{age, headline, short, who};
use crate::commands::top::page::{Cell, Opens, Page, Row, Tone, number, text};
use crate::render::frames::Frame;
use crate::render::steps;
use crate::render::{device, device_or_host};
use crate::units::{self, bytes, grouped, rate, signed_bytes};
use memscope_proto::v1;
use std::time::Duration;

/// What a line is known by in the next answer.
pub(in crate::commands::top) fn key(line: &v1::LeakLine) -> String {
    let at = line.line.clone().unwrap_or_default();
    let sizes = match (&line.line, line.stack) {
        (None, None) => (line.smallest_bytes, line.largest_bytes),
        _ => (0, 0),
    };
    let device = device(line.device);
    let stack = line.stack;
    format!(
        "{device} {} {}:{} {sizes:?} {stack:?}",
        line.source, at.file, at.line
    )
}

/// The headline and the lines. `held` is an answer with holders, which is asked for less often.
pub(in crate::commands::top) fn page(
    answer: &v1::LeaksResponse,
    held: Option<&v1::LeaksResponse>,
) -> Page {
    let holders = held.map(|held| held.holders.as_slice()).unwrap_or_default();
    let mut page = Page {
        about: about(answer.process.as_ref(), answer.pid),
        as_of: Some(answer.as_of),
        columns: vec![
            text("VERDICT", 0, 9),
            number("SURE", 1),
            number("HELD", 2),
            number("GREW BY", 0),
            number("PER STEP", 0),
            text("LINE", 0, 20),
            number("PER SECOND", 6),
            number("BLOCKS", 3),
            number("DEVICE", 4),
            number("OLDEST", 7),
            number("SINCE STEP", 8),
            text("HELD BY", 5, 16),
        ],
        nothing: "No line has anything to show.".to_owned(),
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    for line in headline(answer).lines() {
        let tone = match answer.growing_groups > 0 && page.says.is_empty() {
            true => Tone::Loud,
            false => Tone::Plain,
        };
        page.says.push(Cell::text(line).toned(tone));
    }
    if let Some(known) = answer.steps.as_ref().filter(|steps| steps.count.is_some()) {
        page.says
            .push(Cell::text(steps::summary(known).trim_end()).toned(Tone::Quiet));
    }
    let left = answer.seconds_to_full;
    if let Some(left) = left.and_then(|left| Duration::try_from_secs_f64(left).ok()) {
        let left = units::duration(left);
        page.says.push(Cell::text(format!(
            "At this pace the device is full in {left}."
        )));
    }
    if let Some(holder) = holders.first() {
        let held = holder.blocks.unwrap_or_default();
        page.says.push(Cell::text(format!(
            "Held by {}: {} in {} blocks.",
            who(holder),
            bytes(held.bytes),
            grouped(held.count)
        )));
    }
    // Which of several lines a holder belongs to, only the line's own page asks.
    let only = match (answer.growing_lines, holders.first()) {
        (1, Some(holder)) => who(holder),
        _ => String::new(),
    };
    for line in &answer.lines {
        page.rows.push(row(line, &only));
    }
    if answer.omitted_lines > 0 {
        let omitted = grouped(answer.omitted_lines);
        page.says
            .push(Cell::text(format!("{omitted} smaller lines are left out.")).toned(Tone::Quiet));
    }
    page
}

fn row(line: &v1::LeakLine, holder: &str) -> Row {
    let grows = line.verdict() == v1::Verdict::Growing;
    let per_step = line.growth_bytes_per_step;
    let words = match per_step {
        Some(step) => signed_bytes(step.round() as i64),
        None => units::unknown(),
    };
    let sure = line.confidence;
    let since = line.first_step;
    Row {
        key: key(line),
        cells: vec![
            Cell::text(line.verdict().to_string()).toned(if grows {
                Tone::Loud
            } else {
                Tone::Quiet
            }),
            Cell::number(
                sure.map_or_else(units::unknown, |sure| format!("{:.0} %", sure * 100.0)),
                sure,
            ),
            size(Some(line.live_bytes)),
            size(Some(line.growth_bytes)),
            Cell::number(words, per_step),
            Cell::text(short(line)),
            Cell::number(rate(line.growth_bytes_per_s), Some(line.growth_bytes_per_s)),
            count(line.live_count),
            Cell::text(device_or_host(line.device, line.source())),
            Cell::number(age(line.oldest_age_ns), Some(line.oldest_age_ns as f64)),
            Cell::number(
                since.map(grouped).unwrap_or_default(),
                since.map(|step| step as f64),
            ),
            Cell::text(if grows { holder } else { "" }),
        ],
        location: line
            .line
            .as_ref()
            .and_then(|at| Frame::of_line(at).location()),
        pid: None,
        opens: Some(Opens::Line),
    }
}
