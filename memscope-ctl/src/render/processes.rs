//! `ps`.

use super::command_line;
use super::table::{Column, table};
use super::watch::growth;
use crate::units::{grouped, maybe_bytes, nanoseconds, plain, short_moment};
use memscope_proto::v1;

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

pub(crate) fn list(answer: &v1::ListResponse, now_boot_ns: Option<u64>) -> String {
    if answer.processes.is_empty() {
        return "No process is traced.\nWhat earlier runs of the daemon recorded: sudo memscope-ctl ps --earlier\n".to_owned();
    }
    // Columns that would be empty are left out.
    let has_lost = answer
        .processes
        .iter()
        .any(|process| process.lost_records > 0);
    let has_rank = answer
        .processes
        .iter()
        .filter_map(|process| process.facts.as_ref())
        .any(|facts| !rank(facts).is_empty());
    let mut head = vec![
        Column::Right("PID"),
        Column::Left("TRACED"),
        Column::Right("SINCE"),
        Column::Right("KNOWN FROM"),
        Column::Right("ALLOCATED"),
        Column::Right("RESERVED"),
        Column::Right("GROWS BY"),
    ];
    head.extend(has_lost.then_some(Column::Right("LOST")));
    head.extend(has_rank.then_some(Column::Left("RANK")));
    head.push(Column::Left("COMMAND"));
    let rows = answer.processes.iter().map(|process| {
        let facts = process.facts.clone().unwrap_or_default();
        let until = process.ended_boot_ns.or(now_boot_ns);
        let mut row = vec![
            facts.pid.to_string(),
            match process.state() {
                v1::ProcessState::Attached => facts.level().to_string(),
                state => state.to_string(),
            },
            until.map_or_else(String::new, |now| {
                nanoseconds(now.saturating_sub(process.attached_boot_ns))
            }),
            process
                .known_from_unix_ns
                .map(short_moment)
                .unwrap_or_default(),
            maybe_bytes(process.allocated_bytes),
            maybe_bytes(process.reserved_bytes),
            growth(process),
        ];
        row.extend(has_lost.then(|| grouped(process.lost_records)));
        row.extend(has_rank.then(|| rank(&facts)));
        row.push(command_line(&facts.cmdline, &facts.comm, COMMAND));
        row
    });
    table(&head, rows.collect())
}

fn rank(facts: &v1::ProcessFacts) -> String {
    let rank = facts.environment.iter().find(|v| v.name == "RANK");
    rank.map_or_else(String::new, |variable| plain(&variable.value))
}
