//! `cargo xtask chaos`: daemons that are killed, panic or hand over at random moments, some of them with a full disk, while processes
//! allocate and questions are under way. After each end the next daemon must know what PyTorch knows: each block, and how many there were.

mod node;

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fastrand::Rng;
use serde_json::Value;

use crate::live::{self, Python};
use crate::setup::{self, torch};
use crate::{process, sim};
use node::{End, Node};

/// How often, and with what.
#[derive(Args, Clone)]
pub struct Options {
    /// How often the daemon ends
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub kills: u32,

    /// Seed of all that happens by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Processes that allocate
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub processes: usize,

    /// Milliseconds of rest between two operations of a process
    #[arg(long, value_name = "MS", default_value_t = 0.3)]
    pub pace: f64,

    /// Size of the journal in MiB: small ones rotate often
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub journal_mib: u64,

    /// With programs that are built for speed, in which no thread can be made to panic
    #[arg(long)]
    pub release: bool,
}

/// Levels and stacks with which the processes are attached, one after the other.
const ATTACHED: [&[&str]; 4] = [
    &["--level", "trace", "--stacks", "python"],
    &["--level", "trace", "--stacks", "all"],
    &["--level", "trace", "--stacks", "none"],
    &["--level", "blocks", "--stacks", "python"],
];
/// Threads that are made to panic: those that always have something to do.
const THREADS: [&str; 2] = ["keeper", "tracer"];
/// Longest time for which the daemon runs, and is away.
const RUNS: u64 = 1500;
const AWAY: u64 = 1000;

/// A process, and what it had when it was attached.
struct Traced {
    program: Python,
    pid: String,
    allocs: u64,
    frees: u64,
}

/// What came of it.
#[derive(Default)]
struct Tally {
    ends: BTreeMap<String, u32>,
    interrupted: BTreeMap<&'static str, u32>,
    full: u32,
    compared: u64,
    blocks: u64,
    events: u64,
    lost: u64,
    starts: Vec<Duration>,
}

/// Runs the task; the results go to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    setup::run(&setup::Options {
        torch: Some(Vec::new()),
        ..setup::Options::default()
    })?;
    let python = torch::locate(None)?.join("bin/python");
    let variables = sim::environment(&sim::Options::default())?;
    let programs = live::build(options.release)?;
    let mut rng = Rng::with_seed(options.seed);
    let journal = options.journal_mib.to_string();
    // A short trace: what is to be written at each rotation is small, so that rotations can be frequent.
    let arguments = ["--journal-mib", &journal, "--trace-entries", "5000"];
    let mut node = Node::new(&programs, &arguments, options.journal_mib * 2 + 64)?;
    node.start()?;
    node.wait()?;
    let script = process::root().join("xtask/chaos/load.py");
    let mut traced = Vec::new();
    for number in 0..options.processes {
        let words = [
            (options.seed * 100 + number as u64).to_string(),
            (options.pace / 1000.0).to_string(),
        ];
        let mut program = Python::start_with(&python, &script, &words, &variables, Stdio::piped())?;
        program.line()?;
        // It has something when it is attached, and stands still, so that both begin to count at the same moment.
        std::thread::sleep(Duration::from_millis(rng.u64(50..500)));
        let held = program.ask_json("hold")?;
        let pid = program.pid().to_string();
        let how = ATTACHED[number % ATTACHED.len()];
        node.json(&[&["attach", "--pid", &pid], how].concat())?;
        program.ask_json("go")?;
        traced.push(Traced {
            pid,
            allocs: number_at(&held, "allocs")?,
            frees: number_at(&held, "frees")?,
            program,
        });
    }
    let mut tally = Tally::default();
    for round in 0..options.kills {
        let end = choose(&mut rng, options.release);
        std::thread::sleep(Duration::from_millis(rng.u64(0..RUNS)));
        // The disk is full for a while: for so long nothing comes into the journal.
        let full = if rng.u8(0..5) == 0 {
            tally.full += 1;
            let filler = node.fill_disk()?;
            std::thread::sleep(Duration::from_millis(rng.u64(0..2 * RUNS)));
            Some(filler)
        } else {
            None
        };
        let busy = if rng.bool() {
            let (name, child) = question(&node, &traced, &mut rng)?;
            *tally.interrupted.entry(name).or_default() += 1;
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
            Some(child)
        } else {
            None
        };
        node.end(end)?;
        // There is room again before the next daemon starts.
        drop(full);
        *tally.ends.entry(format!("{end:?}")).or_default() += 1;
        if let Some(mut child) = busy {
            // It may have been answered, or not.
            child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(rng.u64(0..AWAY)));
        node.start()?;
        if rng.u8(0..5) == 0 {
            // Killed while it takes over.
            std::thread::sleep(Duration::from_millis(rng.u64(0..400)));
            node.end(End::Kill)?;
            *tally
                .ends
                .entry("Kill at the start".to_owned())
                .or_default() += 1;
            node.start()?;
        }
        tally.starts.push(node.wait()?);
        for process in &mut traced {
            compare(&node, process, &mut tally)
                .with_context(|| format!("after end {} ({end:?}):\n{}", round + 1, node.log()))?;
        }
        if (round + 1).is_multiple_of(10) {
            eprintln!(
                "{} of {}: {} comparisons, {} events, {} lost",
                round + 1,
                options.kills,
                tally.compared,
                tally.events,
                tally.lost
            );
        }
    }
    node.stop()?;
    report(options, tally);
    Ok(())
}

