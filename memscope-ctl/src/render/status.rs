//! `status`.

use super::table::{Column, pairs, table};
use super::{coverage, list};
use crate::units::{bytes, exact_bytes, grouped, moment, nanoseconds, plain, unknown};
use memscope_proto::v1;

pub(crate) fn status(answer: &v1::StatusResponse) -> String {
    let text_or_unknown = |text: &Option<String>| text.as_deref().map_or_else(unknown, plain);
    let mut rows = vec![
        (
            "daemon",
            format!("memscoped {}, pid {}", plain(&answer.version), answer.pid),
        ),
        ("kernel", plain(&answer.kernel)),
        ("running for", nanoseconds(answer.uptime_ns)),
    ];
    if let Some(recording) = &answer.replay {
        rows.push(("replays", plain(recording)));
    } else {
        rows.push(("attach method", text_or_unknown(&answer.attach_method)));
        rows.push(("ring", answer.ring_bytes.map_or_else(unknown, bytes)));
    }
    rows.push((
        "traced",
        format!(
            "{} processes, {} sites",
            answer.traced_processes,
            grouped(answer.sites)
        ),
    ));
    rows.push(("records", grouped(answer.records)));
    rows.push(("lost", drops(&answer.drops)));
    if let Some(journal) = &answer.journal {
        let limit = journal
            .limit_bytes
            .map(|limit| format!(" of at most {}", bytes(limit)));
        rows.push((
            "journal",
            format!(
                "{}, {}{}, {}",
                plain(&journal.state),
                exact_bytes(Some(journal.bytes)),
                limit.unwrap_or_default(),
                plain(&journal.path)
            ),
        ));
        if let Some(from) = journal.known_from_unix_ns {
            rows.push(("moments", format!("from {} on", moment(from))));
        }
        if journal.refused_records > 0 {
            rows.push((
                "not kept",
                format!("{} records", grouped(journal.refused_records)),
            ));
        }
        if let Some(problem) = &journal.problem {
            rows.push(("journal problem", plain(problem)));
        }
    }
    let mut text = pairs(rows);
    text.push_str(&rules(&answer.rules));
    text.push_str(&libraries(&answer.libraries));
    if !answer.messages.is_empty() {
        text.push_str("\nMessages\n");
    }
    for message in &answer.messages {
        text.push_str(&format!(
            "  {} {}: {}\n",
            moment(message.time_unix_ns),
            plain(&message.severity),
            plain(&message.text)
        ));
    }
    text
}

fn drops(drops: &[v1::Cause]) -> String {
    let drops: Vec<_> = drops
        .iter()
        .filter(|cause| cause.count > 0)
        .map(|cause| format!("{} {}", grouped(cause.count), plain(&cause.cause)))
        .collect();
    if drops.is_empty() {
        "nothing".to_owned()
    } else {
        drops.join(", ")
    }
}

fn rules(rules: &[v1::Rule]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let head = [
        Column::Right("RULE"),
        Column::Left("SCOPE"),
        Column::Left("LEVEL"),
        Column::Right("USER"),
        Column::Right("ATTACHED"),
    ];
    let rows = rules.iter().map(|rule| {
        vec![
            rule.rule.to_string(),
            plain(&rule.scope),
            rule.level().to_string(),
            rule.uid.to_string(),
            grouped(rule.attached),
        ]
    });
    format!("\n{}", table(&head, rows.collect()))
}

/// Libraries with probes, and the ways in that they offer.
pub(crate) fn libraries(libraries: &[v1::Library]) -> String {
    if libraries.is_empty() {
        return String::new();
    }
    let head = [
        Column::Left("LIBRARY"),
        Column::Right("SITES"),
        Column::Right("PROCESSES"),
        Column::Left("WAYS IN"),
    ];
    let rows = libraries.iter().map(|library| {
        vec![
            plain(&library.path),
            library.sites.to_string(),
            library.pids.len().to_string(),
            list(&library.ways),
        ]
    });
    let mut text = format!("\n{}", table(&head, rows.collect()));
    let notes: Vec<_> = libraries.iter().flat_map(|l| l.notes.clone()).collect();
    text.push_str(&coverage(&notes));
    text
}
