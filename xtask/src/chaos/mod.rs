//! `cargo xtask chaos`: daemons that are killed, panic or hand over at random moments, while processes allocate and questions are under
//! way; some of them with a full, failing or slow disk, with readers that hang, after a reboot's worth of losses, or of another build. The
//! next daemon must know what PyTorch knows: each block, and how many there were.

mod disk;
mod node;
mod traced;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use fastrand::Rng;

use crate::setup::{self, torch};
use crate::{live, sim};
use disk::{Trouble, Troubled};
use node::{End, Node};
use traced::Traced;

/// How often, and with what.
#[derive(Args, Clone)]
pub struct Options {
    /// How often the daemon ends
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,

    /// Seed of all that happens by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Processes that allocate
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub processes: usize,

    /// Milliseconds of rest between two operations of a process
    #[arg(long, value_name = "MS", default_value_t = 0.3)]
    pub pace: f64,

    /// Size of the journal in MiB: small ones rotate often
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub journal_mib: u64,

    /// With programs as users get them, in which no thread can be made to panic
    #[arg(long)]
    pub release: bool,

    /// Folder with another build's memscoped: each daemon that starts is of one of the two builds, by chance, and none panics
    #[arg(long, value_name = "FOLDER")]
    pub other: Option<PathBuf>,
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

/// What happens in a round besides the daemon's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// The disk is in trouble while the daemon runs and ends.
    Runs(Trouble),
    /// The disk is in trouble while the next daemon starts.
    Starts(Trouble),
    /// What was pinned has vanished when the next daemon starts, as after a reboot.
    Vanish,
    /// The daemon's reader processes answer no more.
    Hang,
}

/// All events. They come in any order, and none comes again before all have come.
const EVENTS: [Event; 9] = [
    Event::Nothing,
    Event::Nothing,
    Event::Runs(Trouble::Full),
    Event::Runs(Trouble::Errors),
    Event::Runs(Trouble::Slow(50)),
    Event::Starts(Trouble::Full),
    Event::Starts(Trouble::Errors),
    Event::Vanish,
    Event::Hang,
];

/// What came of it.
#[derive(Default)]
struct Tally {
    ends: BTreeMap<String, u32>,
    interrupted: BTreeMap<&'static str, u32>,
    events: BTreeMap<&'static str, u32>,
    anew: u32,
    compared: u64,
    counted: u64,
    blocks: u64,
    allocations: u64,
    lost: u64,
    starts: Vec<Duration>,
}

impl Tally {
    fn event(&mut self, name: &'static str) {
        *self.events.entry(name).or_default() += 1;
    }

    /// Compares each process with what the daemon knows of it.
    fn compare(&mut self, node: &Node, traced: &mut [Traced]) -> Result<()> {
        for process in traced {
            let compared = process.compare(node)?;
            self.compared += 1;
            self.counted += u64::from(compared.counted);
            self.blocks += compared.blocks;
            self.allocations = self.allocations.max(compared.events);
            self.lost = self.lost.max(compared.lost);
        }
        Ok(())
    }
}

