//! Readings of the allocator's own structures. They show what a process held before the attach and after a loss of
//! records; at level `read` they are all that is ever known of it. Each reading runs in a thread of its own, since it
//! has to be tried again while the process is busy.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use memscope_ledger::PoolChange;
use memscope_ledger::event::{Backend, HeldPart, Level, ProcessHandle, TraceAction};
use memscope_log::records::DaemonRecord;
use memscope_memory::ProcessMemory;
use memscope_proto::v1::BaselineRead;
use memscope_site::process;
use memscope_structure::{Change, ChangeKind};

use super::outcome::ReadingOutcome;
use super::traced::Traced;
use super::{Order, Tracer};
use crate::clock;
use crate::keeper::{Command, KeeperHandle};
use crate::structures::{Outcome, Outside, Wanted};
use crate::works;

/// Number of parts of a reading that may wait for the keeper at a time.
const PARTS: usize = 128;
/// Codes of the coverage notes that say that the ledger did not accept a reading.
const NOT_TAKEN: [&str; 3] = [
    "reading_too_old",
    "reading_contradicted",
    "reading_incomplete",
];
/// Pauses after a failed reading: the first, the longest, and the longest after a loss of records. Each pause is
/// twice the one before, since readings fail when the process or the machine has much to do.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);
const RETRY_AFTER_LOSS: Duration = Duration::from_millis(400);

