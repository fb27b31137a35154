//! `cargo xtask bench`: what tracing costs an allocation and its free, as ratios in one run of one
//! process.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::live::{Daemon, Python};
use crate::{process, setup, sim, venv};

/// What to measure.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Allocations and frees in one run
    #[arg(long, default_value_t = 40_000)]
    pub pairs: u32,

    /// How often each way is measured
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// What readings cost at level `read`, instead: time and bytes by number of blocks, and the
    /// process's speed
    #[arg(long)]
    pub readings: bool,

    /// What writing a long trace to a file takes, instead: time and memory, against PyTorch's own snapshot
    #[arg(long, conflicts_with = "readings")]
    pub export: bool,

    /// What stacks cost at several depths, instead: beside an empty probe and PyTorch's own recorder
    #[arg(long, conflicts_with_all = ["readings", "export"])]
    pub stacks: bool,

    /// On this machine's GPU instead of the simulated one, with the PyTorch in $MEMSCOPE_TORCH_VENV
    #[arg(long)]
    pub real_device: bool,

    /// Entries of that trace
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u32,
}

struct Bench {
    python: Python,
    pairs: u32,
}

impl Bench {
    fn measure(&mut self) -> Result<f64> {
        pairs(&mut self.python, &self.pairs.to_string())
    }
}

/// Microseconds of an allocation and its free, the median of several runs; `words`: how many, and how many frames deep.
pub(crate) fn pairs(python: &mut Python, words: &str) -> Result<f64> {
    python.ask_json(&format!("pairs {words}"))?["median"]
        .as_f64()
        .context("no median in the answer")
}

/// The environment with PyTorch, and the variables that make its device.
pub(crate) fn ground(options: &Options) -> Result<(PathBuf, Vec<(String, String)>)> {
    if options.real_device {
        return Ok((venv::locate(None)?, Vec::new()));
    }
    setup::run(&setup::Options {
        torch: Some(Vec::new()),
        ..setup::Options::default()
    })?;
    let variables = sim::environment(&sim::Options::default())?;
    Ok((venv::locate(None)?, variables))
}

/// Runs the task; the table goes to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    if options.readings {
        return crate::bench_read::run(options);
    }
    if options.stacks {
        return crate::bench_stacks::run(options);
    }
    if options.export {
        return crate::bench_export::run(options);
    }
    let (environment, variables) = ground(options)?;
    let daemon = Daemon::start(true)?;
    let mut python = Python::start(
        &environment.join("bin/python"),
        &process::root().join("xtask/bench/pairs.py"),
        &variables,
        Stdio::piped(),
    )?;
    let ready = python.line()?;
    let mut bench = Bench {
        python,
        pairs: options.pairs,
    };
    let pid = bench.python.pid().to_string();
    let mut rows: Vec<(&str, Vec<f64>)> = [
        "nothing",
        "memscope, level segments",
        "memscope, level blocks",
        "memscope, level trace",
        "PyTorch's recorder, stacks=python, bounded and filled",
        "PyTorch's recorder, stacks=all, bounded and filled",
    ]
    .map(|name| (name, Vec::new()))
    .into();
    bench.measure()?;
    for _ in 0..options.rounds {
        let base = bench.measure()?;
        rows[0].1.push(base);
        for (row, level) in [(1, "segments"), (2, "blocks"), (3, "trace")] {
            let attached = daemon.ask(&["attach", "--pid", &pid, "--level", level])?;
            if !attached.status.success() {
                bail!("attach: {}", String::from_utf8_lossy(&attached.stderr));
            }
            // The first run lets the search for the layout end, where there is one.
            bench.measure()?;
            let time = bench.measure()?;
            rows[row].1.push(time);
            daemon.ask(&["detach", "--pid", &pid])?;
        }
        for (row, kind) in [(4, "python"), (5, "all")] {
            bench.python.ask(&format!("record {kind}"))?;
            for _ in 0..2 {
                bench.measure()?;
            }
            let time = bench.measure()?;
            rows[row].1.push(time);
            bench.python.ask("record off")?;
        }
    }
    bench.python.ask("pairs 1")?;
    bench.python.tell("end")?;
    println!(
        "{ready}; {} rounds of 7 runs of {} pairs; medians",
        options.rounds, options.pairs
    );
    println!("\n| what records | µs per allocation and free | ratio to nothing | added, µs |");
    println!("|---|---|---|---|");
    let base = median(&rows[0].1);
    for (name, times) in &rows {
        let time = median(times);
        println!(
            "| {name} | {time:.2} | {:.2} | {:.2} |",
            time / base,
            time - base
        );
    }
    Ok(())
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
