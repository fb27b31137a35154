//! Questions about earlier moments, asked of a journal whose records are made here.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_common::{KIND_TRACE, RecordHeader, TraceRecord};
use memscope_daemon::replay::{
    Bounds, ReplayError, Until, replay_left, replay_until, replay_within,
};
use memscope_ledger::event::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome, encode};
use memscope_log::{ClockPair, Config, Folded, Journal, Recording, RecordingError};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

const EPOCH: u64 = 5;

/// A journal of one process in which these events happened at these times, in this order.
fn journal(dir: &std::path::Path, told: &[(u64, Body)]) -> Journal {
    let told = told
        .iter()
        .map(|(time_ns, body)| (*time_ns, 1, 1, body.clone()));
    journal_of(dir, &told.collect::<Vec<_>>())
}

/// The same of several: time, handle of the process, thread, what happened.
fn journal_of(dir: &std::path::Path, told: &[(u64, u32, u32, Body)]) -> Journal {
    let clock = ClockPair {
        boot_ns: 1,
        unix_ns: 1_000_000_000_000_000_001,
    };
    let mut journal = Journal::create(dir, Config::new(EPOCH, [7; 16], clock)).unwrap();
    for (number, (time_ns, process, tid, body)) in (1..).zip(told) {
        let event = Event {
            id: EventId {
                epoch: EPOCH,
                sequence: number,
            },
            time_ns: *time_ns,
            process: ProcessHandle(*process),
            tid: *tid,
            lost_before: 0,
            stack: StackRef::NotTaken,
            sampling: 0,
            body: body.clone(),
        };
        let record = record(&event);
        journal.append(&record, 0, None).unwrap();
    }
    journal
}

