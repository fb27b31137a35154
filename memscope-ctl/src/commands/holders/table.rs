//! What holds memory, as a table.

use crate::render::table::{Column, table};
use crate::render::{coverage, name};
use crate::units::{bytes, grouped, moment, plain};
use memscope_proto::v1::{self, HolderOrigin, HolderVia};

/// Rows that a table shows where no number is asked for.
pub(super) const ROWS: u32 = 30;

/// The answer as a table.
pub(super) fn text(answer: &v1::HoldersResponse) -> String {
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
    let rows = answer.holders.iter().map(|holder| {
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
    if answer.more > 0 {
        text.push_str(&format!("and {} more (--limit 0 shows all)\n", answer.more));
    }
    text.push_str(&sums(answer));
    if let [only] = answer.holders.as_slice() {
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
