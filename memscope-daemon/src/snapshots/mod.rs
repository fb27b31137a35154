//! Snapshots that triggers take. A thread of its own writes them, and what is kept is bounded.
//!
//! The keeper makes the picture, during which no record may change the ledger, and hands it over. Only a limited
//! number and size of snapshots may wait to be written. If there is no room, the snapshot is not taken, and this is
//! counted and reported. A full disk or a directory that cannot be written is reported and affects nothing else.

mod choose;
mod shelf;
mod store;
mod waiting;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memscope_ledger::event::ProcessFacts;
use memscope_ledger::report::{AsOf, Baseline, BlockState, SnapshotBlock, SnapshotReport};
use memscope_proto::formats::Format;
use memscope_rpc::{Condition, Metric};
use shelf::KILLED;
pub use shelf::{Counts, Shelf, Tallies, Tally};
pub use store::{About, Limits, Store};
pub use waiting::Waiting;

use crate::messages::{Messages, Severity};
use crate::triggers::Firing;

/// Most snapshots that may wait to be written: enough for every process of a machine to run out of memory at once.
const WAITING: usize = 16;
/// Most memory in bytes, approximately, of the snapshots that wait. One snapshot may always wait.
const WAITING_BYTES: usize = 512 << 20;
/// How long the end of the daemon waits for the snapshots that are not written yet. Meanwhile nobody reads the ring.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks whether they are written.
const LOOK: Duration = Duration::from_millis(5);

/// Writes a snapshot in a format.
fn write(format: &Format, report: &SnapshotReport, out: &mut dyn Write) -> io::Result<()> {
    match memscope_export::writer(format.wire) {
        Some(memscope_export::Writer::Snapshot(write)) => Ok(write(report, out, &|_, _| {})?),
        _ => Err(io::Error::other(format!(
            "{} is no format of snapshots",
            format.name
        ))),
    }
}

/// A snapshot to be written.
pub struct Job {
    /// The picture that is written.
    pub report: Arc<SnapshotReport>,
    /// The firing of the trigger that takes the snapshot.
    pub firing: Firing,
    /// Whether the process's baseline is known.
    pub baseline: Baseline,
}

/// How snapshots are taken and kept.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory in which they are kept.
    pub dir: PathBuf,
    /// Format of the files.
    pub format: &'static Format,
    /// How much is kept.
    pub limits: Limits,
}

/// Makes the picture of a snapshot again over which an earlier daemon was killed, or says why it cannot.
pub type Again = Box<dyn FnMut(&Waiting) -> Result<Job, String> + Send>;

/// Hands snapshots to the thread that writes them.
pub struct Writer {
    /// `None` once nothing more is taken.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    waiting_bytes: Arc<AtomicUsize>,
    shelf: Shelf,
    messages: Messages,
    /// Whether it was said that there is no room, since the last snapshot that had some.
    is_busy: AtomicBool,
}

impl Writer {
    /// Starts the thread. `left` is what an earlier daemon has left: the counts, and the snapshots that it was killed over, which are
    /// made `again` first. A directory that cannot be used is no error, but a message in `messages`.
    pub fn start(
        config: Config,
        left: Counts,
        mut again: Again,
        messages: Messages,
    ) -> io::Result<Writer> {
        let (store, opened) = Store::open(config.dir.clone(), config.limits);
        if let Err(error) = opened {
            let text = format!(
                "snapshots cannot be kept in {}: {error}",
                config.dir.display()
            );
            tracing::warn!("{text}");
            messages.say(Severity::Warning, text);
        }
        let (shelf, given_up) = Shelf::new(store, left);
        for one in given_up {
            messages.log(
                Severity::Warning,
                one.lost("memscoped was killed again while it took it from the journal"),
            );
        }
        let killed_over = shelf.waiting();
        let (jobs, queue) = channel::<Job>();
        let mut writer = Writer {
            jobs: Some(jobs),
            thread: None,
            waiting_bytes: Arc::default(),
            shelf: shelf.clone(),
            messages: messages.clone(),
            is_busy: AtomicBool::new(false),
        };
        let waiting_bytes = Arc::clone(&writer.waiting_bytes);
        let thread = std::thread::Builder::new()
            .name("snapshots".to_owned())
            .spawn(move || {
                let mut work = Work {
                    config,
                    shelf,
                    messages,
                    fails: false,
                };
                for one in killed_over {
                    match again(&one) {
                        Ok(job) => work.on(job, true),
                        Err(why) => work.lost(&one, &why),
                    }
                }
                for job in queue {
                    let bytes = weight(&job.report);
                    work.on(job, false);
                    waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
                }
            })?;
        writer.thread = Some(thread);
        Ok(writer)
    }

    /// The kept snapshots and the counts.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Whether one more snapshot may wait. Ask this before making a picture for it.
    pub fn has_room(&self) -> bool {
        let waiting = self.shelf.waits();
        let bytes = self.waiting_bytes.load(Ordering::Relaxed);
        waiting == 0 || waiting < WAITING && bytes < WAITING_BYTES
    }