/// The record of an event. Entries of the allocator's trace come from probes alone, so nothing else encodes them.
fn record(event: &Event) -> Vec<u8> {
    let Body::Trace(trace) = &event.body else {
        return encode(event, 0).unwrap().unwrap();
    };
    let alike = Event {
        body: came(0, 0),
        ..event.clone()
    };
    let mut record = encode(&alike, 0).unwrap().unwrap();
    record.truncate(size_of::<RecordHeader>());
    let len = size_of::<TraceRecord>() as u16;
    record[..2].copy_from_slice(&len.to_ne_bytes());
    record[2..4].copy_from_slice(&KIND_TRACE.to_ne_bytes());
    let action = trace.action as i32 as u32;
    let both = u64::from(action) | u64::from(trace.device.unwrap() as u32) << 32;
    let words = [trace.allocator, both, trace.addr, trace.size, trace.stream];
    let rest = [0; 5];
    for word in words.iter().chain(&rest) {
        record.extend_from_slice(&word.to_ne_bytes());
    }
    assert_eq!(record.len(), usize::from(len));
    record
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

/// A program takes its place in the ring first and reads the clock then, and its processor may have to wait in between.
#[test]
fn what_another_thread_sent_behind_a_later_record_is_before_the_moment() {
    let dir = tempfile::tempdir().unwrap();
    const MS: u64 = 1_000_000;
    let told = [
        (MS, attached()),
        (MS, pool_seen()),
        (1000 * MS, came(512, 512)),
        (2050 * MS, came(4096, 512)),
        (2010 * MS, came(1024, 512)),
    ];
    let journal = journal(dir.path(), &told);
    let at = |until| {
        let replayed =
            replay_until(journal.epoch_dir(), LedgerConfig::default(), until, None).unwrap();
        let process = replayed.ledger.find(42).unwrap();
        let allocated = replayed.ledger.gauge(process, 0).unwrap().allocated_bytes;
        (allocated, replayed.end.boot_ns)
    };
    assert_eq!(at(Until::Boot(2000 * MS)), (Some(512), 1000 * MS));
    assert_eq!(at(Until::Boot(2020 * MS)), (Some(1024), 2010 * MS));
    // An event is a place in the log, whatever its time.
    assert_eq!(at(Until::Event(4)), (Some(4096), 2050 * MS));
}

/// The time of day came twice. It means the last one wherever it is asked for.
#[test]
fn a_time_that_was_twice() {
    let dir = tempfile::tempdir().unwrap();
    const MIN: u64 = 60_000_000_000;
    const DAY: u64 = 20_000 * 24 * 60 * MIN;
    let clock = |hours: u64, minutes: u64| Body::Clock {
        unix_ns: DAY + (60 * hours + minutes) * MIN,
    };
    // It is set from 14:10 back to 12:10.
    let told = [
        (1_000, 0, 0, clock(14, 0)),
        (1_000, 1, 1, attached()),
        (1_000, 1, 1, pool_seen()),
        (4 * MIN, 1, 1, came(512, 512)),
        (6 * MIN, 1, 1, came(1024, 512)),
        (10 * MIN, 0, 0, clock(12, 10)),
        (120 * MIN, 1, 1, came(2048, 512)),
        (130 * MIN, 1, 1, came(4096, 512)),
    ];
    let journal = journal_of(dir.path(), &told);
    let folder = journal.epoch_dir();
    let present = replay_left(folder, LedgerConfig::default()).unwrap();
    let until = Until::at_unix(DAY + (14 * 60 + 5) * MIN, &present.ledger);
    assert_eq!(until, Until::Boot(125 * MIN));
    let then = replay_until(folder, LedgerConfig::default(), until, None).unwrap();
    let gauge = then.ledger.gauge(ProcessHandle(1), 0).unwrap();
    assert_eq!(gauge.allocated_bytes, Some(2048));
    // How the clock was set before is not known any more.
    let early = 1;
    assert_eq!(Until::at_unix(early, &present.ledger), Until::Unix(early));
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
            last: None,
        };
        let config = LedgerConfig::default();
        let folded = replay_within(journal.epoch_dir(), config, until, 42, &bounds, None);
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
        told.push((time, handle, 1, attached()));
        told.push((time, handle, 1, pool_seen()));
        told.push((time + S, handle, 1, came(512 * u64::from(handle), 512)));
        told.push((time + 2 * S, handle, 1, Body::Detached));
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

/// Who freed the blocks of a moment behind it. Of each block the first that happens at its address counts, and only what its own process did.
#[test]
fn who_freed_the_blocks_of_a_moment() {
    let traced = |action, addr: u64| {
        Body::Trace(PoolTrace {
            action,
            allocator: 0x7000,
            device: Some(0),
            addr,
            size: 512,
            stream: 0,
            block_size: None,
            total_allocated: None,
            total_reserved: None,
            pool: None,
        })
    };
    let came = |addr| traced(TraceAction::Alloc, addr);
    let requested = |addr| traced(TraceAction::FreeRequested, addr);
    let completed = |addr| traced(TraceAction::FreeCompleted, addr);
    let other = Body::Attached(Box::new(ProcessFacts {
        pid: 43,
        ..ProcessFacts::default()
    }));
    let told = [
        (1, 1, 1, attached()),
        (1, 1, 1, pool_seen()),
        (1, 2, 1, other),
        (2, 1, 10, traced(TraceAction::SegmentAlloc, 0x10_0000)),
        (3, 1, 10, came(0x1000)),
        (4, 1, 10, came(0x2000)),
        (5, 1, 10, came(0x3000)),
        (6, 1, 10, came(0x4000)),
        (7, 1, 10, came(0x5000)),
        // The moment is 10. The first record behind it counts as well.
        (11, 1, 77, requested(0x1000)),
        // One thread asks for it and another one completes it, when no stream uses it any more.
        (12, 1, 77, requested(0x2000)),
        (13, 1, 10, completed(0x2000)),
        // Its free was lost: something else is there, and is freed.
        (14, 1, 10, came(0x3000)),
        (15, 1, 77, requested(0x3000)),
        // Another process has the same addresses.
        (16, 2, 5, requested(0x4000)),
        (17, 1, 10, requested(0x4000)),
        // This one stays.
        (18, 1, 10, came(0x1000)),
        (19, 1, 12, requested(0x1000)),
    ];
    let dir = tempfile::tempdir().unwrap();
    let journal = journal_of(dir.path(), &told);
    let asked = |until, still: &[(u64, u64)]| {
        let still = HashSet::from_iter(still.iter().copied());
        let config = LedgerConfig::default();
        let dir = journal.epoch_dir();
        replay_within(dir, config, until, 42, &Bounds::NONE, Some(&still)).unwrap()
    };
    let all = asked(Until::Boot(10), &[]);
    let expected = [(0x1000, 77), (0x2000, 77), (0x4000, 10)];
    assert_eq!(all.freed_by, HashMap::from(expected));
    // The ledger is that of the moment.
    let process = all.ledger.find(42).unwrap();
    let mut blocks: Vec<_> = all.ledger.blocks(process).collect();
    blocks.sort_unstable();
    let expected = [
        (0x1000, 3),
        (0x2000, 4),
        (0x3000, 5),
        (0x4000, 6),
        (0x5000, 7),
    ];
    assert_eq!(blocks, expected);
    assert_eq!(all.end.boot_ns, 7);
    // Nobody waits for what is still there.
    let some = asked(Until::Boot(10), &[(0x1000, 3), (0x2000, 4)]);
    assert_eq!(some.freed_by, HashMap::from([(0x4000, 10)]));
    // At the end of the journal there is nothing behind it.
    assert!(asked(Until::Boot(19), &[]).freed_by.is_empty());
}

/// Behind the last record that a question is about, the journal may just be written to. Half a batch there is no damage.
#[test]
fn what_is_being_written_is_not_read() {
    use std::io::{Seek, SeekFrom, Write};

    let dir = tempfile::tempdir().unwrap();
    let told: Vec<_> = [(1, attached()), (1, pool_seen())]
        .into_iter()
        .chain((2..100).map(|number| (number, came(512 * number, 512))))
        .collect();
    let journal = journal(dir.path(), &told);
    let last = told.len() as u64;
    let file = std::fs::read_dir(journal.epoch_dir()).unwrap().next();
    let path = file.unwrap().unwrap().path();
    let written = std::fs::read(&path).unwrap();
    let end = written.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start((end + 64).next_multiple_of(64)))
        .unwrap();
    file.write_all(&[7; 40]).unwrap();
    let asked = |until, last| {
        let bounds = Bounds {
            last,
            ..Bounds::NONE
        };
        let still = HashSet::new();
        let config = LedgerConfig::default();
        let dir = journal.epoch_dir();
        replay_within(dir, config, until, 42, &bounds, Some(&still)).unwrap()
    };
    for until in [Until::Boot(50), Until::Boot(99), Until::Event(last)] {
        let whole = asked(until, Some(last));
        assert_eq!(whole.warnings, Vec::<String>::new(), "{until:?}");
        assert_eq!(asked(until, None).warnings.len(), 1, "{until:?}");
        // Nothing of it is left out.
        let blocks = |replayed: &memscope_daemon::replay::Replayed| {
            let process = replayed.ledger.find(42).unwrap();
            replayed.ledger.gauge(process, 0).unwrap().allocated_bytes
        };
        assert_eq!(blocks(&whole), blocks(&asked(until, None)));
    }
}

