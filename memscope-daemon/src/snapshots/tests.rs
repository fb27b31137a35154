#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::{Body, Event, EventId, ProcessFacts, ProcessHandle};
use memscope_ledger::report::{AsOf, SnapshotSegment};
use memscope_proto::formats::{self, SNAPSHOTS};
use memscope_rpc::TriggerStatus;
use memscope_tests::limits::{Met, constant};
use std::time::{Duration, Instant};

const P: ProcessHandle = ProcessHandle(1);

/// A process with one segment of three blocks, and a trace of `entries` entries.
fn report(pid: u32, entries: usize) -> SnapshotReport {
    let facts = ProcessFacts {
        pid,
        start_ticks: 77,
        uids: [1000; 3],
        comm: "python".into(),
        cmdline: vec!["python".into(), "train.py".into()],
        ..ProcessFacts::default()
    };
    let mut ledger = Ledger::new(Default::default());
    ledger.apply(&Event {
        id: EventId::default(),
        time_ns: 5,
        process: P,
        tid: 0,
        lost_before: 0,
        stack: memscope_ledger::event::StackRef::NotTaken,
        sampling: 0,
        body: Body::Attached(Box::new(facts)),
    });
    let as_of = AsOf {
        boot_ns: 9,
        unix_ns: 1_750_000_000_123_456_789,
        event: EventId::default(),
    };
    let mut report = ledger.snapshot(P, as_of).unwrap();
    let block = |addr, size, state| SnapshotBlock {
        addr,
        size,
        requested: None,
        state,
        since_ns: 0,
        stack: 0,
        labels: 0,
    };
    let segment = |device, addr| SnapshotSegment {
        device,
        addr,
        size: 600,
        stream: 0,
        large: false,
        pool: (0, 0),
        pool_told: true,
        expandable: false,
        seen: true,
        blocks: vec![
            block(addr, 100, BlockState::Active),
            block(addr + 100, 200, BlockState::Inactive),
            block(addr + 300, 50, BlockState::PendingFree),
            block(addr + 350, 250, BlockState::Inactive),
        ],
    };
    report.segments = vec![segment(0, 1000), segment(1, 5000)];
    report.trace = (0..entries as u64)
        .map(|n| memscope_ledger::report::SnapshotTrace {
            action: memscope_ledger::event::TraceAction::Alloc,
            device: 0,
            addr: n,
            size: 1,
            reported: false,
            stream: 0,
            pool: None,
            time_ns: n,
            unix_ns: n,
            tid: 1,
            stack: 0,
        })
        .collect();
    report
}

fn firing(trigger: u64, when: &str) -> Firing {
    Firing {
        trigger,
        condition: when.parse().unwrap(),
        process: P,
        device: Some(1),
        reason: "it rose".into(),
        paused: None,
        paused_before: 3,
        last_before_ns: None,
    }
}

fn job(pid: u32, entries: usize) -> Job {
    Job {
        report: Arc::new(report(pid, entries)),
        firing: firing(7, "reserved > 1GiB"),
        baseline: Baseline::Known,
    }
}

/// For a daemon to which nothing was left.
fn never() -> Again {
    Box::new(|one| Err(format!("{one:?} is not expected")))
}

/// The format of this name.
fn named(name: &str) -> &'static Format {
    formats::named(SNAPSHOTS, name).unwrap()
}

struct Place {
    folder: tempfile::TempDir,
    messages: Messages,
    writer: Writer,
}

impl Place {
    fn new(format: &'static Format, bytes: u64) -> Place {
        Place::prepared(format, bytes, |_| {})
    }

    fn prepared(format: &'static Format, bytes: u64, prepare: impl FnOnce(&Path)) -> Place {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let messages = Messages::default();
        let config = Config {
            dir: folder.path().join("snapshots"),
            format,
            limits: Limits { count: 4, bytes },
        };
        let writer = Writer::start(config, Counts::default(), never(), messages.clone()).unwrap();
        Place {
            folder,
            messages,
            writer,
        }
    }

