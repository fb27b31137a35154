//! The answer to `marks`, and the search for the mark that a text names.
//!
//! Owns: in which step each mark lies, and the search by name. Refuses: to keep anything; see `state::marks`.

use super::affects::Answer;
use super::question::{OfOne, One, answer};
use super::steps;
use crate::report::{KeptMark, MarkOrigin};
use crate::steps::Row;
use memscope_proto::v1;

impl OfOne for v1::MarksRequest {
    type Reply = v1::MarksResponse;
    const KIND: Option<Answer> = None;

    fn pid(&self) -> u32 {
        self.pid
    }

    fn answer(&self, one: &One<'_>) -> v1::MarksResponse {
        let (rows, _) = steps::whole_steps(one.process);
        let (marks, origins) = one.process.marks.all();
        let wanted =
            |mark: &&KeptMark| self.include_framework || mark.origin() != MarkOrigin::Framework;
        let wanted: Vec<&KeptMark> = marks.iter().filter(wanted).collect();
        let left_out = match self.limit as usize {
            0 => 0,
            limit => wanted.len().saturating_sub(limit),
        };
        let marks = wanted.into_iter().skip(left_out);
        answer!(MarksResponse of one, {
            marks: marks
                .map(|mark| v1::NamedMoment {
                    step: step_at(&rows, one.process.steps.ranges, mark.time_ns),
                    ..moment(mark, one.clock.unix_ns(mark.time_ns))
                })
                .collect(),
            counts: origins
                .into_iter()
                .map(|of| v1::MarkCount {
                    origin: of.origin.into(),
                    count: of.count,
                    kept: of.kept,
                })
                .collect(),
        })
    }
}

/// The message for a mark. `unix_ns` is 0 where it is not known.
fn moment(mark: &KeptMark, unix_ns: u64) -> v1::NamedMoment {
    v1::NamedMoment {
        event: Some(mark.event.into()),
        time_boot_ns: mark.time_ns,
        time_unix_ns: (unix_ns != 0).then_some(unix_ns),
        cut: mark.cut,
        nth: mark.nth,
        tid: (mark.tid != 0).then_some(mark.tid),
        kind: mark.kind.into(),
        source: mark.source.into(),
        origin: mark.origin().into(),
        step: None,
        name: mark.name.to_string(),
    }
}

/// The step that a moment lies in. A mark that ends a step belongs to the step that it ends.
fn step_at(rows: &[Row], ranges: bool, time_ns: u64) -> Option<u64> {
    let after = rows.partition_point(|row| row.to_ns < time_ns);
    match rows.get(after) {
        Some(row) => (row.from_ns <= time_ns).then_some(row.step),
        // Between two ranges there is no step, and the rows do not show whether a range is open.
        None if ranges => None,
        // The step that has not ended yet.
        None => rows.last().map(|row| row.step + 1),
    }
}

/// The name and the number in a text such as `epoch#3`; `None` if it has no number, as PyTorch's names with a `#` in them.
pub fn numbered_mark(text: &str) -> Option<(&str, u64)> {
    let (name, nth) = text.rsplit_once('#')?;
    Some((name, nth.parse().ok()?))
}

/// The mark that a text names: the last one with that name, or with `#N` after the name the N-th one. A mark whose name
/// is the whole text is preferred, because PyTorch's own names have a `#` in them. Marks made by people are preferred
/// to others.
///
/// # Errors
///
/// Says why there is no such mark, as the end of a sentence that begins with the text.
pub fn find_mark<'a>(
    marks: &'a [v1::NamedMoment],
    text: &str,
) -> Result<&'a v1::NamedMoment, String> {
    let last = |name: &str, nth: Option<u64>| {
        marks
            .iter()
            .filter(|mark| mark.name == name && (nth.is_none() || mark.nth == nth))
            .max_by_key(|mark| {
                let sequence = mark.event.map_or(0, |event| event.sequence);
                (mark.origin() == v1::MarkOrigin::People, sequence)
            })
    };
    if let Some(mark) = last(text, None) {
        return Ok(mark);
    }
    let Some((name, nth)) = numbered_mark(text) else {
        return Err("is no mark that is kept".to_owned());
    };
    if let Some(mark) = last(name, Some(nth)) {
        return Ok(mark);
    }
    let of_name = marks.iter().filter(|mark| mark.name == name);
    let kept: Vec<u64> = of_name.filter_map(|mark| mark.nth).collect();
    Err(match (kept.iter().min(), kept.iter().max()) {
        (Some(first), Some(last)) => {
            format!("is no mark that is kept: of that name, #{first} to #{last} are")
        }
        _ => "is no mark that is kept".to_owned(),
    })
}
