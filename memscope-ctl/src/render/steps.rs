//! `steps`.

use super::table::{Column, table};
use super::{coverage, device, heading};
use crate::units::{bytes, grouped, nanoseconds, plain, signed_bytes};
use memscope_proto::v1;

/// `42 steps, 31 ms each: …`.
pub(crate) fn summary(summary: &v1::StepSummary) -> String {
    let evidence = plain(&summary.evidence);
    let Some(count) = summary.count else {
        return format!("Steps are not known: {evidence}.\n");
    };
    let each = summary
        .median_ns
        .map(|time| format!(", {} each", nanoseconds(time)))
        .unwrap_or_default();
    let steps = if count == 1 { "step" } else { "steps" };
    format!("{} {steps}{each}: {evidence}.\n", grouped(count))
}

/// `train.py:42 (forward)`.
pub(crate) fn line(line: &v1::CodeLine) -> String {
    format!(
        "{}:{} ({})",
        plain(&line.file),
        line.line,
        plain(&line.name)
    )
}

pub(crate) fn steps(answer: &v1::StepsResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(known) = &answer.summary {
        text.push_str(&summary(known));
    }
    if answer.lines.len() > 1 {
        text.push_str("\nWhat tells of them\n");
        for one in &answer.lines {
            let place = one.line.as_ref().map(line).unwrap_or_default();
            let name = plain(&one.name);
            text.push_str(&format!("  {:>9} × {name} {place}\n", grouped(one.count)));
        }
    }
    for one in &answer.devices {
        text.push_str(&of_device(one));
    }
    if !answer.rows.is_empty() {
        text.push('\n');
        text.push_str(&rows(&answer.rows));
    }
    if answer.survivor_count > 0 {
        text.push_str(&format!(
            "\n{} {} step, {}; some may have gone since.\n",
            grouped(answer.survivor_count),
            if answer.survivor_count == 1 {
                "block outlived its"
            } else {
                "blocks outlived their"
            },
            bytes(answer.survivor_bytes)
        ));
    }
    if !answer.survivors.is_empty() {
        text.push('\n');
        text.push_str(&survivors(answer));
    }
    if answer.unchecked_blocks > 0 {
        let blocks = grouped(answer.unchecked_blocks);
        text.push_str(&format!(
            "Of {blocks} more blocks that is not known: too many came in one step.\n"
        ));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn of_device(one: &v1::StepDevice) -> String {
    let quantiles = |q: Option<v1::StepQuantiles>| {
        let q = q.unwrap_or_default();
        format!("{} ({} to {})", bytes(q.p50), bytes(q.p5), bytes(q.p95))
    };
    let mut text = format!(
        "\nDevice {} ({}), {} steps after the first: lowest {}, highest {}, floor {} per step, {} allocations, {} frees\n",
        device(one.device),
        one.source(),
        grouped(one.steps),
        quantiles(one.min_bytes),
        quantiles(one.max_bytes),
        signed_bytes(one.floor_bytes_per_step.round() as i64),
        grouped(one.allocs),
        grouped(one.frees),
    );
    for (name, gap) in [("smallest", one.smallest_gap), ("largest", one.largest_gap)] {
        if let Some(gap) = gap {
            text.push_str(&format!(
                "  {name} gap {:.4} %: {} of {} in step {}\n",
                gap.ratio * 100.0,
                bytes(gap.min_bytes),
                bytes(gap.max_bytes),
                grouped(gap.step),
            ));
        }
    }
    text
}

fn rows(rows: &[v1::StepRow]) -> String {
    let head = [
        Column::Right("STEP"),
        Column::Right("DEVICE"),
        Column::Right("TIME"),
        Column::Right("MIN"),
        Column::Right("MAX"),
        Column::Right("END"),
        Column::Right("RESERVED"),
        Column::Right("USED OF IT"),
        Column::Right("ALLOCS"),
        Column::Right("FREES"),
    ];
    let rows = rows.iter().map(|row| {
        let used = if row.reserved_at_max_bytes == 0 {
            crate::units::unknown()
        } else {
            let share = row.max_allocated_bytes as f64 / row.reserved_at_max_bytes as f64;
            format!("{:.1} %", share * 100.0)
        };
        vec![
            grouped(row.step),
            device(row.device),
            nanoseconds(row.to_boot_ns.saturating_sub(row.from_boot_ns)),
            bytes(row.min_allocated_bytes),
            bytes(row.max_allocated_bytes),
            bytes(row.end_allocated_bytes),
            bytes(row.max_reserved_bytes),
            used,
            grouped(row.allocs),
            grouped(row.frees),
        ]
    });
    table(&head, rows.collect())
}

fn survivors(answer: &v1::StepsResponse) -> String {
    let head = [
        Column::Right("STEP"),
        Column::Right("DEVICE"),
        Column::Right("SIZE"),
        Column::Left("ADDRESS"),
        Column::Right("LAUNCHES BEFORE"),
    ];
    let rows = answer.survivors.iter().map(|one| {
        vec![
            grouped(one.step),
            device(Some(one.device)),
            bytes(one.size_bytes),
            format!("{:#x}", one.address),
            one.launches_before
                .map_or_else(crate::units::unknown, grouped),
        ]
    });
    table(&head, rows.collect())
}
