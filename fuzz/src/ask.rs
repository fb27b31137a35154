//! Asks a ledger everything that can be asked of it.

use memscope_ledger::event::{Event, EventId};
use memscope_ledger::report::AsOf;
use memscope_ledger::{Asked, Ledger, LedgerConfig};
use memscope_proto::v1;
use std::hint::black_box;

/// A ledger as the daemon has it, with fewer entries of traces and a smaller table of groups: these are limits that would
/// need inputs of many MiB.
pub(crate) fn ledger() -> Ledger {
    Ledger::new(LedgerConfig {
        trace_entries: 1000,
        leak_groups: 1000,
        ..LedgerConfig::default()
    })
}

/// The ledger's own moment.
pub(crate) fn now(ledger: &Ledger) -> AsOf {
    let boot_ns = ledger.last_ns();
    AsOf {
        boot_ns,
        unix_ns: ledger.unix_ns(boot_ns),
        event: EventId::default(),
    }
}

/// Asks all questions about all processes.
pub(crate) fn everything(ledger: &Ledger) {
    let as_of = now(ledger);
    let processes = ledger.processes();
    let all: Vec<_> = processes.iter().map(|one| one.handle).collect();
    // Some questions say what limits each number in long texts, so not all of very many processes are asked.
    for process in processes.iter().take(8) {
        let pid = process.facts.pid;
        let asked: [Asked; 5] = [
            v1::StatsRequest { pid }.into(),
            v1::LeaksRequest {
                pid,
                ..Default::default()
            }
            .into(),
            v1::MarksRequest {
                pid,
                ..Default::default()
            }
            .into(),
            v1::StepsRequest {
                pid,
                ..Default::default()
            }
            .into(),
            v1::FluctuationRequest {
                pid,
                ..Default::default()
            }
            .into(),
        ];
        for question in asked {
            black_box(question.answer(ledger, &[process.handle], as_of));
        }
        black_box(ledger.snapshot(process.handle, as_of));
        black_box(ledger.stacks(process.handle, as_of));
        black_box(ledger.beside_the_pool(process.handle));
        black_box(ledger.coverage(process.handle));
        black_box(ledger.kept_bytes(process.handle));
        black_box(ledger.ends_of_steps(process.handle));
        black_box(ledger.gauges(process.handle).count());
    }
    for question in [
        Asked::from(v1::DevicesRequest::default()),
        Asked::from(v1::ListRequest::default()),
    ] {
        black_box(question.answer(ledger, &all, as_of));
    }
}

/// Applies events to a ledger and asks it.
pub(crate) fn about(events: impl IntoIterator<Item = Event>) {
    let mut ledger = ledger();
    for event in events {
        ledger.apply(&event);
    }
    everything(&ledger);
}
