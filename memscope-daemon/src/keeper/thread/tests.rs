//! What the keeper says by itself before and after it has its ring. Until then, what lies in the ring is not in the ledger.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::Instant;

use memscope_ledger::LedgerConfig;
use memscope_ledger::event::{
    Body, Event, Finding, Level, Placement, PoolReport, ProcessFacts, StackRef,
};
use memscope_proto::formats::{SNAPSHOTS, named};
use memscope_rpc::{Caller, Condition, Metric};

use super::*;
use crate::keeper::watching::{Key, Said};
use crate::messages::Messages;
use crate::probe::slot::Slot;
use crate::snapshots::{self, Counts, Limits, Writer};
use crate::triggers::{Firing, Triggers};

const P: ProcessHandle = ProcessHandle(1);
const EPOCH: u64 = 5;
/// Longer than anything here takes.
const FOR_EVER: Duration = Duration::from_secs(60);

fn event(process: ProcessHandle, time_ns: u64, body: Body) -> Event {
    Event {
        id: EventId::default(),
        time_ns,
        process,
        tid: 1,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

fn attach(ledger: &mut Ledger, process: ProcessHandle, time_ns: u64) {
    let facts = ProcessFacts {
        pid: 40 + process.0,
        level: Some(Level::Blocks),
        from_start: true,
        ..ProcessFacts::default()
    };
    ledger.apply(&event(process, time_ns, Body::Attached(Box::new(facts))));
}

/// A process that has kept one more block each tenth of a second until now, beside others that it freed again.
fn growing() -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default());
    grow(&mut ledger, P);
    ledger
}

fn grow(ledger: &mut Ledger, process: ProcessHandle) {
    const KEPT: u64 = 600;
    const EACH_NS: u64 = 100_000_000;
    let began = clock::boot_ns() - KEPT * EACH_NS;
    attach(ledger, process, began);
    let placed = Placement {
        pool_seen: true,
        ..Placement::default()
    };
    ledger.apply(&event(process, began, Body::Placed(Box::new(placed))));
    let mut held = 0i64;
    for number in 1..=KEPT {
        let mut report = |ptr, size: i64| {
            held += size;
            let report = PoolReport {
                device: 0,
                ptr,
                size,
                total_allocated: held as u64,
                total_reserved: 64 << 20,
            };
            let time = began + number * EACH_NS;
            ledger.apply(&event(process, time, Body::Report(report)));
        };
        report(number << 20, 4096);
        for _ in 0..8 {
            report(1 << 40, 512);
            report(1 << 40, -512);
        }
    }
}

fn watch(process: ProcessHandle) -> Command {
    Command::Watch {
        process,
        pid: 40 + process.0,
        uids: [0; 3],
        namespace: None,
        slot: Slot::untraced(),
    }
}

/// An empty ring, in a file that is laid out as one.
fn ring() -> Ring {
    let page = rustix::param::page_size() as u64;
    let bytes = page;
    let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 2 * page + 2 * bytes).unwrap();
    Ring::open(fd, bytes as u32).unwrap()
}

fn give_ring(keeper: &KeeperHandle) {
    give_ring_without(keeper, Vec::new());
}

fn give_ring_without(keeper: &KeeperHandle, untraced: Vec<(ProcessHandle, u64)>) {
    let (done, wait) = std::sync::mpsc::channel();
    let command = Command::Ring {
        ring: Box::new(ring()),
        position: None,
        untraced,
        done,
    };
    keeper.send(command).unwrap();
    wait.recv().unwrap();
}

fn start(ledger: Ledger) -> Start {
    Start {
        journal: None,
        decoder: Decoder::new(EPOCH),
        ledger,
        epoch: EPOCH,
        hub: Arc::default(),
        tracer: Some(std::sync::mpsc::channel().0),
        taking: None,
        watching: None,
        memory: None,
        pulse: Pulse::default(),
    }
}

fn taking(folder: &Path) -> Taking {
    let config = snapshots::Config {
        dir: folder.join("snapshots"),
        format: named(SNAPSHOTS, "memory-viz-json").unwrap(),
        limits: Limits {
            count: 4,
            bytes: 1 << 20,
        },
    };
    Taking {
        triggers: Triggers::new(&[], 0),
        writer: Writer::start(
            config,
            Counts::default(),
            Box::new(|_| Err("nothing waits".into())),
            Messages::default(),
        )
        .unwrap(),
        pause_ns: 0,
    }
}