impl Tracer {
    /// Begins a reading, unless the process has no pool to read. If a reading is under way, another one follows it,
    /// since the structures may have been read already. Returns whether a reading is under way now.
    pub(super) fn start_reading(&mut self, pid: u32) -> bool {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let started = self.traced.get(&pid).map(|one| one.facts.start_ticks);
        let started_ns = started.map_or(u64::MAX, |ticks| (ticks + 1).saturating_mul(tick_ns));
        // What came after the last reading is not seen at level `read`, and this process may have been forked then.
        let is_stale = |one: &&Traced| {
            one.level == Level::Read && one.read_ns.is_none_or(|began_ns| began_ns <= started_ns)
        };
        let empty = self.traced.values().filter(|one| match one.level {
            // Nothing is read at this level, so that what was there before the attach is not known.
            Level::Segments => one.facts.from_start,
            Level::Read => one.found_nothing && !is_stale(one),
            Level::Blocks | Level::Trace => one.found_nothing,
        });
        let empty: HashSet<u32> = empty.map(|one| one.pid).collect();
        let stale = self.traced.values().filter(is_stale);
        let stale: HashSet<u32> = stale.map(|one| one.pid).collect();
        let Some(traced) = self.traced.get_mut(&pid) else {
            return false;
        };
        if traced.reading {
            traced.read_again = true;
            return true;
        }
        let (Some(pointer), Backend::Native, true) = (
            traced.allocator_address,
            &traced.backend,
            traced.level == Level::Read || traced.sees_pool(),
        ) else {
            return false;
        };
        traced.reading = true;
        traced.reading_began_ns = clock::boot_ns();
        let file = traced.allocator_file.as_ref();
        let wanted = Wanted {
            pointer,
            told: traced.level != Level::Read,
            layout: file.and_then(|file| self.structures.get(file)).cloned(),
        };
        let job = Job {
            pid,
            process: traced.handle,
            keeper: self.keeper.clone(),
            empty,
            stale,
            was_copy: traced.is_copy,
            is_own: traced.is_own,
            parts: 0,
        };
        let orders: Sender<Order> = self.orders.clone();
        let spawned = std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || {
                let process = job.process;
                let outcome = job.run(wanted);
                // If the tracer has ended, it needs no answer.
                let _ = orders.send(Order::Read {
                    pid,
                    process,
                    outcome,
                });
            });
        if let Err(error) = spawned {
            traced.reading = false;
            tracing::warn!(pid, %error, "no thread for a reading");
            return false;
        }
        true
    }

    pub(super) fn reading_ended(
        &mut self,
        pid: u32,
        process: ProcessHandle,
        outcome: ReadingOutcome,
    ) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        if traced.handle != process {
            return;
        }
        traced.reading = false;
        let again = std::mem::take(&mut traced.read_again);
        let (found_nothing, is_own) = match &outcome {
            ReadingOutcome::NothingYet { is_own } => (Some(true), *is_own),
            ReadingOutcome::Taken { found, is_own, .. } => (Some(found.devices == 0), *is_own),
            ReadingOutcome::Copied { .. }
            | ReadingOutcome::StillCopied
            | ReadingOutcome::Failed { .. } => (None, false),
        };
        traced.found_nothing = found_nothing == Some(true);
        if found_nothing.is_some() {
            traced.read_ns = Some(traced.reading_began_ns);
        }
        traced.is_own |= is_own;
        match outcome {
            ReadingOutcome::Taken { layout, found, .. } => {
                let raced = found.cost.map_or(0, |cost| cost.raced);
                if traced.level == Level::Read {
                    tracing::debug!(pid, raced, "the allocator's structures were read");
                } else {
                    tracing::info!(pid, raced, "the allocator's structures were read");
                }
                if let Some(file) = &traced.allocator_file {
                    self.structures.insert(file.clone(), layout);
                }
                traced.baseline.get_or_insert(found);
                traced.retry = None;
                self.end_notes(pid);
            }
            ReadingOutcome::NothingYet { .. } => {
                traced.retry = None;
                self.end_notes(pid);
            }
            ReadingOutcome::StillCopied => traced.retry = None,
            ReadingOutcome::Copied { parent } => {
                traced.is_copy = true;
                traced.retry = None;
                let code = if traced.level == Level::Read {
                    "pool_not_readable"
                } else {
                    "baseline_not_read"
                };
                let text = format!(
                    "it was forked by process {parent}, which holds memory of a device, and was not seen to use a device itself: so PyTorch's \
                     structures in its memory count as a copy, and the memory that they name is shown as {parent}'s"
                );
                self.note(pid, "reading_failed", "");
                self.note(pid, code, &text);
            }
            ReadingOutcome::Failed { why, layout } => {
                if let (Some(file), Some(layout)) = (&traced.allocator_file, layout) {
                    self.structures.insert(file.clone(), layout);
                }
                tracing::info!(pid, why, "the allocator's structures were not read");
                let (code, text) = if traced.level == Level::Read {
                    let text = match traced.baseline {
                        Some(_) => format!(
                            "the last reading failed, so that an earlier one is shown: {why}"
                        ),
                        None => {
                            format!("no reading has succeeded yet, so that nothing is shown: {why}")
                        }
                    };
                    ("reading_failed", text)
                } else {
                    let longest = if again { RETRY_AFTER_LOSS } else { LAST_RETRY };
                    let pause = traced.retry.map_or(FIRST_RETRY, |last| last * 2);
                    let pause = pause.min(longest);
                    traced.retry = Some(pause);
                    traced.next_read = Instant::now() + pause;
                    if traced.baseline.is_some() {
                        let text = format!(
                            "the state could not be read again after a loss of records, and this is \
                             tried again: {why}"
                        );
                        ("reading_failed", text)
                    } else {
                        let text = format!(
                            "what was there before is known as a sum only; the allocator's \
                             structures could not be read, and this is tried again: {why}"
                        );
                        ("baseline_not_read", text)
                    }
                };
                self.note(pid, code, &text);
                // The reading is tried again in any case.
                self.answer_waiting();
                return;
            }
        }
        if again {
            self.start_reading(pid);
        }
        self.answer_waiting();
    }

    /// Takes back what was said of readings that failed, and of structures that seemed to be a copy.
    fn end_notes(&mut self, pid: u32) {
        self.note(pid, "baseline_not_read", "");
        self.note(pid, "reading_failed", "");
        let traced = self.traced.get_mut(&pid);
        if traced.is_some_and(|traced| std::mem::take(&mut traced.is_copy)) {
            self.note(pid, "pool_not_readable", "");
        }
    }

    /// Asks for a reading after records of the process were lost. A process that loses records all the time is not
    /// read all the time.
    pub(super) fn read_after_loss(&mut self, pid: u32) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        match traced.retry {
            Some(pause) if !traced.reading => {
                traced.retry = Some(pause.min(RETRY_AFTER_LOSS));
                let due = Instant::now() + RETRY_AFTER_LOSS;
                traced.next_read = traced.next_read.min(due);
            }
            _ => {
                self.start_reading(pid);
            }
        }
    }

    /// At level `read`: records why there is nothing to read, if that is so.
    pub(super) fn say_unreadable(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let text = match &traced.backend {
            Backend::Native => String::new(),
            Backend::Unknown => {
                "nothing has been read yet: PyTorch has not chosen its allocator".to_owned()
            }
            Backend::Uncached => {
                "PyTorch's caching is switched off in this process, so that there is no pool to \
                 read; level segments sees its calls of the runtime"
                    .to_owned()
            }
            Backend::MallocAsync => {
                "the process uses cudaMallocAsync, whose pool lies in the driver and cannot be \
                 read; level segments sees its calls"
                    .to_owned()
            }
            Backend::Other(name) => format!(
                "the process uses the allocator {name}, whose structures are not known; level \
                 segments sees its calls of the runtime"
            ),
        };
        self.note(pid, "pool_not_readable", &text);
    }

    /// Begins the readings that are due: those at level `read`, and those after a failed reading.
    pub(super) fn read_what_is_due(&mut self) {
        let now = Instant::now();
        let due: Vec<u32> = self
            .traced
            .values_mut()
            .filter(|traced| !traced.reading)
            .filter_map(|traced| {
                let every = traced.reads_every()?;
                if now < traced.next_read {
                    return None;
                }
                // Counted from now, so that readings that come late are not made up for one right after the other.
                traced.next_read = now + every;
                Some(traced.pid)
            })
            .collect();
        for pid in due {
            self.read_backend(pid);
            self.start_reading(pid);
        }
    }
}

