//! What an allocation and its free cost, at several depths of the stack, beside empty probes on the same functions, bpftrace,
//! and PyTorch's own recorder: in turn in one process.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::measure::{Ground, folder_of, pairs, tell};
use super::page::{Row, Section};
use super::programs::PROFILE;
use crate::live::{Daemon, Ended, Python};
use crate::process;

/// Numbers of Python frames: the loop's own and those above it.
const DEPTHS: [u32; 4] = [5, 22, 60, 200];

/// What watches the allocations.
#[derive(Clone, Copy)]
enum Watcher {
    Nobody,
    /// An empty BPF program on functions of a library: the library's file, and a part of the functions' names.
    Empty(&'static str, &'static str),
    /// bpftrace, which counts the calls of such functions.
    Bpftrace(&'static str, &'static str),
    /// memscope: level, stacks, and whether its daemon is stopped during the measurement.
    Memscope(&'static str, &'static str, bool),
    /// PyTorch's own recorder: its stacks, and whether its list is bounded and was filled before.
    Recorder(&'static str, bool),
}

use Watcher::{Bpftrace, Empty, Memscope, Nobody, Recorder};

const ROWS: [(&str, Watcher); 18] = [
    ("nothing", Nobody),
    (
        "empty probe, 2 traps",
        Empty("libc10.so", "reportMemoryUsageToProfiler"),
    ),
    ("segments", Memscope("segments", "none", false)),
    ("blocks, no stacks", Memscope("blocks", "none", false)),
    ("blocks, Python", Memscope("blocks", "python", false)),
    (
        "blocks, Python, daemon stopped",
        Memscope("blocks", "python", true),
    ),
    ("blocks, native", Memscope("blocks", "native", false)),
    ("blocks, all", Memscope("blocks", "all", false)),
    (
        "empty probe, 3 traps",
        Empty("libc10_cuda.so", "DeviceCachingAllocator12record_trace"),
    ),
    (
        "bpftrace, counts, 3 traps",
        Bpftrace("libc10_cuda.so", "DeviceCachingAllocator12record_trace"),
    ),
    ("trace, no stacks", Memscope("trace", "none", false)),
    ("trace, Python", Memscope("trace", "python", false)),
    ("trace, native", Memscope("trace", "native", false)),
    ("trace, all", Memscope("trace", "all", false)),
    ("PyTorch, python, fresh", Recorder("python", false)),
    (
        "PyTorch, python, bounded and filled",
        Recorder("python", true),
    ),
    ("PyTorch, all, fresh", Recorder("all", false)),
    ("PyTorch, all, bounded and filled", Recorder("all", true)),
];

struct Bench<'a> {
    ground: &'a Ground<'a>,
    python: Python,
    /// One of each commit that is measured.
    daemons: Vec<Daemon>,
    empty: PathBuf,
    libraries: PathBuf,
}

impl Bench<'_> {
    fn measure(&mut self, depth: u32) -> Result<f64> {
        let pairs_of = self.ground.options.pairs;
        pairs(&mut self.python, &format!("{pairs_of} {depth}"))
    }

    /// The second run is measured: during the first one, memory that is touched for the first time is got ready.
    fn second(&mut self, depth: u32) -> Result<f64> {
        self.measure(depth)?;
        self.measure(depth)
    }

    /// What each of the row's programs costs.
    fn under(&mut self, watcher: Watcher, depth: u32) -> Result<Vec<f64>> {
        let pid = self.python.pid().to_string();
        let one = match watcher {
            Nobody => self.measure(depth)?,
            Empty(library, part) => {
                let library = self.libraries.join(library);
                let mut program = Command::new(&self.empty);
                let _probe = Probe::start(program.arg(&pid).arg(library).arg(part))?;
                self.second(depth)?
            }
            Bpftrace(library, part) => {
                let library = self.libraries.join(library);
                let mut program = Command::new("bpftrace");
                let script = format!(
                    "BEGIN {{ printf(\"ready\\n\"); }} uprobe:{}:*{part}* {{ @calls = count(); }}",
                    library.display()
                );
                let probe = Probe::start(program.args(["-B", "line", "-p", &pid, "-e", &script]))?;
                let time = self.second(depth)?;
                probe.counted()?;
                time
            }
            Recorder(stacks, filled) => {
                let kind = if filled { "" } else { " fresh" };
                self.python.ask(&format!("record {stacks}{kind}"))?;
                if filled {
                    let entries = self.ground.options.pairs * 7 * 3;
                    for _ in 0..=100_000 / entries.max(1) {
                        self.measure(depth)?;
                    }
                }
                let time = self.measure(depth)?;
                self.python.ask("record off")?;
                time
            }
            Memscope(level, stacks, stopped) => {
                return (0..self.daemons.len())
                    .map(|daemon| self.attached(daemon, (level, stacks, stopped), depth))
                    .collect();
            }
        };
        Ok(vec![one])
    }

    fn attached(
        &mut self,
        daemon: usize,
        (level, stacks, stopped): (&str, &str, bool),
        depth: u32,
    ) -> Result<f64> {
        let pid = self.python.pid().to_string();
        let words = [
            "attach", "--pid", &pid, "--level", level, "--stacks", stacks,
        ];
        tell(&self.daemons[daemon], &words)?;
        // During the first run the search for the layout ends, and the rules of unwinding are made.
        self.second(depth)?;
        if stopped {
            self.daemons[daemon].signal(libc::SIGSTOP)?;
        }
        let time = self.measure(depth);
        self.daemons[daemon].signal(libc::SIGCONT)?;
        tell(&self.daemons[daemon], &["detach", "--pid", &pid])?;
        time
    }
}

