//! The list of commands, and a file or folder for each of them: its arguments, its question, and what it shows.

mod attach;
mod completions;
mod devices;
mod diff;
mod doctor;
mod dump;
mod each;
mod earlier;
mod events;
mod export;
mod fluctuation;
mod holders;
mod leaks;
#[cfg(not(all(feature = "report", feature = "top")))]
mod left_out;
mod mark;
mod marks;
mod owners;
mod pool;
mod ps;
mod ranks;
mod record;
#[cfg(feature = "report")]
mod report;
mod run;
mod snapshot;
mod snapshots;
mod stacks;
mod stats;
mod status;
mod steps;
#[cfg(feature = "top")]
mod top;
mod trigger;
mod ui;
mod watch;

use crate::failure::{Exit, Failure};
use crate::fleet::Fleet;
use crate::session::{Global, Session};
use crate::signals::interrupted;
use clap::{CommandFactory as _, Parser, Subcommand};
use run::Run;

#[cfg(not(feature = "report"))]
use left_out as report;
#[cfg(not(feature = "top"))]
use left_out as top;

/// The list of commands: the name, which clap turns into lower case with hyphens, and the type.
macro_rules! commands {
    ($($name:ident: $type:ty,)*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($name($type),)*
        }

        impl Command {
            async fn run(&self, session: &Session) -> Result<Exit, Failure> {
                match self {
                    $(Command::$name(command) => checked(command, session).await,)*
                }
            }

            /// Names of the commands that can ask many nodes at once.
            fn of_fleets() -> Vec<String> {
                let all = [$((stringify!($name), <$type as Run>::FLEET),)*];
                let names = all.into_iter().filter(|(_, is_one)| *is_one);
                names.map(|(name, _)| name.to_lowercase()).collect()
            }
        }
    };
}

commands! {
    Doctor: doctor::Doctor,
    Status: status::Status,
    Ps: ps::Ps,
    Attach: attach::Attach,
    Detach: attach::Detach,
    Stats: stats::Stats,
    Devices: devices::Devices,
    Watch: watch::Watch,
    Ui: ui::Ui,
    Leaks: leaks::Leaks,
    Holders: holders::Holders,
    Owners: owners::Owners,
    Fluctuation: fluctuation::Fluctuation,
    Steps: steps::Steps,
    Record: record::Record,
    Export: export::Export,
    Mark: mark::Mark,
    Marks: marks::Marks,
    Pool: pool::Pool,
    Ranks: ranks::Ranks,
    Report: report::Report,
    Stacks: stacks::command::Stacks,
    Top: top::Top,
    Flamegraph: stacks::flamegraph::Flamegraph,
    Snapshot: snapshot::Snapshot,
    Diff: diff::Diff,
    Trigger: trigger::Trigger,
    Snapshots: snapshots::Snapshots,
    Events: events::Events,
    CheckLeaks: dump::CheckLeaks,
    Inefficient: dump::Inefficient,
    Uses: dump::Uses,
    Compare: dump::Compare,
    Import: dump::Import,
    Completions: completions::Completions,
}

const AFTER_HELP: &str = "\
Examples:
  sudo memscope-ctl doctor                      what works on this machine
  sudo memscope-ctl attach --pid 4242           follow a running process
  memscope-ctl stats --pid 4242 --json          what it holds, for programs
  memscope-ctl watch --pid 4242                 the same, live
  memscope-ctl ui                               all of it as a page in a browser
  memscope-ctl top                              a view of all that stays open
  memscope-ctl leaks --pid 4242 --min-age 30s   what keeps growing
  memscope-ctl stacks --pid 4242                whose memory it is
  memscope-ctl flamegraph --pid 4242 -o x.svg   the same, drawn
  memscope-ctl snapshot --pid 4242 -o s.pickle  for https://pytorch.org/memory_viz
  memscope-ctl --recording run.mscope stats     ask a recording instead of a daemon
  memscope-ctl --strict stats --pid 4242        exact numbers, or exit code 11
  memscope-ctl --fleet nodes.txt leaks          what keeps growing on all nodes of a list
  memscope-ctl --fleet nodes.txt ranks          which rank of a job is unlike the others

Durations are written 500ms, 5s, 2m, 1h; a bare number means seconds.