/// Whose memory the structures of a forked process name.
enum Inherited {
    /// The process's own, as far as that is known.
    Nothing,
    /// The process's own: when it was forked, its parent held nothing.
    Never,
    /// That of its parent, with this process id.
    From(u32),
    /// Its own, or that of its parent.
    Unknown(u32),
}

struct Job {
    pid: u32,
    process: ProcessHandle,
    keeper: KeeperHandle,
    /// Processes that hold nothing if the ledger knows no device of theirs.
    empty: HashSet<u32>,
    /// Processes that are only read, and were read last before this one was forked, if ever: what they held then is not known.
    stale: HashSet<u32>,
    /// Its structures were a copy when they were looked at last.
    was_copy: bool,
    /// Its structures are known to be no copy.
    is_own: bool,
    /// Number of parts that were handed over.
    parts: usize,
}

impl Job {
    fn run(mut self, wanted: Wanted) -> ReadingOutcome {
        let failed = |why: String| ReadingOutcome::Failed { why, layout: None };
        let memory = match ProcessMemory::open(self.pid) {
            Ok(memory) => memory,
            Err(source) => return failed(format!("its memory cannot be opened: {source}")),
        };
        if self.was_copy && !self.uses_devices_itself() {
            return ReadingOutcome::StillCopied;
        }
        match self.inherited() {
            Inherited::Nothing => {}
            Inherited::Never => self.is_own = true,
            Inherited::From(parent) => return ReadingOutcome::Copied { parent },
            Inherited::Unknown(parent) => {
                return failed(format!(
                    "it was forked by process {parent}, of which is not known yet what it holds"
                ));
            }
        }
        match works::structures(&memory, wanted, &mut self) {
            Ok(Outcome::Taken {
                layout,
                found,
                cost,
            }) => {
                self.append(DaemonRecord::ReadingCost(cost));
                let found = BaselineRead {
                    devices: found.devices,
                    segments: found.segments,
                    blocks: found.blocks,
                    allocated_bytes: found.allocated_bytes,
                    reserved_bytes: found.reserved_bytes,
                    cost: Some(cost.into()),
                };
                ReadingOutcome::Taken {
                    layout,
                    found,
                    is_own: self.is_own,
                }
            }
            Ok(Outcome::NothingYet) => ReadingOutcome::NothingYet {
                is_own: self.is_own,
            },
            Ok(Outcome::Failed { why, layout }) => ReadingOutcome::Failed { why, layout },
            Err(error) => failed(format!("its structures cannot be read: {error}")),
        }
    }

