//! Puts two moments into one report, and merges rows that read the same.

use memscope_ledger::report::{Stack, StackReport, StackRow, Tally};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::sum;

/// Returns the report with only one row for each device and stack. The ledger may have several: different calls on one
/// line are different stacks to it, but their frames read the same.
#[must_use]
pub fn merged(report: StackReport) -> StackReport {
    let mut rows = Rows::default();
    for row in &report.rows {
        let made = rows.like(row);
        made.live = sum(made.live, row.live);
        made.peak = sum(made.peak, row.peak);
        made.allocated = sum(made.allocated, row.allocated);
        made.before = match (made.before, row.before) {
            (Some(one), Some(another)) => Some(sum(one, another)),
            (one, another) => one.or(another),
        };
    }
    StackReport {
        rows: rows.largest_first(),
        ..report
    }
}

/// Returns the later report with the earlier one's moment in `from`, and what was live then in each row's `before`.
///
/// Two rows are the same if device and stack are equal (frames, whether they were cut off, and why there are none).
/// Rows that are the same become one. A stack that only the earlier report has gets a row with nothing live and
/// nothing allocated, because the later report has nothing about it. The coverage notes are those of the later report,
/// and those that only the earlier one has.
#[must_use]
pub fn compare(later: &StackReport, earlier: &StackReport) -> StackReport {
    let mut rows = Rows::default();
    for row in &later.rows {
        let made = rows.like(row);
        made.live = sum(made.live, row.live);
        made.peak = sum(made.peak, row.peak);
        made.allocated = sum(made.allocated, row.allocated);
        made.before.get_or_insert_default();
    }
    for row in &earlier.rows {
        let before = rows.like(row).before.get_or_insert_default();
        *before = sum(*before, row.live);
    }
    let mut coverage = later.coverage.clone();
    for note in &earlier.coverage {
        // A note that both reports have is taken from the later one.
        if !coverage.iter().any(|known| known.code == note.code) {
            coverage.push(note.clone());
        }
    }
    StackReport {
        process: later.process.clone(),
        as_of: later.as_of,
        from: Some(earlier.as_of),
        rows: rows.largest_first(),
        coverage,
    }
}

/// Rows by device and stack, each with its place in the order in which they came.
#[derive(Default)]
struct Rows(HashMap<(Option<i32>, Arc<Stack>), (usize, StackRow)>);

impl Rows {
    /// The row of the same device and stack. If there is none, an empty one is made.
    fn like(&mut self, row: &StackRow) -> &mut StackRow {
        let next = self.0.len();
        let key = (row.device, Arc::clone(&row.stack));
        let empty = || StackRow {
            device: row.device,
            stack: Arc::clone(&row.stack),
            live: Tally::default(),
            peak: Tally::default(),
            allocated: Tally::default(),
            before: None,
        };
        let (_, made) = self.0.entry(key).or_insert_with(|| (next, empty()));
        made
    }

    /// The rows by live bytes, the largest first; equal ones stay in the order in which they came.
    fn largest_first(self) -> Vec<StackRow> {
        let mut rows: Vec<(usize, StackRow)> = self.0.into_values().collect();
        rows.sort_by_key(|(place, row)| (Reverse(row.live.bytes), *place));
        rows.into_iter().map(|(_, row)| row).collect()
    }
}
