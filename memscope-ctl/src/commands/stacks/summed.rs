//! The stacks of many processes summed up: which line holds how much in all, in how many, and where least and most.

use super::table::{Shown, signed_count};
use crate::fleet::{Replies, Told};
use crate::render::coverage_of_many;
use crate::render::frames::{Frame, stack, why_missing};
use crate::render::table::{Column, table};
use crate::units::{bytes, grouped, signed_bytes};
use memscope_proto::v1;
use std::collections::{BTreeMap, HashMap};

/// What one line, or one stack, holds in all processes.
#[derive(Default)]
struct Sum {
    bytes: i128,
    count: i128,
    /// Bytes in each process that has it.
    each: Vec<i128>,
}

/// The largest sums over all processes that answered: of what was allocated in a line itself, or (`inclusive`) also in what it called.
pub(super) fn text(
    replies: &Replies<Told<v1::StacksResponse>>,
    inclusive: bool,
    limit: usize,
    lines: usize,
) -> String {
    let mut sums: HashMap<String, Sum> = HashMap::new();
    let (mut processes, mut left_out, mut omitting) = (0_u64, 0_i128, 0_u64);
    let mut what = "live memory";
    let (mut grows, mut by_count) = (false, false);
    for (_, told) in replies.answers() {
        for (_, answer) in told.answers() {
            let shown = Shown::of(answer);
            (what, grows) = (shown.what(), shown.is_growth());
            by_count = shown.is_by_count();
            processes += 1;
            if answer.omitted > 0 {
                omitting += 1;
                left_out += shown.pair(&answer.others.unwrap_or_default()).1;
            }
            for (key, (count, bytes)) in of_process(answer, shown, inclusive, lines) {
                let sum = sums.entry(key).or_default();
                sum.bytes += bytes;
                sum.count += count;
                sum.each.push(bytes);
            }
        }
    }
    let mut sums: Vec<(String, Sum)> = sums.into_iter().collect();
    // As each process ordered its own.
    let weight = |sum: &Sum| if by_count { sum.count } else { sum.bytes };
    sums.sort_by(|(a_key, a), (b_key, b)| weight(b).cmp(&weight(a)).then_with(|| a_key.cmp(b_key)));
    let all = sums.len();
    if limit > 0 {
        sums.truncate(limit);
    }
    let mut text = format!("The {what} of {} processes\n", grouped(processes));
    if inclusive {
        text.push_str("Each row with what its callees allocated; a block is in several rows.\n");
    }
    let limits = || {
        let answers = replies.answers().flat_map(|(_, told)| told.answers());
        coverage_of_many(answers.map(|(_, answer)| answer.coverage.as_slice()))
    };
    if sums.is_empty() {
        text.push_str("No stack has any.\n");
        return text + &limits();
    }
    let amount = |bytes_of: i128| match grows {
        true => signed_bytes(i64::try_from(bytes_of).unwrap_or(i64::MAX)),
        false => bytes(u64::try_from(bytes_of).unwrap_or_default()),
    };
    let count = sums.len();
    let rows = sums.into_iter().map(|(key, sum)| {
        vec![
            amount(sum.bytes),
            signed_count(sum.count, grows),
            format!("{} of {}", sum.each.len(), processes),
            amount(sum.each.iter().copied().min().unwrap_or_default()),
            amount(sum.each.iter().copied().max().unwrap_or_default()),
            key,
        ]
    });
    let head = [
        Column::Right("IN ALL"),
        Column::Right("BLOCKS"),
        Column::Right("PROCESSES"),
        Column::Right("SMALLEST"),
        Column::Right("LARGEST"),
        Column::Left("WHERE"),
    ];
    text.push('\n');
    text.push_str(&table(&head, rows.collect()));
    if all > count {
        text.push_str(&format!(
            " and {} smaller ones\n",
            grouped((all - count) as u64)
        ));
    }
    if omitting > 0 && inclusive {
        // Of inclusive sums the rows left out cannot be added up: one block is in several.
        text.push_str(&format!(
            "Each process told its largest; rows of {} processes are left out, so sums may be larger.\n",
            grouped(omitting)
        ));
    } else if left_out != 0 {
        text.push_str(&format!(
            "Each process told its largest; {} of {} processes are in no row, so sums may be larger.\n",
            amount(left_out),
            grouped(omitting)
        ));
    }
    text.push_str(&limits());
    text
}

