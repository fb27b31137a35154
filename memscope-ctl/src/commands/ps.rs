//! `ps`: the processes that are or were traced.

use super::earlier;
use super::run::Run;
use crate::address::Address;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, list};
use crate::render::table::{Column, table};
use crate::render::{command_line, growth, rank, verdict, whose, with_age};
use crate::session::Session;
use crate::units::{grouped, maybe_bytes, plain, short_moment};
use memscope_proto::v1;
use std::path::PathBuf;

/// List the processes that are or were traced.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl ps
  memscope-ctl ps --waiting                    also those that have loaded no library of a device yet
  memscope-ctl ps --earlier                    what the daemon recorded before it was started anew
  memscope-ctl --recording /var/lib/memscope leaks    asks the latest of these recordings")]
pub(crate) struct Ps {
    /// List what the daemon recorded before it was started anew: recordings that can be asked with --recording. For root.
    #[arg(long)]
    pub(crate) earlier: bool,
    /// Also list processes that are followed, and have loaded no library of a device yet.
    #[arg(long, conflicts_with = "earlier")]
    pub(crate) waiting: bool,
    /// The daemon's state directory (memscoped --state-dir) [default: that of the daemon that runs, else /var/lib/memscope]
    #[arg(long, value_name = "DIR", requires = "earlier")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Why earlier runs of other machines are not listed.
const OF_THIS_MACHINE: &str = "earlier runs are read from a state directory of this machine";

impl Run for Ps {
    fn check(&self, session: &Session) -> Result<(), Failure> {
        if self.earlier && session.global.recording.is_some() {
            return Err(Failure::Usage {
                what: "a recording has no earlier runs".into(),
                hint: "leave out --recording; --state-dir names a state directory".into(),
            });
        }
        if self.earlier && matches!(session.global.connect, Some(Address::Host { .. })) {
            return Err(Failure::Usage {
                what: OF_THIS_MACHINE.into(),
                hint: "ask on that machine, without --connect".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        if self.earlier {
            return earlier::earlier(self.state_dir.as_deref(), session).await;
        }
        let answer = session.client().await?.list().await?;
        session.show(&answer, |answer| self.text(answer))
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        if self.earlier {
            return Err(Failure::Usage {
                what: OF_THIS_MACHINE.into(),
                hint: "leave out --earlier or --fleet".into(),
            });
        }
        let replies = fleet.ask(async |asking| list(asking).await).await.any()?;
        let text = |replies: &fleet::Replies<v1::ListResponse>| {
            let of_node = replies.answers().flat_map(|(node, answer)| {
                let all = answer.processes.iter();
                all.map(|process| (Some(node.name.as_str()), process))
            });
            let all: Vec<_> = of_node.collect();
            match all.is_empty() {
                true => "No process is traced on any node.\n".to_owned(),
                false => self.processes(all),
            }
        };
        fleet::show(&replies, session, text, super::each::whole)
    }
}

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

impl Ps {
    fn text(&self, answer: &v1::ListResponse) -> String {
        if answer.processes.is_empty() {
            return "No process is traced.\nWhat earlier runs of the daemon recorded: sudo memscope-ctl ps --earlier\n".to_owned();
        }
        let all = answer.processes.iter().map(|one| (None, one));
        self.processes(all.collect())
    }

    /// The processes as a table, without those that wait, and the number of these.
    fn processes(&self, mut all: Vec<(Option<&str>, &v1::Process)>) -> String {
        let before = all.len();
        let waits = |process: &v1::Process| {
            process.waits_for_device && process.state() == v1::ProcessState::Attached
        };
        all.retain(|(_, process)| self.waiting || !waits(process));
        let mut text = match all.is_empty() {
            true => String::new(),
            false => processes(&all),
        };
        text.push_str(&match before - all.len() {
            0 => String::new(),
            1 => "1 process is followed and has loaded no library of a device yet: ps --waiting\n".to_owned(),
            more => format!(
                "{} processes are followed and have loaded no library of a device yet: ps --waiting\n",
                grouped(more as u64)
            ),
        });
        text
    }
}

/// The processes as a table; with the name of its node before each, if it is of one.
fn processes(all: &[(Option<&str>, &v1::Process)]) -> String {
    // Columns that would be empty are left out.
    let has_node = all.iter().any(|(node, _)| node.is_some());
    let has_lost = all.iter().any(|(_, process)| process.lost_records > 0);
    let is_told = |told: fn(&v1::Process) -> String| {
        let mut processes = all.iter();
        processes.any(|(_, process)| !told(process).is_empty())
    };
    let (has_rank, has_job) = (is_told(rank), is_told(whose));
    let judged = |process: &v1::Process| {
        let ended = process.state() != v1::ProcessState::Attached;
        let said = verdict(process.verdict(), process.confidence, ended);
        with_age(said, process)
    };
    // A recording and an older daemon do not say it.
    let has_verdict = is_told(judged);
    let mut head = Vec::from_iter(has_node.then_some(Column::Left("NODE")));
    head.extend([Column::Right("PID"), Column::Left("TRACED")]);
    head.extend([
        Column::Right("KNOWN FROM"),
        Column::Right("ALLOCATED"),
        Column::Right("RESERVED"),
        Column::Right("GROWS BY"),
    ]);
    head.extend(has_verdict.then_some(Column::Left("VERDICT")));
    head.extend(has_lost.then_some(Column::Right("LOST")));
    head.extend(has_rank.then_some(Column::Left("RANK")));
    head.extend(has_job.then_some(Column::Left("WHOSE")));
    head.push(Column::Left("COMMAND"));
    let rows = all.iter().map(|(node, process)| {
        let facts = process.facts.clone().unwrap_or_default();
        let mut row = Vec::from_iter(node.map(plain));
        row.extend([
            facts.pid.to_string(),
            match process.state() {
                v1::ProcessState::Attached => facts.level().to_string(),
                state => state.to_string(),
            },
        ]);
        row.extend([
            process
                .known_from_unix_ns
                .map(short_moment)
                .unwrap_or_default(),
            maybe_bytes(process.allocated_bytes),
            maybe_bytes(process.reserved_bytes),
            growth(process),
        ]);
        row.extend(has_verdict.then(|| judged(process)));
        row.extend(has_lost.then(|| grouped(process.lost_records)));
        row.extend(has_rank.then(|| rank(process)));
        row.extend(has_job.then(|| whose(process)));
        row.push(command_line(&facts.cmdline, &facts.comm, COMMAND));
        row
    });
    table(&head, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verdict_has_its_word() {
        let of = |pid, verdict: v1::ProcessVerdict, confidence| v1::Process {
            facts: Some(v1::ProcessFacts {
                pid,
                ..v1::ProcessFacts::default()
            }),
            state: v1::ProcessState::Attached.into(),
            verdict: verdict.into(),
            confidence,
            ..v1::Process::default()
        };
        let all = [
            of(1, v1::ProcessVerdict::Growing, Some(0.937)),
            of(2, v1::ProcessVerdict::Growing, None),
            of(3, v1::ProcessVerdict::TooEarly, None),
            of(4, v1::ProcessVerdict::NothingRead, None),
            of(5, v1::ProcessVerdict::Steady, None),
            of(6, v1::ProcessVerdict::Unspecified, None),
        ];
        let rows: Vec<_> = all.iter().map(|one| (None, one)).collect();
        let text = processes(&rows);
        let said: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(said[0].contains("GROWS BY  VERDICT"), "{text}");
        let words = ["GROWS 94 %", "GROWS", "too early", "nothing read", "steady"];
        for (line, word) in said[1..].iter().zip(words) {
            assert!(line.ends_with(word), "{text}");
        }
        assert!(!processes(&rows[5..]).contains("VERDICT"));
        let mut old = of(1, v1::ProcessVerdict::Growing, Some(0.937));
        old.judged_ago_ns = Some(9_999_999_999);
        assert!(!processes(&[(None, &old)]).contains(" ago"));
        old.judged_ago_ns = Some(90_000_000_000);
        let text = processes(&[(None, &old)]);
        assert!(text.contains("  GROWS 94 %, 1 m 30 s ago"), "{text}");
        let mut ended = of(1, v1::ProcessVerdict::Growing, Some(0.937));
        ended.set_state(v1::ProcessState::Exited);
        let text = processes(&[(None, &ended)]);
        assert!(text.trim_end().ends_with("  GREW 94 %"), "{text}");
    }
}
