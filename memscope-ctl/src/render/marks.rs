//! `marks`.

use super::heading;
use super::table::{Column, table};
use crate::units::{self, grouped, moment, plain};
use memscope_proto::v1;

pub(crate) fn marks(answer: &v1::MarksResponse, all: bool) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    text.push('\n');
    if answer.marks.is_empty() {
        text.push_str("No mark to show.\n");
    } else {
        text.push_str(&rows(&answer.marks));
    }
    text.push_str(&counts(answer, all));
    text.push_str(&super::coverage(&answer.coverage));
    text
}

fn rows(marks: &[v1::NamedMoment]) -> String {
    let head = [
        Column::Right("TIME"),
        Column::Left("NAME"),
        Column::Right("#"),
        Column::Left("KIND"),
        Column::Left("MADE WITH"),
        Column::Right("THREAD"),
        Column::Right("STEP"),
        Column::Right("EVENT"),
    ];
    let rows = marks.iter().map(|mark| {
        vec![
            mark.time_unix_ns.map_or_else(units::unknown, moment),
            plain(&mark.name) + if mark.cut { "…" } else { "" },
            mark.nth.map_or_else(units::unknown, grouped),
            match mark.kind() {
                v1::MarkKind::Begin => "range".to_owned(),
                kind => kind.to_string(),
            },
            mark.source().to_string(),
            mark.tid.map_or_else(String::new, |tid| tid.to_string()),
            mark.step.map_or_else(units::unknown, grouped),
            mark.event.unwrap_or_default().sequence.to_string(),
        ]
    });
    table(&head, rows.collect())
}

/// How many there were, where the list is not all of them.
fn counts(answer: &v1::MarksResponse, all: bool) -> String {
    let mut text = String::new();
    for of in &answer.counts {
        let who = match of.origin() {
            v1::MarkOrigin::People => "from outside",
            v1::MarkOrigin::Program => "by the program",
            v1::MarkOrigin::Framework => "by PyTorch itself",
            v1::MarkOrigin::Unspecified => continue,
        };
        let shown = answer
            .marks
            .iter()
            .filter(|mark| mark.origin() == of.origin())
            .count() as u64;
        if of.count == shown {
            continue;
        }
        let hidden = of.origin() == v1::MarkOrigin::Framework && !all;
        text.push_str(&format!(
            "{} were made {who}; {} are kept, {shown} shown{}\n",
            grouped(of.count),
            grouped(of.kept),
            if hidden { " (--all shows them)" } else { "" }
        ));
    }
    text
}