/// Blocks and bytes of one process, by what they have in common; its devices are added up. What has nothing of its own, as a line that
/// only calls, is in no row.
fn of_process(
    answer: &v1::StacksResponse,
    shown: Shown,
    inclusive: bool,
    lines: usize,
) -> BTreeMap<String, (i128, i128)> {
    let frame = |place: &u32| answer.frames.get(*place as usize);
    let mut sums: BTreeMap<String, (i128, i128)> = BTreeMap::new();
    let mut add = |key: String, amounts: Option<v1::StackAmounts>| {
        let (count, bytes) = shown.pair(&amounts.unwrap_or_default());
        if (count, bytes) == (0, 0) {
            return;
        }
        let sum = sums.entry(key).or_default();
        *sum = (sum.0 + count, sum.1 + bytes);
    };
    for group in &answer.groups {
        let found = group.frame.as_ref().and_then(frame);
        let key = match found {
            None => why_missing(group.missing.as_deref()),
            Some(found) => shown.group_name(answer, &Frame::of(answer, found)),
        };
        add(key, if inclusive { group.total } else { group.own });
    }
    for row in &answer.rows {
        let frames: Vec<Frame<'_>> = row
            .frames
            .iter()
            .filter_map(frame)
            .map(|frame| Frame::of(answer, frame))
            .collect();
        add(stack(&frames, row, lines), row.amounts);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of two processes about these lines: name, and blocks and bytes now and before.
    fn replies(
        metric: v1::StackMetric,
        unit: v1::StackUnit,
        lines: &[(&str, [u64; 2], [u64; 2])],
    ) -> Replies<Told<v1::StacksResponse>> {
        let amount = |[count, bytes]: [u64; 2]| Some(v1::Amount { count, bytes });
        let mut answer = v1::StacksResponse {
            metric: metric.into(),
            unit: unit.into(),
            by: v1::StackGrouping::Function.into(),
            strings: vec![String::new()],
            ..v1::StacksResponse::default()
        };
        for (at, (name, live, before)) in (0..).zip(lines) {
            answer.strings.push((*name).to_owned());
            answer.frames.push(v1::StackFrame {
                name: at + 1,
                ..v1::StackFrame::default()
            });
            let amounts = Some(v1::StackAmounts {
                live: amount(*live),
                before: amount(*before),
                ..v1::StackAmounts::default()
            });
            answer.groups.push(v1::StackGroup {
                frame: Some(at),
                own: amounts,
                total: amounts,
                ..v1::StackGroup::default()
            });
        }
        of_two(answer)
    }

    fn of_two(answer: v1::StacksResponse) -> Replies<Told<v1::StacksResponse>> {
        let told = Told {
            processes: vec![
                (v1::Process::default(), Ok(answer.clone())),
                (v1::Process::default(), Ok(answer)),
            ],
            not_asked: 0,
        };
        Replies::answered(vec![told])
    }

    #[test]
    fn what_limits_the_sums_is_said() {
        let note = |code: &str, affects: &[&str]| v1::CoverageNote {
            code: code.to_owned(),
            affects: affects.iter().map(|kind| (*kind).to_owned()).collect(),
            ..v1::CoverageNote::default()
        };
        let told = |answer| text(&of_two(answer), false, 10, 4);
        assert!(!told(v1::StacksResponse::default()).contains("do not show"));
        let said = told(v1::StacksResponse {
            coverage: vec![note("stacks_reduced", &["stacks"]), note("forked", &[])],
            groups: vec![v1::StackGroup::default()],
            ..v1::StacksResponse::default()
        });
        assert!(
            said.contains("stacks_reduced: in 2 of 2 processes"),
            "{said}"
        );
        assert!(!said.contains("forked"), "{said}");
    }

    #[test]
    fn a_line_that_only_calls_has_a_row_where_sums_are_inclusive() {
        let amount = |bytes| {
            let live = Some(v1::Amount { count: 1, bytes }).filter(|_| bytes > 0);
            Some(v1::StackAmounts {
                live,
                ..v1::StackAmounts::default()
            })
        };
        let group = |frame, own, total| v1::StackGroup {
            frame: Some(frame),
            own: amount(own),
            total: amount(total),
            ..v1::StackGroup::default()
        };
        let frame = |name| v1::StackFrame {
            name,
            ..v1::StackFrame::default()
        };
        let answer = v1::StacksResponse {
            by: v1::StackGrouping::Function.into(),
            strings: vec![String::new(), "caller".to_owned(), "inner".to_owned()],
            frames: vec![frame(1), frame(2)],
            groups: vec![group(0, 0, 2 << 30), group(1, 1 << 30, 1 << 30)],
            ..v1::StacksResponse::default()
        };
        let exclusive = text(&of_two(answer.clone()), false, 10, 4);
        assert!(exclusive.contains("inner"), "{exclusive}");
        assert!(!exclusive.contains("caller"), "{exclusive}");
        let inclusive = text(&of_two(answer), true, 10, 4);
        let row = inclusive.lines().find(|line| line.contains("caller"));
        assert!(
            row.is_some_and(|row| row.contains("4.00 GiB")),
            "{inclusive}"
        );
    }

    #[test]
    fn the_line_with_most_blocks_comes_first_where_blocks_are_counted() {
        let lines = [
            ("large", [1, 1 << 30], [0; 2]),
            ("many", [500, 500], [0; 2]),
        ];
        for (unit, first) in [
            (v1::StackUnit::Count, "many"),
            (v1::StackUnit::Bytes, "large"),
        ] {
            let said = text(&replies(v1::StackMetric::Live, unit, &lines), false, 1, 4);
            let row = said.lines().nth(3).unwrap_or_default();
            assert!(row.contains(first), "{said}");
            assert!(said.contains("and 1 smaller ones"), "{said}");
        }
    }

    #[test]
    fn a_line_that_shrank_has_fewer_blocks() {
        let lines = [("shrank", [1, 4096], [6, 1 << 20])];
        let said = text(
            &replies(v1::StackMetric::Growth, v1::StackUnit::Bytes, &lines),
            false,
            1,
            4,
        );
        let row = said.lines().nth(3).unwrap_or_default();
        assert_eq!(row.split_whitespace().nth(2), Some("-10"), "{said}");
    }
}
