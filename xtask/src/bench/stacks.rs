//! `cargo xtask bench --stacks`: what an allocation and its free cost with stacks, at several depths, compared with an
//! empty probe on the same functions and with PyTorch's own recorder, as ratios in one run of one process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::measure::{ground, median, pairs};
use super::options::Options;
use crate::live::{self, Daemon, Ended, Python};
use crate::process;

/// Numbers of Python frames: the loop's own and those above it.
const DEPTHS: [u32; 4] = [5, 22, 60, 200];

/// What watches the allocations.
#[derive(Clone, Copy)]
enum Watcher {
    Nobody,
    /// An empty BPF program on functions of a library: the library's file, and a part of the functions' names.
    Empty(&'static str, &'static str),
    /// memscope: level, stacks, and whether its daemon is stopped during the measurement.
    Memscope(&'static str, &'static str, bool),
    /// PyTorch's own recorder: its stacks, and whether its list is bounded and was filled before.
    Recorder(&'static str, bool),
}

use Watcher::{Empty, Memscope, Nobody, Recorder};

const ROWS: [(&str, Watcher); 16] = [
    ("nothing", Nobody),
    (
        "empty probe, 2 traps",
        Empty("libc10.so", "reportMemoryUsageToProfiler"),
    ),
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

struct Bench {
    python: Python,
    daemon: Daemon,
    empty: PathBuf,
    libraries: PathBuf,
    pairs: u32,
}

impl Bench {
    fn measure(&mut self, depth: u32) -> Result<f64> {
        pairs(&mut self.python, &format!("{} {depth}", self.pairs))
    }

    fn ctl(&self, words: &[&str]) -> Result<()> {
        let output = self.daemon.ask(words)?;
        if !output.status.success() {
            bail!(
                "{}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }

    fn under(&mut self, watcher: Watcher, depth: u32) -> Result<f64> {
        let pid = self.python.pid().to_string();
        match watcher {
            Nobody => self.measure(depth),
            Empty(library, part) => {
                let library = self.libraries.join(library);
                let _probe = EmptyProbe::start(&self.empty, &pid, &library, part)?;
                self.measure(depth)?;
                self.measure(depth)
            }
            Memscope(level, stacks, stopped) => {
                self.ctl(&[
                    "attach", "--pid", &pid, "--level", level, "--stacks", stacks,
                ])?;
                // During the first run the search for the layout ends, and the rules of unwinding are made.
                self.measure(depth)?;
                self.measure(depth)?;
                let signal = |signal| {
                    // SAFETY: the daemon is our child and has not been waited for, so its pid is its own.
                    let _ = unsafe { libc::kill(self.daemon.pid() as i32, signal) };
                };
                if stopped {
                    signal(libc::SIGSTOP);
                }
                let time = self.measure(depth);
                // SAFETY: as above.
                let _ = unsafe { libc::kill(self.daemon.pid() as i32, libc::SIGCONT) };
                let time = time?;
                self.ctl(&["detach", "--pid", &pid])?;
                Ok(time)
            }
            Recorder(stacks, filled) => {
                let kind = if filled { "" } else { " fresh" };
                self.python.ask(&format!("record {stacks}{kind}"))?;
                if filled {
                    let entries = self.pairs * 7 * 3;
                    for _ in 0..=100_000 / entries.max(1) {
                        self.measure(depth)?;
                    }
                }
                let time = self.measure(depth)?;
                self.python.ask("record off")?;
                Ok(time)
            }
        }
    }
}

struct EmptyProbe {
    _program: Ended,
}

impl EmptyProbe {
    fn start(program: &Path, pid: &str, library: &Path, part: &str) -> Result<EmptyProbe> {
        let mut child = Command::new(program)
            .arg(pid)
            .arg(library)
            .arg(part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if !line.starts_with("ready") {
            bail!("the empty probe did not start");
        }
        Ok(EmptyProbe {
            _program: Ended(child),
        })
    }
}

/// Runs the task; the tables go to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    let (environment, variables) = ground(options)?;
    let programs = live::build(true)?;
    let empty = programs.join("examples/empty_probe");
    if std::env::var_os("MEMSCOPE_BIN_DIR").is_none() {
        process::run(process::command("cargo").args([
            "build",
            "--locked",
            "--release",
            "-p",
            "memscope-daemon",
            "--example",
            "empty_probe",
        ]))?;
    }
    let daemon = Daemon::launch(&programs, &[])?;
    let mut python = Python::start(
        &environment.join("bin/python"),
        &process::root().join("xtask/bench/pairs.py"),
        &variables,
        Stdio::piped(),
    )?;
    let ready = python.line()?;
    let pid = python.pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let libraries = maps
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .find(|path| path.ends_with("/libc10.so"))
        .and_then(|path| Path::new(path).parent())
        .context("the process has no libc10.so")?
        .to_owned();
    let mut bench = Bench {
        python,
        daemon,
        empty,
        libraries,
        pairs: options.pairs,
    };
    let mut times = vec![vec![Vec::new(); DEPTHS.len()]; ROWS.len()];
    for round in 0..options.rounds {
        for (column, depth) in DEPTHS.into_iter().enumerate() {
            bench.measure(depth)?;
            for (row, (name, watcher)) in ROWS.iter().enumerate() {
                let time = bench
                    .under(*watcher, depth)
                    .with_context(|| format!("{name}, depth {depth}, round {round}"))?;
                times[row][column].push(time);
            }
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    bench.python.tell("end")?;
    println!(
        "{ready}; {} rounds of 7 runs of {} pairs; medians\n",
        options.rounds, options.pairs
    );
    let head: Vec<String> = DEPTHS
        .iter()
        .map(|depth| format!("depth {depth}: µs | ratio | added"))
        .collect();
    println!("| what watches | {} |", head.join(" | "));
    println!("|---{}|", "|---|---|---".repeat(DEPTHS.len()));
    for (row, (name, _)) in ROWS.iter().enumerate() {
        let cells: Vec<String> = (0..DEPTHS.len())
            .map(|column| {
                let (base, time) = (median(&times[0][column]), median(&times[row][column]));
                format!("{time:.2} | {:.2} | {:.2}", time / base, time - base)
            })
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}
