//! Measures what one event costs from the ring's bytes to the ledger, and back from disk: `cargo run --release -p
//! memscope-log --example event_cost`, with the number of events in thousands and one of the stages as arguments, if
//! another number or only one stage is wanted (for a profiler).
//!
//! The records are those of four processes that train: two are watched at level `trace`, two at level `blocks`. They
//! take blocks from 300 lines of the program, give most of them back in the opposite order, and mark their steps. Times
//! are processor time of the thread, and of all threads where checkpoints are written; each is the least of several
//! rounds in turn, so that other work of the machine is not in it.
//!
//! People read what is written to standard error; standard output has the same times as lines of JSON, for `cargo xtask
//! bench`.

use memscope_ledger::event::*;
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome, RecordReader, encode};
use memscope_log::{ClockPair, Config, Folded, Journal, Piece, Recording};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

const ROUNDS: usize = 7;
const PROCESSES: u32 = 4;
/// Different stacks of each process.
const STACKS: u64 = 300;
/// Blocks that a process takes in one step.
const BLOCKS_OF_A_STEP: u64 = 600;
/// Bytes of the segments that the pools take.
const SEGMENT: u64 = 20 << 20;
/// Where the number of a record among those of its process is in the record's header.
const NUMBER_AT: usize = 24;
/// Numbers of records in a batch of the journal: at a rate of 6,000 and of 100,000 events a second.
const BATCHES: [usize; 2] = [250, 4_000];

type Failed = Box<dyn Error>;

/// A process that allocates as a training program does, and its pool.
struct Process {
    handle: u32,
    traced: bool,
    random: u64,
    /// Freed blocks by size.
    free: HashMap<u64, Vec<u64>>,
    /// The unused end of the last segment.
    rest: (u64, u64),
    /// Blocks until the backward pass.
    kept: Vec<(u64, u64)>,
    allocated: u64,
    reserved: u64,
    sent: u64,
    step_blocks: u64,
}

/// The records, one after the other, and where each ends.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    time_ns: u64,
}

impl Stream {
    fn push(&mut self, process: &mut Process, stack: StackRef, body: Body) -> Result<(), Failed> {
        self.time_ns += 900 + self.ends.len() as u64 % 7 * 100;
        process.sent += 1;
        let event = Event {
            id: EventId {
                epoch: 1,
                sequence: 0,
            },
            time_ns: self.time_ns,
            process: ProcessHandle(process.handle),
            tid: 1000 * process.handle + (process.step_blocks / 500) as u32,
            lost_before: 0,
            stack,
            sampling: 0,
            body,
        };
        let mut record = encode(&event, 0)?.ok_or("no record says this")?;
        if let Some(number) = record.get_mut(NUMBER_AT..NUMBER_AT + 8) {
            number.copy_from_slice(&process.sent.to_ne_bytes());
        }
        self.bytes.extend_from_slice(&record);
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// The records in batches of so many.
    fn batches(&self, size: usize) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.chunks(size).map(move |ends| {
            let to = ends.last().copied().unwrap_or(from);
            let batch = self.bytes.get(from..to).unwrap_or_default();
            from = to;
            batch
        })
    }
}