    fn uses_devices_itself(&self) -> bool {
        let process = self.process;
        let uses = self
            .keeper
            .ask_blocking(move |ledger, _| ledger.uses_devices_itself(process));
        uses.unwrap_or_default()
    }

    /// Whether what the structures say is the parent's: a process that is forked after its parent has begun to use the device cannot use
    /// it, but has a copy of all structures. If the parent is not traced that is not known, and the structures are believed.
    fn inherited(&self) -> Inherited {
        if self.is_own {
            return Inherited::Never;
        }
        let Some(parent) = process::copied_from(self.pid) else {
            return Inherited::Nothing;
        };
        let (child, is_empty) = (self.process, self.empty.contains(&parent));
        let is_stale = self.stale.contains(&parent);
        let inherited = self.keeper.ask_blocking(move |ledger, _| {
            if ledger.uses_devices_itself(child) {
                return None;
            }
            let handle = ledger.find(parent)?;
            let summary = ledger.summary(handle)?;
            if summary.ended_ns.is_some() {
                return None;
            }
            if is_empty && !ledger.has_devices(handle) {
                return Some(Inherited::Never);
            }
            match summary.reserved_bytes {
                Some(0) if !is_stale => None,
                Some(1..) => Some(Inherited::From(parent)),
                Some(0) | None => Some(Inherited::Unknown(parent)),
            }
        });
        inherited.flatten().unwrap_or(Inherited::Nothing)
    }

    fn append(&self, record: DaemonRecord) {
        // The keeper ends last: if it is gone, nobody needs the record.
        let _ = self.keeper.send(Command::Append {
            process: self.process,
            record,
        });
    }
}

impl Outside for Job {
    fn changes(
        &mut self,
        device: i32,
        object: u64,
        since_ns: u64,
    ) -> io::Result<Option<Vec<Change>>> {
        let process = self.process;
        let asked = self
            .keeper
            .ask_blocking(move |ledger, _| ledger.pool_changes(process, device, object, since_ns));
        Ok(asked
            .flatten()
            .map(|changes| changes.into_iter().filter_map(change).collect()))
    }

    fn hold(&mut self, part: HeldPart) -> io::Result<()> {
        self.parts += 1;
        // Millions of blocks make thousands of parts, and the keeper must be able to answer others in between.
        if self.parts.is_multiple_of(PARTS) {
            let _ = self.keeper.ask_blocking(|_, _| ());
        }
        self.append(DaemonRecord::Held(part));
        Ok(())
    }

    fn is_taken(&mut self) -> io::Result<bool> {
        let process = self.process;
        let asked = self.keeper.ask_blocking(move |ledger, _| {
            let notes = ledger.coverage(process).unwrap_or_default();
            !notes
                .iter()
                .any(|note| NOT_TAKEN.contains(&note.code.as_str()))
        });
        Ok(asked.unwrap_or(true))
    }
}

fn change(change: PoolChange) -> Option<Change> {
    let kind = match change.action {
        TraceAction::Alloc => ChangeKind::Alloc,
        TraceAction::FreeRequested => ChangeKind::FreeRequested,
        TraceAction::FreeCompleted => ChangeKind::FreeCompleted,
        TraceAction::SegmentAlloc => ChangeKind::SegmentAlloc,
        TraceAction::SegmentFree => ChangeKind::SegmentFree,
        TraceAction::SegmentMap | TraceAction::SegmentUnmap => ChangeKind::SegmentMapped,
        TraceAction::Snapshot | TraceAction::Oom => return None,
    };
    Some(Change {
        at_ns: change.time_ns,
        kind,
        addr: change.addr,
        bytes: change.bytes,
        rounded: change.rounded,
        stream: change.stream,
        pool: change.pool,
    })
}