fn choose(rng: &mut Rng, release: bool) -> End {
    match rng.u8(0..10) {
        0..6 => End::Kill,
        6..8 => End::HandOver,
        _ if release => End::Kill,
        _ => End::Panic(THREADS[rng.usize(0..THREADS.len())]),
    }
}

/// Something that the daemon is busy with when it ends.
fn question(node: &Node, traced: &[Traced], rng: &mut Rng) -> Result<(&'static str, Child)> {
    let pid = traced[rng.usize(0..traced.len())].pid.as_str();
    let file = node.file("interrupted");
    let _ = std::fs::remove_file(&file);
    let file = file.to_str().context("a path that is no text")?;
    let (name, words): (&str, Vec<&str>) = match rng.u8(0..5) {
        0 => ("snapshot", vec!["snapshot", "--pid", pid, "-o", file]),
        1 => ("record", vec!["record", "-o", file]),
        2 => ("leaks", vec!["leaks", "--pid", pid]),
        3 => (
            "snapshot of a moment",
            vec!["snapshot", "--pid", pid, "--at", "-1s", "-o", file],
        ),
        _ => ("top", vec!["top", "--pid", pid, "--limit", "0"]),
    };
    let child = node
        .ctl(&words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("memscope-ctl could not be started")?;
    Ok((name, child))
}

/// Stops a process, and compares what both know.
fn compare(node: &Node, process: &mut Traced, tally: &mut Tally) -> Result<()> {
    let held = process.program.ask_json("hold")?;
    let pid = process.pid.as_str();
    let stats = node.json(&["stats", "--pid", pid])?;
    let devices = stats["devices"].as_array().context("no devices")?;
    let device = devices
        .iter()
        .find(|device| device["device"] == 0)
        .context("no device 0")?;
    let lost = number_at(&stats, "lost_records")?;
    let mut expected = vec![
        ("allocated_bytes", number_at(&held, "allocated")?),
        ("reserved_bytes", number_at(&held, "reserved")?),
    ];
    if lost == 0 {
        // Where the ring had no room, the state is read again, and the counts stay behind.
        expected.push(("alloc_count", number_at(&held, "allocs")? - process.allocs));
        expected.push(("free_count", number_at(&held, "frees")? - process.frees));
    }
    for (key, value) in expected {
        if number_at(device, key)? != value {
            bail!(
                "{key} of process {pid} is {}, and PyTorch has {value}: {stats:#}",
                device[key]
            );
        }
    }
    let file = node.file("snapshot.pickle");
    let name = file.to_str().context("a path that is no text")?;
    let taken = node.ctl(&["snapshot", "--pid", pid, "-o", name]).output()?;
    if !taken.status.success() {
        bail!("no snapshot: {}", String::from_utf8_lossy(&taken.stderr));
    }
    let compared = process.program.ask_json(&format!("compare {name}"))?;
    std::fs::remove_file(&file)?;
    if compared["equal"] != true {
        bail!("the blocks of process {pid} differ: {compared}");
    }
    process.program.ask_json("go")?;
    tally.compared += 1;
    tally.blocks += number_at(&compared, "blocks")?;
    tally.events = tally.events.max(number_at(device, "alloc_count")?);
    tally.lost = tally.lost.max(lost);
    Ok(())
}

fn number_at(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("no number {key} in {value:#}"))
}

fn report(options: &Options, mut tally: Tally) {
    println!(
        "{} ends, seed {}, {} processes, journal {} MiB, {} build\n",
        options.kills,
        options.seed,
        options.processes,
        options.journal_mib,
        if options.release { "release" } else { "debug" }
    );
    println!("| end | times |\n|---|---|");
    for (end, count) in &tally.ends {
        println!("| {end} | {count} |");
    }
    println!("\n| under way at the end | times |\n|---|---|");
    for (name, count) in &tally.interrupted {
        println!("| {name} | {count} |");
    }
    tally.starts.sort();
    let middle = tally.starts.get(tally.starts.len() / 2);
    println!(
        "\nThe disk was full {} times. {} comparisons with PyTorch, {} blocks: all equal. The busiest process allocated {} times; at most {} records of a process were lost. \
         Until the next daemon answered: median {} ms, longest {} ms.",
        tally.full,
        tally.compared,
        tally.blocks,
        tally.events,
        tally.lost,
        middle.map_or(0, Duration::as_millis),
        tally.starts.last().map_or(0, Duration::as_millis),
    );
}
