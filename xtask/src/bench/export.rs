//! `cargo xtask bench --export`: time and memory for writing a long trace to a file, compared with PyTorch's own
//! `torch.cuda.memory._snapshot()` and `pickle.dump` of the same history, in the same run.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::{ground, median};
use super::options::Options;
use crate::live::{Daemon, Python, build};
use crate::process;

/// Formats of `memscope-ctl snapshot`.
const FORMATS: [&str; 4] = ["memory-viz", "json", "perfetto", "html"];
/// Size of the ring between kernel and daemon, in MiB: nothing may be lost while the process fills the trace.
const RING_MIB: &str = "256";

/// Time and memory for writing one file.
struct Taken {
    seconds: f64,
    /// Size of the file.
    bytes: f64,
    /// Largest amount of memory that the process with the history needed beyond that history, in bytes.
    growth: f64,
    /// Largest amount of memory that the client had, in bytes; 0 where there is no client.
    client: f64,
}

/// Runs the task; the table goes to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    let (environment, variables) = ground(options)?;
    let kept = (options.events + options.events / 5).to_string();
    let arguments = ["--trace-entries", &kept, "--ring-mib", RING_MIB];
    let daemon = Daemon::launch(&build(true)?, &arguments)?;
    let folder = std::env::temp_dir().join(format!("memscope-export-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = measure(options, &environment, &variables, &daemon, &folder);
    fs::remove_dir_all(&folder)?;
    measured
}

fn measure(
    options: &Options,
    environment: &Path,
    variables: &[(String, String)],
    daemon: &Daemon,
    folder: &Path,
) -> Result<()> {
    let mut python = Python::start(
        &environment.join("bin/python"),
        &process::root().join("xtask/bench/pairs.py"),
        variables,
        Stdio::piped(),
    )?;
    let ready = python.line()?;
    let pid = python.pid().to_string();
    let attached = daemon.ask(&["attach", "--pid", &pid, "--level", "trace"])?;
    if !attached.status.success() {
        bail!("attach: {}", String::from_utf8_lossy(&attached.stderr));
    }
    let filled = python.ask_json(&format!("fill {}", options.events))?;
    let entries = filled["fill"].as_u64().unwrap_or(0);
    let mut rows: Vec<(String, Vec<Taken>)> = vec![("PyTorch".into(), Vec::new())];
    rows.extend(FORMATS.map(|format| (format!("memscope, {format}"), Vec::new())));
    for _ in 0..options.rounds {
        let file = folder.join("own.pickle");
        let own = python.ask_json(&format!("dump {}", file.display()))?;
        rows[0].1.push(Taken {
            seconds: own["seconds"].as_f64().unwrap_or(f64::NAN),
            bytes: fs::metadata(&file)?.len() as f64,
            growth: own["growth_bytes"].as_f64().unwrap_or(f64::NAN),
            client: 0.0,
        });
        for (row, format) in FORMATS.iter().enumerate() {
            let file = folder.join(format);
            rows[row + 1].1.push(export(daemon, &pid, format, &file)?);
        }
    }
    let seen = check(&folder.join("json"), entries)?;
    python.tell("end")?;
    println!(
        "{ready}; {entries} entries in PyTorch's trace, {seen} in memscope's, none lost; {} rounds, medians of \
         seconds, most of memory",
        options.rounds
    );
    println!(
        "\n| file | seconds | ratio | MiB written | memory of its own: the process that has the history | the client |"
    );
    println!("|---|---|---|---|---|---|");
    let seconds = |taken: &[Taken]| median(&taken.iter().map(|t| t.seconds).collect::<Vec<_>>());
    let base = seconds(&rows[0].1);
    for (name, taken) in &rows {
        let most =
            |of: fn(&Taken) -> f64| taken.iter().map(of).fold(0.0, f64::max) / f64::from(1 << 20);
        let client = match most(|t| t.client) {
            0.0 => "–".to_owned(),
            mib => format!("{mib:.0} MiB"),
        };
        println!(
            "| {name} | {:.2} | {:.2} | {:.0} | +{:.0} MiB | {client} |",
            seconds(taken),
            seconds(taken) / base,
            most(|t| t.bytes),
            most(|t| t.growth),
        );
    }
    Ok(())
}

/// Lets memscope write a file, and measures that.
fn export(daemon: &Daemon, pid: &str, format: &str, file: &Path) -> Result<Taken> {
    let path = file.to_str().context("a path that is not UTF-8")?;
    let words = ["snapshot", "--pid", pid, "--format", format, "-o", path];
    let before = forget_peak(daemon.pid())?;
    let started = Instant::now();
    let (status, client) = to_its_end(daemon, &words)?;
    let seconds = started.elapsed().as_secs_f64();
    if !status.success() {
        bail!("snapshot --format {format}: {status}");
    }
    let peak = memory(daemon.pid(), "VmHWM:")?;
    Ok(Taken {
        seconds,
        bytes: fs::metadata(file)?.len() as f64,
        growth: peak - before,
        client,
    })
}

/// Runs the client to its end; returns its status and the largest amount of memory that it had, in bytes.
fn to_its_end(daemon: &Daemon, words: &[&str]) -> Result<(ExitStatus, f64)> {
    let child = daemon.ctl(words).stdout(Stdio::null()).spawn()?;
    let mut status = 0;
    // SAFETY: all zeros is a valid value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it waits for a child that nobody else waits for, and both pointers are to live values.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    if waited < 0 {
        return Err(std::io::Error::last_os_error()).context("the client cannot be waited for");
    }
    Ok((
        ExitStatus::from_raw(status),
        usage.ru_maxrss as f64 * 1024.0,
    ))
}

/// Resets the peak of a process's memory; returns the memory in use, in bytes.
fn forget_peak(pid: u32) -> Result<f64> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, what: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("no such line in /proc")?.parse::<f64>()? * 1024.0)
}

/// Fails unless the file has the whole trace, because the comparison would mean nothing. Returns the number of entries.
fn check(file: &Path, entries: u64) -> Result<u64> {
    let text = fs::read_to_string(file)?;
    let header = text.strip_prefix("{\"header\": ").context("no header")?;
    let header = header.lines().next().unwrap_or("").trim_end_matches(',');
    let header: Value = serde_json::from_str(header).context("the header is no JSON")?;
    let number = |key: &str| header[key].as_u64().unwrap_or(u64::MAX);
    let seen = number("trace_entries");
    if number("lost_records") != 0 || number("trace_dropped") != 0 || seen < entries {
        bail!("memscope has {seen} of {entries} entries: {header}");
    }
    Ok(seen)
}
