//! `cargo xtask soak`: a long run. The daemon's memory must become flat, and each of its answers about earlier moments
//! must equal what the process itself wrote down then, or be a refusal.

mod guests;
mod leftovers;
mod memory;
mod moments;
mod visits;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::live::{self, Daemon, Python};
use crate::setup::{self, torch};
use crate::{process, sim};
use guests::Guests;
use leftovers::{Held, Pins};
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

    /// Milliseconds of rest after each training step (60 where nothing is said), or each time that all stacks had
    /// their turn (none where nothing is said)
    #[arg(long, value_name = "MS")]
    pub pace: Option<u64>,

    /// Different stacks, for --workload stacks
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub stacks: u64,

    /// Moments that the process writes down and that are asked for again and again afterwards
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..))]
    pub moments: u64,

    /// At each moment another process is attached as well, its trace filled, all of it exported, and it is detached
    #[arg(long)]
    pub visits: bool,

    /// Instead of that: small programs come and go all the time, are attached, detached, killed in the middle of a call and
    /// replaced by exec; at the end nothing of them may be left behind
    #[arg(long, conflicts_with = "visits")]
    pub guests: bool,

    /// With --guests: what the guests do and how they end follows from this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// With --guests: ends after so many attaches of guests, if that is before the time is over
    #[arg(long, value_name = "N")]
    pub most: Option<u64>,

    /// With programs as users get them, instead of those of the tests
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
    fn words(self, options: &Options) -> Vec<String> {
        let pace = |usual: u64| options.pace.unwrap_or(usual).to_string();
        match self {
            Workload::Train => vec!["train".to_owned(), pace(60)],
            Workload::Stacks => vec!["stacks".to_owned(), options.stacks.to_string(), pace(0)],
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
    let programs = live::build(live::Build::of(options.release))?;
    if options.guests {
        return hard_load(options, &python, &variables, &programs);
    }
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
    let unanswered = moments.unanswered();
    if !unanswered.is_empty() {
        bail!("every question was refused of: {}", unanswered.join(", "));
    }
    if !memory.is_flat() {
        bail!("the daemon's memory grows");
    }
    Ok(())
}

/// Time between two measurements while processes come and go.
const CLOSE_LOOK: Duration = Duration::from_secs(2);
/// Minutes from which on the daemon's memory is judged: before that it is still being filled.
const JUDGED_FROM: u64 = 10;

/// Moments in which all but the daemon stops, so that its memory is measured in the same state each time.
const RESTS: u32 = 10;

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn stop(pid: u32) -> Stopped {
        // SAFETY: no memory; the process is this one's child, and not yet waited for.
        unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0 as i32, libc::SIGCONT) };
    }
}