/// Number of the last record, after the keeper has gone around some times.
fn last_record(keeper: &KeeperHandle) -> u64 {
    let mut last = 0;
    for _ in 0..100 {
        last = keeper
            .ask_blocking(|_, as_of| as_of.event.sequence)
            .unwrap();
    }
    last
}

/// Has the triggers looked at or changed by the keeper.
fn triggers<T: Send + 'static>(
    keeper: &KeeperHandle,
    work: impl FnOnce(&mut Taking) -> T + Send + 'static,
) -> T {
    let (reply, answer) = std::sync::mpsc::channel();
    let work = move |taking: Option<&mut Taking>| reply.send(work(taking.unwrap())).unwrap();
    keeper.send(Command::Triggers(Box::new(work))).unwrap();
    answer.recv().unwrap()
}

fn fired(keeper: &KeeperHandle) -> u64 {
    triggers(keeper, |taking| {
        taking.list().iter().map(|one| one.fired).sum()
    })
}

#[track_caller]
fn comes(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < FOR_EVER);
    }
}

#[test]
fn nothing_is_judged_before_the_ring_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, thread) = Keeper::start(Start {
        taking: Some(taking(folder.path())),
        ..start(growing())
    })
    .unwrap();
    keeper.send(watch(P)).unwrap();
    // It holds already, and is looked at when the keeper goes around next.
    let condition = Condition {
        metric: Metric::Allocated { above: 1000 },
        device: None,
    };
    triggers(&keeper, move |taking| {
        taking.add(Caller::root(), condition, None).unwrap()
    });
    assert_eq!((last_record(&keeper), fired(&keeper)), (0, 0));
    give_ring(&keeper);
    comes(|| fired(&keeper) == 1);
    comes(|| !keeper.hub().findings().is_empty());
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
}

/// Its probes may take long to remove, and until then it is watched. Nobody would ever withdraw what is found then.
#[test]
fn nothing_is_found_of_a_process_that_has_ended() {
    let (ended, lives) = (P, ProcessHandle(2));
    let mut ledger = growing();
    grow(&mut ledger, lives);
    let (keeper, thread) = Keeper::start(start(ledger)).unwrap();
    for process in [ended, lives] {
        keeper.send(watch(process)).unwrap();
    }
    let append = Command::Append {
        process: ended,
        record: DaemonRecord::Exited,
    };
    keeper.send(append).unwrap();
    give_ring(&keeper);
    comes(|| !keeper.hub().findings().is_empty());
    // The look that found the one has ended.
    keeper.ask_blocking(|_, _| ()).unwrap();
    let of: Vec<ProcessHandle> = keeper.hub().findings().iter().map(|(of, _)| *of).collect();
    assert_eq!(of, [lives]);
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
}

#[test]
fn nobody_gives_way_before_the_ring_is_there() {
    let mut ledger = Ledger::new(LedgerConfig::default());
    let now = clock::boot_ns();
    for process in 1..=200 {
        attach(&mut ledger, ProcessHandle(process), now);
    }
    let (keeper, thread) = Keeper::start(Start {
        memory: Some(Memory::new(20)),
        ..start(ledger)
    })
    .unwrap();
    keeper.send(watch(P)).unwrap();
    assert_eq!(last_record(&keeper), 0);
    give_ring(&keeper);
    let given_up = || {
        let ended =
            |ledger: &mut Ledger, _| ledger.processes().iter().any(|one| one.ended_ns.is_some());
        keeper.ask_blocking(ended).unwrap()
    };
    comes(given_up);
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
}

/// Nobody will ask for them, and nobody would ever withdraw them.
#[test]
fn findings_of_processes_that_ended_meanwhile_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let said = Said {
        key: Key {
            device: Some(0),
            source: 1,
            line: None,
            size: 512,
            stack: None,
        },
        finding: Finding {
            number: 1,
            ..Finding::default()
        },
        missing: 0,
        given_back: 0,
        sequence: 7,
        time_ns: 7,
    };
    let (lives, ended) = (P, ProcessHandle(2));
    let findings = [lives, ended].map(|process| (process, (1, vec![said.clone()])));
    let left = LeftWatching {
        findings: findings.into(),
        ..LeftWatching::default()
    };
    let watching = Watching::new(folder.path(), EPOCH);
    let (keeper, thread) = Keeper::start(Start {
        watching: Some((watching, left)),
        ..start(Ledger::new(LedgerConfig::default()))
    })
    .unwrap();
    keeper.send(watch(lives)).unwrap();
    give_ring(&keeper);
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
    let left = Watching::new(folder.path(), EPOCH).read(true).unwrap();
    let stand: Vec<ProcessHandle> = left.findings.into_keys().collect();
    assert_eq!(stand, [lives]);
}