/// An event of one process.
fn event(number: u64, process: u32, body: Body) -> Event {
    Event {
        id: EventId {
            epoch: EPOCH,
            sequence: number,
        },
        time_ns: number,
        process: ProcessHandle(process),
        tid: 1,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

/// A journal of four segments with the states between them, of a process that has allocated and frees nothing. Returns its folder, and the
/// numbers of its last record and of the blocks.
fn journal_with_states(dir: &std::path::Path) -> (std::path::PathBuf, u64, u64) {
    let clock = ClockPair {
        boot_ns: 1,
        unix_ns: 1_000_000_000_000_000_001,
    };
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(EPOCH, [7; 16], clock)
    };
    let mut journal = Journal::create(dir, config).unwrap();
    let mut decoder = Decoder::new(EPOCH);
    let mut ledger = Ledger::new(LedgerConfig::default());
    let segments = |dir: &std::path::Path| {
        let recording = Recording::open(dir).unwrap();
        recording.segments().len()
    };
    let mut number = 0;
    let mut tell = |journal: &mut Journal, body: Body| {
        number += 1;
        let record = record(&event(number, 1, body));
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        journal.append(&record, number, Some(state)).unwrap();
        let Outcome::Decoded(event) = decoder.decode(&record) else {
            panic!("record {number}");
        };
        ledger.apply(&event);
        number
    };
    tell(&mut journal, attached());
    tell(&mut journal, pool_seen());
    let mut block = 0;
    while segments(journal.epoch_dir()) < 4 {
        for _ in 0..1000 {
            block += 1;
            tell(&mut journal, came(512 * block, 512));
        }
        journal.settle().unwrap();
    }
    let last = tell(&mut journal, note("last"));
    journal.settle().unwrap();
    (journal.epoch_dir().to_owned(), last, block)
}

/// A memscoped that goes on where another one was sets its own limits on the state that was left. An
/// earlier moment is answered with the limits that were in force then.
#[test]
fn limits_are_those_of_who_reads_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, last, _) = journal_with_states(dir.path());
    for until in [None, Some(Until::Event(last))] {
        let config = LedgerConfig {
            trace_entries: 3,
            retention_ns: 1,
            ..LedgerConfig::default()
        };
        let replayed = match until {
            Some(until) => replay_until(&folder, config.clone(), until, None),
            None => replay_left(&folder, config.clone()),
        };
        let mut ledger = replayed.unwrap().ledger;
        let entries = |ledger: &Ledger, process| {
            let kept = ledger.kept(ProcessHandle(process)).unwrap();
            kept.trace_entries
        };
        assert!(entries(&ledger, 1) > 3);
        ledger.set_config(config);
        assert_eq!(entries(&ledger, 1), 3);
        ledger.apply(&event(last + 1, 1, Body::Detached));
        let other = Body::Attached(Box::new(ProcessFacts {
            pid: 43,
            ..ProcessFacts::default()
        }));
        ledger.apply(&event(last + 2, 2, other));
        for number in 1..=5 {
            ledger.apply(&event(last + 2 + number, 2, came(512 * number, 512)));
        }
        assert_eq!(entries(&ledger, 2), 3);
        assert_eq!(ledger.expire(last + 10), [ProcessHandle(1)]);
    }
}

