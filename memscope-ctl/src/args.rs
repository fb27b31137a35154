//! The command line. Its help is the documentation.

mod attach;
pub(crate) mod dump;
mod snapshot;
mod trigger;

pub(crate) use attach::{Attach, Detach, Level, Stacks};
pub(crate) use snapshot::{Format, Snapshot};
pub(crate) use trigger::{AddTrigger, GetKept, Kept, KeptCommand, Trigger, TriggerCommand};

use crate::stack_args::{FlameGraph, Top};
use crate::units::{parse_duration, parse_timeout};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use memscope_proto::v1::Moment;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  sudo memscope-ctl doctor                      what works on this machine
  sudo memscope-ctl attach --pid 4242           follow a running process
  memscope-ctl stats --pid 4242 --json          what it holds, for programs
  memscope-ctl watch --pid 4242                 the same, live
  memscope-ctl leaks --pid 4242 --min-age 30s   what keeps growing
  memscope-ctl top --pid 4242                   whose memory it is
  memscope-ctl flamegraph --pid 4242 -o x.svg   the same, drawn
  memscope-ctl snapshot --pid 4242 -o s.pickle  for https://pytorch.org/memory_viz
  memscope-ctl --recording run.mscope stats     ask a recording instead of a daemon
  memscope-ctl --strict stats --pid 4242        exact numbers, or exit code 11

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
  10  found: something grows (leaks --exit-code)
  11  cannot tell: something rises and is too young to be judged (leaks --exit-code); with
      --strict, the answer is not exact, and the message says what of it is not";

/// The heading of what every command takes, apart from its own options.
const GLOBAL: &str = "Options of every command";

/// Follows the GPU and NPU memory of running processes, without restarting them.
///
/// Asks memscoped, the daemon that traces processes with eBPF probes, and shows its answers: as
/// tables, or with --json for programs.
#[derive(Debug, Parser)]
#[command(name = "memscope-ctl", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    /// Socket of the daemon.
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        value_name = "PATH",
        env = "MEMSCOPE_SOCKET",
        default_value = memscope_proto::DEFAULT_SOCKET
    )]
    pub(crate) socket: PathBuf,

    /// Print JSON instead of tables.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// How long to wait for an answer, 30 s if it is not given; with events, for the next event, for ever if it is not given.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Ask a recording instead of a daemon: a file, or a directory that `ps --earlier` names; the daemon's state directory means the
    /// latest of these.
    ///
    /// Starts `memscoped --replay FILE` on a private socket, asks it, and stops it. The memscoped
    /// beside this program is taken, else the one in PATH; MEMSCOPED names another.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    pub(crate) recording: Option<PathBuf>,

    /// Ask the recording as of this moment, not of its end: EVENT@BOOT_NS.
    ///
    /// Takes as_of_event.sequence and as_of_boot_ns of an answer, and gives that answer again, byte for byte.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "MOMENT", requires = "recording")]
    pub(crate) as_of: Option<String>,

    /// Take only exact answers: refuse one whose totals, counts or levels are not all proven (exit code 11).
    ///
    /// What limits an answer is beneath it, and `affects` in JSON says which of its numbers; this makes an error of it.
    /// Answers that have no such numbers (ps, status, marks, events) are not affected, and what is not known of stacks or
    /// steps is a reason only for answers that consist of them.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) strict: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How long to wait for an answer where nobody says.
const PATIENCE: Duration = Duration::from_secs(30);