    fn take(&self, job: Job) {
        let report = &job.report;
        self.writer
            .hold(&job.firing, report.as_of, &report.process.facts);
        self.writer.weigh(report, 1);
        self.writer.take(job);
    }

    /// Waits until no snapshot waits to be written.
    fn settle(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.writer.shelf().waits() > 0 {
            assert!(Instant::now() < deadline, "it is never written");
            std::thread::yield_now();
        }
    }

    fn status(&self) -> TriggerStatus {
        let mut status = TriggerStatus {
            trigger: 7,
            condition: "oom".parse().unwrap(),
            process: None,
            user: memscope_rpc::Account::Local(0),
            from_start: false,
            watching: 0,
            fired: 0,
            written: 0,
            skipped: Vec::new(),
            last_unix_ns: None,
        };
        self.writer.shelf().complete(&mut status);
        status
    }

    fn said(&self) -> Vec<String> {
        self.messages.all().into_iter().map(|m| m.text).collect()
    }
}

#[test]
fn a_snapshot_is_written_with_what_it_is() {
    let place = Place::new(named("memory-viz-json"), 1 << 20);
    place.take(job(u32::MAX, 5));
    place.settle();
    let kept = place.writer.shelf().store().list();
    assert_eq!(kept.len(), 1);
    let name = "000001-20250615T150640Z-pid-4294967295-reserved.json";
    assert_eq!(
        kept[0].path,
        place.folder.path().join("snapshots").join(name)
    );
    let content = fs::read(&kept[0].path).unwrap();
    assert_eq!(kept[0].bytes, content.len() as u64);
    let document: serde_json::Value = serde_json::from_slice(&content).unwrap();
    assert_eq!(document["device_traces"][0].as_array().unwrap().len(), 5);
    let beside = kept[0].path.with_extension("").with_extension("about.json");
    let about: About = serde_json::from_slice(&fs::read(beside).unwrap()).unwrap();
    let expected = About {
        snapshot: 1,
        file: name.into(),
        time_unix_ns: 1_750_000_000_123_456_789,
        pid: u32::MAX,
        start_ticks: 77,
        comm: "python".into(),
        cmdline: vec!["python".into(), "train.py".into()],
        uids: vec![1000],
        trigger: 7,
        when: "reserved > 1GiB".into(),
        reason: "it rose".into(),
        device: Some(1),
        allocated_bytes: Some(100),
        reserved_bytes: Some(600),
        free_bytes: Some(450),
        largest_free_bytes: Some(250),
        paused_before: 3,
        without_baseline: false,
        coverage: about.coverage.clone(),
        format: "memory-viz-json".into(),
        bytes: content.len() as u64,
    };
    assert_eq!(about, expected);
    assert!(
        about
            .coverage
            .iter()
            .any(|(code, _)| code == "driver_baseline_unknown")
    );
    assert!(
        place.said()[0].contains("it rose; snapshot 1: /"),
        "{:?}",
        place.said()
    );
    assert!(
        place.said()[0].contains("(it fired 3 times since"),
        "{:?}",
        place.said()
    );
    let status = place.status();
    assert_eq!((status.written, status.skipped.len()), (1, 0));
    assert_eq!(status.last_unix_ns, Some(1_750_000_000_123_456_789));
    place.writer.shelf().forget(7);
    assert_eq!(place.status().written, 0);
}

#[test]
fn one_without_its_baseline_says_so() {
    let place = Place::new(named("memory-viz"), 1 << 20);
    place.take(Job {
        baseline: Baseline::Awaited,
        ..job(u32::MAX, 5)
    });
    place.settle();
    let kept = place.writer.shelf().store().list();
    assert!(kept[0].without_baseline);
    let path = kept[0].path.display().to_string();
    assert!(
        path.ends_with("-reserved-without-baseline.pickle"),
        "{path}"
    );
    assert!(
        place.said()[0].contains("without what was there before"),
        "{:?}",
        place.said()
    );
}

