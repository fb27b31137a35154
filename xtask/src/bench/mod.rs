//! `cargo xtask bench`: what tracing costs an allocation and its free, as ratios in one run of one
//! process.

mod export;
mod measure;
mod options;
mod readings;
mod stacks;

use std::process::Stdio;

use anyhow::{Result, bail};

use crate::live::{Daemon, Python};
use crate::process;
use measure::{ground, median, pairs};
pub use options::Options;

struct Bench {
    python: Python,
    pairs: u32,
}

impl Bench {
    fn measure(&mut self) -> Result<f64> {
        pairs(&mut self.python, &self.pairs.to_string())
    }
}

/// Runs the task; the table goes to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    if options.readings {
        return readings::run(options);
    }
    if options.stacks {
        return stacks::run(options);
    }
    if options.export {
        return export::run(options);
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
