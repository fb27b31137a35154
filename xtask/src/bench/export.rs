//! Time and memory for writing a long trace to a file, beside PyTorch's own `torch.cuda.memory._snapshot()` and `pickle.dump` of
//! the same history, in the same run.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::{Ground, memory_mib, tell};
use super::page::{Row, Section};
use crate::live::Daemon;

/// Formats of `memscope-ctl snapshot`.
const FORMATS: [&str; 4] = ["memory-viz", "json", "perfetto", "html"];
/// Size of the ring between kernel and daemon, in MiB: nothing may be lost while the process fills the trace.
const RING_MIB: &str = "256";

/// Measures all formats.
pub fn measure(ground: &Ground<'_>) -> Result<Section> {
    let folder = std::env::temp_dir().join(format!("memscope-export-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = in_folder(ground, &folder);
    fs::remove_dir_all(&folder)?;
    measured
}

fn in_folder(ground: &Ground<'_>, folder: &Path) -> Result<Section> {
    let events = ground.options.events;
    let kept = (events + events / 5).to_string();
    let arguments = ["--trace-entries", &kept, "--ring-mib", RING_MIB];
    let mut rows = vec![Row::new("PyTorch", COLUMNS.len())];
    let mut python = ground.python("pairs.py")?;
    let pid = python.pid().to_string();
    let mut daemons = Vec::new();
    for programs in &ground.programs {
        let daemon = Daemon::launch(&programs.folder, &arguments)?;
        tell(&daemon, &["attach", "--pid", &pid, "--level", "trace"])?;
        rows.extend(FORMATS.map(|format| {
            let name = programs.row(&format!("memscope, {format}"));
            Row::new(name, COLUMNS.len())
        }));
        daemons.push(daemon);
    }
    let filled = python.ask_json(&format!("fill {events}"))?;
    let entries = filled["fill"].as_u64().unwrap_or(0);
    let mut seen = u64::MAX;
    for _ in 0..ground.options.rounds {
        let file = folder.join("own.pickle");
        let own = python.ask_json(&format!("dump {}", file.display()))?;
        let growth = own["growth_bytes"].as_f64().unwrap_or(f64::NAN);
        let seconds = own["seconds"].as_f64().unwrap_or(f64::NAN);
        let taken = [seconds, size_mib(&file)?, growth / f64::from(1 << 20)];
        let mut all = vec![taken.map(Some).to_vec()];
        let (taken, fewest) = export_all(&daemons, folder, entries, |daemon, format, file| {
            export(daemon, &pid, format, file)
        })?;
        all.extend(taken);
        seen = seen.min(fewest);
        for (row, taken) in rows.iter_mut().zip(all) {
            for (column, value) in row.columns.iter_mut().zip(taken) {
                column.extend(value);
            }
        }
    }
    python.tell("end")?;
    Ok(Section {
        name: "export".to_owned(),
        title: "A long trace, written to a file".to_owned(),
        run: None,
        about: format!(
            "{entries} entries in PyTorch's trace, {seen} in memscope's, none lost. PyTorch's own is `_snapshot()` and `pickle.dump` in the process itself; what the\n\
             process that has the history needs beyond it is PyTorch's process there, and the daemon here."
        ),
        columns: COLUMNS.map(str::to_owned).into(),
        has_reference: false,
        rows,
    })
}

fn size_mib(file: &Path) -> Result<f64> {
    Ok(fs::metadata(file)?.len() as f64 / f64::from(1 << 20))
}

/// The columns; the last one only where there is a client.
const COLUMNS: [&str; 4] = [
    "seconds",
    "MiB written",
    "MiB beyond the history",
    "MiB of the client",
];

/// Lets each daemon write the file of each format, and fails unless each of them has the whole trace. Returns what is measured, and the
/// smallest number of entries.
fn export_all<D>(
    daemons: &[D],
    folder: &Path,
    entries: u64,
    export: impl Fn(&D, &str, &Path) -> Result<Vec<Option<f64>>>,
) -> Result<(Vec<Vec<Option<f64>>>, u64)> {
    let mut all = Vec::new();
    let mut seen = u64::MAX;
    for daemon in daemons {
        for format in FORMATS {
            all.push(export(daemon, format, &folder.join(format))?);
        }
        // The next one writes over it.
        seen = seen.min(check(&folder.join("json"), entries)?);
    }
    Ok((all, seen))
}

/// Lets memscope write a file, and measures that.
fn export(daemon: &Daemon, pid: &str, format: &str, file: &Path) -> Result<Vec<Option<f64>>> {
    let path = file.to_str().context("a path that is not UTF-8")?;
    let words = ["snapshot", "--pid", pid, "--format", format, "-o", path];
    // From here on the peak is counted anew.
    fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5")?;
    let before = memory_mib(daemon.pid(), "VmRSS:")?;
    let started = Instant::now();
    let (status, client_mib) = to_its_end(daemon, &words)?;
    let seconds = started.elapsed().as_secs_f64();
    if !status.success() {
        bail!("snapshot --format {format}: {status}");
    }
    let growth = memory_mib(daemon.pid(), "VmHWM:")? - before;
    Ok([seconds, size_mib(file)?, growth, client_mib]
        .map(Some)
        .into())
}

/// Runs the client to its end; returns its status and the largest amount of memory that it had, in MiB.
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
        usage.ru_maxrss as f64 / 1024.0,
    ))
}

/// Fails unless the file has the whole trace, because the comparison would mean nothing. Returns the number of entries.
fn check(file: &Path, entries: u64) -> Result<u64> {
    let mut line = String::new();
    BufReader::new(File::open(file)?).read_line(&mut line)?;
    let header = line.strip_prefix("{\"header\": ").context("no header")?;
    let header = header.trim_end().trim_end_matches(',');
    let header: Value = serde_json::from_str(header).context("the header is no JSON")?;
    let number = |key: &str| header[key].as_u64().unwrap_or(u64::MAX);
    let seen = number("trace_entries");
    if number("lost_records") != 0 || number("trace_dropped") != 0 || seen < entries {
        bail!("memscope has {seen} of {entries} entries: {header}");
    }
    Ok(seen)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_must_have_the_whole_trace() {
        let folder = tempfile::tempdir().unwrap();
        // Entries and lost records of each daemon's file.
        let of = |daemons: &[(u64, u64)]| {
            export_all(daemons, folder.path(), 100, |(entries, lost), _, file| {
                let header = serde_json::json!({
                    "trace_entries": entries,
                    "lost_records": lost,
                    "trace_dropped": 0,
                });
                fs::write(
                    file,
                    format!("{{\"header\": {header},\n\"segments\": []}}\n"),
                )?;
                Ok(vec![Some(1.0)])
            })
        };
        let (all, seen) = of(&[(101, 0), (100, 0)]).unwrap();
        assert_eq!((all.len(), seen), (2 * FORMATS.len(), 100));
        for daemons in [
            [(99, 0), (100, 0)],
            [(100, 1), (100, 0)],
            [(100, 0), (99, 0)],
        ] {
            let error = of(&daemons).unwrap_err();
            assert!(error.to_string().contains("of 100 entries"), "{error}");
        }
    }
}