#[test]
fn every_format() {
    for format in SNAPSHOTS {
        let place = Place::new(format, 1 << 22);
        place.take(job(u32::MAX, 5));
        place.settle();
        let kept = place.writer.shelf().store().list();
        assert_eq!(kept.len(), 1, "{:?}", place.said());
        let name = kept[0].path.to_str().unwrap();
        assert!(name.ends_with(format.endings[0]), "{name}");
        let first: &[u8] = match format.name {
            "memory-viz" => b"\x80\x04",
            "memory-viz-json" => b"{\"segments\"",
            "json" => b"{\"header\"",
            "perfetto" => b"\x0a",
            "html" => b"<!",
            other => panic!("{other} is not known here"),
        };
        let file = fs::read(&kept[0].path).unwrap();
        assert!(
            file.starts_with(first),
            "{name}: {:?}",
            &file[..first.len()]
        );
        assert_eq!(kept[0].format, format.name);
    }
}

#[test]
fn one_that_is_too_large_is_not_kept_and_leaves_nothing() {
    let place = Place::new(named("memory-viz"), 30_000);
    place.take(job(1, 100));
    place.settle();
    assert_eq!(
        place.writer.shelf().store().list().len(),
        1,
        "{:?}",
        place.said()
    );
    place.take(job(2, 100_000));
    place.settle();
    assert_eq!(place.writer.shelf().store().list().len(), 1);
    assert_eq!(
        fs::read_dir(place.folder.path().join("snapshots"))
            .unwrap()
            .count(),
        2
    );
    assert_eq!(place.status().skipped, [("too_large".to_owned(), 1)]);
    assert!(
        place.said()[1].contains("--snapshots-mib"),
        "{:?}",
        place.said()
    );
}

#[test]
fn a_place_that_cannot_be_written_is_said_once_until_it_can_be() {
    let block = |folder: &Path| fs::write(folder.join("snapshots"), "a file").unwrap();
    let place = Place::prepared(named("memory-viz"), 1 << 20, block);
    assert!(
        place.said()[0].contains("snapshots cannot be kept in"),
        "{:?}",
        place.said()
    );
    for _ in 0..3 {
        place.take(job(1, 5));
    }
    place.settle();
    let said = place.said();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[1].contains("could not be written to"), "{said:?}");
    assert_eq!(place.status().skipped, [("failed".to_owned(), 3)]);
    fs::remove_file(place.folder.path().join("snapshots")).unwrap();
    place.take(job(1, 5));
    place.settle();
    assert_eq!(place.status().written, 1);
    block_again(place.folder.path());
    place.take(job(1, 5));
    place.settle();
    assert_eq!(place.said().len(), 4, "{:?}", place.said());
}

fn block_again(folder: &Path) {
    fs::remove_dir_all(folder.join("snapshots")).unwrap();
    fs::write(folder.join("snapshots"), "a file").unwrap();
}

#[test]
fn only_so_much_waits() {
    let place = Place::new(named("memory-viz"), 1 << 30);
    // The thread cannot finish one while the store is held.
    let shelf = place.writer.shelf().clone();
    let held = shelf.store();
    let mut taken = 0;
    while place.writer.has_room() {
        place.take(job(1, 5));
        taken += 1;
    }
    assert_eq!(taken, WAITING);
    place.writer.busy(&firing(7, "oom"), "process 1 (python)");
    assert_eq!(place.status().skipped, [("busy".to_owned(), 1)]);
    assert!(
        place.said()[0].contains("others are still being written"),
        "{:?}",
        place.said()
    );
    drop(held);
    place.settle();
    assert!(place.writer.has_room());
    assert_eq!(place.status().written, taken as u64);
    assert_eq!(shelf.store().list().len(), 4);

    // The bytes are bounded as well, but one snapshot may always wait.
    let held = shelf.store();
    place
        .writer
        .waiting_bytes
        .fetch_add(WAITING_BYTES, Ordering::Relaxed);
    assert!(place.writer.has_room());
    place.take(job(1, 5));
    assert!(!place.writer.has_room());
    drop(held);
    place.settle();
    Met {
        what: "snapshots that wait to be written",
        most: constant("memscope-daemon/src/snapshots/mod.rs", "WAITING"),
        beyond: "further ones are not taken",
        told: "`busy` in `trigger list`, a message in `status`",
        test: "only_so_much_waits",
    }
    .is_told();
}

