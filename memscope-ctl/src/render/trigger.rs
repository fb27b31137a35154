//! `trigger` and `snapshots`.

use super::table::{Column, table};
use crate::units::{bytes, grouped, moment, plain, unknown};
use memscope_proto::v1;

pub(crate) fn added(answer: &v1::AddTriggerResponse) -> String {
    let Some(trigger) = &answer.trigger else {
        return "Added.\n".to_owned();
    };
    let place = match (trigger.pid, trigger.watching) {
        (Some(pid), _) => format!("process {pid}"),
        (None, Some(1)) => "every traced process, 1 now".to_owned(),
        (None, watching) => format!(
            "every traced process, {} now",
            watching.map_or_else(unknown, grouped)
        ),
    };
    format!(
        "Trigger {}: a snapshot when {} in {place}.\n",
        trigger.trigger,
        plain(&trigger.when)
    )
}

pub(crate) fn list(answer: &v1::ListTriggersResponse) -> String {
    if answer.triggers.is_empty() {
        return "There is no trigger: no snapshot is taken by itself.\n".to_owned();
    }
    let head = [
        Column::Right("TRIGGER"),
        Column::Left("WHEN"),
        Column::Left("PROCESS"),
        Column::Right("USER"),
        Column::Right("FIRED"),
        Column::Right("WRITTEN"),
        Column::Left("SKIPPED"),
        Column::Right("LAST"),
    ];
    let rows = answer.triggers.iter().map(|trigger| {
        let count = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), grouped);
        let skipped: Vec<String> = trigger
            .skipped
            .iter()
            .map(|cause| format!("{} {}", grouped(cause.count), plain(&cause.cause)))
            .collect();
        vec![
            trigger.trigger.to_string(),
            plain(&trigger.when),
            process(trigger),
            trigger.uid.to_string(),
            count(trigger.fired),
            count(trigger.written),
            skipped.join(", "),
            trigger.last_unix_ns.map_or_else(String::new, moment),
        ]
    });
    table(&head, rows.collect())
}

fn process(trigger: &v1::Trigger) -> String {
    match (trigger.pid, trigger.watching) {
        (Some(pid), Some(0)) => format!("{pid}, not traced now"),
        (Some(pid), _) => pid.to_string(),
        (None, Some(watching)) => format!("all, {watching} now"),
        (None, None) => "all".to_owned(),
    }
}

pub(crate) fn kept(answer: &v1::ListKeptResponse) -> String {
    let snapshots = &answer.snapshots;
    if snapshots.is_empty() {
        return "No snapshot is kept that was taken by itself.\n".to_owned();
    }
    let head = [
        Column::Right("SNAPSHOT"),
        Column::Right("TIME"),
        Column::Right("PID"),
        Column::Left("COMMAND"),
        Column::Left("TRIGGER"),
        Column::Right("SIZE"),
        Column::Left("FILE"),
    ];
    let rows = snapshots.iter().map(|kept| {
        vec![
            kept.snapshot.to_string(),
            moment(kept.time_unix_ns),
            kept.pid.to_string(),
            plain(&kept.comm),
            plain(&kept.when),
            bytes(kept.bytes),
            plain(&kept.path),
        ]
    });
    let mut text = table(&head, rows.collect());
    text.push_str("\nWhy\n");
    for kept in snapshots {
        let baseline = if kept.without_baseline {
            "; without what was there before the attach"
        } else {
            ""
        };
        text.push_str(&format!(
            "  {}: {}{baseline}\n",
            kept.snapshot,
            plain(&kept.reason)
        ));
    }
    let sum = snapshots
        .iter()
        .fold(0, |sum: u64, kept| sum.saturating_add(kept.bytes));
    text.push_str(&format!(
        "\n{} in {}; at most {} and {} are kept, of all users together.\n",
        bytes(sum),
        snapshots.len(),
        answer.limit_count,
        bytes(answer.limit_bytes)
    ));
    text
}
