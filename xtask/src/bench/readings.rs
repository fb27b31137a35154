//! `cargo xtask bench --readings`: what readings at level `read` cost by number of blocks: the time and bytes of a
//! reading, and the speed of the process that is read, as a ratio in one run.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::{ground, median, pairs};
use super::options::Options;
use crate::live::{Daemon, Python};
use crate::process;

/// Numbers of live blocks of the process that is read.
const BLOCKS: [u32; 3] = [1_000, 10_000, 100_000];
/// Number of readings that are measured for each number of blocks.
const READINGS: usize = 15;
/// Time between readings while the process's speed is measured: ten times as often as by default.
const EVERY: &str = "1s";

fn json(daemon: &Daemon, words: &[&str]) -> Result<Value> {
    let mut all = vec!["--json"];
    all.extend(words);
    let output = daemon.ask(&all)?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    serde_json::from_slice(&output.stdout).context("the answer is no JSON")
}

/// Runs the task; the table goes to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    let (environment, variables) = ground(options)?;
    let daemon = Daemon::start(true)?;
    println!(
        "| live blocks | first reading, ms | later ones at rest, ms | bytes of a later one | while it \
         allocates, ms | races for one | speed of the process, ratio to unread |"
    );
    println!("|---|---|---|---|---|---|---|");
    for blocks in BLOCKS {
        // Each number of blocks gets a new process, so that the first reading really is the first.
        let mut python = Python::start(
            &environment.join("bin/python"),
            &process::root().join("xtask/bench/pairs.py"),
            &variables,
            Stdio::piped(),
        )?;
        python.line()?;
        python.ask(&format!("hold {blocks}"))?;
        println!("{}", row(&daemon, &mut python, options, blocks)?);
        python.tell("end")?;
    }
    Ok(())
}

fn row(daemon: &Daemon, python: &mut Python, options: &Options, blocks: u32) -> Result<String> {
    let pid = python.pid().to_string();
    let many = (options.pairs * 10).to_string();
    let attach = |every| {
        let words = ["attach", "--pid", &pid, "--level", "read", "--every", every];
        json(daemon, &words)
    };
    let attached = attach("0s")?;
    let baseline = &attached["processes"][0]["baseline"];
    if baseline["blocks"].as_u64() < Some(blocks.into()) {
        bail!("the first reading has not all blocks: {attached}");
    }
    let first = milliseconds(&baseline["cost"]);
    let (mut rest, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..READINGS {
        let stats = json(daemon, &["stats", "--pid", &pid])?;
        rest.push(milliseconds(&stats["reading"]));
        bytes.push(number(&stats["reading"]["bytes_read"]));
    }
    // The process allocates without a pause, so each reading has to find a moment in which nothing changes.
    let (mut busy, mut races) = (Vec::new(), Vec::new());
    python.tell(&format!("pairs {}", options.pairs * 20))?;
    for _ in 0..READINGS {
        let stats = json(daemon, &["stats", "--pid", &pid])?;
        busy.push(milliseconds(&stats["reading"]));
        races.push(number(&stats["reading"]["raced"]));
    }
    python.line()?;
    json(daemon, &["detach", "--pid", &pid])?;
    let (mut alone, mut read) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        alone.push(pairs(python, &many)?);
        attach(EVERY)?;
        read.push(pairs(python, &many)?);
        json(daemon, &["detach", "--pid", &pid])?;
    }
    Ok(format!(
        "| {blocks} | {first:.1} | {:.1} | {:.0} | {:.1} | {:.0} | {:.3} |",
        median(&rest),
        median(&bytes),
        median(&busy),
        median(&races),
        median(&read) / median(&alone),
    ))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn milliseconds(cost: &Value) -> f64 {
    number(&cost["duration_ns"]) / 1e6
}
