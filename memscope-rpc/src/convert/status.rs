//! Outcomes of attaches, and the state of the daemon.

use super::{coverage, level};
use crate::daemon::{
    AttachOutcome, AttachScope, DaemonStatus, JournalState, JournalStatus, LibraryStatus,
    RuleStatus, Severity, StatusMessage,
};
use memscope_ledger::report::{ProcessState, ProcessSummary};
use memscope_proto::v1;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn attached(outcome: AttachOutcome) -> v1::AttachResponse {
    v1::AttachResponse {
        processes: outcome
            .processes
            .into_iter()
            .map(|process| v1::AttachedProcess {
                pid: process.pid,
                comm: process.comm,
                sites: process.sites,
                ways: process.ways,
                level: level(process.level).into(),
                coverage: coverage(process.coverage),
                cost: process.cost,
                baseline: process.baseline.map(|read| v1::BaselineRead {
                    devices: read.devices,
                    segments: read.segments,
                    blocks: read.blocks,
                    allocated_bytes: read.bytes,
                    reserved_bytes: read.reserved_bytes,
                    cost: Some(super::reading_cost(read.cost)),
                }),
                baseline_pending: process.baseline_pending,
            })
            .collect(),
        rule: outcome.rule,
        refused: outcome
            .refused
            .into_iter()
            .map(|refused| v1::RefusedProcess {
                pid: refused.pid,
                code: refused.refusal.word().into(),
                message: refused.refusal.message(),
            })
            .collect(),
    }
}

pub(crate) fn status(status: DaemonStatus, visible: &[ProcessSummary]) -> v1::StatusResponse {
    let traced = visible
        .iter()
        .filter(|process| process.state == ProcessState::Attached)
        .count();
    v1::StatusResponse {
        version: status.version,
        pid: std::process::id(),
        kernel: status.kernel,
        uptime_ns: nanoseconds(status.uptime),
        now_unix_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, nanoseconds),
        replay: status.replay.map(|path| path.display().to_string()),
        attach_method: status.attach_method,
        ring_bytes: status.ring_bytes,
        sites: status.sites,
        traced_processes: traced as u64,
        journal: Some(journal(status.journal)),
        records: status.records,
        drops: status
            .drops
            .into_iter()
            .map(|(cause, count)| v1::Cause { cause, count })
            .collect(),
        libraries: status.libraries.into_iter().map(library).collect(),
        rules: status.rules.into_iter().map(rule).collect(),
        messages: status.messages.into_iter().map(message).collect(),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn journal(journal: JournalStatus) -> v1::Journal {
    let state = match journal.state {
        JournalState::Off => "off",
        JournalState::Writing => "writing",
        JournalState::Full => "full",
        JournalState::Failed => "failed",
        JournalState::Replay => "replay",
    };
    v1::Journal {
        state: state.into(),
        path: journal.path.display().to_string(),
        epoch: journal.epoch,
        last_sequence: journal.last_sequence,
        bytes: journal.bytes,
        limit_bytes: journal.limit_bytes,
        refused_records: journal.refused_records,
        problem: journal.problem,
        known_from_unix_ns: journal.known_from_unix_ns,
    }
}

fn library(library: LibraryStatus) -> v1::Library {
    v1::Library {
        path: library.path,
        build_id: library.build_id,
        pids: library.pids,
        sites: library.sites,
        ways: library.ways,
        notes: coverage(library.notes),
    }
}

fn rule(rule: RuleStatus) -> v1::Rule {
    let scope = match rule.scope {
        AttachScope::Pid { pid, .. } => format!("pid={pid}"),
        AttachScope::Comm(name) => format!("comm={name}"),
        AttachScope::Cgroup(path) => format!("cgroup={path}"),
        AttachScope::All => "all".into(),
    };
    v1::Rule {
        rule: rule.rule,
        scope,
        level: level(rule.level).into(),
        uid: rule.uid,
        attached: rule.attached,
    }
}

fn message(message: StatusMessage) -> v1::Message {
    let severity = match message.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    v1::Message {
        time_unix_ns: message.unix_ns,
        severity: severity.into(),
        text: message.text,
    }
}
