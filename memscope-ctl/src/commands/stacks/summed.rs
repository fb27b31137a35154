//! The stacks of many processes summed up: which line holds how much in all, in how many, and where least and most.

use super::table::Shown;
use crate::fleet::{Replies, Told};
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

/// The largest sums over all processes that answered.
pub(super) fn text(
    replies: &Replies<Told<v1::StacksResponse>>,
    limit: usize,
    lines: usize,
) -> String {
    let mut sums: HashMap<String, Sum> = HashMap::new();
    let (mut processes, mut left_out, mut omitting) = (0_u64, 0_i128, 0_u64);
    let mut what = "live memory";
    let mut grows = false;
    for (_, told) in replies.answers() {
        for (_, answer) in told.answers() {
            let shown = Shown::of(answer);
            (what, grows) = (shown.what(), shown.is_growth());
            processes += 1;
            if answer.omitted > 0 {
                omitting += 1;
                left_out += shown.pair(&answer.others.unwrap_or_default()).1;
            }
            for (key, (count, bytes)) in of_process(answer, shown, lines) {
                let sum = sums.entry(key).or_default();
                sum.bytes += bytes;
                sum.count += count;
                sum.each.push(bytes);
            }
        }
    }
    let mut sums: Vec<(String, Sum)> = sums.into_iter().collect();
    sums.sort_by(|(a_key, a), (b_key, b)| b.bytes.cmp(&a.bytes).then_with(|| a_key.cmp(b_key)));
    let all = sums.len();
    if limit > 0 {
        sums.truncate(limit);
    }
    let mut text = format!("The {what} of {} processes\n", grouped(processes));
    if sums.is_empty() {
        text.push_str("No stack has any.\n");
        return text;
    }
    let amount = |bytes_of: i128| match grows {
        true => signed_bytes(i64::try_from(bytes_of).unwrap_or(i64::MAX)),
        false => bytes(u64::try_from(bytes_of).unwrap_or_default()),
    };
    let count = sums.len();
    let rows = sums.into_iter().map(|(key, sum)| {
        vec![
            amount(sum.bytes),
            grouped(u64::try_from(sum.count.unsigned_abs()).unwrap_or(u64::MAX)),
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
    if left_out != 0 {
        text.push_str(&format!(
            "Each process told its largest; {} of {} processes are in no row, so sums may be larger.\n",
            amount(left_out),
            grouped(omitting)
        ));
    }
    text
}

/// Blocks and bytes of one process, by what they have in common; its devices are added up.
fn of_process(
    answer: &v1::StacksResponse,
    shown: Shown,
    lines: usize,
) -> BTreeMap<String, (i128, i128)> {
    let frame = |place: &u32| answer.frames.get(*place as usize);
    let mut sums: BTreeMap<String, (i128, i128)> = BTreeMap::new();
    let mut add = |key: String, amounts: Option<v1::StackAmounts>| {
        let (count, bytes) = shown.pair(&amounts.unwrap_or_default());
        let sum = sums.entry(key).or_default();
        *sum = (sum.0 + count, sum.1 + bytes);
    };
    for group in &answer.groups {
        let found = group.frame.as_ref().and_then(frame);
        let key = match found {
            None => why_missing(group.missing.as_deref()),
            Some(found) => shown.group_name(answer, &Frame::of(answer, found)),
        };
        add(key, group.own);
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
