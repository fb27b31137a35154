//! Measures what questions cost when a process has very many live blocks: `cargo run --release -p memscope-daemon
//! --example live_blocks -- BLOCKS [ROUNDS]`. It says how much memory a live block takes, how long each question takes
//! until its answer is encoded, and how long questions about earlier moments take, which read a journal with checkpoints.
//!
//! Times are the least and the median of the rounds. They are wall-clock time of this process alone, without the way
//! to a client.

use memscope_daemon::replay::{Until, replay_until};
use memscope_export::SnapshotParts;
use memscope_ledger::event::*;
use memscope_ledger::report::{AsOf, SnapshotReport};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome, RecordReader, encode};
use memscope_log::{ClockPair, Config, Folded, Journal};
use memscope_proto::v1;
use prost::Message;
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PROCESS: ProcessHandle = ProcessHandle(1);
const PID: u32 = 4242;
const EPOCH: u64 = 5;
/// Stacks that allocate. Each has blocks of one size.
const STACKS: u64 = 300;
/// Frames of each stack.
const FRAMES: u64 = 20;
/// Bytes of a segment of the pool.
const SEGMENT: u64 = 2 << 20;
/// Blocks that come and go between two ends of steps.
const STEP: u64 = 1000;
/// Real time at the boot, nanoseconds since 1970.
const BOOTED_UNIX_NS: u64 = 1_700_000_000_000_000_000;
/// Time between two events.
const PACE_NS: u64 = 10_000;

/// Counts the bytes that are handed out.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, and counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of this function, which are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A process whose pool has blocks in segments of one size each, as PyTorch's pool of small blocks has.
struct Program {
    sequence: u64,
    random: u64,
    total: u64,
    reserved: u64,
    next_segment: u64,
    /// Free places for blocks of each of 16 sizes.
    free: Vec<Vec<u64>>,
    /// Address and stack of each live block.
    held: Vec<(u64, u64)>,
}

fn size_of_stack(stack: u64) -> u64 {
    512 * (1 + stack % 16)
}

impl Program {
    fn new() -> Program {
        Program {
            sequence: 0,
            random: 1,
            total: 0,
            reserved: 0,
            next_segment: 0x7f00_0000_0000,
            free: vec![Vec::new(); 16],
            held: Vec::new(),
        }
    }

