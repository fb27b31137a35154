//! Arguments of the commands for msMemScope's files.

use crate::units::parse_bytes;
use clap::{ArgGroup, ValueEnum};
use std::path::PathBuf;

/// Show what leaked between three marks in a dump of msMemScope's.
///
/// A, B and C are three marks (mstx) of one name on a device, in the order of their IDs. What the driver gave
/// out from A to B and did not get back from A to C is leaked: a round must not leave anything that the
/// next one does not free. The file is a memscope_dump_*.csv or .db; no daemon is needed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl check-leaks memscope_dump_20251120.csv --mark 'step end'
  memscope-ctl check-leaks memscope_dump_20251120.csv --mark 'step end' --start-index 3
  memscope-ctl check-leaks dump.csv --mark 'step end' --exit-code; [ $? -eq 10 ] && echo it leaks

Exit codes: 0 done; 1 the file cannot be read, or no device has three such marks; 10 with
--exit-code, something leaked.")]
pub(crate) struct CheckLeaks {
    /// A dump: memscope_dump_*.csv or .db.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Text of the marks; `step` also means the ends of steps, where no mark is called so.
    #[arg(long, value_name = "NAME")]
    pub(crate) mark: String,
    /// Which of them is A, from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) start_index: usize,
    /// Exit with 10 when something leaked.
    #[arg(long)]
    pub(crate) exit_code: bool,
}

/// Show blocks that came too early, went too late or lay idle, and what the peak would be without them.
///
/// Of a process that was attached with --accesses, of a recording of it (--recording), or of a dump of msMemScope's
/// that was collected with accesses (--events alloc,free,access,launch).
///
/// Time is counted in operators here (outside of any, each event counts). early_allocation: another
/// block was freed between its allocation and its first use. late_deallocation: another was allocated
/// between its last use and its free. temporary_idleness: more than --idle-threshold operators lie between
/// two uses. An operator that another one calls counts as a part of that one.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("of").required(true).args(["file", "pid"])))]
#[command(after_help = "Examples:
  memscope-ctl attach 4242 --accesses                 and some steps later:
  sudo memscope-ctl inefficient --pid 4242
  memscope-ctl inefficient memscope_dump_20251120.csv --min-size 1MiB
  memscope-ctl inefficient dump.db --type early_allocation,late_deallocation
  memscope-ctl inefficient dump.csv -o marked.csv     the dump with inefficient_type in Attr

Exit codes: 0 done; 1 the file cannot be read or written, or no access by an operator was recorded.")]
pub(crate) struct Inefficient {
    /// A dump: memscope_dump_*.csv or .db.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// This process, since it was attached last, as far as the journal reaches back. For root.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Only blocks of at least so many bytes.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) min_size: u64,
    /// Only these; all, if it is not given.
    #[arg(long = "type", value_enum, value_name = "TYPE", value_delimiter = ',')]
    pub(crate) types: Vec<InefficientType>,
    /// As many operators may lie between two uses.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub(crate) idle_threshold: u64,
    /// Also write the dump anew, with what was found in its rows' Attr; SQLite where it ends in .db. It may be the
    /// same file.
    #[arg(short, long, value_name = "OUT", conflicts_with = "pid")]
    pub(crate) output: Option<PathBuf>,
    /// Show so many blocks, 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum InefficientType {
    /// Allocated before another block was freed, used after.
    EarlyAllocation,
    /// Freed after another block was allocated, used before.
    LateDeallocation,
    /// Not used for long.
    TemporaryIdleness,
}

/// Compare two dumps of msMemScope's, operator by operator or kernel by kernel.
///
/// The names on each device are aligned by a shortest edit. The memory of an operator is the size of the first
/// row of the framework's pool at or after it; where a side has no such operator it counts nothing. Given
/// up after a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl compare before.csv after.csv                       what changed most
  memscope-ctl compare before.csv after.csv --level kernel
  memscope-ctl compare before.csv after.csv -o memory_compare.csv all, in msMemScope's form

Exit codes: 0 done; 1 a file cannot be read, has nothing to compare by, or the two differ too
much; 6 they could not be aligned within a minute.")]
pub(crate) struct Compare {
    /// The dump that is compared with.
    #[arg(value_name = "BASE")]
    pub(crate) base: PathBuf,
    /// The dump that is compared.
    #[arg(value_name = "COMPARE")]
    pub(crate) compare: PathBuf,
    /// By what.
    #[arg(long, value_enum, default_value_t = CompareLevel::Op)]
    pub(crate) level: CompareLevel,
    /// Write all of it as msMemScope does (memory_compare_*.csv), in the order of the operators.
    #[arg(short, long, value_name = "CSV")]
    pub(crate) output: Option<PathBuf>,
    /// Show so many differences, the largest first; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompareLevel {
    /// Operators, with PyTorch's pool.
    Op,
    /// Kernel launches, with PyTorch's or MindSpore's pool.
    Kernel,
}

/// Make a recording of a dump of msMemScope's or of a snapshot of PyTorch's, for all other questions.
///
/// Blocks of the pools of PyTorch, ATB and MindSpore, what the driver gave out, marks, kernel launches
/// and Python stacks are in the recording; its coverage says what is not. Runs `memscoped --import`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl import memscope_dump_20251120.csv -o run.mscope
  memscope-ctl --recording run.mscope stats
  memscope-ctl --recording run.mscope stacks
  memscope-ctl --recording run.mscope snapshot -o s.pickle   for https://pytorch.org/memory_viz

Exit codes: 0 done; 1 the file cannot be read, or the recording cannot be written.")]
pub(crate) struct Import {
    /// A dump of msMemScope's (memscope_dump_*.csv or .db), or a snapshot that PyTorch wrote (a pickle).
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The recording: a folder that is not there yet, or is empty.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}
