//! Processes.

use memscope_ledger::event::ProcessFacts;
use memscope_ledger::report::{ProcessState, ProcessSummary};
use memscope_proto::v1;

/// Bytes of a command line that a list shows: a program given with `-c` may be long.
const BRIEF_CMDLINE: usize = 1024;
/// Environment that a list shows.
const BRIEF_ENVIRONMENT: &[&str] = &["RANK", "LOCAL_RANK", "WORLD_SIZE"];
/// Bytes of a command line that an answer about one process shows.
const CMDLINE: usize = 64 * 1024;

/// For answers about one process.
pub(super) fn process(summary: ProcessSummary) -> v1::Process {
    let facts = facts(summary.facts.clone());
    with_facts(&summary, facts)
}

/// For lists: of the environment only the place in the job, and a short command line.
pub(crate) fn process_in_brief(summary: &ProcessSummary) -> v1::Process {
    let mut brief = facts(summary.facts.clone());
    brief
        .environment
        .retain(|variable| BRIEF_ENVIRONMENT.contains(&variable.name.as_str()));
    brief.cmdline = cut(brief.cmdline, BRIEF_CMDLINE);
    with_facts(summary, brief)
}

fn with_facts(summary: &ProcessSummary, facts: v1::ProcessFacts) -> v1::Process {
    let state = match summary.state {
        ProcessState::Attached => v1::ProcessState::Attached,
        ProcessState::Detached => v1::ProcessState::Detached,
        ProcessState::Exited => v1::ProcessState::Exited,
        ProcessState::Replaced => v1::ProcessState::Replaced,
    };
    v1::Process {
        handle: summary.handle.0,
        facts: Some(facts),
        state: state.into(),
        attached_boot_ns: summary.attached_ns,
        ended_boot_ns: summary.ended_ns,
        allocated_bytes: summary.allocated_bytes,
        reserved_bytes: summary.reserved_bytes,
        lost_records: summary.lost_records,
        events: summary.events,
        known_from_unix_ns: None,
        growing_lines: 0,
        growth_bytes_per_step: None,
        growth_bytes_per_s: 0.0,
    }
}

pub(super) fn facts(facts: ProcessFacts) -> v1::ProcessFacts {
    let [uid, effective_uid, saved_uid] = facts.uids;
    v1::ProcessFacts {
        pid: facts.pid,
        namespace_pid: facts.namespace_pid,
        start_ticks: facts.start_ticks,
        generation: facts.generation,
        parent_pid: facts.parent_pid,
        uid,
        effective_uid,
        saved_uid,
        comm: facts.comm,
        cmdline: cut(facts.cmdline, CMDLINE),
        cgroup: facts.cgroup,
        environment: facts
            .environment
            .into_iter()
            .map(|(name, value)| v1::EnvironmentVariable { name, value })
            .collect(),
        level: facts
            .level
            .map_or(v1::Level::Unspecified, super::level)
            .into(),
        from_start: facts.from_start,
    }
}

/// The first `room` bytes of a command line; what was cut is marked with "…".
fn cut(cmdline: Vec<String>, mut room: usize) -> Vec<String> {
    let mut kept = Vec::new();
    for mut word in cmdline {
        if word.len() > room {
            word.truncate(word.floor_char_boundary(room));
            word.push('…');
            kept.push(word);
            break;
        }
        room -= word.len();
        kept.push(word);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cuts_long_command_lines_between_characters() {
        let words = ["ab", "cdéf", "g"].map(String::from).to_vec();
        assert_eq!(cut(words.clone(), 100), words);
        assert_eq!(cut(words, 5), ["ab", "cd…"]);
    }
}
