//! What a daemon costs beside the events: its start, attaching and detaching, rest, and growth.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::measure::{Ground, memory_mib, pairs, processor_s, tell};
use super::page::{Row, Section};
use super::programs::Programs;
use crate::live::{Daemon, Ended, Python, tied};
use crate::process;

/// Number of processes that are attached to at once, and that rest.
const MANY: usize = 64;
/// For how long nothing is asked before rest is looked at: what is left to do after the last answer is no rest, nor is memory that is given
/// back when nothing was to be done for ten seconds.
const SETTLING: Duration = Duration::from_secs(15);
/// For how long rest is looked at.
const REST: Duration = Duration::from_secs(20);
/// How often so many allocations are traced before the daemon's memory is looked at again.
const GROWTH: [u32; 3] = [1, 2, 4];
/// Allocations and frees between two looks at the daemon's memory.
const PAIRS: u32 = 20_000;

const ROWS: [&str; 8] = [
    "start, to the first answer, ms",
    "attach to a PyTorch process, level trace, Python stacks, ms",
    "detach, ms",
    "attach to 64 processes at once, ms",
    "memory at rest, MiB",
    "memory at rest, 64 idle processes attached, MiB",
    "processor at rest, % of a core",
    "processor at rest, 64 idle processes attached, % of a core",
];

/// Measures the programs of each commit.
pub fn measure(ground: &Ground<'_>) -> Result<Section> {
    let mut rows = Vec::new();
    for programs in &ground.programs {
        let mut of: Vec<Row> = ROWS.map(|name| Row::new(programs.row(name), 1)).into();
        of.extend(GROWTH.map(|times| {
            let traced = times * PAIRS * 7;
            Row::new(
                programs.row(&format!("memory after {traced} allocations and frees, MiB")),
                1,
            )
        }));
        for _ in 0..ground.options.rounds {
            let values = round(ground, programs)?;
            for (row, value) in of.iter_mut().zip(values) {
                row.columns[0].push(value);
            }
        }
        rows.extend(of);
    }
    Ok(Section {
        name: "life".to_owned(),
        title: "Start, attach, rest, growth".to_owned(),
        run: None,
        about: "A new daemon in each round; the client's own start is in each time. The 64 are attached to by a client each, at the same time. They are Pythons that have CUDA's runtime loaded and do nothing. Rest is 20 s, which begin 15 s after the last answer."
            .to_owned(),
        columns: vec!["value".to_owned()],
        has_reference: false,
        rows,
    })
}

fn round(ground: &Ground<'_>, programs: &Programs) -> Result<Vec<f64>> {
    let mut python = ground.python("pairs.py")?;
    let pid = python.pid().to_string();
    let started = Instant::now();
    let daemon = Daemon::launch(&programs.folder, &[])?;
    let mut values = vec![ms(started)];
    let (rest_mib, rest) = at_rest(&daemon)?;

    let words = [
        "attach", "--pid", &pid, "--level", "trace", "--stacks", "python",
    ];
    let started = Instant::now();
    tell(&daemon, &words)?;
    values.push(ms(started));
    let mut grown = Vec::new();
    let mut so_far = 0;
    for times in GROWTH {
        for _ in so_far..times {
            pairs(&mut python, &PAIRS.to_string())?;
        }
        so_far = times;
        grown.push(memory_mib(daemon.pid(), "VmRSS:")?);
    }
    let started = Instant::now();
    tell(&daemon, &["detach", "--pid", &pid])?;
    values.push(ms(started));
    python.tell("end")?;
    drop(daemon);

    // A daemon of its own: what was traced before would be in its memory.
    let daemon = Daemon::launch(&programs.folder, &[])?;
    let idle = (0..MANY)
        .map(|_| idle(ground))
        .collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    attach_all(&daemon, &idle)?;
    values.push(ms(started));
    let (many_mib, many) = at_rest(&daemon)?;
    values.extend([rest_mib, many_mib, rest, many]);
    values.extend(grown);
    Ok(values)
}

/// Attaches to all of them at the same time, with a client each.
fn attach_all(daemon: &Daemon, processes: &[Python]) -> Result<()> {
    let clients = processes.iter().map(|one| {
        let mut client = daemon.ctl(&["attach", "--pid", &one.pid().to_string()]);
        client.stdout(Stdio::null()).spawn()
    });
    let clients: Vec<_> = clients.collect::<std::io::Result<_>>()?;
    for mut client in clients {
        let status = client.wait()?;
        if !status.success() {
            bail!("memscope-ctl attach: {status}");
        }
    }
    Ok(())
}

fn ms(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

/// A daemon's memory in MiB, and what it uses of a core in per cent, while nothing happens.
fn at_rest(daemon: &Daemon) -> Result<(f64, f64)> {
    std::thread::sleep(SETTLING);
    let (before, started) = (processor_s(daemon.pid())?, Instant::now());
    std::thread::sleep(REST);
    let used = processor_s(daemon.pid())? - before;
    let share = used / started.elapsed().as_secs_f64() * 100.0;
    Ok((memory_mib(daemon.pid(), "VmRSS:")?, share))
}

/// A process that has CUDA's runtime loaded and does nothing.
fn idle(ground: &Ground<'_>) -> Result<Python> {
    let mut command = Command::new(ground.environment.join("bin/python"));
    command
        .arg(process::root().join("xtask/bench/idle.py"))
        .envs(ground.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let child = tied(&mut command)
        .spawn()
        .context("cannot start an idle process")?;
    let mut python = Python::of(Ended(child))?;
    python.line()?;
    Ok(python)
}