/// A state that a journal cannot be begun with is passed over: the segment before it leads there too.
#[test]
fn a_state_that_cannot_be_read_is_not_needed() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, last, block) = journal_with_states(dir.path());
    let folded = |until| {
        let config = LedgerConfig::default();
        let replayed = match until {
            Some(until) => replay_until(&folder, config, until, Some(42)),
            None => replay_left(&folder, config),
        };
        let replayed = replayed.unwrap();
        assert_eq!(replayed.warnings, Vec::<String>::new());
        let process = replayed.ledger.find(42).unwrap();
        let gauge = replayed.ledger.gauge(process, 0).unwrap();
        (gauge.allocated_bytes, replayed.end.event.sequence)
    };
    let moments = [None, Some(Until::Event(last - 1)), Some(Until::Boot(last))];
    let whole = moments.map(folded);
    assert_eq!(whole[0], (Some(512 * block), last));
    let states = ["000003.msc", "000002.msc"].map(|name| folder.join(name));
    for state in &states {
        let bytes = std::fs::read(state).unwrap();
        let cuts = [bytes.len() - 1, bytes.len() / 2, 1, 0];
        for bytes in cuts.map(|len| &bytes[..len]) {
            std::fs::write(state, bytes).unwrap();
            assert_eq!(moments.map(folded), whole, "{} bytes", bytes.len());
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        std::fs::write(state, flipped).unwrap();
        assert_eq!(moments.map(folded), whole);
    }
    // Where nothing is before it, there is nothing to begin with.
    for name in ["000000.msj", "000001.msj"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    let refused = replay_left(&folder, LedgerConfig::default());
    let Err(ReplayError::Recording(why)) = refused else {
        panic!("it is read");
    };
    assert!(matches!(why, RecordingError::Checkpoint { .. }), "{why}");
}