    fn event(&mut self, stack: StackRef, body: Body) -> Event {
        self.sequence += 1;
        Event {
            id: EventId {
                epoch: EPOCH,
                sequence: self.sequence,
            },
            time_ns: self.sequence * PACE_NS,
            process: PROCESS,
            tid: PID,
            lost_before: 0,
            stack,
            sampling: 0,
            body,
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// The attach, and the stacks with their names.
    fn begin(&mut self, take: &mut dyn FnMut(&Event)) {
        let facts = ProcessFacts {
            pid: PID,
            level: Some(Level::Trace),
            from_start: true,
            ..ProcessFacts::default()
        };
        let placed = Placement {
            pool_seen: true,
            ..Placement::default()
        };
        let mut all = vec![
            Body::Attached(Box::new(facts)),
            Body::Backend(Backend::Native),
            Body::Placed(Box::new(placed)),
        ];
        for code in 0..STACKS + FRAMES {
            all.push(Body::Code(Box::new(CodeName {
                code: 0x5000 + code,
                died: None,
                name: format!("function_{code}").into(),
                file: format!("/home/me/part_{}.py", code / 10).into(),
                first_line: 1,
                origin: 0,
                unit: 1,
                entered_at: 0,
                lines: vec![(0, 2 + code as u32)],
                lines_cut: false,
            })));
        }
        for stack in 0..STACKS {
            let frames = (0..FRAMES).map(|depth| (0x5000 + stack + depth, 4));
            let seen = StackSeen {
                id: 1 + stack,
                frames: frames.collect(),
                entries: Vec::new(),
                natives: Vec::new(),
                truncated: false,
                unfinished: false,
                completes: false,
            };
            // Names are of code that was seen, so stacks come first.
            all.insert(3 + stack as usize, Body::Stack(Box::new(seen)));
        }
        for body in all {
            take(&self.event(StackRef::NotTaken, body));
        }
    }

    fn trace(
        &mut self,
        action: TraceAction,
        stack: StackRef,
        addr: u64,
        size: u64,
        block_size: Option<u64>,
    ) -> Event {
        let body = Body::Trace(PoolTrace {
            action,
            allocator: 1,
            device: Some(0),
            addr,
            size,
            stream: 0,
            block_size,
            total_allocated: block_size.map(|_| self.total),
            total_reserved: block_size.map(|_| self.reserved),
            pool: Some((0, 0)),
        });
        self.event(stack, body)
    }

    fn comes(&mut self, take: &mut dyn FnMut(&Event)) {
        let stack = self.random() % STACKS;
        let size = size_of_stack(stack);
        let class = (stack % 16) as usize;
        if self.free.get(class).is_none_or(Vec::is_empty) {
            let segment = self.next_segment;
            self.next_segment += SEGMENT;
            self.reserved += SEGMENT;
            take(&self.trace(
                TraceAction::SegmentAlloc,
                StackRef::NotTaken,
                segment,
                SEGMENT,
                None,
            ));
            let places = (0..SEGMENT / size).rev().map(|at| segment + at * size);
            if let Some(free) = self.free.get_mut(class) {
                free.extend(places);
            }
        }
        let Some(addr) = self.free.get_mut(class).and_then(Vec::pop) else {
            return;
        };
        self.total += size;
        self.held.push((addr, stack));
        let id = StackRef::Id(1 + stack);
        take(&self.trace(TraceAction::Alloc, id, addr, size - 100, Some(size)));
    }

    fn goes(&mut self, take: &mut dyn FnMut(&Event)) {
        let place = self.random() as usize % self.held.len().max(1);
        if place >= self.held.len() {
            return;
        }
        let (addr, stack) = self.held.swap_remove(place);
        let size = size_of_stack(stack);
        self.total -= size;
        for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
            take(&self.trace(action, StackRef::NotTaken, addr, size - 100, Some(size)));
        }
        if let Some(free) = self.free.get_mut((stack % 16) as usize) {
            free.push(addr);
        }
    }

    /// Lets blocks come until so many live, and then as many come and go as a quarter of them, in steps.
    fn run(&mut self, live: usize, take: &mut dyn FnMut(&Event)) {
        while self.held.len() < live {
            self.comes(take);
        }
        self.churn(live / 4, take);
    }

    fn churn(&mut self, blocks: usize, take: &mut dyn FnMut(&Event)) {
        for number in 0..blocks as u64 {
            self.goes(take);
            self.comes(take);
            if number % STEP == 0 {
                let mark = Mark {
                    kind: MarkKind::Step,
                    source: MarkSource::Outside,
                    name: "step".into(),
                    ..Mark::default()
                };
                take(&self.event(StackRef::NotTaken, Body::Mark(Box::new(mark))));
            }
        }
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|of| of.parse().ok());
    pages.unwrap_or(0) * 4096
}

/// How many blocks live.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Writes a value as a line of JSON, for `cargo xtask bench`.
fn tell(row: &str, value: f64) {
    let live = LIVE.load(Ordering::Relaxed);
    println!(r#"{{"row": "{row}", "column": "{live} live blocks", "value": {value}}}"#);
}

/// Runs this several times, and prints the least and the median of the times, and what the answer takes.
fn time(rounds: usize, what: &str, mut ask: impl FnMut() -> usize) {
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..rounds {
        let start = Instant::now();
        bytes = ask();
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let least = times.first().copied().unwrap_or(f64::NAN);
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    eprintln!("{what:44} {least:9.1} ms {median:9.1} ms {bytes:12} bytes");
    tell(&format!("{what}, ms"), least);
}

/// Encodes all parts of a snapshot as the server does, and returns their bytes.
fn encoded(report: SnapshotReport) -> usize {
    let parts = SnapshotParts::new(Arc::new(report));
    parts
        .map(|part| black_box(part.encode_to_vec()).len())
        .sum()
}

/// The questions of the present moment.
fn ask(ledger: &Ledger, rounds: usize) {
    let as_of = AsOf {
        boot_ns: ledger.last_ns(),
        unix_ns: ledger.unix_ns(ledger.last_ns()),
        event: EventId::default(),
    };
    let of = [PROCESS];
    time(rounds, "stats", || {
        let answer = ledger.ask(&of, as_of, &v1::StatsRequest { pid: PID });
        answer.map_or(0, |answer| answer.encode_to_vec().len())
    });
    time(rounds, "leaks", || {
        let question = v1::LeaksRequest {
            pid: PID,
            ..v1::LeaksRequest::default()
        };
        let answer = ledger.ask(&of, as_of, &question);
        answer.map_or(0, |answer| answer.encode_to_vec().len())
    });
    time(rounds, "stacks (rows)", || {
        ledger
            .stacks(PROCESS, as_of)
            .map_or(0, |answer| black_box(answer).rows.len())
    });
    let Some(report) = ledger.snapshot(PROCESS, as_of).map(Arc::new) else {
        return;
    };
    time(rounds, "snapshot, made", || {
        let report = ledger.snapshot(PROCESS, as_of);
        report.map_or(0, |report| black_box(report).segments.len())
    });
    time(rounds, "snapshot, encoded", || {
        let parts = SnapshotParts::new(Arc::clone(&report));
        parts
            .map(|part| black_box(part.encode_to_vec()).len())
            .sum()
    });
    time(rounds, "snapshot, to the last byte", || {
        ledger.snapshot(PROCESS, as_of).map_or(0, encoded)
    });
    time(rounds, "pool, of a snapshot", || {
        memscope_export::pool(&report, None).encode_to_vec().len()
    });
    time(rounds, "diff, of two snapshots", || {
        memscope_export::diff(&report, &report)
            .encode_to_vec()
            .len()
    });
}

/// Writes a journal as the daemon does, with checkpoints of the ledger that it keeps.
/// Returns its directory and the moment of its last event.
fn journal(dir: &Path, live: usize) -> Result<(PathBuf, u64), Box<dyn Error>> {
    let clock = ClockPair {
        boot_ns: 1,
        unix_ns: BOOTED_UNIX_NS,
    };
    let mut config = Config::new(EPOCH, [7; 16], clock);
    config.total_bytes = 16 << 30;
    let mut journal = Journal::create(dir, config)?;
    let mut decoder = Decoder::new(EPOCH);
    let mut ledger = Ledger::new(LedgerConfig::default());
    let mut records = Vec::new();
    let mut failed: Option<Box<dyn Error>> = None;
    let mut flush = |records: &mut Vec<u8>| -> Result<(), Box<dyn Error>> {
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        journal.append(records, 0, Some(state))?;
        for record in RecordReader::new(records) {
            if let Outcome::Decoded(event) = decoder.decode(record?) {
                ledger.apply(&event);
            }
        }
        records.clear();
        Ok(())
    };
    let mut program = Program::new();
    let mut take = |event: &Event| match encode(event, 0) {
        Ok(record) => {
            records.extend(record.unwrap_or_default());
            if records.len() > 64 << 10
                && let Err(error) = flush(&mut records)
            {
                failed = Some(error);
            }
        }
        Err(error) => failed = Some(error.into()),
    };
    program.begin(&mut take);
    program.run(live, &mut take);
    program.churn(live, &mut take);
    flush(&mut records)?;
    journal.settle()?;
    match failed {
        Some(error) => Err(error),
        None => Ok((journal.epoch_dir().to_owned(), ledger.last_ns())),
    }
}

/// Questions about earlier moments.
fn ask_earlier(live: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let (path, last) = journal(dir.path(), live)?;
    let at = |ns| -> Result<Ledger, Box<dyn Error>> {
        let config = LedgerConfig::default();
        let replayed = replay_until(&path, config, Until::Boot(ns), Some(PID))?;
        Ok(replayed.ledger)
    };
    let snapshot = |ns| -> Result<SnapshotReport, Box<dyn Error>> {
        let ledger = at(ns)?;
        let as_of = AsOf {
            boot_ns: ns,
            ..AsOf::default()
        };
        Ok(ledger.snapshot(PROCESS, as_of).ok_or("no such process")?)
    };
    let files = std::fs::read_dir(&path)?;
    let of = |ending: &str| -> u64 {
        let all = std::fs::read_dir(&path).into_iter().flatten().flatten();
        let theirs = all.filter(|file| file.path().extension().is_some_and(|is| is == ending));
        theirs
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .max()
            .unwrap_or(0)
    };
    eprintln!(
        "a journal of {} files; the largest checkpoint has {} bytes, the largest segment {}",
        files.count(),
        of("msc"),
        of("msj")
    );
    for (what, ns) in [
        (
            "a tenth of the churn ago",
            last - live as u64 * 3 / 10 * PACE_NS,
        ),
        (
            "half of the churn ago",
            last - live as u64 * 3 / 2 * PACE_NS,
        ),
    ] {
        time(rounds, &format!("the ledger of {what}"), || {
            at(ns).map_or(0, |ledger| ledger.blocks(PROCESS).count())
        });
        time(
            rounds,
            &format!("snapshot --at {what}, to the last byte"),
            || snapshot(ns).map_or(0, encoded),
        );
        let now = snapshot(last)?;
        time(
            rounds,
            &format!("diff --from {what}, beside the present"),
            || {
                let then = snapshot(ns);
                then.map_or(0, |then| {
                    memscope_export::diff(&then, &now).encode_to_vec().len()
                })
            },
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let live: usize = words.next().ok_or("say how many blocks")?.parse()?;
    let rounds: usize = words.next().map_or(Ok(5), |word| word.parse())?;
    LIVE.store(live, Ordering::Relaxed);
    let mut program = Program::new();
    program.held.reserve_exact(live);
    let mut ledger = Ledger::new(LedgerConfig::default());
    let clock = program.event(
        StackRef::NotTaken,
        Body::Clock {
            unix_ns: BOOTED_UNIX_NS,
        },
    );
    ledger.apply(&Event {
        process: ProcessHandle(0),
        ..clock
    });
    let (bytes, mut own) = (BYTES.load(Ordering::Relaxed), 0);
    let before = resident();
    let start = Instant::now();
    program.begin(&mut |event| ledger.apply(event));
    program.run(live, &mut |event| ledger.apply(event));
    let took = start.elapsed().as_secs_f64() * 1e9;
    own += program
        .free
        .iter()
        .map(|free| free.capacity() * 8)
        .sum::<usize>();
    let held = program.held.capacity() * 16;
    let handed_out = BYTES.load(Ordering::Relaxed) - bytes - own;
    let each = handed_out as f64 / live as f64;
    eprintln!(
        "{live} live blocks: {each:.1} bytes each are handed out, {:.1} resident; {:.0} ns an event",
        (resident() - before).saturating_sub((own + held) as u64) as f64 / live as f64,
        took / program.sequence as f64
    );
    tell("memory of the ledger, bytes a live block", each);
    drop(program);
    ask(&ledger, rounds);
    drop(ledger);
    ask_earlier(live, rounds)
}
