//! `trigger`: conditions on which the daemon takes snapshots by itself.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::render::table::{Column, table};
use crate::session::Session;
use crate::units::{grouped, maker, moment, plain, unknown};
use clap::Subcommand;
use memscope_proto::v1;

/// What `trigger add --help` says after its options.
const ADD_HELP: &str = "\
Conditions:
  oom                          a request fails for want of memory
  allocated > BYTES            bytes handed out come above
  reserved > BYTES             bytes held from the driver come above
  fragmentation > SHARE        the pool takes more from the driver although more than this
                               share of what it holds lies free, and that would have sufficed;
                               only while more than 1GiB is reserved
    with reserved > BYTES      … or more than this
  growth > BYTES in DURATION   the floor of allocated rises by more than this in this time
  step = N                     the process's N-th step since its attach ends
  every N steps                every N-th one ends
  … on device N                on this device only; otherwise on each by itself

  BYTES: 20GiB, 500MiB, 2GB, 1.5GiB, bytes.  SHARE: 40%, 0.4.  DURATION: 90s, 10m, 2h.

A level fires when it comes above, and again only after it has fallen to 95 % of its
threshold. One that is above already when the trigger or the process comes fires then.

The floor is the lowest level within a quarter of DURATION: steps that are shorter do not
look like growth, nor does coming back from a pause. After it fired, growth counts on from
there.

After a snapshot a trigger rests in that process for 10 s (memscoped --snapshot-pause).

The snapshot has in it the block that lifted a level. One of `oom` is of the moment at
which PyTorch reports it. By then it has released the segments that no block used, and has
tried again: these are gone, and their release is in the trace, whose last entry is the
report. Every block is as it was when the request came.

Steps are those of `memscope-ctl steps`. One that is told by a mark (optimizer, backward pass,
profiler, a name) fires when it ends; one that only the pattern of the allocations tells, within
40 ms of that.

A trigger for one process ends with the process; while that is detached it waits. Triggers
that are added here are there again when memscoped is started again, those for one process
where it goes on with the process; memscoped --snapshot-when has others from its start.

Examples:
  memscope-ctl trigger add 'reserved > 30GiB'
  memscope-ctl trigger add 'growth > 2GiB in 10m' --pid 4242
  memscope-ctl trigger add 'fragmentation > 40% with reserved > 4GiB on device 0'
  memscope-ctl trigger add 'every 500 steps' --pid 4242";