/// A program that prints `ready` once its probes are set.
struct Probe {
    program: Ended,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Probe {
    fn start(command: &mut Command) -> Result<Probe> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().context("no output")?;
        let mut probe = Probe {
            program: Ended(child),
            lines: BufReader::new(output).lines(),
        };
        probe
            .until("ready")
            .with_context(|| format!("{name} set no probes"))?;
        Ok(probe)
    }

    /// The rest of the next line that begins so.
    fn until(&mut self, beginning: &str) -> Result<String> {
        for line in &mut self.lines {
            if let Some(rest) = line?.strip_prefix(beginning) {
                return Ok(rest.trim().to_owned());
            }
        }
        bail!("it ended without a line that begins with {beginning}")
    }

    /// Ends bpftrace, and fails if it counted no call: then it would have cost nothing.
    fn counted(mut self) -> Result<()> {
        // SAFETY: the child has not been waited for, so its pid cannot belong to another process.
        unsafe { libc::kill(self.program.0.id() as i32, libc::SIGINT) };
        let calls = self.until("@calls:")?;
        if calls.parse::<u64>().is_ok_and(|calls| calls > 0) {
            return Ok(());
        }
        bail!("bpftrace counted no call: {calls}")
    }
}

/// Builds the program that sets empty probes.
fn empty_probe(ground: &Ground<'_>) -> Result<PathBuf> {
    if std::env::var_os("MEMSCOPE_BIN_DIR").is_none() {
        process::run(process::command("cargo").args([
            "build",
            "--locked",
            "--profile",
            PROFILE.profile(),
            "-p",
            "memscope-daemon",
            "--example",
            "empty_probe",
        ]))?;
    }
    let own = ground.programs.first().context("no programs")?;
    Ok(own.folder.join("examples/empty_probe"))
}

/// Measures all rows at all depths.
pub fn measure(ground: &Ground<'_>) -> Result<Section> {
    let empty = empty_probe(ground)?;
    let python = ground.python("pairs.py")?;
    let libraries = folder_of(python.pid(), "libc10.so")?;
    let daemons = ground.programs.iter();
    let daemons = daemons.map(|of| Daemon::launch(&of.folder, &[]));
    let mut bench = Bench {
        ground,
        python,
        daemons: daemons.collect::<Result<_>>()?,
        empty,
        libraries,
    };
    let mut rows: Vec<Vec<Row>> = Vec::new();
    for (name, watcher) in ROWS {
        rows.push(match watcher {
            Memscope(..) => {
                let names = ground.programs.iter().map(|of| of.row(name));
                names.map(|name| Row::new(name, DEPTHS.len())).collect()
            }
            _ => vec![Row::new(name, DEPTHS.len())],
        });
    }
    for round in 0..ground.options.rounds {
        for (column, depth) in DEPTHS.into_iter().enumerate() {
            bench.measure(depth)?;
            for ((name, watcher), rows) in ROWS.iter().zip(&mut rows) {
                let times = bench
                    .under(*watcher, depth)
                    .with_context(|| format!("{name}, depth {depth}, round {round}"))?;
                for (row, time) in rows.iter_mut().zip(times) {
                    row.columns[column].push(time);
                }
            }
        }
        eprintln!("round {} of {}", round + 1, ground.options.rounds);
    }
    bench.python.tell("end")?;
    Ok(Section {
        name: "process".to_owned(),
        title: "In the process: an allocation and its free".to_owned(),
        run: None,
        about: format!(
            "A loop of `torch.empty(1024, device=\"cuda\")` so many Python frames deep, microseconds for an allocation and its free, each the median of 7 runs of\n\
             {} pairs. The loop does nothing else, which no training does. \"nothing\" is the loop unwatched; \"traps\" are empty probes, the floor of what a probe\n\
             can cost; the other rows without another name are levels and stacks of memscope.",
            ground.options.pairs
        ),
        columns: DEPTHS.map(|depth| format!("depth {depth}, µs")).into(),
        has_reference: true,
        rows: rows.into_iter().flatten().collect(),
    })
}
