//! `doctor`: examines the machine, then asks the daemon, if one runs.

use super::run::Run;
use super::status;
use crate::address::Address;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, Replies};
use crate::output::ErrorBody;
use crate::preflight::{self, Check, DeviceProcess, Machine, Report, Role, Scan, Status};
use crate::render::table::{Column, table};
use crate::render::{command_line, libraries::libraries};
use crate::session::Session;
use crate::units::{maybe_bytes, plain};
use memscope_proto::v1;
use serde::Serialize;

/// Show what works on this machine, what does not, and what to do about it.
///
/// Checks kernel, privileges and surroundings, lists the processes that use a device, and asks
/// the daemon, if one runs, which ways it has into them. Needs no daemon and no privilege.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

#[derive(Serialize)]
struct Document<'a> {
    checks: &'a [Check],
    #[serde(flatten)]
    scan: &'a Scan,
    daemon: Option<&'a v1::StatusResponse>,
    daemon_error: Option<ErrorBody<'a>>,
}

impl Run for Doctor {
    const NO_RECORDING: Option<(&'static str, &'static str)> = Some((
        "a recording has no machine to examine",
        "leave out --recording, or ask for its status",
    ));

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let role = if rustix::process::geteuid().is_root() {
            Role::Daemon
        } else {
            Role::Client
        };
        let socket = match session.global.address() {
            Address::Unix(path) => Some(path),
            // The machine of another daemon is not examined from here.
            Address::Host { .. } | Address::Recording(_) => None,
        };
        let report = preflight::examine(&Machine::here(), role, socket.as_deref());
        let daemon = match session.daemon().await {
            Ok(client) => client.status().await,
            Err(failure) => Err(failure),
        };
        let document = Document {
            checks: &report.checks,
            scan: &report.scan,
            daemon: daemon.as_ref().ok(),
            daemon_error: daemon.as_ref().err().map(ErrorBody::from),
        };
        session.show(&document, |_| text(&report, &daemon))?;
        match report.worst() {
            Status::Fail => Ok(Exit::Failed),
            Status::Ok | Status::Warn => Ok(Exit::Done),
        }
    }

    const FLEET: bool = true;

    /// What each daemon says of itself. The checks of this machine say nothing of others.
    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let replies = fleet
            .ask(async |asking| status::of_node(asking).await)
            .await
            .any()?;
        fleet::show(&replies, session, of_fleet, super::each::whole)
    }
}

/// What each daemon says of itself, those with trouble first.
fn of_fleet(replies: &Replies<v1::StatusResponse>) -> String {
    let mut rows: Vec<(Status, Vec<String>)> = replies
        .answers()
        .map(|(node, answer)| {
            let (status, found) = trouble(answer);
            let method = answer.attach_method.as_deref().unwrap_or("unknown");
            let row = vec![
                word(status).to_owned(),
                plain(&node.name),
                plain(&answer.version),
                plain(method),
                answer.libraries.len().to_string(),
                answer.traced_processes.to_string(),
                found,
            ];
            (status, row)
        })
        .collect();
    rows.sort_by_key(|(status, _)| match status {
        Status::Fail => 0,
        Status::Warn => 1,
        Status::Ok => 2,
    });
    let head = [
        Column::Left(""),
        Column::Left("NODE"),
        Column::Left("DAEMON"),
        Column::Left("ATTACHES BY"),
        Column::Right("LIBRARIES"),
        Column::Right("TRACED"),
        Column::Left("FOUND"),
    ];
    table(&head, rows.into_iter().map(|(_, row)| row).collect())
}

/// What a daemon says that something is wrong.
fn trouble(answer: &v1::StatusResponse) -> (Status, String) {
    let journal = answer.journal.as_ref();
    if let Some(problem) = journal.and_then(|journal| journal.problem.as_deref()) {
        return (Status::Fail, format!("journal: {}", plain(problem)));
    }
    let lost: u64 = answer
        .drops
        .iter()
        .map(|cause| cause.count)
        .fold(0, u64::saturating_add);
    if lost > 0 {
        return (
            Status::Warn,
            format!("{} records lost", crate::units::grouped(lost)),
        );
    }
    let shed = answer.memory.iter().flat_map(|memory| &memory.shed);
    if shed.clone().any(|part| part.count > 0) {
        return (
            Status::Warn,
            "memory was short, and parts were given up".into(),
        );
    }
    let bad = answer.messages.iter().rev();
    let bad = bad.into_iter().find(|message| message.severity != "info");
    match bad {
        Some(message) => (Status::Warn, plain(&message.text)),
        None => (Status::Ok, String::new()),
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "FAIL",
    }
}

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