With --json, one JSON document goes to standard output (watch and events: one in a line). Names
are those of memscope.v1, integers are numbers, unknown is null. An error is the document
{\"error\": {\"code\", \"message\", \"hint\"}}; it is also told on standard error.

Exit codes:
   0  done; nothing that was looked for was found
   1  the daemon refused or failed, or the answer could not be written
   2  the command line makes no sense
   3  no daemon can be reached
   4  there is no such process, or it is not traced
   5  not permitted
   6  no answer within --timeout
   7  with --fleet: some nodes did not answer, or not of all their processes; what the others said
      is shown, and who did not answer
  10  found: something grows or leaked (leaks and check-leaks, --exit-code), or a rank stands out
      (ranks --exit-code)
  11  cannot tell: something rises and is too young to be judged (leaks --exit-code); with
      --strict, the answer is not exact, and the message says what of it is not; or the process was
      given up, because it took too much of memscoped's memory (error given_up)";

/// Follows the GPU and NPU memory of running processes, without restarting them.
///
/// Asks memscoped, the daemon that traces processes with eBPF probes, and shows its answers: as
/// tables, or with --json for programs.
#[derive(Debug, Parser)]
#[command(name = "memscope-ctl", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it prints what comes, for as long as somebody reads that. Its connections are served meanwhile: daemons are asked whether
    /// they are still there, and their answers have to be heard.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.command, Command::Events(_))
    }
}

/// Runs the command, and stops whatever was started for it.
pub(crate) async fn run(args: Args) -> Result<Exit, Failure> {
    let session = Session::new(args.global, Args::command);
    let result = args.command.run(&session).await;
    session.end().await;
    result
}

async fn checked<C: Run>(command: &C, session: &Session) -> Result<Exit, Failure> {
    let is_recording = session.global.recording.is_some();
    if let (true, Some((what, hint))) = (is_recording, C::NO_RECORDING) {
        return Err(Failure::Usage {
            what: what.into(),
            hint: hint.into(),
        });
    }
    if session.global.fleet.is_some() && !C::FLEET {
        return Err(Failure::Usage {
            what: "this command cannot ask many nodes at once".into(),
            hint: format!(
                "with --fleet these can: {}; --connect ADDRESS asks one node anything",
                Command::of_fleets().join(", ")
            ),
        });
    }
    command.check(session)?;
    if let Some(nodes) = &session.global.fleet {
        let fleet = Fleet::open(nodes, session).await?;
        if C::ENDS_ITSELF {
            return command.fleet(session, &fleet).await;
        }
        return tokio::select! {
            result = command.fleet(session, &fleet) => result,
            () = interrupted() => Ok(Exit::Failed),
        };
    }
    if C::ENDS_ITSELF || (!C::CLEANS_UP && !is_recording) {
        return command.run(session).await;
    }
    tokio::select! {
        result = command.run(session) => result,
        // The dropped command also kills the memscoped that works for it.
        () = interrupted() => Ok(Exit::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::{Args, Command};
    use clap::CommandFactory;
    use clap::Parser;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_process_is_named_with_or_without_the_option() {
        for words in [&["attach", "4242"][..], &["attach", "--pid", "4242"]] {
            let words = [&["memscope-ctl"], words].concat();
            let Command::Attach(attach) = Args::parse_from(words).command else {
                panic!("not attach");
            };
            assert_eq!(attach.pid(), Some(4242));
        }
        assert!(Args::try_parse_from(["memscope-ctl", "attach", "1", "--pid", "2"]).is_err());
        for command in [
            "flamegraph",
            "pool",
            "snapshot",
            "steps",
            "marks",
            "fluctuation",
            "stacks",
            "top",
        ] {
            for words in [&[command, "4242"][..], &[command, "--pid", "4242"]] {
                let words = [&["memscope-ctl"], words].concat();
                assert!(Args::try_parse_from(&words).is_ok(), "{words:?}");
            }
            let both = ["memscope-ctl", command, "1", "--pid", "2"];
            assert!(Args::try_parse_from(both).is_err(), "{both:?}");
        }
        assert!(Args::try_parse_from(["memscope-ctl", "detach", "1", "--all"]).is_err());
    }
}