/// Take snapshots by itself when something happens: out of memory, a level, fragments, growth, a step.
///
/// `memscope-ctl trigger add --help` explains what there is to watch; `memscope-ctl snapshots` lists
/// what was taken.
#[derive(Debug, clap::Args)]
pub(crate) struct Trigger {
    #[command(subcommand)]
    pub(crate) command: TriggerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TriggerCommand {
    /// Take a snapshot when something happens from now on.
    #[command(after_help = ADD_HELP)]
    Add(AddTrigger),
    /// List the triggers, and what became of them.
    List,
    /// Remove a trigger; the snapshots that it took are kept.
    Remove(RemoveTrigger),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddTrigger {
    /// When; in quotes, because a shell takes > for a file.
    #[arg(value_name = "CONDITION", required = true)]
    pub(crate) when: Vec<String>,
    /// Only in this process, which must be traced; else in every traced process of yours.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveTrigger {
    /// Its number, as `trigger list` says it.
    #[arg(value_name = "NUMBER")]
    pub(crate) trigger: u64,
}

/// Error message and suggestion if `--recording` is given, also for `snapshots`.
pub(super) const NO_RECORDING: Option<(&str, &str)> = Some((
    "nothing is taken by itself from a recording",
    "leave out --recording; `snapshot --at` takes one of any moment of it",
));

impl Run for Trigger {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        match &self.command {
            TriggerCommand::Add(request) => {
                let question = v1::AddTriggerRequest {
                    when: request.when.join(" "),
                    pid: request.pid,
                };
                let answer = client
                    .ask_triggers(question, async |mut rpc, request| {
                        rpc.add_trigger(request).await
                    })
                    .await?;
                session.show(&answer, added)
            }
            TriggerCommand::List => {
                let answer = client
                    .ask_triggers(v1::ListTriggersRequest {}, async |mut rpc, request| {
                        rpc.list_triggers(request).await
                    })
                    .await?;
                session.show(&answer, list)
            }
            TriggerCommand::Remove(request) => {
                let trigger = request.trigger;
                let answer = client
                    .ask_triggers(
                        v1::RemoveTriggerRequest { trigger },
                        async |mut rpc, request| rpc.remove_trigger(request).await,
                    )
                    .await?;
                session.show(&answer, |_| format!("Removed trigger {trigger}.\n"))
            }
        }
    }
}

fn added(answer: &v1::AddTriggerResponse) -> String {
    let Some(trigger) = &answer.trigger else {
        return "Added.\n".to_owned();
    };
    let place = match (trigger.pid, trigger.watching) {
        (Some(pid), _) => format!("process {pid}"),
        (None, Some(1)) => "every traced process, 1 now".to_owned(),
        (None, watching) => format!(
            "every traced process, {} now",
            watching.map_or_else(unknown, grouped)
        ),
    };
    let why = match (trigger.pid, trigger.watching) {
        (Some(pid), Some(0)) => format!(
            "It watches nothing now: at the level at which process {pid} is traced nothing tells of this. Attach it at a higher one.\n"
        ),
        (None, Some(0)) => {
            "It watches nothing now: no process is traced, or only at levels at which nothing tells of this.\n".to_owned()
        }
        _ => String::new(),
    };
    format!(
        "Trigger {}: a snapshot when {} in {place}.\n{why}",
        trigger.trigger,
        plain(&trigger.when)
    )
}

fn list(answer: &v1::ListTriggersResponse) -> String {
    if answer.triggers.is_empty() {
        return "There is no trigger: no snapshot is taken by itself.\n".to_owned();
    }
    let head = [
        Column::Right("TRIGGER"),
        Column::Left("WHEN"),
        Column::Left("PROCESS"),
        Column::Right("USER"),
        Column::Right("FIRED"),
        Column::Right("WRITTEN"),
        Column::Left("SKIPPED"),
        Column::Right("LAST"),
    ];
    let rows = answer.triggers.iter().map(|trigger| {
        let count = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), grouped);
        let skipped: Vec<String> = trigger
            .skipped
            .iter()
            .map(|cause| format!("{} {}", grouped(cause.count), plain(&cause.cause)))
            .collect();
        vec![
            trigger.trigger.to_string(),
            plain(&trigger.when),
            process(trigger),
            maker(trigger.uid, trigger.certificate.as_deref()),
            count(trigger.fired),
            count(trigger.written),
            skipped.join(", "),
            trigger.last_unix_ns.map_or_else(String::new, moment),
        ]
    });
    table(&head, rows.collect())
}

fn process(trigger: &v1::Trigger) -> String {
    match (trigger.pid, trigger.watching) {
        (Some(pid), Some(0)) => format!("{pid}, not watched now"),
        (Some(pid), _) => pid.to_string(),
        (None, Some(watching)) => format!("all, {watching} now"),
        (None, None) => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_watches_nothing_says_so() {
        let said = |pid, watching| {
            added(&v1::AddTriggerResponse {
                trigger: Some(v1::Trigger {
                    pid,
                    watching: Some(watching),
                    ..v1::Trigger::default()
                }),
            })
        };
        assert!(
            said(Some(42), 0).contains("watches nothing now: at the level at which process 42")
        );
        assert!(said(None, 0).contains("watches nothing now: no process is traced, or only"));
        for text in [said(Some(42), 1), said(None, 2)] {
            assert!(!text.contains("nothing"), "{text}");
        }
    }
}
