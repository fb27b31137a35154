//! `attach` and `detach`.

use crate::units::{parse_bytes, parse_duration};
use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use std::time::Duration;

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("scope").required(true)))]
pub(crate) struct Attach {
    /// This process; --pid says the same.
    #[arg(group = "scope", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    process: Option<u32>,
    /// This process.
    #[arg(long, group = "scope", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Also the children that it makes from now on.
    #[arg(long, conflicts_with_all = ["comm", "cgroup", "all"])]
    pub(crate) children: bool,
    /// Even if it maps no device library yet: probes are placed when it loads one.
    #[arg(long, conflicts_with_all = ["comm", "cgroup", "all"])]
    pub(crate) wait: bool,
    /// Every process with this short name (/proc/PID/comm), now and later.
    #[arg(long, group = "scope", value_name = "NAME")]
    pub(crate) comm: Option<String>,
    /// Every process in this control group or below it, now and later.
    #[arg(long, group = "scope", value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
    /// Every process that uses a device, now and later.
    #[arg(long, group = "scope")]
    pub(crate) all: bool,
    /// How deep to look; deeper costs more.
    #[arg(long, value_enum, default_value_t = Level::Trace)]
    pub(crate) level: Level,
    /// At level read: time between two readings; 0s reads only when something is asked.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) every: Option<Duration>,
    /// Stacks of the allocations.
    #[arg(long, value_enum, default_value_t = Stacks::Python)]
    pub(crate) stacks: Stacks,
    /// Most frames of a stack, of Python and of compiled code each; outer ones are cut off.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stack_depth: Option<u32>,
    /// Take a stack of one allocation in so many bytes only, a power of two such as 1MiB.
    ///
    /// An allocation of a share of that is taken with that probability, and stands for all of it: what is
    /// said of stacks is an estimate then. Sizes and totals are exact all the same.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) stack_sample: Option<u64>,
    /// Marks with this name tell where a step ends, * stands for any text.
    ///
    /// A mark is a record_function of PyTorch, or a mark or range of NVTX, mstx or memscope's own library. Without this, what
    /// tells of steps is found by itself: see steps --help.
    #[arg(long, value_name = "NAME")]
    pub(crate) steps: Option<String>,
    /// Count kernel launches, too: a trap for each launch.
    ///
    /// steps --survivors then says how many had been launched before a block came, as msMemScope does. A launched graph
    /// counts once.
    #[arg(long)]
    pub(crate) launches: bool,
}

impl Attach {
    /// The process that is named.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid.or(self.process)
    }
}

impl Detach {
    /// The process that is named.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid.or(self.process)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stacks {
    /// None.
    None,
    /// The Python frames of each allocation, walked in the kernel.
    Python,
    /// The frames of compiled code (C++, the interpreter itself), by its unwind tables. Costs more.
    Native,
    /// Both as one stack: Python code stands where the interpreter executes it.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// No probe at all: PyTorch's own structures are read every 10 s (--every) and when something is
    /// asked. Costs the process nothing; does not see what comes and goes in between.
    Read,
    /// Calls of the device runtime and driver: what a process takes from the device.
    Segments,
    /// And the blocks that the framework's pool hands out: rounded sizes and totals.
    Blocks,
    /// And the pool's own trace: requested sizes, streams, segments, pending frees.
    Trace,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("scope").required(true)))]
pub(crate) struct Detach {
    /// This process; --pid says the same.
    #[arg(group = "scope", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    process: Option<u32>,
    /// This process.
    #[arg(long, group = "scope", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// This rule (see status) and the processes that it attached.
    #[arg(long, group = "scope", value_name = "NUMBER")]
    pub(crate) rule: Option<u64>,
    /// Everything that you may detach.
    #[arg(long, group = "scope")]
    pub(crate) all: bool,
}