    /// Notes that the snapshot of a firing waits, until it is queued and written. They are queued in the same order. What is noted can be
    /// written down before the picture is made, which takes long: whoever kills the daemon meanwhile loses none without a word.
    pub fn hold(&self, firing: &Firing, as_of: AsOf, facts: &ProcessFacts) {
        self.is_busy.store(false, Ordering::Relaxed);
        self.shelf.waits_for(Waiting::of(firing, as_of, facts));
    }

    /// Holds room for so many snapshots of this picture.
    pub fn weigh(&self, report: &SnapshotReport, snapshots: usize) {
        let bytes = weight(report).saturating_mul(snapshots);
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Queues a snapshot to be written, for which room is held.
    pub fn take(&self, job: Job) {
        let jobs = self.jobs.as_ref();
        if jobs.is_none_or(|jobs| jobs.send(job).is_err()) {
            tracing::error!("the thread that writes snapshots has ended");
            self.shelf.give_up();
        }
    }

    /// Takes nothing more, and waits until what was taken is written, at most so long. What is not written then is counted as failed,
    /// and a message says how much it is.
    pub fn finish(&mut self, patience: Duration) {
        // The thread ends when it has written what waits.
        self.jobs = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        let until = Instant::now() + patience;
        while !thread.is_finished() {
            if Instant::now() >= until {
                let text = format!(
                    "{} that triggers took could not be written within {} s and may be missing",
                    match self.shelf.give_up() {
                        1 => "a snapshot".to_owned(),
                        count => format!("{count} snapshots"),
                    },
                    patience.as_secs()
                );
                self.messages.log(Severity::Warning, text);
                return;
            }
            std::thread::sleep(LOOK);
        }
        // If it has panicked, the daemon has ended with it.
        let _ = thread.join();
    }

    /// Counts a firing for which no snapshot was taken, because there is no room in the queue. The first one is reported: a program that
    /// asks for memory again and again would fill the log.
    pub fn busy(&self, firing: &Firing, process: &str) {
        self.shelf.skip(firing.trigger, "busy");
        if self.is_busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = format!(
            "{process}: {}; no snapshot was taken, because others are still being written",
            firing.reason
        );
        tracing::warn!("{text}");
        self.messages.say(Severity::Warning, text);
    }

    /// Reports a firing that came too soon after the last snapshot. It is reported once for each pause.
    pub fn paused(&self, firing: &Firing, process: &str, pause_ns: u64) {
        if firing.paused == Some(1) {
            let text = format!(
                "{process}: {}; no snapshot was taken, nor will be of that within {} s of the last one",
                firing.reason,
                pause_ns / 1_000_000_000
            );
            tracing::info!("{text}");
            self.messages.say(Severity::Info, text);
        }
    }
}

/// Approximate size of a picture in memory, in bytes.
fn weight(report: &SnapshotReport) -> usize {
    let blocks: usize = report.segments.iter().map(|s| s.blocks.len()).sum();
    size_of_val(report.trace.as_slice())
        + size_of_val(report.segments.as_slice())
        + blocks * size_of::<SnapshotBlock>()
}

/// What the writing thread owns.
struct Work {
    config: Config,
    shelf: Shelf,
    messages: Messages,
    /// Whether the last snapshot could not be written. Further failures then make no message; they are logged and
    /// counted.
    fails: bool,
}

impl Work {
    /// Says that a snapshot could not be taken again, and counts it.
    fn lost(&mut self, one: &Waiting, why: &str) {
        self.shelf.skipped(KILLED);
        self.messages.log(Severity::Warning, one.lost(why));
    }

    /// `again`: an earlier daemon was killed over it. What becomes of it is said before it is counted, so that whoever sees that nothing
    /// waits any more can read why.
    fn on(&mut self, job: Job, again: bool) {
        let facts = &job.report.process.facts;
        let process = format!("process {} ({})", facts.pid, facts.comm);
        let reason = &job.firing.reason;
        match self.write(&job) {
            Ok((path, about)) => {
                self.fails = false;
                let mut text = format!(
                    "{process}: {reason}; snapshot {}: {}",
                    about.snapshot,
                    path.display()
                );
                if about.without_baseline {
                    text.push_str(", without what was there before the attach");
                }
                if about.paused_before > 0 {
                    text.push_str(&format!(
                        " (it fired {} times since the last one)",
                        about.paused_before
                    ));
                }
                if again {
                    text.push_str(
                        ", taken from the journal, because memscoped was killed before it was written",
                    );
                }
                tracing::info!("{text}");
                let severity = match job.firing.condition.metric {
                    Metric::Oom => Severity::Warning,
                    _ => Severity::Info,
                };
                self.messages.say(severity, text);
                self.shelf.wrote(about.time_unix_ns);
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let limit = self.config.limits.bytes >> 20;
                self.messages.say(
                    Severity::Warning,
                    format!(
                        "{process}: {reason}; its snapshot alone would be more than the {limit} MiB \
                         that --snapshots-mib allows, and was not kept"
                    ),
                );
                self.shelf.skipped("too_large");
            }
            Err(error) => {
                let text = format!(
                    "{process}: {reason}; its snapshot could not be written to {}: {error}",
                    self.config.dir.display()
                );
                tracing::error!("{text}");
                if !self.fails {
                    self.messages.say(
                        Severity::Error,
                        format!("{text}; until one can be, `trigger list` only counts them"),
                    );
                }
                self.fails = true;
                self.shelf.skipped("failed");
            }
        }
    }

