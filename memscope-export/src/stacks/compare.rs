//! Two moments in one report.

use memscope_ledger::report::{Stack, StackReport, StackRow, Tally};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::sum;

/// The later report with what was live at the earlier one: `from` and each row's `before`.
///
/// Rows are the same where device and stack are equal (frames, whether cut off, and why there are none); several
/// of the same become one. A stack that only the earlier one has gets a row with nothing live, and
/// nothing allocated, since the later report told of nothing. Coverage is the later one's, with what only the
/// earlier one adds.
#[must_use]
pub fn compare(later: &StackReport, earlier: &StackReport) -> StackReport {
    let mut rows: Vec<StackRow> = Vec::with_capacity(later.rows.len());
    let mut places: HashMap<(Option<i32>, Arc<Stack>), usize> = HashMap::new();
    let mut place = |rows: &mut Vec<StackRow>, row: &StackRow| {
        let next = rows.len();
        let place = *places
            .entry((row.device, Arc::clone(&row.stack)))
            .or_insert(next);
        if place == next {
            rows.push(StackRow {
                device: row.device,
                stack: Arc::clone(&row.stack),
                live: Tally::default(),
                peak: Tally::default(),
                allocated: Tally::default(),
                before: Some(Tally::default()),
            });
        }
        place
    };
    for row in &later.rows {
        let place = place(&mut rows, row);
        if let Some(made) = rows.get_mut(place) {
            made.live = sum(made.live, row.live);
            made.peak = sum(made.peak, row.peak);
            made.allocated = sum(made.allocated, row.allocated);
        }
    }
    for row in &earlier.rows {
        let place = place(&mut rows, row);
        if let Some(made) = rows.get_mut(place) {
            made.before = Some(sum(made.before.unwrap_or_default(), row.live));
        }
    }
    rows.sort_by_key(|row| Reverse(row.live.bytes));
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
        rows,
        coverage,
    }
}