/// A daemon that keeps no snapshots has no use for them, and the one after it may keep some.
#[test]
fn triggers_outlive_a_daemon_that_keeps_no_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let condition = Condition {
        metric: Metric::Allocated { above: 1000 },
        device: None,
    };
    let mut triggers = Triggers::new(&[], 0);
    let added = triggers.add(Caller::root(), condition, None).unwrap();
    let tallies = r#"{"1":{"written":3,"last_unix_ns":null,"skipped":{"busy":2}}}"#;
    let waiting = r#"[{"firing":{"trigger":1,"condition":{"metric":{"Allocated":{"above":1000}},"device":null},"process":4,
        "device":0,"reason":"it rose","paused":null,"paused_before":0,"last_before_ns":null},
        "as_of":{"boot_ns":7,"unix_ns":8,"event":{"epoch":5,"sequence":6}},
        "pid":40,"start_ticks":2,"comm":"python","again":false}]"#;
    let told = Counts {
        tallies: serde_json::from_str(tallies).unwrap(),
        waiting: serde_json::from_str(waiting).unwrap(),
    };
    let left = LeftWatching {
        triggers: Some(triggers),
        counts: told.clone(),
        ..LeftWatching::default()
    };
    let watching = Watching::new(folder.path(), EPOCH);
    let (keeper, thread) = Keeper::start(Start {
        watching: Some((watching, left)),
        ..start(Ledger::new(LedgerConfig::default()))
    })
    .unwrap();
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
    let mut left = Watching::new(folder.path(), EPOCH).read(true).unwrap();
    let (triggers, counts) = left.take_triggers();
    assert!(triggers.unwrap().has(added.trigger));
    assert_eq!(counts, told);
}

/// The daemon before was killed, and the probes went with it. What it knew last is not what the process had until this one came.
#[test]
fn a_process_is_not_traced_between_two_daemons_without_its_probes() {
    let folder = tempfile::tempdir().unwrap();
    let (boot_ns, unix_ns) = clock::pair();
    // The daemon before was there long ago, so that this one's own records are no longer taken for ones of that time.
    let then = boot_ns - 60_000_000_000;
    let pair = memscope_log::ClockPair {
        boot_ns: then,
        unix_ns: unix_ns - 60_000_000_000,
    };
    let config = memscope_log::Config::new(EPOCH, [7; 16], pair);
    let mut journal = Journal::create(folder.path(), config).unwrap();
    let dir = journal.epoch_dir().to_owned();
    let facts = ProcessFacts {
        pid: 41,
        ..ProcessFacts::default()
    };
    let attached = event(P, then, Body::Attached(Box::new(facts)));
    let record = memscope_log::records::encode(&attached, 0)
        .unwrap()
        .unwrap();
    journal.append(&record, 0, None).unwrap();
    let left = crate::replay::replay_left(&dir, LedgerConfig::default()).unwrap();
    let (keeper, thread) = Keeper::start(Start {
        journal: Some(journal),
        decoder: left.decoder,
        ..start(left.ledger)
    })
    .unwrap();
    give_ring_without(&keeper, vec![(P, then)]);
    last_record(&keeper);
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
    for moment in [then + 1, boot_ns - 1, boot_ns] {
        let until = crate::replay::Until::Boot(moment);
        let config = LedgerConfig::default();
        let folded = crate::replay::replay_until(&dir, config, until, Some(41)).unwrap();
        assert_eq!(folded.ledger.detached_ns(P), Some(then), "{moment}");
    }
}

/// What was lost before the end and not told yet is told before it.
#[test]
fn losses_before_the_end_of_a_process_count() {
    for record in [
        DaemonRecord::Exited,
        DaemonRecord::Detached,
        DaemonRecord::Replaced,
    ] {
        losses_before_this_end_count(record);
    }
}