impl Args {
    /// How long to wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(PATIENCE)
    }

    /// How long to wait for what may never come. None: for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.timeout
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what works on this machine, what does not, and what to do about it.
    ///
    /// Checks kernel, privileges and surroundings, lists the processes that use a device, and asks
    /// the daemon, if one runs, which ways it has into them. Needs no daemon and no privilege.
    Doctor,
    /// Show how the daemon does: version, journal, losses, libraries, rules.
    Status,
    /// List the processes that are or were traced.
    #[command(after_help = "Examples:
  memscope-ctl ps
  memscope-ctl ps --earlier                    what the daemon recorded before it was started anew
  memscope-ctl --recording /var/lib/memscope leaks    asks the latest of these recordings")]
    Ps(Ps),
    /// Start to trace a running process, or whatever matches now and later.
    ///
    /// Returns once the probes are live and what was there before has been read. The process goes on as it is: nothing in it is restarted,
    /// changed or preloaded.
    #[command(after_help = "Examples:
  memscope-ctl attach --pid 4242
  memscope-ctl attach --pid 4242 --children    also the processes that it starts from now on
  memscope-ctl attach --pid 4242 --wait        it will load the device's libraries later
  memscope-ctl attach --comm python --level segments
  memscope-ctl attach --pid 4242 --level read --every 1m    no probe, a look once a minute
  memscope-ctl attach --cgroup /system.slice/slurmstepd.scope
  memscope-ctl attach --all                    every process with a device library, now and later")]
    Attach(Attach),
    /// Stop tracing; the processes live on.
    Detach(Detach),
    /// Show what processes hold on each device.
    ///
    /// With --json, the answer about one process is a document, and about several a list of documents.
    /// `allocated` includes the baseline: what was there before the attach and still lives.
    Stats(Processes),
    /// Show what processes hold, again and again.
    ///
    /// Redraws a terminal; elsewhere one table follows another, with --json one line another.
    Watch(Watch),
    /// Show which lines of the program keep more and more memory.
    ///
    /// A line stands for all groups of live blocks that it allocated; --all-groups shows them one by one. A group shares device,
    /// stream, size and stack. Where steps are known (see steps --help), its floor is followed from
    /// step to step: the lowest number of its blocks that lived within a step, and below which it never fell again. A group
    /// grows when that keeps rising for long enough (--sure-after), does not slow down and is not given back: so neither
    /// warm-up, optimizer state, caches that fill, evaluations nor saw-teeth count. Without steps, time is the measure.
    /// Confidence is the share of such growths that go on, if half of the caches that fill are full after 25 steps.
    ///
    /// What rises and has not been watched for so long is no growth yet, and no reason to say that there is none: the headline then
    /// says that it is too early to tell. What grew until it was given back is listed beneath, with what the pool still reserves.
    /// The headline's sums are those of all groups, however many are shown.
    #[command(after_help = "Examples:
  memscope-ctl leaks --pid 4242 --min-age 30s
  memscope-ctl leaks --pid 4242 --exit-code || echo it leaks")]
    Leaks(Leaks),
    /// Show how the pools of a process breathe over a window of time.
    Fluctuation(Fluctuation),
    /// Show which steps a process made, how that is known, and how far memory went in each.
    ///
    /// Nothing in the program has to be changed: a step ends where an optimizer steps; without one, with each backward
    /// pass (several of them where gradients are accumulated); without those, where a pattern of allocations begins anew.
    /// Marks are better than all of these: a step of memscope's library or of mark --step, ranges called "step start" as
    /// msMemScope has them, the steps of PyTorch's profiler, or what attach --steps NAME picked. Where there is nothing, the
    /// answer is unknown.
    ///
    /// The gap of a step is its smallest allocated level by its largest, as in msMemScope's gap analysis; a ratio that keeps
    /// rising means that the floor does. Survivors are blocks that came in step 2 or later and were alive at the end of a
    /// later one: msMemScope's leaks. Many of them are none: leaks judges.
    #[command(after_help = "Examples:
  memscope-ctl steps --pid 4242
  memscope-ctl steps --pid 4242 --last 50 --survivors 20
  memscope-ctl attach --pid 4242 --steps 'train step *'")]
    Steps(Steps),
    /// Write all that the journal has up to now to one file, a recording: for root.
    ///
    /// A recording answers every question, on any machine, without the process and without its files:
    /// memscope-ctl --recording FILE leaks. The journal is bounded (memscoped --journal-mib); what is older is not in it.
    #[command(after_help = "Examples:
  sudo memscope-ctl record -o run.mscope
  memscope-ctl --recording run.mscope leaks
  memscope-ctl --recording run.mscope snapshot --at step:120 -o s.pickle")]
    Record(Record),
    /// Write msMemScope's files: its folders with a dump for each device.
    ///
    /// All that the journal has, or the recording, as the rows that msMemScope would have written: MALLOC and FREE of the
    /// framework's pool (PTA) and of runtime and driver (HAL), marks, steps, launches, out of memory. check-leaks, compare and
    /// msMemScope's own tools read them. Of a live daemon: for root.
    #[command(after_help = "Examples:
  sudo memscope-ctl export --format msmemscope-csv -o dumps
  memscope-ctl --recording run.mscope export --format msmemscope-db --pid 4242 -o dumps")]
    Export(Export),
    /// Name the present moment of a process, for its recording and for steps.
    #[command(after_help = "Examples:
  memscope-ctl mark --pid 4242 'before the evaluation'
  memscope-ctl mark --pid 4242 --step          a step ends here, and the next one begins")]
    Mark(Mark),
    /// List the moments of a process that have a name: each is a moment wherever one is asked for.
    ///
    /// Marks are made with mark, by the program (memscope's library, NVTX, mstx, record_function) or, with --all, by PyTorch
    /// itself. Of each name the last 64 are kept, at most 1,024 of each origin; beneath the list stands how many there were.
    /// mark:NAME is right after the last mark of that name, mark:NAME#2 after the second one.
    #[command(after_help = "Examples:
  memscope-ctl marks --pid 4242
  memscope-ctl diff --pid 4242 --from 'mark:new data set'
  memscope-ctl pool --pid 4242 --from 'mark:epoch#1' --at 'mark:epoch#2'")]
    Marks(Marks),
    /// Show how the pool is filled: sizes, ages, private pools, fragmentation.
    ///
    /// A size class holds the blocks up to its size and above the half of it. Fragmentation is given as
    /// XProf defines it (of the free bytes, the share outside the largest piece), as PyTorch's memory viewer
    /// prints it, and as the share of the reserved bytes that nobody uses.
    #[command(after_help = "Examples:
  memscope-ctl pool --pid 4242
  memscope-ctl pool --pid 4242 --from -1h      and by how much each size class grew since then")]
    Pool(Pool),
    /// Show whose memory it is: which stacks, functions, files or lines allocated it.
    ///
    /// Frames stand innermost first; those of libraries that are left out are counted. Of sums, exclusive
    /// is where the innermost frame is the one named, inclusive where it is anywhere in the stack.
    #[command(after_help = "Examples:
  memscope-ctl top --pid 4242                        the stacks that hold most
  memscope-ctl top --pid 4242 --from -5m             those that grew most in five minutes
  memscope-ctl top --pid 4242 --by function --cumulative
  memscope-ctl top --pid 4242 --by line --metric peak --device 0
  memscope-ctl top --pid 4242 --limit 0 --json | jq '.rows[0].frames'")]
    Top(Top),
    /// Draw whose memory it is as a flame graph, or write it for pprof or speedscope.
    #[command(after_help = "Examples:
  memscope-ctl flamegraph --pid 4242 -o live.svg
  memscope-ctl flamegraph --pid 4242 --from -10m -o growth.svg      what grew in ten minutes
  memscope-ctl flamegraph --pid 4242 --from -10m --diff -o diff.svg red grew, blue shrank
  memscope-ctl flamegraph --pid 4242 --metric peak --format folded | flamegraph.pl > peak.svg
  memscope-ctl flamegraph --pid 4242 -o heap.pb.gz && go tool pprof -top heap.pb.gz
  memscope-ctl flamegraph --pid 4242 -o heap.speedscope.json")]
    Flamegraph(FlameGraph),
    /// Write segments, blocks and trace of a process to a file.
    #[command(after_help = "Examples:
  memscope-ctl snapshot --pid 4242 -o s.pickle    open it at https://pytorch.org/memory_viz
  memscope-ctl snapshot --pid 4242 -o s.html      a page for a browser
  memscope-ctl snapshot --pid 4242 --format json | jq .header
  memscope-ctl snapshot --pid 4242 --at -5m -o before.pickle   as it was five minutes ago")]
    Snapshot(Snapshot),
    /// Show what came and what went between two moments, or between two files.
    ///
    /// A file is a pickle of torch.cuda.memory._snapshot(), a snapshot of memscope's as pickle or JSON, or
    /// a recording (its last moment). For files no daemon is needed. Blocks are told apart one by one where
    /// both files say that they are of one process, else counted by device, stream and size.
    #[command(after_help = "Examples:
  memscope-ctl diff --pid 4242 --from -5m              since five minutes ago
  memscope-ctl diff --pid 4242 --from -2h --to -1h     in the hour before the last
  memscope-ctl diff before.pickle after.pickle         between two snapshots, PyTorch's or memscope's
  memscope-ctl diff before.pickle after.pickle --by stack")]
    Diff(Diff),
    /// Take snapshots by itself when something happens: out of memory, a level, fragments, growth.
    ///
    /// `memscope-ctl trigger add --help` explains what there is to watch; `memscope-ctl snapshots` lists
    /// what was taken.
    Trigger(Trigger),
    /// List the snapshots that were taken by themselves, or get the file of one.
    ///
    /// They are kept on the daemon's machine within bounds (memscoped --snapshots-keep, --snapshots-mib).
    #[command(after_help = trigger::KEPT_HELP)]
    Snapshots(Kept),
    /// Print events as they happen, one JSON object a line.
    ///
    /// Findings that stand are told first. Ends with exit code 6 when --timeout is given and no event comes within it. A reader that is too slow misses events; `missed` says how many just before an event.
    Events(Events),
    #[command(flatten)]
    Dump(dump::DumpCommand),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Ps {
    /// List what the daemon recorded before it was started anew: recordings that can be asked with --recording. For root.
    #[arg(long)]
    pub(crate) earlier: bool,
    /// The daemon's state directory (memscoped --state-dir) [default: that of the daemon that runs, else /var/lib/memscope]
    #[arg(long, value_name = "DIR", requires = "earlier")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// The processes that are asked about.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Processes {
    /// The processes; all that are traced if none is named. --pid says the same.
    #[arg(value_name = "PID", conflicts_with = "pid", value_parser = clap::value_parser!(u32).range(1..))]
    processes: Vec<u32>,
    /// The processes, with commas between them; all that are traced if none is named.
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
}

