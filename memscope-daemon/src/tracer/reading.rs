//! Readings of the allocator's own structures. They show what a process held before the attach and after a loss of
//! records; at level `read` they are all that is ever known of it. Each reading runs in a thread of its own, since it
//! has to be tried again while the process is busy.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use memscope_ledger::PoolChange;
use memscope_ledger::event::{
    Backend, HeldPart, HeldSegment, Level, ProcessHandle, ReadingCost, TraceAction,
};
use memscope_log::records::{DaemonRecord, held_parts};
use memscope_memory::ProcessMemory;
use memscope_proto::v1::BaselineRead;
use memscope_structure::{
    BlockState, Change, ChangeKind, DeviceReading, Layout, Reader, SegmentReading, StructureError,
};

use super::outcome::ReadingOutcome;
use super::{Order, Tracer};
use crate::clock;
use crate::keeper::{Command, KeeperHandle};

/// Number of attempts that may fail, and the time for them, before the failure is reported. Another reading follows
/// in any case.
const ATTEMPTS: u32 = 400;
const TIME: Duration = Duration::from_secs(20);
/// A reading that takes longer than this is unlikely to find a busy process at rest.
const SLOW: Duration = Duration::from_millis(20);
/// With more blocks than `LARGE`, a reading certainly takes longer than `SLOW`. With no more blocks than `SMALL`, a
/// look is not continued: the process comes to rest before a continued look would end, and continuing takes time from
/// the process and from the daemon.
const LARGE: u64 = 50_000;
const SMALL: u64 = 2_000;
/// Most passes of one look, and the longest time for which it is continued. A pass needs the ledger's events only
/// since the pass before it ended.
const PASSES: u32 = 100;
const LOOK: Duration = Duration::from_secs(30);
/// Number of parts of a reading that may wait for the keeper at a time.
const PARTS: usize = 128;
/// Pause between attempts, so that the process can get on.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of times that a reading is made again because the ledger did not accept it.
const AGAIN: u32 = 5;
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
        let job = Job {
            pid,
            process: traced.handle,
            pointer,
            told: traced.level != Level::Read,
            keeper: self.keeper.clone(),
            began: Instant::now(),
        };
        let file = traced.allocator_file.as_ref();
        let known = match traced.reader.take() {
            Some(reader) => Earlier::Reader(reader),
            None => file
                .and_then(|file| self.structures.get(file))
                .cloned()
                .map_or(Earlier::Nothing, Earlier::Layout),
        };
        let orders: Sender<Order> = self.orders.clone();
        let spawned = std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || {
                let process = job.process;
                let outcome = job.run(known);
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
        match outcome {
            ReadingOutcome::Taken { reader, found } => {
                let raced = found.cost.map_or(0, |cost| cost.raced);
                if traced.level == Level::Read {
                    tracing::debug!(pid, raced, "the allocator's structures were read");
                } else {
                    tracing::info!(pid, raced, "the allocator's structures were read");
                }
                if let Some(file) = &traced.allocator_file {
                    self.structures
                        .insert(file.clone(), reader.layout().clone());
                }
                traced.reader = Some(reader);
                traced.baseline.get_or_insert(found);
                traced.retry = None;
                self.note(pid, "baseline_not_read", "");
                self.note(pid, "reading_failed", "");
            }
            ReadingOutcome::NothingYet => {}
            ReadingOutcome::Failed { why, layout } => {
                if let (Some(file), Some(layout)) = (&traced.allocator_file, layout) {
                    self.structures.insert(file.clone(), layout);
                }
                tracing::info!(pid, why, "the allocator's structures were not read");
                let (code, text) = if traced.level == Level::Read {
                    let text =
                        format!("the last reading failed, so that an earlier one is shown: {why}");
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
                let every = traced.options.read_every.or(traced.retry)?;
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

/// What earlier readings have left for the next one.
enum Earlier {
    /// The reader of an earlier reading of this process.
    Reader(Box<Reader>),
    /// The layout that an earlier reading found for the same library.
    Layout(Layout),
    Nothing,
}

/// Progress of the attempts of one job.
struct Pace {
    /// Number of attempts that failed.
    raced: u32,
    /// When the attempts began.
    since: Instant,
    /// Whether the last attempt to read the process at rest took longer than `SLOW`.
    slow: bool,
}

impl Pace {
    fn is_patient(&self) -> bool {
        self.raced < ATTEMPTS && self.since.elapsed() < TIME
    }
}

struct Job {
    pid: u32,
    process: ProcessHandle,
    pointer: u64,
    /// Whether probes report what happens to blocks during the reading, which they do not at level `read`.
    told: bool,
    keeper: KeeperHandle,
    began: Instant,
}

impl Job {
    fn run(&self, mut known: Earlier) -> ReadingOutcome {
        let failed = |why: String, layout| ReadingOutcome::Failed { why, layout };
        let memory = match ProcessMemory::open_directly(self.pid) {
            Ok(memory) => memory,
            Err(source) => return failed(format!("its memory cannot be opened: {source}"), None),
        };
        let mut pace = Pace {
            raced: 0,
            since: self.began,
            slow: false,
        };
        let mut refused = 0;
        let mut read_before = 0;
        loop {
            let remembered = !matches!(known, Earlier::Nothing);
            let reader = match known {
                Earlier::Reader(reader) => {
                    read_before = reader.bytes_read();
                    Ok(reader)
                }
                Earlier::Layout(layout) => Reader::new(layout).map(Box::new),
                Earlier::Nothing => memscope_structure::find_layout(&memory, self.pointer)
                    .and_then(Reader::new)
                    .map(Box::new),
            };
            known = Earlier::Nothing;
            if !remembered && pace.raced == 0 {
                // The search for the layout takes long in a large process and does not count as an attempt.
                pace.since = Instant::now();
                let took = self.began.elapsed().as_secs_f64();
                tracing::debug!(
                    pid = self.pid,
                    took,
                    "where the allocator keeps things was looked for"
                );
            }
            let outcome = reader.and_then(|mut reader| {
                let read = self.read_devices(&memory, &mut reader, &mut pace);
                read.map_err(|error| {
                    // The attempt may only have come at a bad moment, so the layout is kept.
                    if !matches!(error, StructureError::Contradicted { .. }) {
                        known = Earlier::Layout(reader.layout().clone());
                    }
                    error
                })
                .map(|found| (reader, found))
            });
            match outcome {
                Ok((reader, mut found)) if self.taken() => {
                    let cost = ReadingCost {
                        at_ns: found.cost.map_or(0, |cost| cost.at_boot_ns),
                        duration_ns: self.began.elapsed().as_nanos() as u64,
                        bytes_read: reader.bytes_read() - read_before,
                        raced: pace.raced,
                    };
                    found.cost = Some(cost.into());
                    self.append(DaemonRecord::ReadingCost(cost));
                    return ReadingOutcome::Taken { reader, found };
                }
                Ok((reader, _)) if refused < AGAIN => {
                    refused += 1;
                    known = Earlier::Reader(reader);
                }
                Ok((reader, _)) => {
                    let why = "the readings did not fit to the events around them";
                    return failed(why.to_owned(), Some(reader.layout().clone()));
                }
                Err(StructureError::NothingYet { .. }) => return ReadingOutcome::NothingYet,
                // The remembered layout is not that of this process after all.
                Err(StructureError::Contradicted { .. }) if remembered => {}
                // A layout cannot be found while the process changes the structures in which it is searched.
                Err(
                    StructureError::LayoutNotFound { .. } | StructureError::Contradicted { .. },
                ) if pace.is_patient() => {
                    pace.raced += 1;
                }
                Err(error) => {
                    let layout = match known {
                        Earlier::Layout(layout) => Some(layout),
                        _ => None,
                    };
                    return failed(crate::error_chain(&error), layout);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Reads every device, and hands each accepted reading to the keeper.
    fn read_devices(
        &self,
        memory: &ProcessMemory,
        reader: &mut Reader,
        pace: &mut Pace,
    ) -> Result<BaselineRead, StructureError> {
        let mut found = BaselineRead::default();
        let objects = reader.devices(memory, self.pointer)?;
        for (device, object) in (0i32..).zip(objects) {
            loop {
                match self.read_device(memory, reader, object, device, &mut pace.slow) {
                    Ok((at_ns, reading)) => {
                        found.cost.get_or_insert_default().at_boot_ns = at_ns;
                        add(&mut found, &reading);
                        self.hold(at_ns, reading);
                        break;
                    }
                    Err(StructureError::Raced { last, .. }) if pace.is_patient() => {
                        tracing::debug!(pid = self.pid, last, "a reading came to nothing");
                        pace.raced += 1;
                    }
                    Err(error) => return Err(error),
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(found)
    }

    /// One attempt at a device's allocator. A small allocator is read at a moment at which nothing changes. A large
    /// one in use has no such moment: it is looked at while it changes, and its state is computed with what happened
    /// since the look began.
    fn read_device(
        &self,
        memory: &ProcessMemory,
        reader: &mut Reader,
        object: u64,
        device: i32,
        slow: &mut bool,
    ) -> Result<(u64, DeviceReading), StructureError> {
        let blocks = reader.active_blocks(memory, object)?;
        if !(self.told && (blocks > LARGE || *slow)) {
            let began = Instant::now();
            // Events from here on may or may not be in the reading. The ledger applies them to it, and recognises
            // those that are in it already.
            let at_ns = clock::boot_ns();
            let read = reader.read_device(memory, object, device, 1);
            *slow = began.elapsed() > SLOW;
            return Ok((at_ns, read?));
        }
        // The next attempt is made at rest again: the last one may have been slow because the machine was.
        *slow = false;
        let clock = &mut clock::boot_ns;
        let mut look = reader.look(memory, object, clock)?;
        let began = Instant::now();
        let mut passes = 1;
        loop {
            let changes = if look.is_still() {
                Vec::new()
            } else {
                self.changes(device, object, look.began_ns())?
            };
            match reader.settle(&look, device, &changes) {
                Err(StructureError::Raced { last, .. })
                    if blocks > SMALL && passes < PASSES && began.elapsed() < LOOK =>
                {
                    tracing::debug!(pid = self.pid, passes, last, "a look is gone on with");
                }
                settled => return Ok((look.ended_ns(), settled?)),
            }
            passes += 1;
            reader.go_on(memory, &mut look, &changes, clock)?;
        }
    }

    fn changes(
        &self,
        device: i32,
        object: u64,
        since_ns: u64,
    ) -> Result<Vec<Change>, StructureError> {
        let not = |why: &str| StructureError::Raced {
            attempts: 1,
            last: why.to_owned(),
        };
        let process = self.process;
        let asked = self
            .keeper
            .ask_blocking(move |ledger, _| ledger.pool_changes(process, device, object, since_ns));
        let changes = asked
            .flatten()
            .ok_or_else(|| not("records were lost meanwhile"))?;
        Ok(changes.into_iter().filter_map(change).collect())
    }

    fn hold(&self, at_ns: u64, device: DeviceReading) {
        let segments = device.segments.into_iter().map(held).collect();
        let parts = held_parts(HeldPart {
            at_ns,
            device: device.device,
            allocator: device.allocator,
            total_allocated: device.allocated_bytes,
            total_reserved: device.reserved_bytes,
            segments,
            ..HeldPart::default()
        });
        for (count, part) in parts.into_iter().enumerate() {
            // Millions of blocks make thousands of parts, and the keeper must be able to answer others in between.
            if count % PARTS == PARTS - 1 {
                let _ = self.keeper.ask_blocking(|_, _| ());
            }
            self.append(DaemonRecord::Held(part));
        }
    }

    fn append(&self, record: DaemonRecord) {
        // The keeper ends last: if it is gone, nobody needs the record.
        let _ = self.keeper.send(Command::Append {
            process: self.process,
            record,
        });
    }

    /// Whether the ledger has accepted the reading.
    fn taken(&self) -> bool {
        let process = self.process;
        self.keeper
            .ask_blocking(move |ledger, _| {
                let notes = ledger.coverage(process).unwrap_or_default();
                !notes
                    .iter()
                    .any(|note| NOT_TAKEN.contains(&note.code.as_str()))
            })
            .unwrap_or(true)
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

fn add(found: &mut BaselineRead, reading: &DeviceReading) {
    found.devices += u32::from(reading.reserved_bytes > 0);
    found.segments += reading.segments.len() as u64;
    found.allocated_bytes += reading.allocated_bytes;
    found.reserved_bytes += reading.reserved_bytes;
    found.blocks += reading
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(|block| block.state == BlockState::Allocated)
        .count() as u64;
}

fn held(segment: SegmentReading) -> HeldSegment {
    let rooms = segment
        .blocks
        .iter()
        .filter(|block| block.state == BlockState::Inactive && block.requested != 0)
        .map(|block| (block.addr, block.requested))
        .collect();
    HeldSegment {
        addr: segment.addr,
        size: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: segment.pool,
        expandable: segment.expandable,
        space: segment.space,
        rooms,
        holes: segment.holes,
        blocks: segment
            .blocks
            .into_iter()
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| {
                let pending = block.state == BlockState::PendingFree;
                (block.addr, block.size, block.requested, pending)
            })
            .collect(),
    }
}
