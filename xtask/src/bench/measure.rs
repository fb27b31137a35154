//! What all parts share: the environment that they run in, the programs that they measure, and the values that they read.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use super::options::Options;
use super::programs::{self, Programs};
use crate::live::{Daemon, Python};
use crate::setup::{self, torch};
use crate::{process, sim};

/// Where everything is measured.
pub struct Ground<'a> {
    /// The command line.
    pub options: &'a Options,
    /// The environment with PyTorch.
    pub environment: PathBuf,
    /// Variables that set up its device.
    pub variables: Vec<(String, String)>,
    /// This tree's programs first.
    pub programs: Vec<Programs>,
}

impl Ground<'_> {
    /// Builds the programs and finds PyTorch.
    pub fn new(options: &Options) -> Result<Ground<'_>> {
        let variables = match options.real_device {
            true => Vec::new(),
            false => {
                setup::run(&setup::Options {
                    torch: Some(Vec::new()),
                    ..setup::Options::default()
                })?;
                sim::environment(&sim::Options::default())?
            }
        };
        let mut all = vec![programs::own()?];
        if let Some(commit) = &options.against {
            all.push(programs::of(commit)?);
        }
        Ok(Ground {
            options,
            environment: torch::locate(None)?,
            variables,
            programs: all,
        })
    }

    /// Starts a script of `xtask/bench`, whose first line says that it is ready.
    pub fn python(&self, script: &str) -> Result<Python> {
        let mut python = Python::start(
            &self.environment.join("bin/python"),
            &process::root().join("xtask/bench").join(script),
            &self.variables,
            Stdio::piped(),
        )?;
        python.line()?;
        Ok(python)
    }
}

/// Runs the client, and fails if it fails.
pub fn tell(daemon: &Daemon, words: &[&str]) -> Result<()> {
    let output = daemon.ask(words)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("memscope-ctl {}: {said}", words.join(" "));
    }
    Ok(())
}

/// Microseconds for an allocation and its free, as the median of several runs. `words` are the number of pairs and,
/// optionally, the depth of the Python frames.
pub fn pairs(python: &mut Python, words: &str) -> Result<f64> {
    median_of(python, &format!("pairs {words}"))
}

/// The median that a script of `xtask/bench` answers with.
pub fn median_of(python: &mut Python, words: &str) -> Result<f64> {
    python.ask_json(words)?["median"]
        .as_f64()
        .context("no median in the answer")
}

/// The median, of an even number of values the mean of the two in the middle; NaN if there is no value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (last, count) = (sorted.len().saturating_sub(1), sorted.len());
    match (sorted.get(last / 2), sorted.get(count / 2)) {
        (Some(one), Some(other)) => (one + other) / 2.0,
        _ => f64::NAN,
    }
}

/// What a line of `/proc/PID/status` says, in MiB.
pub fn memory_mib(pid: u32, line: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|one| one.strip_prefix(line));
    let kib = found.and_then(|rest| rest.trim().strip_suffix(" kB"));
    Ok(kib.context("no such line in /proc")?.parse::<f64>()? / 1024.0)
}

/// Processor time that a process has used so far, in seconds, to the nanosecond: what rests uses less than a tick of `/proc`.
pub fn processor_s(pid: u32) -> Result<f64> {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the first writes the number of a clock, the second a time.
    let read = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    if !read {
        bail!("process {pid} has no clock of its processor time");
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// The folder of a library that a process has loaded.
pub fn folder_of(pid: u32, library: &str) -> Result<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    maps.lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .map(Path::new)
        .find(|path| path.ends_with(library))
        .and_then(Path::parent)
        .map(Path::to_owned)
        .with_context(|| format!("the process has no {library}"))
}