fn text(report: &Report, daemon: &Result<v1::StatusResponse, Failure>) -> String {
    let rows = report.checks.iter().map(|check| {
        vec![
            word(check.status).to_owned(),
            check.name.to_owned(),
            plain(&check.found),
        ]
    });
    let head = [
        Column::Left(""),
        Column::Left("CHECK"),
        Column::Left("FOUND"),
    ];
    let mut text = table(&head, rows.collect());
    let bad: Vec<_> = report
        .checks
        .iter()
        .filter(|check| check.status != Status::Ok)
        .collect();
    if !bad.is_empty() {
        text.push_str("\nWhat that means\n");
    }
    for check in bad {
        text.push_str(&format!("  {}: {}\n", check.name, check.means));
        if let Some(todo) = &check.todo {
            text.push_str(&format!("    try: {todo}\n"));
        }
    }
    text.push_str(&processes(&report.scan.processes));
    text.push_str(&ways(daemon));
    text
}

fn processes(processes: &[DeviceProcess]) -> String {
    if processes.is_empty() {
        return String::new();
    }
    let head = [
        Column::Right("PID"),
        Column::Left("RANK"),
        Column::Right("RESIDENT"),
        Column::Left("COMMAND"),
        Column::Left("DEVICE LIBRARIES"),
        Column::Left("NOTES"),
    ];
    let rows = processes.iter().map(|process| {
        let mut names: Vec<_> = process
            .libraries
            .iter()
            .map(|library| library.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        let notes = [
            (process.other_mounts, "container"),
            (process.other_root, "chroot"),
            (
                process.libraries.iter().any(|library| library.deleted),
                "library replaced on disk",
            ),
        ];
        let notes: Vec<_> = notes
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, note)| *note)
            .collect();
        vec![
            process.pid.to_string(),
            process.rank.as_deref().map(plain).unwrap_or_default(),
            maybe_bytes(process.resident_bytes),
            command_line(&process.cmdline, &process.comm, COMMAND),
            names.join(", "),
            notes.join(", "),
        ]
    });
    format!("\n{}", table(&head, rows.collect()))
}

fn ways(daemon: &Result<v1::StatusResponse, Failure>) -> String {
    match daemon {
        Ok(status) => {
            let method = status.attach_method.as_deref().unwrap_or("unknown");
            let libraries = libraries(&status.libraries);
            let in_use = if libraries.is_empty() {
                "\nNo probe is in use.\n".to_owned()
            } else {
                libraries
            };
            format!(
                "\nDaemon: memscoped {}, attaches by {}\n{in_use}",
                plain(&status.version),
                plain(method)
            )
        }
        Err(failure) => {
            let mut text = format!("\nDaemon: {}\n", plain(&failure.what()));
            if let Some(hint) = failure.hint() {
                text.push_str(&format!("  try: {}\n", plain(&hint)));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::Library;

    /// Two interpreters are told apart by what they run, which rank they are and what they hold.
    #[test]
    fn processes_are_told_apart() {
        let of = |pid, rank: Option<&str>, script: &str| DeviceProcess {
            pid,
            comm: "python".to_owned(),
            cmdline: ["/opt/venv/bin/python3", script].map(str::to_owned).into(),
            rank: rank.map(str::to_owned),
            resident_bytes: Some(u64::from(pid) << 20),
            uid: Some(0),
            libraries: vec![Library {
                name: "libcudart",
                path: "/opt/venv/libcudart.so.12".to_owned(),
                deleted: pid == 20,
            }],
            other_mounts: pid == 20,
            other_root: false,
        };
        let text = processes(&[
            of(10, Some("3"), "jobs/train.py"),
            of(20, None, "jobs/serve.py"),
        ]);
        let rows: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            rows,
            [
                "",
                "PID RANK RESIDENT COMMAND DEVICE LIBRARIES NOTES",
                "10 3 10.00 MiB python3 jobs/train.py libcudart",
                "20 20.00 MiB python3 jobs/serve.py libcudart container, library replaced on disk",
            ]
        );
        assert_eq!(processes(&[]), "");
    }
}