#[test]
fn the_end_waits_for_what_was_taken() {
    let mut place = Place::new(named("memory-viz"), 1 << 30);
    for _ in 0..3 {
        place.take(job(1, 50_000));
    }
    place.writer.finish(Duration::from_secs(60));
    assert_eq!(place.status().written, 3);
    assert_eq!(place.writer.shelf().store().list().len(), 3);
    // Nothing is taken after it.
    place.take(job(1, 5));
    assert_eq!(place.status().skipped, [("failed".to_owned(), 1)]);
}

#[test]
fn the_end_does_not_wait_for_ever() {
    let mut place = Place::new(named("memory-viz"), 1 << 30);
    let shelf = place.writer.shelf().clone();
    // The thread cannot finish one while the store is held.
    let held = shelf.store();
    place.take(job(1, 5));
    place.take(job(1, 5));
    place.writer.finish(Duration::from_millis(50));
    assert_eq!(place.status().skipped, [("failed".to_owned(), 2)]);
    let said = place.said();
    assert!(
        said[0].starts_with("2 snapshots that triggers took"),
        "{said:?}"
    );
    drop(held);
}

/// Whoever asks a daemon that was started again sees what its triggers have taken before.
#[test]
fn the_counts_outlive_the_daemon() {
    let place = Place::new(named("memory-viz"), 1 << 20);
    place.take(job(1, 5));
    place.settle();
    place.writer.busy(&firing(7, "oom"), "process 1 (python)");
    place.writer.busy(&firing(8, "oom"), "process 1 (python)");
    let tallies = place.writer.shelf().counts(|trigger| trigger == 7).tallies;
    assert_eq!(tallies.keys().collect::<Vec<_>>(), [&7]);
    let words = serde_json::to_string(&tallies).unwrap();
    let config = Config {
        dir: place.folder.path().join("snapshots"),
        format: named("memory-viz"),
        limits: Limits {
            count: 4,
            bytes: 1 << 20,
        },
    };
    let left = Counts {
        tallies: serde_json::from_str(&words).unwrap(),
        ..Counts::default()
    };
    let next = Place {
        writer: Writer::start(config, left, never(), Messages::default()).unwrap(),
        messages: Messages::default(),
        folder: tempfile::tempdir().unwrap(),
    };
    let status = next.status();
    assert_eq!(
        (status.written, status.skipped),
        (1, vec![("busy".to_owned(), 1)])
    );
    assert_eq!(status.last_unix_ns, place.status().last_unix_ns);
}