impl Processes {
    /// Those that are named, each once; none: all.
    pub(crate) fn named(&self) -> Vec<u32> {
        let mut named: Vec<u32> = Vec::new();
        for pid in self.processes.iter().chain(&self.pid) {
            if !named.contains(pid) {
                named.push(*pid);
            }
        }
        named
    }
}

#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct Process {
    /// The process; may be left out while only one is traced. --pid says the same.
    #[arg(value_name = "PID", conflicts_with = "pid", value_parser = clap::value_parser!(u32).range(1..))]
    process: Option<u32>,
    /// The process; may be left out while only one is traced.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

impl Process {
    /// The one that is named.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.or(self.pid)
    }
}

/// The process of a command whose first word is something else.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct ProcessOption {
    /// The process; may be left out while only one is traced.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    pub(crate) interval: Duration,
    /// Look so many times, then end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Leaks {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// Only blocks at least this old.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) min_age: Duration,
    /// Each group of blocks by itself, also those that do not grow.
    #[arg(long)]
    pub(crate) all_groups: bool,
    /// At most so many lines, and groups, 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Steps that a growth must have lasted before it is called one.
    ///
    /// A cache that fills looks the same until it is full. If the device will be full earlier, it is said earlier.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sure_after: u32,
    /// Exit with 10 when something grows, with 11 when it cannot be told: too early, or nothing was read yet.
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Steps {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Show so many of the last rows, 0 for all that are kept (4,096 steps); a row is a step, or --every steps.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) last: u32,
    /// Put so many steps into a row: their lowest and highest levels, as a monitor that starts anew each N steps.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: u32,
    /// Also the first blocks that outlived their step, at most so many.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) survivors: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Export {
    /// Format of the files.
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    /// Only this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// The folder that the folders come into.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: std::path::PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Comma-separated values.
    MsmemscopeCsv,
    /// SQLite.
    MsmemscopeDb,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Record {
    /// The file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: std::path::PathBuf,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Mark {
    #[command(flatten)]
    pub(crate) process: ProcessOption,
    /// A step ends with it, and the next one begins.
    #[arg(long)]
    pub(crate) step: bool,
    /// The name, at most 128 bytes.
    #[arg(value_name = "NAME", required_unless_present = "step")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Marks {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Also those that PyTorch makes by itself: steps of optimizers, backward passes.
    #[arg(long)]
    pub(crate) all: bool,
    /// Show so many of the last ones, 0 for all that are kept.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) last: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Fluctuation {
    #[command(flatten)]
    pub(crate) process: Process,
    /// How far back to look, 0s for all that is kept.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) window: Duration,
    /// Into how many intervals to cut it, at most: one is no shorter than the buckets that are kept.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) intervals: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Pool {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Compare with this earlier moment, from the journal: an age (-5m), a time
    /// (2026-11-20T08:30:00Z, or nanoseconds since 1970), event:NUMBER, step:NUMBER, or mark:NAME.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) from: Option<Moment>,
    /// Describe this moment; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Diff {
    /// Two snapshots or recordings.
    #[arg(num_args = 2, value_names = ["FILE", "FILE"], conflicts_with_all = ["from", "to"])]
    pub(crate) files: Vec<PathBuf>,
    /// The files are of one process, although they do not say so: pickles of PyTorch's own do not.
    #[arg(long, requires = "files", conflicts_with = "from")]
    pub(crate) same_process: bool,
    #[command(flatten)]
    pub(crate) process: ProcessOption,
    /// The first moment, from the journal: an age (-5m), a time (2026-11-20T08:30:00Z, or nanoseconds
    /// since 1970), event:NUMBER, step:NUMBER, or mark:NAME.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true, required_unless_present = "files")]
    pub(crate) from: Option<Moment>,
    /// The second; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) to: Option<Moment>,
    /// By what to sum up.
    #[arg(long, value_enum, default_value_t = DiffBy::Size)]
    pub(crate) by: DiffBy,
    /// At most so many groups.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffBy {
    /// Device, stream and size.
    Size,
    /// The stack that allocated it. Between moments of a process the same as `top --from`.
    Stack,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Events {
    /// Only events of this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Only events of these kinds, as `kind` in the output names them: finding, oom, mark, coverage, attached, exited, …
    ///
    /// Then the others are not sent at all, and a reader that waits for something rare does not miss it. Marks that PyTorch makes by itself
    /// (steps of optimizers, backward passes) are framework_mark: `mark` alone leaves them out.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<String>,
    /// End after so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Args, Command, Format};
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

    #[test]
    fn a_snapshots_name_says_its_format() {
        for (words, format) in [
            (&["-o", "s.pickle"][..], Some(Format::MemoryViz)),
            (&["-o", "s"], Some(Format::MemoryViz)),
            (&[], Some(Format::MemoryViz)),
            (&["-o", "then.html"], Some(Format::Html)),
            (&["-o", "then.html", "--format", "json"], Some(Format::Json)),
            (&["-o", "s.pftrace"], Some(Format::Perfetto)),
            (&["-o", "s.svg"], None),
        ] {
            let line = [&["memscope-ctl", "snapshot"], words].concat();
            let Command::Snapshot(snapshot) = Args::parse_from(line).command else {
                panic!("not snapshot");
            };
            assert_eq!(snapshot.format().ok(), format, "{words:?}");
        }
    }
}
