//! Measures how long a checkpoint stops the writer of a journal, by the number of live blocks:
//! `cargo run --release -p memscope-log --example checkpoint_cost`.

use memscope_ledger::event::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{DaemonRecord, Decoder, Stamp};
use memscope_log::{ClockPair, Config, Folded, Journal};
use std::error::Error;
use std::time::Instant;

const PROCESS: ProcessHandle = ProcessHandle(1);

fn event(sequence: u64, stack: StackRef, body: Body) -> Event {
    Event {
        id: EventId { epoch: 1, sequence },
        time_ns: sequence * 2_000,
        process: PROCESS,
        tid: 100,
        lost_before: 0,
        stack,
        sampling: 0,
        body,
    }
}

/// A process with `live` live blocks from 500 stacks, and a full trace.
fn ledger(live: u64) -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default());
    let facts = ProcessFacts {
        pid: 1,
        from_start: true,
        ..ProcessFacts::default()
    };
    let nothing = StackRef::NotTaken;
    ledger.apply(&event(1, nothing, Body::Attached(Box::new(facts))));
    for n in 0..live.max(200_000) {
        let size = 512 * (1 + n % 64);
        let trace = |action| {
            Body::Trace(PoolTrace {
                action,
                allocator: 1,
                device: Some(0),
                addr: 0x7f00_0000_0000 + n * 65_536,
                size: size - 100,
                stream: 0,
                block_size: Some(size),
                total_allocated: Some(n * 512),
                total_reserved: Some(1 << 40),
                pool: Some((0, 0)),
            })
        };
        let stack = StackRef::Id(1 + n % 500);
        ledger.apply(&event(2 + n * 2, stack, trace(TraceAction::Alloc)));
        if n >= live {
            ledger.apply(&event(
                3 + n * 2,
                nothing,
                trace(TraceAction::FreeRequested),
            ));
            ledger.apply(&event(
                3 + n * 2,
                nothing,
                trace(TraceAction::FreeCompleted),
            ));
        }
    }
    ledger
}

fn main() -> Result<(), Box<dyn Error>> {
    let noise: String = (0..30_000u64)
        .map(|n| char::from(b'0' + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u8))
        .filter(|letter| *letter != '\\')
        .collect();
    let record = DaemonRecord::Coverage(CoverageNote {
        code: "x".to_owned(),
        text: noise,
    });
    let stamp = Stamp {
        process: PROCESS,
        tid: 0,
        time_ns: 1,
        lost_before: 0,
    };
    let record = record.encode(stamp)?;
    println!(
        "| live blocks | longest append, ms | median append, µs | clone of the ledger, ms | checkpoint, MiB |\n|---|---|---|---|---|"
    );
    for live in [10_000, 100_000, 400_000, 1_000_000] {
        let ledger = ledger(live);
        let dir = tempfile::tempdir()?;
        let clock = ClockPair::default();
        let config = Config {
            segment_bytes: 1 << 20,
            total_bytes: 4 << 30,
            ..Config::new(1, [0; 16], clock)
        };
        let decoder = Decoder::new(1);
        let mut journal = Journal::create(dir.path(), config)?;
        let mut times = Vec::new();
        while times.len() < 10_000 && std::fs::read_dir(journal.epoch_dir())?.count() < 3 {
            let state = Folded {
                decoder: &decoder,
                ledger: &ledger,
            };
            let started = Instant::now();
            journal.append(&record, 0, Some(state))?;
            times.push(started.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let started = Instant::now();
        let copy = ledger.clone();
        let clone = started.elapsed().as_secs_f64();
        drop(copy);
        journal.settle()?;
        let places = memscope_log::Recording::open(journal.epoch_dir())?;
        let last = places.segments().last();
        let checkpoint = last.and_then(|segment| segment.checkpoint());
        let bytes = checkpoint.ok_or("no checkpoint was written")?.bytes();
        println!(
            "| {live} | {:.1} | {:.1} | {:.1} | {:.1} |",
            times.last().copied().unwrap_or_default() * 1e3,
            times[times.len() / 2] * 1e6,
            clone * 1e3,
            bytes as f64 / f64::from(1 << 20),
        );
    }
    Ok(())
}
