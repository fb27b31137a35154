//! Two moments in one report, and rows that look alike in one.

use memscope_ledger::report::{Stack, StackReport, StackRow, Tally};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::sum;

/// The report with one row for each device and stack. A ledger may tell of two: calls that stand on one
/// line are different ones, and read the same.
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

/// The later report with what was live at the earlier one: `from` and each row's `before`.
///
/// Rows are the same where device and stack are equal (frames, whether cut off, and why there are none); several
/// of the same become one. A stack that only the earlier one has gets a row with nothing live, and
/// nothing allocated, since the later report told of nothing. Coverage is the later one's, with what only the
/// earlier one adds.
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
        // What still holds is told of now.
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

/// Rows by device and stack.
#[derive(Default)]
struct Rows(HashMap<(Option<i32>, Arc<Stack>), (usize, StackRow)>);

impl Rows {
    /// The row of the same device and stack; an empty one, if there was none.
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

    /// Equal ones in the order in which they came.
    fn largest_first(self) -> Vec<StackRow> {
        let mut rows: Vec<(usize, StackRow)> = self.0.into_values().collect();
        rows.sort_by_key(|(place, row)| (Reverse(row.live.bytes), *place));
        rows.into_iter().map(|(_, row)| row).collect()
    }
}
