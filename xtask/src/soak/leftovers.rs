//! What a daemon may not leave behind: in itself, in the BPF file system, in tracefs, and in the code of the processes
//! that it has traced.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::live::Daemon;
use crate::process;

/// How long threads and descriptors of the daemon may take to go when their work is done.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(200);
/// The kernel's list of uprobes that were made by name.
const EVENTS: &str = "/sys/kernel/tracing/uprobe_events";

/// A BPF file system of the run's own. What is pinned in it goes with it.
pub struct Pins {
    folder: TempDir,
}

impl Pins {
    /// Mounts one.
    pub fn mount() -> Result<Pins> {
        let folder = tempfile::Builder::new()
            .prefix("memscope-soak-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        // So that nothing stays mounted when the run is given up.
        process::own_mounts()?;
        let mounted = Command::new("mount")
            .args(["-t", "bpf", "bpf"])
            .arg(folder.path())
            .status()
            .context("mount could not be started")?;
        if !mounted.success() {
            bail!("a BPF file system cannot be mounted");
        }
        Ok(Pins { folder })
    }

    /// The directory for the daemon's pins.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("pins")
    }

    /// Names of what is pinned.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten();
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

/// What the daemon holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    descriptors: usize,
    threads: usize,
    /// Numbers of BPF programs, maps and links among the descriptors.
    bpf: BTreeMap<&'static str, usize>,
    pinned: Vec<String>,
    /// Lines of the kernel's list of uprobes, which may be other programs' as well.
    events: usize,
}

impl Held {
    /// What a daemon holds now.
    pub fn now(pid: u32, pins: &Pins) -> Result<Held> {
        let entries = |what: &str| -> Result<usize> {
            let path = format!("/proc/{pid}/{what}");
            let entries =
                std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
            Ok(entries.count())
        };
        let mut bpf = BTreeMap::new();
        let path = format!("/proc/{pid}/fdinfo");
        let all = std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
        for entry in all.flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for key in ["prog_id:", "map_id:", "link_id:"] {
                if text.lines().any(|line| line.starts_with(key)) {
                    *bpf.entry(key.trim_end_matches("_id:")).or_default() += 1;
                }
            }
        }
        Ok(Held {
            descriptors: entries("fd")?,
            threads: entries("task")?,
            bpf,
            pinned: pins.names(),
            events: std::fs::read_to_string(EVENTS).map_or(0, |text| text.lines().count()),
        })
    }

    fn is_no_more_than(&self, before: &Held) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.events <= before.events
            && self.bpf == before.bpf
            && self.pinned == before.pinned
    }

    /// Waits until the daemon holds no more than it did before.
    pub fn again(pid: u32, pins: &Pins, before: &Held) -> Result<Held> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Held::now(pid, pins)?;
            if now.is_no_more_than(before) {
                return Ok(now);
            }
            if Instant::now() > deadline {
                bail!("left behind: {now:?}; before: {before:?}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// In words.
    pub fn words(&self) -> String {
        let bpf = self
            .bpf
            .iter()
            .map(|(kind, count)| format!("{count} {kind}s"));
        format!(
            "{} descriptors, among them {}; {} threads; {} pins; {} lines in uprobe_events",
            self.descriptors,
            bpf.collect::<Vec<_>>().join(" and "),
            self.threads,
            self.pinned.len(),
            self.events
        )
    }
}

/// The libraries in which the daemon has probes.
pub fn probed(daemon: &Daemon) -> Result<Vec<String>> {
    let status = daemon.json(&["--timeout", "600", "status"])?;
    let libraries = status["libraries"].as_array();
    let paths = libraries.into_iter().flatten();
    let paths = paths.filter_map(|library| library["path"].as_str().map(str::to_owned));
    Ok(paths.collect())
}

/// What the daemon says that it still traces, and where it still has probes: nothing, or an error.
pub fn traces_nothing(daemon: &Daemon) -> Result<()> {
    let status = daemon.json(&["--timeout", "600", "status"])?;
    let none = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    if status["traced_processes"] != 0 || status["sites"] != 0 || !none(&status["libraries"]) {
        bail!(
            "it still traces {} processes at {} sites of {}",
            status["traced_processes"],
            status["sites"],
            status["libraries"]
        );
    }
    Ok(())
}

/// Compares the code of these libraries in a process with the files, byte by byte. Gives the number of equal bytes;
/// a byte that differs is an error: a breakpoint that was left behind would be one.
pub fn code_is_the_files(pid: u32, libraries: &[String]) -> Result<u64> {
    let memory = File::open(format!("/proc/{pid}/mem")).context("its memory cannot be opened")?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .context("its mappings cannot be read")?;
    let mut equal = 0;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, flags, offset, _, _, path] = words[..] else {
            continue;
        };
        if !flags.contains('x') || !libraries.iter().any(|library| library == path) {
            continue;
        }
        let number =
            |text: &str| u64::from_str_radix(text, 16).context("a mapping is not understood");
        let (from, to) = range.split_once('-').context("a mapping without a range")?;
        let (from, to, offset) = (number(from)?, number(to)?, number(offset)?);
        equal += same_bytes(&memory, from, to, Path::new(path), offset)?;
    }
    if equal == 0 {
        bail!("process {pid} has none of {libraries:?} mapped");
    }
    Ok(equal)
}

fn same_bytes(memory: &File, from: u64, to: u64, path: &Path, offset: u64) -> Result<u64> {
    const PIECE: u64 = 1 << 20;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut at = from;
    while at < to {
        let length = usize::try_from(PIECE.min(to - at)).unwrap_or(usize::MAX);
        let (mut mapped, mut stored) = (vec![0; length], vec![0; length]);
        memory
            .read_exact_at(&mut mapped, at)
            .context("its memory cannot be read")?;
        // The last page of a mapping may reach beyond the file's end; it is filled with zeros.
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut stored[filled..], offset + (at - from) + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        if mapped != stored {
            let mut places = 0..length;
            let place = places.find(|place| mapped[*place] != stored[*place]);
            let place = place.unwrap_or_default();
            bail!(
                "{} at {:#x}: {:#x} in memory, {:#x} in the file",
                path.display(),
                offset + (at - from) + place as u64,
                mapped[place],
                stored[place]
            );
        }
        at += length as u64;
    }
    Ok(to - from)
}
