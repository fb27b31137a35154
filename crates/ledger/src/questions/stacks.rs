//! The answer to `stacks`: what each stack allocated.
//!
//! Owns: the order of its rows. Refuses: names; `state::stacks` has them.

use super::coverage;
use crate::report::{AsOf, StackReport, StackRow};
use crate::state::process::Process;
use std::sync::Arc;

/// Builds the report: a row for each stack that allocated anything, ordered by live bytes.
pub(crate) fn report(process: &Process, as_of: AsOf) -> StackReport {
    let mut named = std::collections::HashMap::new();
    let mut rows: Vec<StackRow> = process
        .stacks
        .sums()
        .filter(|(_, _, live, peak, allocated)| live.count + peak.count + allocated.count > 0)
        .map(|(device, index, live, peak, allocated)| StackRow {
            device,
            stack: Arc::clone(
                named
                    .entry(index)
                    .or_insert_with(|| Arc::new(process.stacks.stack(index))),
            ),
            live,
            peak,
            allocated,
            before: None,
        })
        .collect();
    // One stack may have several numbers: another one after a code object in it has died. So frames decide between
    // equals.
    rows.sort_by(|a, b| {
        let key = |row: &StackRow| std::cmp::Reverse((row.live.bytes, row.allocated.bytes));
        (key(a), a.device, &a.stack.frames).cmp(&(key(b), b.device, &b.stack.frames))
    });
    StackReport {
        process: process.summary(),
        as_of,
        from: None,
        rows,
        coverage: coverage::notes(process),
    }
}
