//! The command line of snapshots that are taken by themselves.

use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

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

A trigger for one process ends with the process; while that is detached it waits. Triggers
that are added here end with the daemon; memscoped --snapshot-when has them from its start.

Examples:
  memscope-ctl trigger add 'reserved > 30GiB'
  memscope-ctl trigger add 'growth > 2GiB in 10m' --pid 4242
  memscope-ctl trigger add 'fragmentation > 40% with reserved > 4GiB on device 0'";

/// What `snapshots --help` says after its options.
pub(super) const KEPT_HELP: &str = "\
Examples:
  memscope-ctl snapshots                       what is kept
  memscope-ctl snapshots get 12 -o s.pickle    the file; open it at https://pytorch.org/memory_viz";

#[derive(Debug, ClapArgs)]
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

#[derive(Debug, ClapArgs)]
pub(crate) struct AddTrigger {
    /// When; in quotes, because a shell takes > for a file.
    #[arg(value_name = "CONDITION", required = true)]
    pub(crate) when: Vec<String>,
    /// Only in this process, which must be traced; else in every traced process of yours.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RemoveTrigger {
    /// Its number, as `trigger list` says it.
    #[arg(value_name = "NUMBER")]
    pub(crate) trigger: u64,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Kept {
    /// Only those of this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    #[command(subcommand)]
    pub(crate) command: Option<KeptCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeptCommand {
    /// Get the file of one of them.
    Get(GetKept),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GetKept {
    /// Its number, as `snapshots` says it.
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: u64,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
