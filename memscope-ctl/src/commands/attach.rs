//! `attach` and `detach`.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::render::{coverage, list};
use crate::session::Session;
use crate::units::{
    self, grouped, in_nanoseconds, nanoseconds, parse_bytes, parse_duration, plain,
};
use clap::{ArgGroup, ValueEnum};
use memscope_proto::v1;
use std::time::Duration;

/// Start to trace a running process, or whatever matches now and later.
///
/// Returns once the probes are live and what was there before has been read. The process goes on as it is: nothing in it is restarted,
/// changed or preloaded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl attach --pid 4242
  memscope-ctl attach --pid 4242 --children    also the processes that it starts from now on
  memscope-ctl attach --pid 4242 --wait        it will load the device's libraries later
  memscope-ctl attach --comm python --level segments
  memscope-ctl attach --pid 4242 --level read --every 1m    no probe, a look once a minute
  memscope-ctl attach --cgroup /system.slice/slurmstepd.scope
  memscope-ctl attach --all                    every process with a device library, now and later")]
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
    /// Follow each launch of a kernel with the kernel's name, too: a trap and a record for each. On CUDA only.
    ///
    /// events --kind launch shows them, export's dumps name them, and compare --level kernel sets two of these side by side. On other
    /// devices launches have no names, and are told by the function that launches.
    #[arg(long)]
    pub(crate) kernels: bool,
    /// Follow which of PyTorch's operators use which blocks, too: two traps for each operator.
    ///
    /// inefficient --pid then says which blocks are allocated early, freed late or idle, and export's dumps have rows of
    /// operators and accesses. Needs Linux 6.6 and an x86-64 machine; without them, coverage says so.
    #[arg(long)]
    pub(crate) accesses: bool,
}

impl Attach {
    /// Process that the arguments name, if they name one.
    pub(super) fn pid(&self) -> Option<u32> {
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

/// Stop tracing; the processes live on.
#[derive(Debug, clap::Args)]
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

impl Detach {
    /// Process that the arguments name, if they name one.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid.or(self.process)
    }
}

/// Error message and suggestion of both commands if `--recording` is given.
const NO_RECORDING: Option<(&str, &str)> = Some((
    "a recording cannot be attached to or detached from",
    "leave out --recording",
));

impl Run for Attach {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        use v1::attach_request::Scope;
        let scope = if let Some(pid) = self.pid() {
            Scope::Pid(v1::PidScope {
                pid,
                children: self.children,
                wait: self.wait,
            })
        } else if let Some(comm) = &self.comm {
            Scope::Comm(comm.clone())
        } else if let Some(cgroup) = &self.cgroup {
            Scope::Cgroup(cgroup.clone())
        } else {
            Scope::All(self.all)
        };
        let level = match self.level {
            Level::Read => v1::Level::Read,
            Level::Segments => v1::Level::Segments,
            Level::Blocks => v1::Level::Blocks,
            Level::Trace => v1::Level::Trace,
        };
        let request = v1::AttachRequest {
            scope: Some(scope),
            level: level.into(),
            read_every_ns: read_every(self),
            stacks: match self.stacks {
                Stacks::None => v1::Stacks::None,
                Stacks::Python => v1::Stacks::Python,
                Stacks::Native => v1::Stacks::Native,
                Stacks::All => v1::Stacks::All,
            }
            .into(),
            stack_depth: self.stack_depth.unwrap_or_default(),
            stack_sample_bytes: self.stack_sample.unwrap_or_default(),
            launches: self.launches,
            kernels: self.kernels,
            accesses: self.accesses,
            step_name: self.steps.clone().unwrap_or_default(),
        };
        let answer = client
            .ask(request, async |mut rpc, request| rpc.attach(request).await)
            .await?;
        session.show(&answer, attached)
    }
}

fn read_every(attach: &Attach) -> Option<u64> {
    let default = (attach.level == Level::Read).then_some(memscope_proto::READ_EVERY);
    let every = attach.every.or(default)?;
    Some(in_nanoseconds(every))
}

impl Run for Detach {
    const NO_RECORDING: Option<(&'static str, &'static str)> = NO_RECORDING;

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        use v1::detach_request::Scope;
        let scope = match (self.pid(), self.rule) {
            (Some(pid), _) => Scope::Pid(pid),
            (None, Some(rule)) => Scope::Rule(rule),
            (None, None) => Scope::All(self.all),
        };
        let request = v1::DetachRequest { scope: Some(scope) };
        let client = session.client().await?;
        let answer = client
            .ask(request, async |mut rpc, request| rpc.detach(request).await)
            .await?;
        session.show(&answer, detached)
    }
}

fn attached(answer: &v1::AttachResponse) -> String {
    let mut text = String::new();
    if let Some(rule) = answer.rule {
        text.push_str(&format!(
            "Rule {rule} attaches what matches from now on; memscope-ctl detach --rule {rule} \
             ends it.\n"
        ));
        if answer.processes.is_empty() {
            text.push_str("Nothing matches yet.\n");
        }
    }
    for process in &answer.processes {
        text.push_str(&format!(
            "Attached {} (pid {}): level {}, ",
            plain(&process.comm),
            process.pid,
            process.level(),
        ));
        text.push_str(&match process.level() {
            v1::Level::Read => "no probes\n".to_owned(),
            _ => format!(
                "{} probes; blocks of the pool are seen at {}\n",
                process.sites,
                list(&process.ways)
            ),
        });
        if let Some(read) = &process.baseline {
            text.push_str(&baseline(read));
        } else if process.baseline_pending {
            text.push_str(
                "There before: not known yet, it is still being read; stats shows it when it is known\n",
            );
        }
        if let Some(cost) = &process.cost {
            text.push_str(&format!("Cost: {}\n", plain(cost)));
        }
        text.push_str(&coverage(&process.coverage));
    }
    for refused in &answer.refused {
        text.push_str(&format!(
            "Not attached: pid {}: {}\n",
            refused.pid,
            plain(&refused.message)
        ));
    }
    text
}

/// The line about what the process held before the attach.
fn baseline(read: &v1::BaselineRead) -> String {
    let mut text = format!(
        "There before: {} in {} blocks, {} reserved in {} segments, on {} {}",
        units::bytes(read.allocated_bytes),
        grouped(read.blocks),
        units::bytes(read.reserved_bytes),
        grouped(read.segments),
        read.devices,
        if read.devices == 1 {
            "device"
        } else {
            "devices"
        },
    );
    if let Some(cost) = &read.cost {
        text.push_str(&format!(
            " (read in {}, {} of its memory",
            nanoseconds(cost.duration_ns),
            units::bytes(cost.bytes_read)
        ));
        text.push_str(&match cost.raced {
            0 => ")".to_owned(),
            raced => format!(", {} attempts raced with it)", grouped(raced.into())),
        });
    }
    text.push('\n');
    text
}

fn detached(answer: &v1::DetachResponse) -> String {
    if answer.pids.is_empty() && answer.rules.is_empty() {
        return "Nothing was traced.\n".to_owned();
    }
    let mut text = String::new();
    for pid in &answer.pids {
        text.push_str(&format!("Detached pid {pid}.\n"));
    }
    for rule in &answer.rules {
        text.push_str(&format!("Rule {rule} ended.\n"));
    }
    text
}
