//! Measures how many pool events the ledger takes per second: `cargo run --release -p memscope-ledger
//! --example throughput`.

use memscope_ledger::event::*;
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1::LeaksRequest;
use std::time::Instant;

const PROCESS: ProcessHandle = ProcessHandle(1);

fn event(sequence: u64, body: Body) -> Event {
    Event {
        id: EventId { epoch: 1, sequence },
        time_ns: sequence * 2_000,
        process: PROCESS,
        tid: 100 + (sequence / 1000 % 4) as u32,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

/// Events of a million blocks in 64 sizes, of which `live` live at the same time.
fn stream(trace: bool, live: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let mut free: Vec<u64> = (0..live as u64 + 1)
        .map(|i| 0x7f00_0000_0000 + i * 8_388_608)
        .collect();
    let mut held: Vec<(u64, u64)> = Vec::new();
    let mut random = 1u64;
    let mut total = 0;
    let mut push = |body| {
        let sequence = events.len() as u64 + 1;
        events.push(event(sequence, body));
    };
    let mut tell = |action, addr, size: u64, total| {
        let requested = size - 100;
        if trace {
            push(Body::Trace(PoolTrace {
                action,
                allocator: 1,
                device: Some(0),
                addr,
                size: requested,
                stream: 0,
                block_size: Some(size),
                total_allocated: Some(total),
                total_reserved: Some(1 << 40),
                pool: Some((0, 0)),
            }));
        } else if action != TraceAction::FreeCompleted {
            let alloc = action == TraceAction::Alloc;
            push(Body::Report(PoolReport {
                device: 0,
                ptr: addr,
                size: if alloc { size as i64 } else { -(size as i64) },
                total_allocated: total,
                total_reserved: 1 << 40,
            }));
        }
    };
    for _ in 0..1_000_000 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        if held.len() >= live {
            let (addr, size) = held.swap_remove((random >> 33) as usize % held.len());
            total -= size;
            tell(TraceAction::FreeRequested, addr, size, total);
            tell(TraceAction::FreeCompleted, addr, size, total);
            free.push(addr);
        }
        if let Some(addr) = free.pop() {
            let size = 512 * (1 + (random >> 50) % 64);
            total += size;
            tell(TraceAction::Alloc, addr, size, total);
            held.push((addr, size));
        }
    }
    events
}

fn main() {
    for (name, trace) in [("reports", false), ("trace", true)] {
        for live in [1_000, 100_000] {
            let events = stream(trace, live);
            let mut ledger = Ledger::new(LedgerConfig::default());
            let facts = ProcessFacts {
                pid: 1,
                ..ProcessFacts::default()
            };
            ledger.apply(&event(0, Body::Attached(Box::new(facts))));
            let start = Instant::now();
            for event in &events {
                ledger.apply(event);
            }
            let took = start.elapsed().as_secs_f64();
            let rate = events.len() as f64 / took / 1e6;
            println!("{name}, {live} live: {rate:.2} million events/s");
            let as_of = AsOf::default();
            let start = Instant::now();
            let leaks = ledger.ask(&[PROCESS], as_of, &LeaksRequest::default());
            let leaks_ms = start.elapsed().as_secs_f64() * 1e3;
            let start = Instant::now();
            let snapshot = ledger.snapshot(PROCESS, as_of);
            let snapshot_ms = start.elapsed().as_secs_f64() * 1e3;
            let groups = leaks.map_or(0, |l| l.groups.len());
            let segments = snapshot.map_or(0, |s| s.segments.len());
            println!(
                "  leaks {leaks_ms:.1} ms ({groups} groups), snapshot {snapshot_ms:.1} ms ({segments} segments)"
            );
        }
    }
}
