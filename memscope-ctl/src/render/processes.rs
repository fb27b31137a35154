//! `ps`.

use super::command_line;
use super::table::{Column, table};
use crate::units::{grouped, maybe_bytes, nanoseconds, plain, short_moment};
use memscope_proto::v1;

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

pub(crate) fn list(answer: &v1::ListResponse, now_boot_ns: Option<u64>) -> String {
    if answer.processes.is_empty() {
        return "No process is traced.\n".to_owned();
    }
    let head = [
        Column::Right("PID"),
        Column::Left("STATE"),
        Column::Left("LEVEL"),
        Column::Right("SINCE"),
        Column::Right("KNOWN FROM"),
        Column::Right("ALLOCATED"),
        Column::Right("RESERVED"),
        Column::Right("EVENTS"),
        Column::Right("LOST"),
        Column::Left("RANK"),
        Column::Left("COMMAND"),
    ];
    let rows = answer.processes.iter().map(|process| {
        let facts = process.facts.clone().unwrap_or_default();
        let until = process.ended_boot_ns.or(now_boot_ns);
        vec![
            facts.pid.to_string(),
            process.state().to_string(),
            facts.level().to_string(),
            until.map_or_else(String::new, |now| {
                nanoseconds(now.saturating_sub(process.attached_boot_ns))
            }),
            process
                .known_from_unix_ns
                .map(short_moment)
                .unwrap_or_default(),
            maybe_bytes(process.allocated_bytes),
            maybe_bytes(process.reserved_bytes),
            grouped(process.events),
            grouped(process.lost_records),
            rank(&facts),
            command_line(&facts.cmdline, &facts.comm, COMMAND),
        ]
    });
    table(&head, rows.collect())
}

fn rank(facts: &v1::ProcessFacts) -> String {
    let rank = facts.environment.iter().find(|v| v.name == "RANK");
    rank.map_or_else(String::new, |variable| plain(&variable.value))
}
