//! A table of all processes, and the course of each device's memory beneath it.

use crate::render::bars::bars;
use crate::render::table::{Column, table};
use crate::render::window::Window;
use crate::render::{CourseKnown, command_line, device_of_kind, growth, totals_of, with_age};
use crate::units::{self, bytes, grouped, maybe_bytes, moment, nanoseconds};
use memscope_proto::v1;
use std::time::Duration;
use unicode_width::UnicodeWidthChar;

/// Characters of a command line that are shown.
const COMMAND: usize = 60;
/// Largest number of lines for the course of one device.
const TALLEST: usize = 8;

/// Everything that is shown about one process.
pub(super) struct Look {
    pub(super) stats: v1::StatsResponse,
    /// The process as the daemon's list describes it. Only there is its growth.
    pub(super) listed: Option<v1::Process>,
    pub(super) course: v1::FluctuationResponse,
    /// Has the steps, and the time until the device is full. It is asked less often than the others.
    pub(super) leaks: v1::LeaksResponse,
}

/// The whole text. `before` returns the answer about a process in the previous round.
pub(super) fn text<'a>(
    looks: &'a [Look],
    before: impl Fn(&v1::StatsResponse) -> Option<&'a v1::StatsResponse>,
    window: Window,
) -> String {
    let columns = [
        Column::Right("PID"),
        Column::Right("DEVICE"),
        Column::Right("ALLOCATED"),
        Column::Right("CHANGE"),
        Column::Right("RESERVED"),
        Column::Right("ALLOCS/S"),
        Column::Right("STEPS/S"),
        Column::Right("GROWS BY"),
        Column::Right("FULL IN"),
    ];
    let mut rows = Vec::new();
    for look in looks {
        let before = before(&look.stats);
        for (place, device) in look.stats.devices.iter().enumerate() {
            rows.push(row(look, device, before, place == 0));
        }
        if look.stats.devices.is_empty() {
            rows.push(vec![look.stats.pid.to_string(), "none yet".to_owned()]);
        }
    }
    for row in &mut rows {
        row.resize(columns.len(), String::new());
    }
    let mut text = String::new();
    if let Some(latest) = looks.iter().map(|look| look.stats.as_of).max() {
        text.push_str(&format!("As of {}\n", moment(latest)));
    }
    text.push_str(&table(&columns, rows));
    let notes = notes(looks);
    let height = height(looks, &text, &notes, window);
    for look in looks {
        text.push_str(&courses(look, height));
    }
    text.push_str(&notes);
    match (window.lines, window.columns) {
        (Some(lines), columns) => cut(&text, lines, columns.unwrap_or(usize::MAX)),
        (None, _) => text,
    }
}

fn row(
    look: &Look,
    now: &v1::DeviceStats,
    before: Option<&v1::StatsResponse>,
    is_first: bool,
) -> Vec<String> {
    let answer = &look.stats;
    let notes = &answer.coverage;
    let seconds = before.map_or(0.0, |before| {
        answer.as_of_boot_ns.saturating_sub(before.as_of_boot_ns) as f64 / 1e9
    });
    let then = before.and_then(|before| before.devices.iter().find(|d| d.device == now.device));
    let allocations = match then {
        Some(then) if seconds > 0.0 => {
            let rate = now.alloc_count.saturating_sub(then.alloc_count) as f64 / seconds;
            grouped(rate.round() as u64)
        }
        _ => String::new(),
    };
    let totals = totals_of(now, notes);
    let mut cells = vec![
        answer.pid.to_string(),
        device_of_kind(now.device, now.device_kind.as_deref()),
        totals.say(maybe_bytes(now.allocated_bytes)),
        change(
            then.and_then(|then| then.allocated_bytes),
            now.allocated_bytes,
        ),
        totals.say(maybe_bytes(now.reserved_bytes)),
        allocations,
    ];
    // Values of the whole process stand in the row of its first device only.
    if is_first {
        let steps = look.leaks.steps.as_ref();
        let pace = steps.and_then(|steps| steps.median_ns).filter(|ns| *ns > 0);
        cells.push(pace.map_or_else(String::new, |ns| format!("{:.1}", 1e9 / ns as f64)));
        let grows = look.listed.as_ref();
        let grows = grows.map(|process| with_age(growth(process), process));
        cells.push(grows.unwrap_or_default());
        let full = look.leaks.seconds_to_full;
        let full = full.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        cells.push(full.map(units::duration).unwrap_or_default());
    }
    cells
}