fn losses_before_this_end_count(record: DaemonRecord) {
    let why = format!("{record:?}");
    let mut ledger = Ledger::new(LedgerConfig::default());
    attach(&mut ledger, P, clock::boot_ns());
    let (keeper, thread) = Keeper::start(start(ledger)).unwrap();
    let Command::Watch {
        pid, uids, slot, ..
    } = watch(P)
    else {
        panic!("it is none");
    };
    let lossy = slot.clone();
    keeper
        .send(Command::Watch {
            process: P,
            pid,
            uids,
            namespace: None,
            slot,
        })
        .unwrap();
    give_ring(&keeper);
    // Said in the keeper's own thread, the command is the next that it obeys, before it looks at losses by itself.
    let own = keeper.clone();
    keeper
        .ask_blocking(move |_, _| {
            lossy.add_lost(3);
            own.send(Command::Append { process: P, record }).unwrap();
        })
        .unwrap();
    let summary = keeper.ask_blocking(|ledger, _| ledger.summary(P)).unwrap();
    let summary = summary.unwrap();
    assert!(summary.ended_ns.is_some(), "{why}");
    assert_eq!(summary.lost_records, 3, "{why}");
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
}

/// A picture of a large process takes long, and the daemon may be killed meanwhile. The next one knows what to take again.
#[test]
fn what_fired_is_written_down_before_its_picture_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::new(LedgerConfig::default());
    attach(&mut ledger, P, 1);
    let watching = Watching::new(folder.path(), EPOCH);
    let (_, mut keeper) = Keeper::new(Start {
        taking: Some(taking(folder.path())),
        watching: Some((watching, LeftWatching::default())),
        ..start(ledger)
    })
    .unwrap();
    let fired = |trigger| Firing {
        trigger,
        condition: "oom".parse().unwrap(),
        process: P,
        device: Some(0),
        reason: "it ran out of memory".to_owned(),
        paused: None,
        paused_before: 0,
        last_before_ns: None,
    };
    keeper.due = vec![fired(1), fired(2)];
    let waited = std::cell::Cell::new(0);
    keeper.take_due_by(AsOf::default(), |ledger, process, as_of| {
        let left = Watching::new(folder.path(), EPOCH).read(true).unwrap();
        waited.set(left.waiting().count());
        ledger.picture(process, as_of)
    });
    assert_eq!(waited.get(), 2);
    let made = keeper.pictures.iter().map(|made| made.firings.len());
    assert_eq!(made.collect::<Vec<_>>(), [2]);
}

/// The first record that the next daemon writes may be of a moment long before the last one. The segment that begins with it has the state
/// of the last one, which is not that of moments in between.
#[test]
fn a_segment_begins_no_earlier_than_its_state() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let (boot_ns, unix_ns) = clock::pair();
    let then = boot_ns - 60 * SECOND;
    let pair = memscope_log::ClockPair {
        boot_ns: then,
        unix_ns: unix_ns - 60 * SECOND,
    };
    let config = || memscope_log::Config::new(EPOCH, [7; 16], pair);
    let mut journal = Journal::create(folder.path(), config()).unwrap();
    let dir = journal.epoch_dir().to_owned();
    let unfinished = ProcessHandle(P.0 + 1);
    for (process, after) in [(P, 0), (unfinished, 1), (ProcessHandle(P.0 + 2), 30)] {
        let facts = ProcessFacts {
            pid: 40 + process.0,
            ..ProcessFacts::default()
        };
        let attached = Body::Attached(Box::new(facts));
        let attached = event(process, then + after * SECOND, attached);
        let record = memscope_log::records::encode(&attached, 0)
            .unwrap()
            .unwrap();
        journal.append(&record, 0, None).unwrap();
    }
    drop(journal);
    let left = crate::replay::replay_left(&dir, LedgerConfig::default()).unwrap();
    let again = memscope_log::LeftJournal::open(folder.path(), config()).unwrap();
    let journal = again.reopen(left.decoder.next_sequence()).unwrap();
    let (keeper, thread) = Keeper::start(Start {
        journal: Some(journal),
        decoder: left.decoder,
        ..start(left.ledger)
    })
    .unwrap();
    give_ring_without(&keeper, vec![(unfinished, then + SECOND)]);
    last_record(&keeper);
    keeper.send(Command::Stop).unwrap();
    thread.join().unwrap();
    let until = crate::replay::Until::Boot(then + 10 * SECOND);
    let folded =
        crate::replay::replay_until(&dir, LedgerConfig::default(), until, Some(40 + P.0)).unwrap();
    assert_eq!(folded.ledger.last_ns(), then + SECOND);
}
