//! Whether a process still has a present moment: whether it is attached and alive.
//!
//! Owns: the check in `/proc`, because the record of a process's end may not have arrived yet. Refuses: to mark a
//! process as ended.

use memscope_ledger::event::ProcessFacts;
use memscope_ledger::report::{ProcessState, ProcessSummary};
use memscope_rpc::Refusal;
use memscope_site::process::parse_stat;

use crate::clock;

/// Refuses a request for the present moment of a process that no longer has one. `ended_ns` is the time of its end,
/// in nanoseconds since 1970.
pub(crate) fn still_there(process: &ProcessSummary, ended_ns: Option<u64>) -> Result<(), Refusal> {
    let how = match process.state {
        ProcessState::Attached if lives(&process.facts) => return Ok(()),
        ProcessState::Attached | ProcessState::Exited => "has ended",
        ProcessState::Detached => "was detached",
        ProcessState::GivenUp => "was given up, because it took too much of memscoped's memory,",
        ProcessState::Replaced => "has executed another program",
    };
    Err(Refusal::Ended {
        pid: process.facts.pid,
        how,
        at: memscope_units::moment_ms(ended_ns.unwrap_or_else(|| clock::pair().1)),
    })
}

/// Whether the process with these facts is alive. A process that started later under the same pid does not count, nor
/// does a zombie (a process that has ended and waits until its parent asks for the exit status).
fn lives(facts: &ProcessFacts) -> bool {
    let stat = std::fs::read(format!("/proc/{}/stat", facts.pid)).ok();
    stat.and_then(|stat| parse_stat(&stat)).is_some_and(|stat| {
        stat.start_ticks == facts.start_ticks && !matches!(stat.state, b'Z' | b'X')
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(state: ProcessState, start_ticks: u64) -> ProcessSummary {
        ProcessSummary {
            handle: memscope_ledger::event::ProcessHandle(1),
            facts: ProcessFacts {
                pid: std::process::id(),
                start_ticks,
                ..ProcessFacts::default()
            },
            state,
            attached_ns: 0,
            ended_ns: None,
            allocated_bytes: None,
            reserved_bytes: None,
            lost_records: 0,
            events: 0,
            waits_for_device: false,
        }
    }

    #[test]
    fn only_a_process_that_lives_has_a_present_moment() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let ours = parse_stat(&stat).unwrap().start_ticks;
        assert!(still_there(&of(ProcessState::Attached, ours), None).is_ok());
        // The pid was given to another process, and the end of ours has not been reported yet.
        let other = still_there(&of(ProcessState::Attached, ours + 1), None);
        assert_eq!(other.unwrap_err().word(), "ended");
        let ended = still_there(
            &of(ProcessState::Exited, ours),
            Some(1_750_000_000_000_000_000),
        );
        let said = ended.unwrap_err().to_string();
        assert!(
            said.contains("has ended at 2025-06-15T15:06:40.000Z"),
            "{said}"
        );
    }
}
