//! Folded text, comparison and sums of stacks, checked against naive models.
#![allow(clippy::unwrap_used)]

mod common;

use common::stacks::*;
use memscope_export::ExportError;
use memscope_export::stacks::label::{label, why_missing};
use memscope_export::stacks::*;
use memscope_ledger::report::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const METRICS: [Metric; 4] = [
    Metric::Live,
    Metric::Peak,
    Metric::Allocated,
    Metric::Growth,
];

fn text(write: impl FnOnce(&mut Vec<u8>) -> Result<(), ExportError>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn value(row: &StackRow, view: View) -> i128 {
    let of = |tally: Tally| match view.unit {
        Unit::Bytes => i128::from(tally.bytes),
        Unit::Count => i128::from(tally.count),
    };
    match view.metric {
        Metric::Live => of(row.live),
        Metric::Peak => of(row.peak),
        Metric::Allocated => of(row.allocated),
        Metric::Growth => of(row.live) - of(row.before.unwrap()),
    }
}

/// A row's frames as they are drawn, outermost first.
fn drawn(report: &StackReport, row: &StackRow) -> Vec<String> {
    let devices: HashSet<_> = report.rows.iter().map(|row| row.device).collect();
    let mut path = Vec::new();
    if devices.len() > 1 {
        path.push(match row.device {
            Some(device) => format!("[device {device}]"),
            None => "[device unknown]".to_owned(),
        });
    }
    if row.stack.truncated {
        path.push("[truncated]".to_owned());
    }
    match row.stack.frames.as_slice() {
        [] => path.push(why_missing(&row.stack)),
        frames => path.extend(frames.iter().rev().map(label)),
    }
    path
}

/// Sums of the rows by their path as it is drawn.
fn sums(report: &StackReport, view: View) -> BTreeMap<Vec<String>, i128> {
    let mut sums = BTreeMap::new();
    for row in &report.rows {
        *sums.entry(drawn(report, row)).or_default() += value(row, view);
    }
    sums
}

/// Every `\u{…}` as the character that it stands for. A name may have the beginning of one in it, which stands for
/// itself.
fn unescape(label: &str) -> String {
    let mut parts = label.split("\\u{");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let escape = part.split_once('}').and_then(|(number, rest)| {
            let number = u32::from_str_radix(number, 16).ok()?;
            Some((char::from_u32(number)?, rest))
        });
        match escape {
            Some((letter, rest)) => {
                text.push(letter);
                text.push_str(rest);
            }
            None => {
                text.push_str("\\u{");
                text.push_str(part);
            }
        }
    }
    text
}

