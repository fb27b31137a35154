//! Measures what triggers cost the keeper for each event, compared with the ledger alone, in one run: `cargo run
//! --release -p memscope-daemon --example trigger_cost`. The time is processor time of this thread, and the least of
//! many rounds in turn, so that other work of the machine is not in it.

use memscope_daemon::triggers::Triggers;
use memscope_ledger::event::*;
use memscope_ledger::{Ledger, LedgerConfig};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 15;
/// Number of processes whose events are mixed.
const PROCESSES: u32 = 8;

fn event(sequence: u64, process: u32, body: Body) -> Event {
    Event {
        id: EventId { epoch: 1, sequence },
        time_ns: sequence * 700,
        process: ProcessHandle(process),
        tid: 100 + process,
        lost_before: 0,
        stack: memscope_ledger::event::StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

/// Blocks that come and go in several processes, with about 2,000 live in each: three events for each block that
/// comes and goes.
fn stream() -> Vec<Event> {
    let mut events = Vec::new();
    for process in 1..=PROCESSES {
        let facts = ProcessFacts {
            pid: process,
            level: Some(Level::Trace),
            from_start: true,
            ..ProcessFacts::default()
        };
        events.push(event(0, process, Body::Attached(Box::new(facts))));
    }
    let mut held: Vec<Vec<(u64, u64)>> = vec![Vec::new(); PROCESSES as usize];
    let mut totals = [0u64; PROCESSES as usize];
    let mut random = 1u64;
    let mut next = 0x7f00_0000_0000u64;
    for _ in 0..150_000 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // Records of one process come in a row, as they do in reality.
        let process = (events.len() / 64) % PROCESSES as usize;
        let (Some(own), Some(total)) = (held.get_mut(process), totals.get_mut(process)) else {
            continue;
        };
        let mut tell = |action, addr, size, total| {
            let sequence = events.len() as u64;
            let trace = PoolTrace {
                action,
                allocator: process as u64,
                device: Some(0),
                addr,
                size: size - 100,
                stream: 0,
                block_size: Some(size),
                total_allocated: Some(total),
                total_reserved: Some(40 << 30),
                pool: Some((0, 0)),
            };
            events.push(event(sequence, process as u32 + 1, Body::Trace(trace)));
        };
        if own.len() >= 2_000 {
            let (addr, size) = own.swap_remove((random >> 33) as usize % own.len());
            *total -= size;
            tell(TraceAction::FreeRequested, addr, size, *total);
            tell(TraceAction::FreeCompleted, addr, size, *total);
        }
        let size = 512 * (1 + (random >> 50) % 64);
        *total += size;
        next += 1 << 20;
        tell(TraceAction::Alloc, next, size, *total);
        own.push((next, size));
    }
    events
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor time for all events, in seconds.
fn measure(
    events: &[Event],
    conditions: Option<&[&str]>,
) -> Result<f64, memscope_rpc::ConditionError> {
    let mut triggers = None;
    if let Some(conditions) = conditions {
        let conditions: Result<Vec<_>, _> = conditions.iter().map(|c| c.parse()).collect();
        triggers = Some(Triggers::new(&conditions?, 0));
    }
    let mut ledger = Ledger::new(LedgerConfig::default());
    let mut due = Vec::new();
    let start = processor_seconds();
    for event in events {
        ledger.apply(event);
        if let Some(triggers) = &mut triggers {
            triggers.after(event, &ledger, &mut due);
        }
    }
    Ok(processor_seconds() - start)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let events = stream();
    let ways: [(&str, Option<&[&str]>); 5] = [
        ("the ledger alone", None),
        ("and oom, the default", Some(&["oom"])),
        ("and reserved > 80GiB", Some(&["oom", "reserved > 80GiB"])),
        ("and allocated > 80GiB", Some(&["oom", "allocated > 80GiB"])),
        (
            "and six triggers of all kinds",
            Some(&[
                "oom",
                "allocated > 80GiB",
                "reserved > 80GiB",
                "fragmentation > 40%",
                "growth > 1GiB in 10m",
                "growth > 10GiB in 1h",
            ]),
        ),
    ];
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, conditions), times) in ways.iter().zip(&mut times) {
            times.push(measure(&events, *conditions)?);
        }
    }
    println!(
        "{} events of {PROCESSES} processes, the least of {ROUNDS} rounds",
        events.len()
    );
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let base = times.first().map_or(f64::NAN, |times| least(times));
    for ((name, _), times) in ways.iter().zip(&times) {
        let time = least(times);
        println!(
            "{name:30} {:5.0} ns an event, {:5.3} of the time of the ledger alone",
            time * 1e9 / events.len() as f64,
            time / base
        );
    }
    Ok(())
}
