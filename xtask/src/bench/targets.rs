//! What was set as a target, beside what was measured.

use std::fmt::Write as _;

use super::measure::median;
use super::page::{Page, short};

/// A number that is to be at most so large.
struct Target {
    /// The word of the part that measures it.
    part: &'static str,
    /// The row and the column of the part's table.
    row: &'static str,
    column: &'static str,
    most: f64,
}

const fn target(part: &'static str, row: &'static str, column: &'static str, most: f64) -> Target {
    Target {
        part,
        row,
        column,
        most,
    }
}

const MILLION: &str = "1000000 live blocks";

const TARGETS: [Target; 15] = [
    target(
        "daemon",
        "all that, with checkpoints, 250 a batch",
        "ns an event",
        500.0,
    ),
    target(
        "daemon",
        "all that, with checkpoints, 4000 a batch",
        "ns an event",
        500.0,
    ),
    // A million and a half events a second.
    target(
        "daemon",
        "read, decode and apply, 250 a batch",
        "ns an event",
        667.0,
    ),
    target(
        "daemon",
        "read, decode and apply, 4000 a batch",
        "ns an event",
        667.0,
    ),
    target(
        "questions",
        "memory of the ledger, bytes a live block",
        MILLION,
        100.0,
    ),
    target("questions", "stats, ms", MILLION, 20.0),
    target("questions", "leaks, ms", MILLION, 20.0),
    target("questions", "stacks (rows), ms", MILLION, 20.0),
    target(
        "questions",
        "snapshot, to the last byte, ms",
        MILLION,
        150.0,
    ),
    target(
        "questions",
        "snapshot --at a tenth of the churn ago, to the last byte, ms",
        MILLION,
        500.0,
    ),
    target(
        "questions",
        "diff --from a tenth of the churn ago, beside the present, ms",
        MILLION,
        500.0,
    ),
    target("life", "memory at rest, MiB", "value", 25.0),
    target(
        "life",
        "memory at rest, 64 idle processes attached, MiB",
        "value",
        25.0,
    ),
    target("life", "processor at rest, % of a core", "value", 0.05),
    target(
        "life",
        "processor at rest, 64 idle processes attached, % of a core",
        "value",
        0.05,
    ),
];

/// The targets as a section of the page, in Markdown.
pub fn markdown(page: &Page) -> String {
    let mut text = "## Targets\n\nWhat each is measured by is said in the sections below. What stands in the way of those that are not met is in\n\
                    [What tracing costs](evidence/overhead.md).\n\n| what | at most | measured | met |\n|---|---|---|---|\n"
        .to_owned();
    for target in &TARGETS {
        let values = page.values(target.part, target.row, target.column);
        let (measured, met) = match values.map(median) {
            Some(value) if !value.is_nan() => {
                let met = if value <= target.most { "yes" } else { "no" };
                (short(value), met)
            }
            _ => ("not measured".to_owned(), "–"),
        };
        let of = match target.column {
            MILLION => " (a million live blocks)".to_owned(),
            "value" => String::new(),
            unit => format!(", {unit}"),
        };
        let _ = writeln!(
            text,
            "| {}{of} | {} | {measured} | {met} |",
            target.row, target.most
        );
    }
    text
}
