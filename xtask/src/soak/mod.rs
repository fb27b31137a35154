//! `cargo xtask soak`: a long run. The daemon's memory must become flat, and each of its answers about earlier moments
//! must equal what the process itself wrote down then, or be a refusal.

mod memory;
mod moments;
mod visits;

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::live::{self, Daemon, Python};
use crate::setup::{self, torch};
use crate::{process, sim};
use memory::Memory;
use moments::Moments;
use visits::Visits;

/// Time between two measurements of the daemon's memory.
const LOOK: Duration = Duration::from_secs(10);

/// How long, and with what.
#[derive(Args, Clone)]
pub struct Options {
    /// How long it runs
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub minutes: u64,

    /// Size of the journal in MiB
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub journal_mib: u64,

    /// What the process does
    #[arg(long, value_enum, default_value_t)]
    pub workload: Workload,

    /// Milliseconds of rest after each training step
    #[arg(long, value_name = "MS", default_value_t = 60)]
    pub pace: u64,

    /// Different stacks, for --workload stacks
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub stacks: u64,

    /// Moments that the process writes down and that are asked for again and again afterwards
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..))]
    pub moments: u64,

    /// At each moment another process is attached as well, its trace filled, all of it exported, and it is detached
    #[arg(long)]
    pub visits: bool,

    /// With programs that are built for speed
    #[arg(long)]
    pub release: bool,
}

/// What the process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Trains, with a leak and something that only looks like one
    #[default]
    Train,
    /// Allocates and frees as fast as it can, from many stacks
    Stacks,
}

impl Workload {
    fn words(self, options: &Options) -> [String; 2] {
        match self {
            Workload::Train => ["train".to_owned(), options.pace.to_string()],
            Workload::Stacks => ["stacks".to_owned(), options.stacks.to_string()],
        }
    }
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
    let journal = options.journal_mib.to_string();
    let daemon = Daemon::launch(&programs, &["--journal-mib", &journal])?;
    let script = process::root().join("xtask/soak/trainer.py");
    let words = options.workload.words(options);
    let mut trainer = Python::start_with(&python, &script, &words, &variables, Stdio::piped())?;
    let ready = trainer.line()?;
    let pid = trainer.pid().to_string();
    daemon.json(&["attach", "--pid", &pid])?;
    let mut memory = Memory::of(daemon.pid());
    let mut moments = Moments::new(&python, &pid)?;
    let mut visits = Visits::new(&python, &variables)?;
    let length = Duration::from_secs(60 * options.minutes);
    let started = Instant::now();
    let records_before = records(&daemon)?;
    for number in 0..options.moments {
        // The first moment comes after some time, the last a little before the end.
        let at = length.mul_f64((number as f64 + 0.5) / options.moments as f64);
        memory.watch_until(started, at, LOOK)?;
        moments.take(&mut trainer)?;
        moments.compare_some(&daemon)?;
        if options.visits {
            visits.receive(&daemon)?;
        }
        eprintln!(
            "{:>5.0} s  {}  {}",
            started.elapsed().as_secs_f64(),
            memory.last(),
            moments.summary()
        );
    }
    memory.watch_until(started, length, LOOK)?;
    moments.compare_all(&daemon)?;
    let seconds = started.elapsed().as_secs_f64();
    let records = records(&daemon)? - records_before;
    let status = daemon.json(&["--timeout", "600", "status"])?;
    println!(
        "{ready}; {:?}, {} minutes, journal {} MiB ({} MiB written); {records} records, {:.0} a second\n",
        options.workload,
        options.minutes,
        options.journal_mib,
        status["journal"]["bytes"].as_u64().unwrap_or(0) >> 20,
        records as f64 / seconds,
    );
    print!("{}{}", memory.table(), moments.table());
    if moments.wrong() > 0 {
        bail!(
            "{} answers about moments that have passed are wrong",
            moments.wrong()
        );
    }
    if !memory.is_flat() {
        bail!("the daemon's memory grows");
    }
    Ok(())
}

fn records(daemon: &Daemon) -> Result<u64> {
    let status = daemon.json(&["--timeout", "600", "status"])?;
    status["records"]
        .as_u64()
        .context("status says no number of records")
}
