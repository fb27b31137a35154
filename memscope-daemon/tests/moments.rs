//! Questions about earlier moments, asked of a journal whose records are made here.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_daemon::replay::{Bounds, ReplayError, Until, replay_until, replay_within};
use memscope_ledger::LedgerConfig;
use memscope_ledger::event::*;
use memscope_log::records::encode;
use memscope_log::{ClockPair, Config, Journal};
use std::cell::Cell;

const EPOCH: u64 = 5;

/// A journal of one process in which these events happened at these times, in this order.
fn journal(dir: &std::path::Path, told: &[(u64, Body)]) -> Journal {
    let told = told
        .iter()
        .map(|(time_ns, body)| (*time_ns, 1, body.clone()));
    journal_of(dir, &told.collect::<Vec<_>>())
}

/// The same of several: time, handle of the process, what happened.
fn journal_of(dir: &std::path::Path, told: &[(u64, u32, Body)]) -> Journal {
    let clock = ClockPair {
        boot_ns: 1,
        unix_ns: 1_000_000_000_000_000_001,
    };
    let mut journal = Journal::create(dir, Config::new(EPOCH, [7; 16], clock)).unwrap();
    for (number, (time_ns, process, body)) in (1..).zip(told) {
        let event = Event {
            id: EventId {
                epoch: EPOCH,
                sequence: number,
            },
            time_ns: *time_ns,
            process: ProcessHandle(*process),
            tid: 1,
            lost_before: 0,
            stack: StackRef::NotTaken,
            sampling: 0,
            body: body.clone(),
        };
        let record = encode(&event, 0).unwrap().unwrap();
        journal.append(&record, 0, None).unwrap();
    }
    journal
}

fn attached() -> Body {
    Body::Attached(Box::new(ProcessFacts {
        pid: 42,
        from_start: true,
        ..ProcessFacts::default()
    }))
}

fn pool_seen() -> Body {
    Body::Placed(Box::new(Placement {
        pool_seen: true,
        ..Placement::default()
    }))
}

/// The allocator reports a block of `size` bytes.
fn came(total: u64, size: u64) -> Body {
    Body::Report(PoolReport {
        device: 0,
        ptr: 0x7f00_0000_0000 + total,
        size: size as i64,
        total_allocated: total,
        total_reserved: 2 << 20,
    })
}

fn note(code: &str) -> Body {
    Body::Coverage(CoverageNote {
        code: code.to_owned(),
        text: "said by the daemon".to_owned(),
    })
}

#[test]
fn what_the_kernel_sent_while_the_daemon_wrote_is_before_the_moment() {
    let dir = tempfile::tempdir().unwrap();
    const S: u64 = 1_000_000_000;
    let told = [
        (S, attached()),
        (S, pool_seen()),
        (2 * S, came(512, 512)),
        // The daemon was busy: it stamped its own record first, and read these earlier records only then.
        (5 * S, note("late")),
        (3 * S, came(1024, 512)),
        (4 * S, came(2048, 1024)),
        (6 * S, came(4096, 2048)),
        // Since then only the daemon itself has written records.
        (30 * S, note("last")),
    ];
    let journal = journal(dir.path(), &told);
    let at = |until| {
        let replayed =
            replay_until(journal.epoch_dir(), LedgerConfig::default(), until, None).unwrap();
        let process = replayed.ledger.find(42).unwrap();
        let notes = replayed.ledger.coverage(process).unwrap();
        let gauge = replayed.ledger.gauge(process, 0).unwrap();
        (
            gauge.allocated_bytes,
            notes.iter().any(|note| note.code == "late"),
        )
    };
    let unix = |ns: u64| Until::Unix(1_000_000_000_000_000_000 + ns);
    for until in [Until::Boot, unix] {
        assert_eq!(at(until(2 * S)), (Some(512), false));
        assert_eq!(at(until(3 * S)), (Some(1024), false));
        assert_eq!(at(until(4 * S + S / 2)), (Some(2048), false));
        assert_eq!(at(until(5 * S)), (Some(2048), true));
        assert_eq!(at(until(7 * S)), (Some(4096), true));
    }
    // An event is a place in the log, whatever its time.
    assert_eq!(at(Until::Event(4)), (Some(512), true));
    assert_eq!(at(Until::Event(5)), (Some(1024), true));
}

#[test]
fn a_fold_that_nobody_waits_for_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let began = [(1, attached()), (1, pool_seen())];
    let blocks = (1..20_000).map(|number| (number, came(512 * number, 512)));
    let told: Vec<_> = began.into_iter().chain(blocks).collect();
    let journal = journal(dir.path(), &told);
    let until = Until::Event(told.len() as u64);
    let fold = |most: u32| {
        let looks = Cell::new(0);
        let wanted = || {
            looks.set(looks.get() + 1);
            looks.get() <= most
        };
        let bounds = Bounds {
            wanted: &wanted,
            room: None,
        };
        let config = LedgerConfig::default();
        let folded = replay_within(journal.epoch_dir(), config, until, Some(42), &bounds);
        (folded, looks.get())
    };
    let (whole, looks) = fold(u32::MAX);
    assert_eq!(whole.unwrap().records, told.len() as u64);
    assert!(looks > 10, "{looks}");
    // The first answer that it is not wanted is the last one that is asked for.
    for most in [0, 1, looks / 2, looks - 1] {
        let (ended, looks) = fold(most);
        assert!(matches!(ended, Err(ReplayError::NotWanted)));
        assert_eq!(looks, most + 1);
    }
}

/// People type the moment that a refusal names, in milliseconds. One that was cut off would be refused as well.
#[test]
fn the_moment_that_a_refusal_names_is_known() {
    let refusal = |known_from_unix_ns| ReplayError::TooEarly { known_from_unix_ns }.to_string();
    let whole = 1_750_000_000_000_000_000;
    assert!(refusal(whole).contains("15:06:40.000Z"));
    assert!(refusal(whole + 1).contains("15:06:40.001Z"));
    assert!(refusal(whole + 1_000_000).contains("15:06:40.001Z"));
}

#[test]
fn traces_of_the_same_process_that_ended_before_take_no_room() {
    let dir = tempfile::tempdir().unwrap();
    const S: u64 = 1_000_000_000;
    let mut told = Vec::new();
    for handle in 1..=5 {
        let time = u64::from(handle) * 10 * S;
        told.push((time, handle, attached()));
        told.push((time, handle, pool_seen()));
        told.push((time + S, handle, came(512 * u64::from(handle), 512)));
        told.push((time + 2 * S, handle, Body::Detached));
    }
    let journal = journal_of(dir.path(), &told);
    let asked = |at: u64| {
        let config = LedgerConfig::default();
        let dir = journal.epoch_dir();
        let replayed = replay_until(dir, config, Until::Boot(at), Some(42)).unwrap();
        let ledger = replayed.ledger;
        let kept: Vec<u32> = ledger.processes().iter().map(|one| one.handle.0).collect();
        (ledger.find(42).unwrap().0, kept)
    };
    // While the third is traced, and after its end.
    assert_eq!(asked(31 * S), (3, vec![3]));
    assert_eq!(asked(35 * S), (3, vec![3]));
    assert_eq!(asked(55 * S), (5, vec![5]));
}
