//! `ps`: the processes that are or were traced.

use super::earlier;
use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::render::table::{Column, table};
use crate::render::{command_line, growth, whose};
use crate::session::Session;
use crate::units::{grouped, maybe_bytes, nanoseconds, short_moment};
use memscope_proto::v1;
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;

/// List the processes that are or were traced.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl ps
  memscope-ctl ps --earlier                    what the daemon recorded before it was started anew
  memscope-ctl --recording /var/lib/memscope leaks    asks the latest of these recordings")]
pub(crate) struct Ps {
    /// List what the daemon recorded before it was started anew: recordings that can be asked with --recording. For root.
    #[arg(long)]
    pub(crate) earlier: bool,
    /// The daemon's state directory (memscoped --state-dir) [default: that of the daemon that runs, else /var/lib/memscope]
    #[arg(long, value_name = "DIR", requires = "earlier")]
    pub(crate) state_dir: Option<PathBuf>,
}

impl Run for Ps {
    fn check(&self, session: &Session) -> Result<(), Failure> {
        if self.earlier && session.global.recording.is_some() {
            return Err(Failure::Usage {
                what: "a recording has no earlier runs".into(),
                hint: "leave out --recording; --state-dir names a state directory".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        if self.earlier {
            return earlier::earlier(self.state_dir.as_deref(), session).await;
        }
        let answer = session.client().await?.list().await?;
        // The times of a recording are of another clock, so they cannot be compared with ours.
        let now = match &session.global.recording {
            None => boot_ns(),
            Some(_) => None,
        };
        session.show(&answer, |answer| text(answer, now))
    }
}

fn boot_ns() -> Option<u64> {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).ok()?;
    let nanoseconds = u64::try_from(now.tv_nsec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

fn text(answer: &v1::ListResponse, now_boot_ns: Option<u64>) -> String {
    if answer.processes.is_empty() {
        return "No process is traced.\nWhat earlier runs of the daemon recorded: sudo memscope-ctl ps --earlier\n".to_owned();
    }
    // Columns that would be empty are left out.
    let has_lost = answer
        .processes
        .iter()
        .any(|process| process.lost_records > 0);
    let is_told = |told: fn(&v1::Process) -> String| {
        let mut processes = answer.processes.iter();
        processes.any(|process| !told(process).is_empty())
    };
    let (has_rank, has_job) = (is_told(rank), is_told(whose));
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
    head.extend(has_job.then_some(Column::Left("WHOSE")));
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
        row.extend(has_rank.then(|| rank(process)));
        row.extend(has_job.then(|| whose(process)));
        row.push(command_line(&facts.cmdline, &facts.comm, COMMAND));
        row
    });
    table(&head, rows.collect())
}

fn rank(process: &v1::Process) -> String {
    let workload = process.workload.as_ref();
    let rank = workload.and_then(|workload| workload.rank);
    rank.map_or_else(String::new, |rank| rank.to_string())
}