/// A run: the place, what is traced there, and what has come of it.
struct Chaos<'a> {
    options: &'a Options,
    rng: Rng,
    node: Node,
    traced: Vec<Traced>,
    tally: Tally,
    /// The layouts of maps that there were.
    maps: BTreeSet<String>,
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
    let mut rng = Rng::with_seed(options.seed);
    let journal = options.journal_mib.to_string();
    // A short trace: what is to be written at each rotation is small, so that rotations can be frequent.
    let arguments = ["--journal-mib", &journal, "--trace-entries", "5000"];
    let mut node = Node::new(&programs, &arguments, options.journal_mib * 2 + 64)?;
    node.start(None)?;
    node.wait()?;
    let mut traced = Vec::new();
    for number in 0..options.processes {
        let words = [
            (options.seed * 100 + number as u64).to_string(),
            (options.pace / 1000.0).to_string(),
        ];
        let mut process = Traced::start(&python, &words, &variables)?;
        // It has something when it is attached.
        std::thread::sleep(Duration::from_millis(rng.u64(50..500)));
        process.attach(&node, ATTACHED[number % ATTACHED.len()])?;
        traced.push(process);
    }
    let mut chaos = Chaos {
        options,
        rng,
        node,
        traced,
        tally: Tally::default(),
        maps: BTreeSet::new(),
    };
    let mut events = Vec::new();
    for round in 0..options.kills {
        if events.is_empty() {
            events = EVENTS.to_vec();
            chaos.rng.shuffle(&mut events);
        }
        let event = events.pop().unwrap_or(Event::Nothing);
        let end = chaos.choose();
        let ended = chaos.round(event, end);
        ended.with_context(|| {
            let log = chaos.node.log();
            format!("in round {} ({event:?}, {end:?}):\n{log}", round + 1)
        })?;
        if (round + 1).is_multiple_of(10) {
            let tally = &chaos.tally;
            eprintln!(
                "{} of {}: {} comparisons, {} allocations, {} lost",
                round + 1,
                options.kills,
                tally.compared,
                tally.allocations,
                tally.lost
            );
        }
    }
    chaos.node.stop()?;
    report(options, chaos.tally);
    Ok(())
}

impl Chaos<'_> {
    fn round(&mut self, event: Event, end: End) -> Result<()> {
        self.pause(RUNS);
        let mut trouble = None;
        if let Event::Runs(what) = event {
            trouble = self.trouble_while_it_runs(what)?;
        }
        let hung = if event == Event::Hang {
            self.tally.event("readers hung");
            let hung = self.node.hang_readers()?;
            self.pause(RUNS);
            self.tally.compare(&self.node, &mut self.traced)?;
            Some(hung)
        } else {
            None
        };
        let busy = if self.rng.bool() {
            let (name, child) = question(&self.node, &self.traced, &mut self.rng)?;
            *self.tally.interrupted.entry(name).or_default() += 1;
            self.pause(60);
            Some(child)
        } else {
            None
        };
        self.node.end(end)?;
        drop(hung);
        // There is room again before the next daemon starts.
        drop(trouble.take());
        *self.tally.ends.entry(format!("{end:?}")).or_default() += 1;
        if let Some(mut child) = busy {
            // It may have been answered, or not.
            child.wait()?;
        }
        self.maps.insert(self.node.maps()?);
        if event == Event::Vanish {
            self.tally.event("what was pinned has vanished");
            self.node.lose_pins()?;
        }
        self.pause(AWAY);
        if let Event::Starts(what) = event {
            self.tally.event(match what {
                Trouble::Full => "the disk was full at the start",
                _ => "the disk failed at the start",
            });
            trouble = Some(self.node.trouble(what)?);
        }
        self.start(trouble.is_none())?;
        if self.rng.u8(0..5) == 0 {
            // Killed while it takes over.
            self.pause(400);
            self.node.end(End::Kill)?;
            let ends = &mut self.tally.ends;
            *ends.entry("Kill at the start".to_owned()).or_default() += 1;
            self.start(trouble.is_none())?;
        }
        self.tally.starts.push(self.node.wait()?);
        let said = self.node.messages()?;
        self.maps.insert(self.node.maps()?);
        if !said.contains(&format!("{} traced on", self.traced.len())) {
            // Maps of another layout cannot be taken over.
            if event != Event::Vanish && self.maps.len() == 1 {
                bail!("not all was traced on: {said}");
            }
            self.tally.anew += 1;
            self.traced.iter_mut().for_each(Traced::begins_anew);
        }
        self.tally.compare(&self.node, &mut self.traced)?;
        if let Some(trouble) = trouble {
            drop(trouble);
            self.node.wait_for_journal("writing")?;
            self.tally.compare(&self.node, &mut self.traced)?;
        }
        Ok(())
    }

    /// Brings the disk into trouble. What the daemon says meanwhile is right all the same.
    /// By chance the disk is well again before the daemon ends.
    fn trouble_while_it_runs(&mut self, what: Trouble) -> Result<Option<Troubled>> {
        let (name, what) = match what {
            Trouble::Full => ("the disk was full", what),
            Trouble::Errors => ("the disk failed", what),
            Trouble::Slow(most) => ("the disk was slow", Trouble::Slow(self.rng.u64(1..most))),
        };
        self.tally.event(name);
        let trouble = self.node.trouble(what)?;
        self.pause(2 * RUNS);
        self.tally.compare(&self.node, &mut self.traced)?;
        if self.rng.bool() {
            return Ok(Some(trouble));
        }
        drop(trouble);
        self.tally
            .event("the disk was well again while the daemon ran");
        self.node.wait_for_journal("writing")?;
        self.pause(RUNS);
        self.tally.compare(&self.node, &mut self.traced)?;
        Ok(None)
    }

    /// Starts the next daemon: of the one build or of the other one.
    fn start(&mut self, is_well: bool) -> Result<()> {
        let other = self.options.other.as_deref();
        // Earlier versions do not start when the disk is in trouble.
        let other = other.filter(|_| is_well && self.rng.bool());
        if other.is_some() {
            self.tally.event("started from the other build");
        }
        self.node.start(other)
    }

    fn pause(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(self.rng.u64(0..most)));
    }

    fn choose(&mut self) -> End {
        // Without debug assertions no thread can be made to panic.
        let panics = !self.options.release && self.options.other.is_none();
        match self.rng.u8(0..10) {
            0..6 => End::Kill,
            6..8 => End::HandOver,
            _ if panics => End::Panic(THREADS[self.rng.usize(0..THREADS.len())]),
            _ => End::Kill,
        }
    }
}