/// A daemon is killed while four snapshots wait. The next one finds the first on the disk, takes the second from the journal, and says
/// why it cannot take the third. It is killed over the fourth, which the one after it does not try again.
#[test]
fn what_a_killed_daemon_had_not_written_is_taken_again_or_counted() {
    let place = Place::new(named("memory-viz"), 1 << 20);
    let shelf = place.writer.shelf().clone();
    let at = |time: u64, pid: u32| {
        let mut made = report(pid, 5);
        made.as_of.unix_ns += time;
        Job {
            report: Arc::new(made),
            ..job(pid, 5)
        }
    };
    // The thread cannot finish one while the store is held.
    let held = shelf.store();
    for time in 0..4 {
        place.take(at(time, 1));
    }
    let left = shelf.counts(|_| true);
    assert_eq!((left.tallies.len(), left.waiting.len()), (0, 4));
    drop(held);
    place.settle();
    assert_eq!(shelf.counts(|_| true).waiting.len(), 0);
    let words = serde_json::to_string(&left.waiting).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        dir: folder.path().join("snapshots"),
        format: named("memory-viz"),
        limits: Limits {
            count: 4,
            bytes: 1 << 20,
        },
    };
    // The first snapshot is on the disk, and the count that says so is not.
    fs::create_dir(&config.dir).unwrap();
    let first = shelf.store().list().remove(0).path;
    for path in [
        first.with_extension("about.json"),
        first.with_extension("pickle"),
    ] {
        fs::copy(&path, config.dir.join(path.file_name().unwrap())).unwrap();
    }
    let (arrived, arrives) = std::sync::mpsc::channel();
    let (release, waits) = std::sync::mpsc::channel::<()>();
    let again: Again = Box::new(move |one| match one.as_of.unix_ns % 10 {
        0 => Ok(at(1, one.pid)),
        1 => Err("it is gone".to_owned()),
        _ => {
            arrived.send(()).unwrap();
            let _ = waits.recv();
            Err("the daemon was killed meanwhile".to_owned())
        }
    });
    let counts = Counts {
        waiting: serde_json::from_str(&words).unwrap(),
        ..Counts::default()
    };
    let messages = Messages::default();
    let next = Place {
        writer: Writer::start(config.clone(), counts, again, messages.clone()).unwrap(),
        messages,
        folder,
    };
    arrives.recv_timeout(Duration::from_secs(20)).unwrap();
    let status = next.status();
    assert_eq!(status.written, 2);
    assert_eq!(status.skipped, [("killed".to_owned(), 1)]);
    let left = next.writer.shelf().counts(|_| true);
    assert_eq!(left.waiting.len(), 1);
    let said = next.said();
    assert!(
        said[0].contains("taken from the journal, because memscoped was killed"),
        "{said:?}"
    );
    assert!(
        said[1].contains("it could not be taken again: it is gone"),
        "{said:?}"
    );
    // The daemon after that one.
    let messages = Messages::default();
    let last = Place {
        writer: Writer::start(config, left, never(), messages.clone()).unwrap(),
        messages,
        folder: tempfile::tempdir().unwrap(),
    };
    let status = last.status();
    assert_eq!(status.written, 2);
    assert_eq!(status.skipped, [("killed".to_owned(), 2)]);
    let said = last.said();
    assert!(said[0].contains("memscoped was killed again"), "{said:?}");
    drop(release);
}

#[test]
fn a_pause_is_said_once() {
    let place = Place::new(named("memory-viz"), 1 << 20);
    for paused in [Some(1), Some(2), Some(3)] {
        let firing = Firing {
            paused,
            ..firing(7, "oom")
        };
        place
            .writer
            .paused(&firing, "process 1 (python)", 10_000_000_000);
    }
    assert_eq!(
        place.said(),
        [
            "process 1 (python): it rose; no snapshot was taken, nor will be of that within 10 s of the \
          last one"
        ]
    );
}

#[test]
fn what_a_process_held_as_another_user_is_not_shown_to_the_first() {
    let own = rustix::process::getuid().as_raw();
    let pid = std::process::id();
    let started = memscope_site::process::alive(pid).unwrap().start_ticks;
    let now = user_ids(pid, started, [own + 5; 3]);
    assert_eq!(now, [own + 5, own]);
    assert_eq!(user_ids(u32::MAX, 77, [3, 3, 4]), [3, 4]);
    // Another process has the pid now, and its user is a stranger.
    assert_eq!(user_ids(pid, started - 1, [own + 5; 3]), [own + 5]);
    let shown = |uids: &[u32], uid| {
        let kept = memscope_rpc::KeptSnapshot {
            uids: uids.to_vec(),
            ..Default::default()
        };
        kept.is_shown_to(&memscope_rpc::Caller::local(uid, 0, None))
    };
    assert!(shown(&[3], 3) && !shown(&[3, 4], 3) && shown(&[3, 4], 0) && !shown(&[], 3));
}
