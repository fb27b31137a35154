//! The answer to `marks`, and which mark a text names.
//!
//! Owns: the step of each mark, and the search by name. Refuses: to keep anything; see `marks`.

use crate::clock::Clock;
use crate::coverage;
use crate::process::Process;
use crate::report::{AsOf, KeptMark, MarkOrigin, MarkRow, MarksReport};
use crate::step_report;
use crate::steps::Row;

pub(crate) fn report(process: &Process, as_of: AsOf, clock: &Clock) -> MarksReport {
    let steps = step_report::whole_steps(process);
    let (marks, origins) = process.marks.all();
    MarksReport {
        marks: marks
            .into_iter()
            .map(|mark| MarkRow {
                step: step_at(&steps, process.steps.ranges, mark.time_ns),
                unix_ns: clock.unix_ns(mark.time_ns),
                mark,
            })
            .collect(),
        process: process.summary(),
        as_of,
        origins,
        coverage: coverage::notes(process),
    }
}

/// The step that a moment lies in. The mark that ends a step lies in it.
fn step_at(rows: &[Row], ranges: bool, time_ns: u64) -> Option<u64> {
    let after = rows.partition_point(|row| row.to_ns < time_ns);
    match rows.get(after) {
        Some(row) => (row.from_ns <= time_ns).then_some(row.step),
        // Between two ranges there is no step, and whether one is open is not told here.
        None if ranges => None,
        // The step that is going on.
        None => rows.last().map(|row| row.step + 1),
    }
}

impl MarksReport {
    /// The mark that a text names: the last one of that name, or with `#N` behind the name the N-th of it. A mark that is
    /// called by the whole text comes first: PyTorch's own names have a `#` in them. People's marks come before others.
    ///
    /// # Errors
    ///
    /// Why there is none, as the end of a sentence that begins with the mark.
    pub fn find(&self, text: &str) -> Result<&KeptMark, String> {
        let last = |name: &str, nth: Option<u64>| {
            self.marks
                .iter()
                .map(|row| &row.mark)
                .filter(|mark| *mark.name == *name && (nth.is_none() || mark.nth == nth))
                .max_by_key(|mark| (mark.origin() == MarkOrigin::People, mark.event))
        };
        if let Some(mark) = last(text, None) {
            return Ok(mark);
        }
        let split = text.rsplit_once('#');
        let Some((name, nth)) =
            split.and_then(|(name, nth)| Some((name, nth.parse::<u64>().ok()?)))
        else {
            return Err("is no mark that is kept".to_owned());
        };
        if let Some(mark) = last(name, Some(nth)) {
            return Ok(mark);
        }
        let kept: Vec<u64> = self
            .marks
            .iter()
            .map(|row| &row.mark)
            .filter(|mark| *mark.name == *name)
            .filter_map(|mark| mark.nth)
            .collect();
        Err(match (kept.iter().min(), kept.iter().max()) {
            (Some(first), Some(last)) => {
                format!("is no mark that is kept: of that name, #{first} to #{last} are")
            }
            _ => "is no mark that is kept".to_owned(),
        })
    }
}