/// Something that the daemon is busy with when it ends.
fn question(node: &Node, traced: &[Traced], rng: &mut Rng) -> Result<(&'static str, Child)> {
    let pid = traced[rng.usize(0..traced.len())].pid();
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
        _ => ("stacks", vec!["stacks", "--pid", pid, "--limit", "0"]),
    };
    let child = node
        .ctl(&words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("memscope-ctl could not be started")?;
    Ok((name, child))
}

fn report(options: &Options, mut tally: Tally) {
    println!(
        "{} ends, seed {}, {} processes, journal {} MiB, {} build\n",
        options.kills,
        options.seed,
        options.processes,
        options.journal_mib,
        live::Build::of(options.release).profile()
    );
    println!("| end | times |\n|---|---|");
    for (end, count) in &tally.ends {
        println!("| {end} | {count} |");
    }
    println!("\n| under way at the end | times |\n|---|---|");
    for (name, count) in &tally.interrupted {
        println!("| {name} | {count} |");
    }
    println!("\n| what else happened | times |\n|---|---|");
    for (name, count) in &tally.events {
        println!("| {name} | {count} |");
    }
    tally.starts.sort();
    let middle = tally.starts.get(tally.starts.len() / 2);
    println!(
        "\n{} comparisons with PyTorch ({} of them with counts), {} blocks: all equal. {} times all was attached anew. The busiest process allocated \
         {} times; at most {} records of a process were lost. Until the next daemon answered: median {} ms, longest {} ms.",
        tally.compared,
        tally.counted,
        tally.blocks,
        tally.anew,
        tally.allocations,
        tally.lost,
        middle.map_or(0, Duration::as_millis),
        tally.starts.last().map_or(0, Duration::as_millis),
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn who_tries_nothing_is_told() {
        for option in ["--kills", "--processes"] {
            assert!(Line::try_parse_from(["chaos", option, "0"]).is_err());
            let line = Line::try_parse_from(["chaos", option, "1"]).unwrap();
            assert!(line.options.kills == 1 || line.options.processes == 1);
        }
    }
}