/// The identity of a stack, as a hash of its frames looks.
fn identity(process: u32, stack: u64) -> u64 {
    (stack + 1 + 1000 * u64::from(process)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 10 | 1 << 40
}

impl Process {
    fn new(handle: u32) -> Process {
        Process {
            handle,
            traced: handle % 2 == 1,
            random: u64::from(handle),
            free: HashMap::new(),
            rest: (0, 0),
            kept: Vec::new(),
            allocated: 0,
            reserved: 0,
            sent: 0,
            step_blocks: 0,
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.random >> 33
    }

    fn begin(&mut self, stream: &mut Stream) -> Result<(), Failed> {
        let level = if self.traced {
            Level::Trace
        } else {
            Level::Blocks
        };
        let facts = ProcessFacts {
            pid: self.handle,
            level: Some(level),
            from_start: true,
            ..ProcessFacts::default()
        };
        let nothing = StackRef::NotTaken;
        stream.push(self, nothing, Body::Attached(Box::new(facts)))?;
        let placement = Placement {
            pool_seen: true,
            ..Placement::default()
        };
        stream.push(self, nothing, Body::Placed(Box::new(placement)))?;
        for stack in 0..STACKS {
            let seen = StackSeen {
                id: identity(self.handle, stack),
                frames: (0..22)
                    .map(|n| (0x5000 + n * 64 + stack / 8, stack))
                    .collect(),
                ..StackSeen::default()
            };
            stream.push(self, nothing, Body::Stack(Box::new(seen)))?;
        }
        Ok(())
    }

    fn trace(&self, action: TraceAction, addr: u64, size: u64) -> Body {
        Body::Trace(PoolTrace {
            action,
            allocator: 0x5555_0000_0000 + u64::from(self.handle) * 4096,
            device: Some(0),
            addr,
            size: match action {
                TraceAction::SegmentAlloc => size,
                _ => size - 100,
            },
            stream: 0,
            block_size: (action != TraceAction::SegmentAlloc).then_some(size),
            total_allocated: Some(self.allocated),
            total_reserved: Some(self.reserved),
            pool: Some((0, 0)),
        })
    }

    fn report(&self, addr: u64, size: i64) -> Body {
        Body::Report(PoolReport {
            device: 0,
            ptr: addr,
            size,
            total_allocated: self.allocated,
            total_reserved: self.reserved,
        })
    }

    fn take(&mut self, stream: &mut Stream, size: u64, stack: u64) -> Result<u64, Failed> {
        let again = self.free.get_mut(&size).and_then(Vec::pop);
        let addr = match again {
            Some(addr) => addr,
            None => {
                if self.rest.1 < size {
                    let start = 0x7f00_0000_0000 + self.reserved * 2;
                    self.rest = (start, SEGMENT);
                    self.reserved += SEGMENT;
                    if self.traced {
                        let body = self.trace(TraceAction::SegmentAlloc, start, SEGMENT);
                        stream.push(self, StackRef::NotTaken, body)?;
                    }
                }
                self.rest.0 += size;
                self.rest.1 -= size;
                self.rest.0 - size
            }
        };
        self.allocated += size;
        let body = if self.traced {
            self.trace(TraceAction::Alloc, addr, size)
        } else {
            self.report(addr, size as i64)
        };
        let stack = StackRef::Id(identity(self.handle, stack));
        stream.push(self, stack, body)?;
        Ok(addr)
    }

    fn give_back(&mut self, stream: &mut Stream, addr: u64, size: u64) -> Result<(), Failed> {
        self.allocated -= size;
        self.free.entry(size).or_default().push(addr);
        if self.traced {
            for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
                let body = self.trace(action, addr, size);
                stream.push(self, StackRef::NotTaken, body)?;
            }
            return Ok(());
        }
        let body = self.report(addr, -(size as i64));
        stream.push(self, StackRef::NotTaken, body)
    }

    /// Takes a block and mostly gives another one back.
    fn go_on(&mut self, stream: &mut Stream) -> Result<(), Failed> {
        self.step_blocks += 1;
        let place = self.step_blocks % BLOCKS_OF_A_STEP;
        if place == 0 {
            let mark = Mark {
                kind: MarkKind::Step,
                source: MarkSource::Memscope,
                range: 0,
                name: "step".into(),
                cut: false,
            };
            stream.push(self, StackRef::NotTaken, Body::Mark(Box::new(mark)))?;
        }
        // A quarter of the sizes differs from step to step, as with sequences of several lengths.
        let various = place.is_multiple_of(4);
        let size = 512
            * (1 + if various {
                self.random() % 400
            } else {
                place * 7 % 61
            });
        let stack = place % STACKS;
        let addr = self.take(stream, size, stack)?;
        let forward = place < BLOCKS_OF_A_STEP / 2;
        if forward && !place.is_multiple_of(3) {
            self.kept.push((addr, size));
            return Ok(());
        }
        self.give_back(stream, addr, size)?;
        if !forward && let Some((addr, size)) = self.kept.pop() {
            self.give_back(stream, addr, size)?;
        }
        Ok(())
    }
}

fn stream(events: usize) -> Result<Stream, Failed> {
    let mut stream = Stream::default();
    let mut processes: Vec<Process> = (1..=PROCESSES).map(Process::new).collect();
    for process in &mut processes {
        process.begin(&mut stream)?;
        // What stays for the whole run: parameters and the optimizer's state.
        for block in 0..2_000 {
            process.take(&mut stream, 512 * (1 + block % 500), block % STACKS)?;
        }
    }
    while stream.ends.len() < events {
        for process in &mut processes {
            // Records of one process come in a row.
            for _ in 0..24 {
                process.go_on(&mut stream)?;
            }
        }
    }
    Ok(stream)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor time of a piece of work, in seconds: of this thread, or of all threads.
fn timed<T>(clock: ClockId, work: impl FnOnce() -> Result<T, Failed>) -> Result<(f64, T), Failed> {
    let start = seconds(clock);
    let result = work()?;
    Ok((seconds(clock) - start, result))
}

fn journal(dir: &Path) -> Result<Journal, Failed> {
    let config = Config::new(1, [0; 16], ClockPair::default());
    Ok(Journal::create(dir, config)?)
}

fn decode_all(stream: &Stream, mut take: impl FnMut(Event)) {
    let mut decoder = Decoder::new(1);
    for record in RecordReader::new(&stream.bytes).flatten() {
        if let Outcome::Decoded(event) = decoder.decode(record) {
            take(event);
        }
    }
}

/// What the keeper does with records, without the ring: journals a batch, then decodes and applies its records.
fn keep(stream: &Stream, dir: &Path, batch: usize) -> Result<(Ledger, PathBuf), Failed> {
    let mut journal = journal(dir)?;
    let mut decoder = Decoder::new(1);
    let mut ledger = Ledger::new(LedgerConfig::default());
    for records in stream.batches(batch) {
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        journal.append(records, 0, Some(state))?;
        for record in RecordReader::new(records).flatten() {
            if let Outcome::Decoded(event) = decoder.decode(record) {
                ledger.apply(&event);
            }
        }
    }
    journal.settle()?;
    Ok((ledger, journal.epoch_dir().to_owned()))
}

/// Bytes of the segments and of the checkpoints in a journal.
fn bytes_of(dir: &Path) -> Result<(u64, u64), Failed> {
    let (mut segments, mut checkpoints) = (0, 0);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let len = entry.metadata()?.len();
        match entry
            .path()
            .extension()
            .is_some_and(|ending| ending == "msc")
        {
            true => checkpoints += len,
            false => segments += len,
        }
    }
    Ok((segments, checkpoints))
}

fn read_only(dir: &Path) -> Result<usize, Failed> {
    let mut records = Recording::open(dir)?.records();
    let mut bytes = 0;
    while let Some(entry) = records.next_record()? {
        bytes += entry.record.len();
    }
    Ok(bytes)
}

/// What a replay does: reads, decodes and applies.
fn read_back(dir: &Path) -> Result<Ledger, Failed> {
    let mut records = Recording::open(dir)?.records();
    let mut decoder = Decoder::new(1);
    let mut ledger = Ledger::new(LedgerConfig::default());
    while let Some(piece) = records.next_piece()? {
        if let Piece::Record(entry) = piece {
            decoder.seek(entry.sequence);
            if let Outcome::Decoded(event) = decoder.decode(entry.record) {
                ledger.apply(&event);
            }
        }
    }
    Ok(ledger)
}

/// What the ledger knows, in words.
fn state(ledger: &Ledger) -> Vec<String> {
    let shown = |process| {
        format!(
            "{:?}",
            ledger.snapshot(ProcessHandle(process), AsOf::default())
        )
    };
    let summaries = ledger.processes().into_iter().map(|one| format!("{one:?}"));
    (1..=PROCESSES).map(shown).chain(summaries).collect()
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let thousands: usize = arguments
        .next()
        .map_or(Ok(1_000), |number| number.parse())?;
    let only = arguments.next();
    let rounds = if only.is_some() { 1 } else { ROUNDS };
    let wanted = |stage: &str| only.as_deref().is_none_or(|only| only == stage);
    let stream = stream(thousands * 1_000)?;
    let count = stream.ends.len();
    let mut events = Vec::new();
    decode_all(&stream, |event| events.push(event));
    let mut least: Vec<(String, f64)> = Vec::new();
    let mut note = |name: String, time: f64| match least.iter_mut().find(|row| row.0 == name) {
        Some((_, known)) => *known = known.min(time),
        None => least.push((name, time)),
    };
    let (thread, all) = (ClockId::ThreadCPUTime, ClockId::ProcessCPUTime);
    let mut sizes = String::new();
    for _ in 0..rounds {
        if wanted("decode") {
            let decoded = timed(thread, || {
                decode_all(&stream, |event| drop(std::hint::black_box(event)));
                Ok(())
            })?;
            note("decode".to_owned(), decoded.0);
        }
        if wanted("append") {
            for batch in BATCHES {
                let dir = tempfile::tempdir()?;
                let mut journal = journal(dir.path())?;
                let appended = timed(thread, || {
                    for records in stream.batches(batch) {
                        journal.append(records, 0, None)?;
                    }
                    Ok(())
                })?;
                note(format!("append, {batch} records a batch"), appended.0);
            }
        }
        if wanted("apply") {
            let applied = timed(thread, || {
                let mut ledger = Ledger::new(LedgerConfig::default());
                events.iter().for_each(|event| ledger.apply(event));
                Ok(ledger)
            })?;
            note("apply to the ledger".to_owned(), applied.0);
        }
        for batch in BATCHES {
            if !(wanted("keep") || wanted("read") || wanted("fold")) {
                break;
            }
            let dir = tempfile::tempdir()?;
            let (took, (kept, epoch)) = timed(all, || keep(&stream, dir.path(), batch))?;
            note(format!("all that, with checkpoints, {batch} a batch"), took);
            let (segments, checkpoints) = bytes_of(&epoch)?;
            if sizes.lines().count() < BATCHES.len() {
                let each = |bytes: u64| bytes as f64 / count as f64;
                sizes += &format!(
                    "{batch} records a batch: {:.1} bytes an event in segments, {:.1} in checkpoints\n",
                    each(segments),
                    each(checkpoints)
                );
            }
            if wanted("read") {
                let read = timed(thread, || read_only(&epoch))?;
                note(format!("read from disk, {batch} a batch"), read.0);
            }
            if wanted("fold") {
                let (took, folded) = timed(thread, || read_back(&epoch))?;
                note(format!("read, decode and apply, {batch} a batch"), took);
                if state(&folded) != state(&kept) {
                    return Err("what was read back says something else".into());
                }
            }
        }
    }
    eprintln!(
        "{count} records of {PROCESSES} processes, {} bytes each; the least of {rounds} rounds",
        stream.bytes.len() / count
    );
    for (name, time) in &least {
        let each = time * 1e9 / count as f64;
        eprintln!(
            "{name:44} {each:6.1} ns an event, {:5.2} million/s",
            1e3 / each
        );
        println!(r#"{{"row": "{name}", "column": "ns an event", "value": {each}}}"#);
    }
    eprint!("{sizes}");
    Ok(())
}