proptest! {
    #[test]
    fn folded_lines_are_the_stacks(report in reports(true), metric in 0..4_usize, count: bool) {
        let view = View {
            metric: METRICS[metric],
            unit: if count { Unit::Count } else { Unit::Bytes },
        };
        let text = text(|out| folded(&report, view, out));
        let mut found = BTreeMap::new();
        for line in text.lines() {
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            prop_assert_eq!(line, line.trim());
            let (stack, number) = line.rsplit_once(' ').unwrap();
            // Digits at the end of the rest would be a second number for flamegraph.pl.
            prop_assert!(stack.ends_with([')', ']']), "{line:?}");
            let frames: Vec<_> = stack.split(';').map(unescape).collect();
            let number: i128 = number.parse().unwrap();
            prop_assert!(number > 0);
            prop_assert!(found.insert(frames, number).is_none());
        }
        let expected: BTreeMap<_, _> = sums(&report, view)
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .map(|(path, value)| (path.iter().map(|label| unescape(label)).collect(), value))
            .collect();
        prop_assert_eq!(&found, &expected);
        if metric < 3 {
            let whole: i128 = report.rows.iter().map(|row| value(row, view)).sum();
            prop_assert_eq!(found.values().sum::<i128>(), whole);
        }
    }

    #[test]
    fn folded_differences_have_both_numbers(report in reports(true)) {
        let text = text(|out| folded_diff(&report, Unit::Bytes, out));
        let (mut before, mut after) = (0, 0);
        for line in text.lines() {
            let mut numbers = line.rsplitn(3, ' ');
            after += numbers.next().unwrap().parse::<u64>().unwrap();
            before += numbers.next().unwrap().parse::<u64>().unwrap();
            prop_assert!(numbers.next().unwrap().ends_with([')', ']']));
        }
        prop_assert_eq!(after, report.rows.iter().map(|row| row.live.bytes).sum::<u64>());
        let earlier = report.rows.iter().map(|row| row.before.unwrap().bytes);
        prop_assert_eq!(before, earlier.sum::<u64>());
    }

    #[test]
    fn a_comparison_has_every_stack_of_both(later in reports(false), earlier in reports(false)) {
        let both = compare(&later, &earlier);
        prop_assert_eq!(both.from, Some(earlier.as_of));
        prop_assert_eq!(both.as_of, later.as_of);
        let mut seen = HashSet::new();
        let of = |report: &StackReport, like: &StackRow, tally: fn(&StackRow) -> Tally| {
            let same = report.rows.iter().filter(|row| {
                row.device == like.device && row.stack == like.stack
            });
            same.map(tally).fold(Tally::default(), |sum, one| Tally {
                count: sum.count + one.count,
                bytes: sum.bytes + one.bytes,
            })
        };
        for row in &both.rows {
            prop_assert!(seen.insert((row.device, Arc::clone(&row.stack))));
            prop_assert_eq!(row.live, of(&later, row, |row| row.live));
            prop_assert_eq!(row.peak, of(&later, row, |row| row.peak));
            prop_assert_eq!(row.allocated, of(&later, row, |row| row.allocated));
            prop_assert_eq!(row.before, Some(of(&earlier, row, |row| row.live)));
        }
        for row in later.rows.iter().chain(&earlier.rows) {
            prop_assert!(seen.contains(&(row.device, Arc::clone(&row.stack))));
        }
        prop_assert!(both.rows.is_sorted_by_key(|row| std::cmp::Reverse(row.live.bytes)));
    }

    #[test]
    fn rows_that_look_alike_become_one(report in reports(true)) {
        // Each stack once more, on its own: equal, and not the same object.
        let mut twice = report.clone();
        twice.rows.extend(report.rows.iter().map(|row| StackRow {
            stack: Arc::new((*row.stack).clone()),
            ..row.clone()
        }));
        let found = merged(twice);
        let keys: HashSet<_> = found.rows.iter().map(|row| (row.device, &row.stack)).collect();
        prop_assert_eq!(keys.len(), found.rows.len());
        let told: HashSet<_> = report.rows.iter().map(|row| (row.device, &row.stack)).collect();
        prop_assert_eq!(keys, told);
        for row in &found.rows {
            let same = report.rows.iter().filter(|one| {
                one.device == row.device && one.stack == row.stack
            });
            let mut tallies = Tallies::default();
            for one in same {
                tallies.add(&Tallies::of(one));
                tallies.add(&Tallies::of(one));
            }
            prop_assert_eq!(Tallies::of(row), tallies);
        }
        prop_assert!(found.rows.is_sorted_by_key(|row| std::cmp::Reverse(row.live.bytes)));
        prop_assert_eq!((found.from, found.coverage), (report.from, report.coverage));
    }

    #[test]
    fn groups_count_a_stack_once(report in reports(true), by in 0..4_usize, cumulative: bool) {
        let by = [GroupBy::Function, GroupBy::File, GroupBy::Line, GroupBy::OwnLine][by];
        let view = View::default();
        let found = groups(&report, by, view, cumulative);
        let same = |frame: &Frame, key: &Frame| {
            frame.kind == key.kind
                && frame.file == key.file
                && (by == GroupBy::File || frame.name == key.name)
                && (!matches!(by, GroupBy::Line | GroupBy::OwnLine) || frame.line == key.line)
        };
        for group in &found {
            let mut own = (0, 0);
            let mut total = (0, 0, 0);
            for row in report.rows.iter().filter(|row| row.device == group.device) {
                let its_own: Vec<Frame> = row.stack.frames.iter().filter(|frame| frame.is_own()).cloned().collect();
                let is_line = |frame: &&Frame| frame.kind == FrameKind::Python && frame.line > 0;
                let python = row.stack.frames.iter().find(is_line);
                let first = python.or_else(|| row.stack.frames.first());
                let first: Vec<Frame> = first.cloned().into_iter().collect();
                let frames = match (by, its_own.is_empty()) {
                    (GroupBy::OwnLine, false) => &its_own,
                    (GroupBy::OwnLine, true) => &first,
                    _ => &row.stack.frames,
                };
                let (inside, innermost) = match &group.frame {
                    None => {
                        let it = frames.is_empty() && row.stack.missing == group.missing;
                        (it, it)
                    }
                    Some(key) => (
                        frames.iter().any(|frame| same(frame, key)),
                        frames.first().is_some_and(|frame| same(frame, key)),
                    ),
                };
                if inside {
                    total = (total.0 + row.live.bytes, total.1 + row.before.unwrap().count, total.2 + 1);
                }
                if innermost {
                    own = (own.0 + row.live.bytes, own.1 + row.allocated.count);
                }
            }
            prop_assert_eq!((group.own.live.bytes, group.own.allocated.count), own);
            let before = group.total.before.unwrap().count;
            prop_assert_eq!((group.total.live.bytes, before, group.stacks), total);
        }
        // The groups' own numbers add up to the whole.
        let whole: u64 = report.rows.iter().map(|row| row.live.bytes).sum();
        prop_assert_eq!(found.iter().map(|group| group.own.live.bytes).sum::<u64>(), whole);
        let largest_first = found.is_sorted_by_key(|group| {
            let tallies = if cumulative { group.total } else { group.own };
            std::cmp::Reverse(tallies.live.bytes)
        });
        prop_assert!(largest_first);
        let keys: HashSet<_> = found.iter().map(|g| (g.device, g.frame.clone(), g.missing)).collect();
        prop_assert_eq!(keys.len(), found.len());
    }
}