    fn write(&self, job: &Job) -> io::Result<(PathBuf, About)> {
        let mut about = about(job, self.config.format);
        let part = {
            let mut store = self.shelf.store();
            about.snapshot = store.next_number();
            about.file = file_name(&about, &job.firing.condition, self.config.format);
            store.begin(&about.file)
        };
        let (path, file) = part?;
        let kept = self.fill(file, &job.report).and_then(|bytes| {
            about.bytes = bytes;
            self.shelf.store().keep(&path, about.clone())
        });
        if kept.is_err() {
            // The unfinished file may fill what is left of the disk. If it cannot be removed either, the first error
            // is the one to report.
            let _ = fs::remove_file(&path);
        }
        Ok((kept?, about))
    }

    /// Writes the file and returns its size in bytes.
    fn fill(&self, file: File, report: &SnapshotReport) -> io::Result<u64> {
        let mut out = BufWriter::new(Bounded {
            file,
            written: 0,
            most: self.config.limits.bytes,
        });
        write(self.config.format, report, &mut out)?;
        let bounded = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        bounded.file.sync_all()?;
        Ok(bounded.written)
    }
}

/// A file that may not become larger than the limit for all kept snapshots together.
struct Bounded {
    file: File,
    written: u64,
    most: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written.saturating_add(bytes.len() as u64) > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Name of a snapshot's file, for example `000012-20261120T083000Z-pid-4242-oom.pickle`.
fn file_name(about: &About, condition: &Condition, format: &Format) -> String {
    let time = memscope_units::in_utc(about.time_unix_ns, "%Y%m%dT%H%M%SZ");
    let baseline = if about.without_baseline {
        "-without-baseline"
    } else {
        ""
    };
    format!(
        "{:06}-{time}-pid-{}-{}{baseline}{}",
        about.snapshot,
        about.pid,
        condition.metric.word(),
        format.endings.first().unwrap_or(&"")
    )
}

fn about(job: &Job, format: &Format) -> About {
    let report = &job.report;
    let facts = &report.process.facts;
    let device = job.firing.device;
    let here = || {
        report
            .segments
            .iter()
            .filter(move |segment| device.is_none_or(|device| segment.device == device))
            .flat_map(|segment| &segment.blocks)
    };
    let sum = |state: BlockState| here().filter(|b| b.state == state).map(|b| b.size).sum();
    let free = |block: &&SnapshotBlock| block.state == BlockState::Inactive;
    About {
        time_unix_ns: report.as_of.unix_ns,
        pid: facts.pid,
        start_ticks: facts.start_ticks,
        comm: facts.comm.clone(),
        cmdline: facts.cmdline.clone(),
        uids: user_ids(facts.pid, facts.start_ticks, facts.uids),
        trigger: job.firing.trigger,
        when: job.firing.condition.to_string(),
        reason: job.firing.reason.clone(),
        device,
        allocated_bytes: Some(sum(BlockState::Active)),
        reserved_bytes: Some(here().map(|block| block.size).sum()),
        free_bytes: Some(sum(BlockState::Inactive)),
        largest_free_bytes: Some(here().filter(free).map(|b| b.size).max().unwrap_or(0)),
        paused_before: job.firing.paused_before,
        without_baseline: job.baseline != Baseline::Known,
        coverage: report
            .coverage
            .iter()
            .map(|note| (note.code.clone(), note.text.clone()))
            .collect(),
        format: format.name.to_owned(),
        ..About::default()
    }
}

/// The user ids that a process had when it was attached, and those that it has now, since it may have changed them.
fn user_ids(pid: u32, start_ticks: u64, attached: [u32; 3]) -> Vec<u32> {
    let mut all = attached.to_vec();
    let lives = || {
        let now = memscope_site::process::alive(pid);
        now.is_ok_and(|now| now.start_ticks == start_ticks)
    };
    let path = Path::new("/proc").join(pid.to_string()).join("status");
    let status = lives().then(|| fs::read_to_string(path));
    // A process that has ended has no others. The pid may be another one's by now, also since the first look.
    if let Some(line) = status
        .iter()
        .flatten()
        .filter(|_| lives())
        .flat_map(|text| text.lines())
        .find_map(|line| line.strip_prefix("Uid:"))
    {
        all.extend(
            line.split_ascii_whitespace()
                .filter_map(|uid| uid.parse::<u32>().ok()),
        );
    }
    // The fourth id of that line is the one for file access, which follows the effective id.
    let mut seen = Vec::new();
    for uid in all {
        if !seen.contains(&uid) {
            seen.push(uid);
        }
    }
    seen
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