fn change(then: Option<u64>, now: Option<u64>) -> String {
    match (then, now) {
        (Some(then), Some(now)) if now > then => format!("+{}", bytes(now - then)),
        (Some(then), Some(now)) if now < then => format!("-{}", bytes(then - now)),
        (Some(_), Some(_)) => "0 B".to_owned(),
        _ => String::new(),
    }
}

/// Number of lines for each course, chosen so that the window is filled.
fn height(looks: &[Look], table: &str, notes: &str, window: Window) -> usize {
    let courses: usize = looks.iter().map(|look| look.course.devices.len()).sum();
    let Some(lines) = window.lines.filter(|_| courses > 0) else {
        return 1;
    };
    let others = table.lines().count() + notes.lines().count() + 1;
    // Each course also takes a line of text and an empty one.
    let left = lines.saturating_sub(others) / courses;
    left.saturating_sub(2).clamp(1, TALLEST)
}

/// The courses of a process's devices, each beneath a line that names the process.
fn courses(look: &Look, height: usize) -> String {
    let facts = look.stats.process.as_ref().and_then(|p| p.facts.as_ref());
    let command = facts.map_or_else(String::new, |facts| {
        command_line(&facts.cmdline, &facts.comm, COMMAND)
    });
    let mut text = String::new();
    for device in &look.course.devices {
        let Some(overall) = &device.overall else {
            continue;
        };
        let levels: Vec<u64> = device
            .intervals
            .iter()
            .map(|interval| interval.max_allocated_bytes)
            .collect();
        let (low, high) = (
            levels.iter().min().copied().unwrap_or_default(),
            levels.iter().max().copied().unwrap_or_default(),
        );
        let known = CourseKnown::of(device.source(), &look.course.coverage);
        let (low, high) = (known.highest(bytes(low)), known.highest(bytes(high)));
        let passed = overall.to_boot_ns.saturating_sub(overall.from_boot_ns);
        text.push_str(&format!(
            "\n{} device {}, {} to {} in the last {}: {command}\n",
            look.stats.pid,
            crate::render::device(device.device),
            low,
            high,
            nanoseconds(passed),
        ));
        let lines = bars(&levels, height);
        let last = lines.len().saturating_sub(1);
        for (place, line) in lines.into_iter().enumerate() {
            let scale = match place {
                _ if last == 0 => String::new(),
                0 => high.clone(),
                _ if place == last => low.clone(),
                _ => String::new(),
            };
            text.push_str(format!(" {line} {scale}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Codes of the coverage notes that limit the numbers of each process. `stats` shows the sentences.
fn notes(looks: &[Look]) -> String {
    let mut text = String::new();
    for look in looks {
        let spoils = |note: &&v1::CoverageNote| !note.affects.is_empty();
        let codes: Vec<&str> = look
            .stats
            .coverage
            .iter()
            .filter(spoils)
            .map(|note| note.code.as_str())
            .collect();
        if !codes.is_empty() {
            text.push_str(&format!(
                "Not exact for {}: {} (memscope-ctl stats {} says what that means)\n",
                look.stats.pid,
                codes.join(", "),
                look.stats.pid
            ));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\n{text}"),
    }
}

/// Cuts a text to the lines and columns of the window. A wider line would wrap and take the place of another one.
fn cut(text: &str, most: usize, columns: usize) -> String {
    let line = |line: &str| {
        let mut taken = 0;
        let fits = |letter: &char| {
            taken += letter.width().unwrap_or(0);
            taken <= columns
        };
        line.chars().take_while(fits).collect::<String>()
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    if lines.len() < most {
        lines.push(String::new());
        return lines.join("\n");
    }
    let shown = most.saturating_sub(2);
    let mut cut = lines.get(..shown).unwrap_or_default().join("\n");
    cut.push_str(&format!(
        "\n… {} more lines: make the window larger, or name fewer processes\n",
        lines.len() - shown
    ));
    cut
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn look(pid: u32) -> Look {
        let interval = |at: u64| v1::Interval {
            max_allocated_bytes: at << 20,
            ..v1::Interval::default()
        };
        Look {
            stats: v1::StatsResponse {
                pid,
                as_of: 1,
                devices: vec![v1::DeviceStats {
                    device: Some(0),
                    source: v1::Source::Pool.into(),
                    allocated_bytes: Some(64 << 20),
                    ..v1::DeviceStats::default()
                }],
                ..v1::StatsResponse::default()
            },
            listed: Some(v1::Process {
                growing_lines: Some(1),
                growth_bytes_per_step: Some(2_097_152.0),
                ..v1::Process::default()
            }),
            course: v1::FluctuationResponse {
                pid,
                devices: vec![v1::DeviceFluctuation {
                    device: Some(0),
                    source: v1::Source::Pool.into(),
                    overall: Some(v1::Interval::default()),
                    intervals: (1..=60).map(interval).collect(),
                    ..v1::DeviceFluctuation::default()
                }],
                ..v1::FluctuationResponse::default()
            },
            leaks: v1::LeaksResponse {
                steps: Some(v1::StepSummary {
                    median_ns: Some(250_000_000),
                    ..v1::StepSummary::default()
                }),
                seconds_to_full: Some(150.0),
                ..v1::LeaksResponse::default()
            },
        }
    }

    /// The courses take what the table leaves of the window, as far as that makes them readable, and never more.
    #[test]
    fn the_window_is_filled() {
        let looks = [look(7), look(8)];
        let lines_of = |lines| {
            let window = Window {
                columns: Some(100),
                lines: Some(lines),
            };
            text(&looks, |_| None, window)
        };
        let told = lines_of(24);
        for word in [
            "STEPS/S",
            "4.0",
            "GROWS BY",
            "+2.00 MiB/step",
            "FULL IN",
            "2 m 30 s",
        ] {
            assert!(told.contains(word), "{word}: {told}");
        }
        let bars = |told: &str| told.lines().filter(|line| line.contains('█')).count();
        for (window, each) in [(12, 1), (14, 2), (24, 7), (26, 8), (60, 8)] {
            let told = lines_of(window);
            assert_eq!(bars(&told), 2 * each, "in {window} lines:\n{told}");
            assert!(told.lines().count() <= window, "{told}");
            assert!(!told.contains("more lines"), "{told}");
        }
        assert!(lines_of(9).contains("more lines"));
    }

    /// What was judged long ago may have ended since.
    #[test]
    fn old_growth_has_its_age() {
        let told = |judged_ago_ns| {
            let mut look = look(7);
            let listed = look.listed.as_mut();
            listed.unwrap().judged_ago_ns = judged_ago_ns;
            let window = Window {
                columns: None,
                lines: None,
            };
            text(&[look], |_| None, window)
        };
        for young in [None, Some(9_000_000_000)] {
            assert!(!told(young).contains("ago"), "{young:?}");
        }
        let old = told(Some(90_000_000_000));
        assert!(old.contains("+2.00 MiB/step, 1 m 30 s ago"), "{old}");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(cut("a\nb\n", 3, 80), "a\nb\n");
        assert_eq!(cut("▁▂▃\nb\n", 3, 2), "▁▂\nb\n");
        assert_eq!(cut("日本語\nb\n", 3, 5), "日本\nb\n");
        assert_eq!(
            cut("a\nb\nc\nd\n", 4, 80),
            "a\nb\n… 2 more lines: make the window larger, or name fewer processes\n"
        );
    }
}