#[test]
fn growth_needs_an_earlier_moment() {
    let report = report(vec![row(Some(0), vec![python("f", "a.py", 1)], 1, 10)]);
    let view = View {
        metric: Metric::Growth,
        unit: Unit::Bytes,
    };
    let mut out = Vec::new();
    for result in [
        folded(&report, view, &mut out),
        flamegraph(&report, view, &mut out),
        pprof(&report, view, &mut out),
        speedscope(&report, view, &mut out),
        folded_diff(&report, Unit::Bytes, &mut out),
        flamegraph_diff(&report, Unit::Bytes, &mut out),
    ] {
        assert!(matches!(result, Err(ExportError::NoEarlier)), "{result:?}");
    }
    assert!(out.is_empty());
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let huge = row(Some(0), vec![python("f", "a.py", 1)], 1, u64::MAX / 2);
    let other = row(Some(0), vec![python("g", "a.py", 1)], 1, u64::MAX / 2);
    let report = report(vec![huge.clone(), huge, other.clone(), other]);
    let (view, mut out) = (View::default(), Vec::new());
    for result in [
        flamegraph(&report, view, &mut out),
        pprof(&report, view, &mut out),
        speedscope(&report, view, &mut out),
    ] {
        assert!(matches!(result, Err(ExportError::TooMuch)), "{result:?}");
    }
    let lines = text(|out| folded(&report, view, out));
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(
        lines.contains(&format!(" {}\n", u128::from(u64::MAX / 2) * 2)),
        "{lines}"
    );
}

#[test]
fn outermost_first_and_why_there_are_none() {
    let mut cut = row(
        Some(0),
        vec![
            native("at::empty", "/t/libtorch.so", 0),
            python("step", "/home/ada/train.py", 12),
        ],
        1,
        100,
    );
    Arc::make_mut(&mut cut.stack).truncated = true;
    let mut none = row(Some(0), vec![], 2, 50);
    Arc::make_mut(&mut none.stack).missing = Some("no_python");
    let mut report = report(vec![cut, none]);
    let lines = text(|out| folded(&report, View::default(), out));
    assert_eq!(
        lines,
        "[no Python frames] 50\n\
         [truncated];step (/home/ada/train.py:12);at::empty (/t/libtorch.so) [native] 100\n"
    );
    report.rows[1].device = None;
    let lines = text(|out| folded(&report, View::default(), out));
    assert!(lines.starts_with("[device 0];[truncated];step"), "{lines}");
    assert!(
        lines.contains("\n[device unknown];[no Python frames] 50\n"),
        "{lines}"
    );
}