/// One process allocates for as long as it runs, from many stacks, and others come and go beside it.
fn hard_load(
    options: &Options,
    python: &Path,
    variables: &[(String, String)],
    programs: &Path,
) -> Result<()> {
    let pins = Pins::mount()?;
    let (journal, pin_dir) = (options.journal_mib.to_string(), pins.path());
    let pin_dir = pin_dir
        .to_str()
        .context("a temporary folder without a name")?;
    // A short trace: what is written at each rotation is small, so that rotations can be frequent.
    let more = ["--trace-entries", "5000"];
    let arguments = [
        &["--journal-mib", &journal, "--pin-dir", pin_dir],
        &more[..],
    ]
    .concat();
    let daemon = Daemon::launch(programs, &arguments)?;
    let script = process::root().join("xtask/soak/trainer.py");
    let words = Workload::Stacks.words(options);
    let mut trainer = Python::start_with(python, &script, &words, variables, Stdio::piped())?;
    let ready = trainer.line()?;
    let pid = trainer.pid().to_string();
    let patient = |words: &[&str]| daemon.json(&[&["--timeout", "600"], words].concat());
    let guests = Guests::new(&daemon, options.seed)?;
    // So that what the daemon makes for itself with the first processes is there.
    guests.receive_each()?;
    leftovers::traces_nothing(&daemon)?;
    let before = Held::now(daemon.pid(), &pins)?;
    patient(&["attach", "--pid", &pid])?;
    let probed = leftovers::probed(&daemon)?;

    let mut memory = Memory::of(daemon.pid());
    let mut moments = Moments::new(python, &pid)?;
    let length = Duration::from_secs(60 * options.minutes);
    let (started, records_before) = (Instant::now(), records(&daemon)?);
    let segments_before = newest_segment(&daemon)?;
    std::thread::scope(|scope| {
        let received: Vec<_> = (0..guests::AT_ONCE)
            .map(|number| {
                let guests = &guests;
                scope.spawn(move || guests.receive_all(number, options.most))
            })
            .collect();
        let watched = (1..=RESTS).try_for_each(|rest| {
            let until = length.mul_f64(f64::from(rest) / f64::from(RESTS));
            memory.watch_while(started, until, CLOSE_LOOK, || !guests.is_over())?;
            if guests.is_over() {
                return Ok(());
            }
            let _quiet = guests.quiet();
            let _stopped = Stopped::stop(trainer.pid());
            memory.rest(started)?;
            let status = patient(&["status"])?;
            let kept = status["memory"]["processes_bytes"].as_u64();
            memory.keeps(kept.context("status says nothing of what processes take")?);
            Ok(())
        });
        guests.end();
        let mut received = received.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread for guests panicked")))
        });
        watched.and(received.try_for_each(|result| result))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let made = records(&daemon)? - records_before;
    let segments = newest_segment(&daemon)? - segments_before;
    moments.take(&mut trainer)?;
    moments.compare_some(&daemon)?;
    if moments.equal() == 0 {
        bail!("the last moment of the long-lived process was not answered");
    }
    let limit = patient(&["status"])?["memory"]["limit_bytes"]
        .as_u64()
        .context("status says no limit of memory")?;
    patient(&["detach", "--all"])?;
    leftovers::traces_nothing(&daemon)?;
    let after = Held::again(daemon.pid(), &pins, &before)?;
    let bytes = leftovers::code_is_the_files(trainer.pid(), &probed)?;
    let (level, is_level) = memory.level();
    println!(
        "{ready}; {} stacks, {seconds:.0} s, journal {journal} MiB, {segments} segments begun (one in {:.1} s); {made} records, {:.0} a second\n",
        options.stacks,
        seconds / (segments.max(1) as f64),
        made as f64 / seconds,
    );
    print!("{}{}{}", memory.table(), moments.table(), guests.table());
    println!(
        "\n{level}. The daemon's own: before {}; after {}. \
         {bytes} bytes of code in the long-lived process equal the files.",
        before.words(),
        after.words(),
    );
    drop(guests);
    drop(daemon);
    if !pins.names().is_empty() {
        bail!("left in the BPF file system: {}", pins.names().join(", "));
    }
    if moments.wrong() > 0 {
        bail!("the last moment of the long-lived process is wrong");
    }
    if memory.most_bytes() > limit {
        bail!(
            "the daemon took {} MiB of anonymous memory, more than its budget of {} MiB",
            memory.most_bytes() >> 20,
            limit >> 20
        );
    }
    if options.minutes >= JUDGED_FROM && options.most.is_none() && !is_level {
        bail!("the daemon's memory grows");
    }
    Ok(())
}

/// The number of the journal's newest segment.
fn newest_segment(daemon: &Daemon) -> Result<u64> {
    let path = daemon.json(&["--timeout", "600", "status"])?["journal"]["path"]
        .as_str()
        .context("status says no journal")?
        .to_owned();
    let entries = std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
    let number = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits = name.split(|c: char| !c.is_ascii_digit());
        digits.filter_map(|digits| digits.parse::<u64>().ok()).max()
    };
    Ok(entries.flatten().filter_map(number).max().unwrap_or(0))
}

fn records(daemon: &Daemon) -> Result<u64> {
    let status = daemon.json(&["--timeout", "600", "status"])?;
    status["records"]
        .as_u64()
        .context("status says no number of records")
}
