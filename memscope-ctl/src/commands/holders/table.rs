//! What holds memory, as a table.

use crate::render::table::{Column, table};
use crate::render::{coverage, name};
use crate::units::{bytes, grouped, moment, plain};
use memscope_proto::v1::{self, HolderOrigin, HolderVia};

/// Rows that a table shows where no number is asked for.
const ROWS: u32 = 30;

/// Most rows that are shown.
pub(super) fn rows(limit: Option<u32>) -> usize {
    match limit {
        Some(0) => usize::MAX,
        limit => limit.unwrap_or(ROWS) as usize,
    }
}

/// The answer as a table of at most so many rows. All were asked for: what is said beneath them is of all.
pub(super) fn text(answer: &v1::HoldersResponse, most: usize) -> String {
    let shown = answer.holders.get(..most).unwrap_or(&answer.holders);
    let process = answer.process.as_ref();
    let mut text = format!(
        "{}  as of {}\n",
        process.map_or_else(|| format!("pid {}", answer.pid), name),
        moment(answer.as_of)
    );
    let garbage = answer.garbage.unwrap_or_default();
    if garbage.count > 0 {
        text.push_str(&format!(
            "\n{} wait for Python's garbage collector; `gc.collect()` in the process frees them\n",
            amount(garbage)
        ));
    }
    let head = [
        Column::Left("HELD BY"),
        Column::Left("AS"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Left("CONTAINER"),
    ];
    let rows = shown.iter().map(|holder| {
        let blocks = holder.blocks.unwrap_or_default();
        vec![
            plain(&holder.path),
            via(holder.via()).to_owned(),
            grouped(blocks.count),
            bytes(blocks.bytes),
            container(holder),
        ]
    });
    text.push('\n');
    text.push_str(&table(&head, rows.collect()));
    let more = answer.more + (answer.holders.len() - shown.len()) as u64;
    if more > 0 {
        text.push_str(&format!("and {more} more (--limit 0 shows all)\n"));
    }
    text.push_str(&sums(answer));
    if let [only] = shown {
        text.push_str(&way(only));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn amount(amount: v1::Amount) -> String {
    let blocks = if amount.count == 1 { "block" } else { "blocks" };
    format!(
        "{} {blocks} ({})",
        grouped(amount.count),
        bytes(amount.bytes)
    )
}

/// The numbers below the table.
pub(super) fn sums(answer: &v1::HoldersResponse) -> String {
    let all = answer.blocks.unwrap_or_default();
    let mut text = format!("\n{} were looked at", amount(all));
    let unheld = answer.unheld.unwrap_or_default();
    if unheld.count > 0 {
        text.push_str(&format!(
            "; of {} no holder was found (C++ code holds them, or they were in use)",
            amount(unheld)
        ));
    }
    let unsure = answer.holders.iter().filter_map(|holder| holder.unsure);
    let (count, size) = unsure.fold((0, 0), |sum, one| (sum.0 + one.count, sum.1 + one.bytes));
    if count > 0 {
        let unsure = v1::Amount { count, bytes: size };
        text.push_str(&format!(
            "; the way to {} changed while it was read",
            amount(unsure)
        ));
    }
    text.push_str(&format!(
        ". {} objects, {:.1} s.\n",
        grouped(answer.objects),
        answer.duration_ns as f64 / 1e9
    ));
    text
}

/// How the tensor keeps a block alive, in a word.
pub(super) const fn via(via: HolderVia) -> &'static str {
    match via {
        HolderVia::Tensor => "tensor",
        HolderVia::Gradient => "gradient",
        HolderVia::Graph => "autograd graph",
        HolderVia::Unspecified => "",
    }
}

/// `list of 50`
pub(super) fn container(holder: &v1::Holder) -> String {
    let from = match holder.origin() {
        HolderOrigin::Garbage => return "waits for the collector".to_owned(),
        HolderOrigin::Outside => "not from a name; ",
        HolderOrigin::Named | HolderOrigin::Unspecified => "",
    };
    match (&holder.kind, holder.length) {
        (Some(kind), Some(length)) => format!("{from}{} of {}", plain(kind), grouped(length)),
        (Some(kind), None) => format!("{from}{}", plain(kind)),
        (None, _) => from.trim_end_matches("; ").to_owned(),
    }
}

/// The way to a block, a step in a line.
fn way(holder: &v1::Holder) -> String {
    let mut text = format!("\nThe way to the block at {:#x}:\n", holder.example_address);
    for step in &holder.way {
        text.push_str(&format!("  {}\n", step_of_way(step)));
    }
    text
}

/// A step of the way to a block: `.history  list of 200`.
pub(in crate::commands) fn step_of_way(step: &v1::HolderStep) -> String {
    let part = match step.part.as_str() {
        "" => "(part of it)".to_owned(),
        part => plain(part),
    };
    let length = step
        .length
        .map_or_else(String::new, |n| format!(" of {}", grouped(n)));
    let place = match step.file.as_str() {
        "" => String::new(),
        file => format!("  {}:{}", plain(file), step.line),
    };
    format!("{part}  {}{length}{place}", plain(&step.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsure_blocks_of_rows_that_are_not_shown_count() {
        let amount = |count| v1::Amount {
            count,
            bytes: count << 20,
        };
        let holder = |path: &str, unsure| v1::Holder {
            path: path.to_owned(),
            blocks: Some(amount(9)),
            unsure,
            ..v1::Holder::default()
        };
        let answer = v1::HoldersResponse {
            holders: vec![
                holder("a", None),
                holder("b", Some(amount(1))),
                holder("c", Some(amount(2))),
            ],
            more: 4,
            ..v1::HoldersResponse::default()
        };
        let shown = text(&answer, 2);
        assert!(
            shown.contains("and 5 more (--limit 0 shows all)"),
            "{shown}"
        );
        let unsure = "the way to 3 blocks (3.00 MiB) changed while it was read";
        assert!(shown.contains(unsure), "{shown}");
        let all = text(&answer, rows(Some(0)));
        assert!(all.contains("and 4 more") && all.contains(unsure), "{all}");
        assert_eq!((rows(None), rows(Some(7))), (30, 7));
    }
}
