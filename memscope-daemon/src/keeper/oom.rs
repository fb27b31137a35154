//! A snapshot by itself when a process runs out of memory: the state before the call that failed, and
//! that call at the end of the trace.
//!
//! Files are kept in the state directory, as many as was asked for; the oldest go first.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use memscope_ledger::report::SnapshotReport;
use memscope_rpc::Severity;

use crate::messages::Messages;

/// Snapshots that wait to be written; more are not taken meanwhile.
const WAITING: usize = 2;
/// A process that runs out of memory again and again is snapshot this often, nanoseconds.
pub(super) const PAUSE_NS: u64 = 10_000_000_000;
/// Most bytes of all snapshots kept.
const MOST_BYTES: u64 = 1 << 30;

/// Where snapshots go.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory.
    pub dir: PathBuf,
    /// How many are kept; 0: none are taken.
    pub keep: usize,
}

/// Writes snapshots in a thread of its own.
pub(super) struct Writer {
    jobs: SyncSender<SnapshotReport>,
}

impl Writer {
    /// Starts the thread; `None` if no snapshots are wanted.
    pub(super) fn start(config: Config, messages: Messages) -> io::Result<Option<Writer>> {
        if config.keep == 0 {
            return Ok(None);
        }
        let (jobs, queue) = sync_channel::<SnapshotReport>(WAITING);
        std::thread::Builder::new()
            .name("oom-snapshots".to_owned())
            .spawn(move || {
                for report in queue {
                    let pid = report.process.facts.pid;
                    match write(&config, &report) {
                        Ok(path) => {
                            let text = format!(
                                "process {pid} ran out of memory; snapshot: {}",
                                path.display()
                            );
                            tracing::info!("{text}");
                            messages.say(Severity::Warning, text);
                        }
                        Err(error) => messages.say(
                            Severity::Error,
                            format!(
                                "process {pid} ran out of memory, and its snapshot could not be \
                                 written to {}: {error}",
                                config.dir.display()
                            ),
                        ),
                    }
                }
            })?;
        Ok(Some(Writer { jobs }))
    }

    /// Takes a snapshot if there is room for it.
    pub(super) fn take(&self, report: SnapshotReport) {
        match self.jobs.try_send(report) {
            Ok(()) => {}
            Err(TrySendError::Full(report) | TrySendError::Disconnected(report)) => {
                tracing::warn!(
                    pid = report.process.facts.pid,
                    "ran out of memory while other snapshots were being written; none was taken"
                );
            }
        }
    }
}

fn write(config: &Config, report: &SnapshotReport) -> io::Result<PathBuf> {
    fs::create_dir_all(&config.dir)?;
    // The newest one is made room for.
    prune(&config.dir, config.keep.saturating_sub(1), MOST_BYTES)?;
    let name = format!(
        "oom-{:020}-pid-{}.pickle",
        report.as_of.boot_ns, report.process.facts.pid
    );
    let path = config.dir.join(&name);
    let beside = config.dir.join(format!(".{name}.part"));
    let mut out = BufWriter::new(File::create(&beside)?);
    memscope_export::memory_viz(report, &mut out).map_err(io::Error::other)?;
    out.flush()?;
    fs::rename(&beside, &path)?;
    Ok(path)
}

/// Removes the oldest until so many, of so many bytes, are left.
fn prune(dir: &Path, keep: usize, most_bytes: u64) -> io::Result<()> {
    let mut files: Vec<(String, u64)> = fs::read_dir(dir)?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = entry.metadata().ok()?.len();
            (name.starts_with("oom-") || name.starts_with(".oom-")).then_some((name, size))
        })
        .collect();
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, size)| size).sum();
    let mut left = files.len();
    for (name, size) in files {
        if left <= keep && bytes <= most_bytes {
            break;
        }
        fs::remove_file(dir.join(name))?;
        left -= 1;
        bytes = bytes.saturating_sub(size);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_within_both_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let mut names: Vec<String> = fs::read_dir(dir.path())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        for n in 0..5 {
            fs::write(dir.path().join(format!("oom-{n}-pid-1.pickle")), [0; 10]).unwrap();
        }
        fs::write(dir.path().join("other"), [0; 1000]).unwrap();
        prune(dir.path(), 3, 1000).unwrap();
        assert_eq!(
            names(),
            [
                "oom-2-pid-1.pickle",
                "oom-3-pid-1.pickle",
                "oom-4-pid-1.pickle",
                "other"
            ]
        );
        prune(dir.path(), 3, 15).unwrap();
        assert_eq!(names(), ["oom-4-pid-1.pickle", "other"]);
        prune(dir.path(), 0, 1000).unwrap();
        assert_eq!(names(), ["other"]);
    }
}
