//! What a batch makes of what was heard.
#![allow(clippy::unwrap_used)]

use super::*;
use memscope_archive_rows::{Cell, GapRow, Whose};

fn event(epoch: u64, body: Body) -> v1::Event {
    v1::Event {
        id: Some(v1::EventId { epoch, sequence: 7 }),
        process: 1,
        pid: Some(10),
        body: Some(body),
        ..v1::Event::default()
    }
}

fn heard(event: v1::Event) -> ear::Heard {
    ear::Heard {
        sounds: vec![Sound::Event(Box::new(event))],
        ..ear::Heard::default()
    }
}

/// The daemon was stopped and started since the events were heard: process 1 of the new one is another process.
#[tokio::test]
async fn what_an_earlier_daemon_told_is_not_of_the_new_ones_processes() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let listed = v1::Process {
        handle: 1,
        facts: Some(v1::ProcessFacts {
            pid: 20,
            ..v1::ProcessFacts::default()
        }),
        ..v1::Process::default()
    };
    let finding = v1::Finding {
        number: 5,
        ..v1::Finding::default()
    };
    for (epoch, pid) in [(1, 10), (2, 20)] {
        let mut maker = Maker {
            daemon: &daemon,
            node: &node,
            number: 1,
            room: Room::of(1 << 40),
            epoch: 2,
            now_ns: 1,
            processes: BTreeMap::from([(1, listed.clone())]),
            batch: Batch::default(),
        };
        maker.alerts(&heard(event(epoch, Body::Finding(finding.clone()))));
        maker.events(&heard(event(epoch, Body::Forked(v1::Forked::default()))));
        let rows = &maker.batch.rows;
        assert_eq!(rows.len(), 2, "{rows:?}");
        for row in rows {
            assert!(row.cells.contains(&Cell::Int(Some(pid))), "{pid}: {row:?}");
            let other = Cell::Int(Some(30 - pid));
            assert!(!row.cells.contains(&other), "{pid}: {row:?}");
        }
        let seen = &maker.batch.cursor.processes;
        let standing: Vec<_> = seen
            .iter()
            .filter(|(_, seen)| !seen.standing.is_empty())
            .collect();
        assert_eq!(standing.len(), 1);
        assert_eq!(*standing[0].0, key(epoch, 1));
        // No finding of the new process is over, because it had none.
        maker.over(&BTreeMap::new());
        let over = maker.batch.rows.len() - 2;
        assert_eq!(over, usize::from(epoch == 2));
    }
}

/// What each row in `gaps` says: reason, table, first and last number, and of which journal.
fn gaps(batch: &Batch) -> Vec<(String, String, [Option<i64>; 3])> {
    let rows = batch
        .rows
        .iter()
        .filter(|row| row.table == GapRow::TABLE.name);
    let told = rows.map(|row| {
        let mut columns = Whose::TABLE.own.iter().chain(GapRow::TABLE.own);
        let mut at = |name: &str| {
            let at = columns.by_ref().position(|column| column.name == name);
            at.unwrap()
        };
        let epoch = at("epoch");
        let table = epoch + 1 + at("of_table");
        let reason = table + 1 + at("reason");
        let from = reason + 1 + at("from_number");
        let to = from + 1 + at("to_number");
        let text = |at: usize| match &row.cells[at] {
            Cell::Text(Some(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
        let number = |at: usize| match &row.cells[at] {
            Cell::Int(number) => *number,
            other => panic!("{other:?}"),
        };
        (text(reason), text(table), [from, to, epoch].map(number))
    });
    told.collect()
}

fn gap(reason: &str, table: &str, numbers: [i64; 3]) -> (String, String, [Option<i64>; 3]) {
    (reason.to_owned(), table.to_owned(), numbers.map(Some))
}

#[tokio::test]
async fn what_was_not_heard_is_told_apart_from_what_found_no_room() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = Maker {
        daemon: &daemon,
        node: &node,
        number: 1,
        room: Room::of(1 << 40),
        epoch: 8,
        now_ns: 1,
        processes: BTreeMap::new(),
        batch: Batch::default(),
    };
    let of = |epoch, sequence| {
        let mut told = event(epoch, Body::Forked(v1::Forked::default()));
        told.id = Some(v1::EventId { epoch, sequence });
        Sound::Event(Box::new(told))
    };
    let no_room = |epoch, first, last| Sound::NoRoom {
        epoch,
        count: 1 + last - first,
        first,
        last,
    };
    let heard = ear::Heard {
        sounds: vec![
            Sound::Begins,
            of(7, 2),
            no_room(7, 3, 4),
            Sound::Begins,
            no_room(7, 9, 9),
            Sound::Begins,
            no_room(8, 5, 6),
            of(8, 7),
        ],
        ..ear::Heard::default()
    };
    maker.events(&heard);
    assert_eq!(
        gaps(&maker.batch),
        [
            gap("no_room", "events", [3, 4, 7]),
            gap("not_connected", "events", [5, 8, 7]),
            gap("no_room", "events", [9, 9, 7]),
            gap("not_connected", "events", [1, 4, 8]),
            gap("no_room", "events", [5, 6, 8]),
        ]
    );
    let cursor = &maker.batch.cursor.events;
    assert_eq!((cursor.epoch, cursor.sequence), (8, 7));
    assert!(!cursor.interrupted);
}

/// Makes the first batch of the epoch 2.
fn maker<'m>(daemon: &'m Daemon, node: &'m Node) -> Maker<'m> {
    Maker {
        daemon,
        node,
        number: 1,
        room: Room::of(1 << 40),
        epoch: 2,
        now_ns: 1,
        processes: BTreeMap::new(),
        batch: Batch::default(),
    }
}

/// A process that is not listed any more may lack rows in each table that tells of its end.
#[tokio::test]
async fn each_table_that_lacks_a_process_says_so() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = maker(&daemon, &node);
    maker.seen_in(1, 5).step = 3;
    maker.seen_in(2, 6).ended = true;
    maker.forgotten();
    // They are of the earlier daemon's process.
    let of = |table: &str| {
        let told = [None, None, Some(1)];
        ("forgotten".to_owned(), table.to_owned(), told)
    };
    let tables = ["peaks", "steps", "stacks", "ooms"];
    assert_eq!(gaps(&maker.batch), tables.map(of));
    let mut columns = Whose::TABLE.own.iter();
    let at = columns.position(|column| column.name == "process").unwrap();
    for row in &maker.batch.rows {
        assert_eq!(row.cells[at], Cell::Int(Some(5)));
    }
}

/// Nothing is asked of a process that has loaded no library of a device, and nothing is missing when it is gone.
#[tokio::test]
async fn a_process_that_never_used_a_device_is_not_missed() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = maker(&daemon, &node);
    let waits = v1::Process {
        handle: 5,
        waits_for_device: true,
        ..v1::Process::default()
    };
    maker.processes = BTreeMap::from([(5, waits)]);
    maker.process(5).await.unwrap();
    maker.processes.clear();
    maker.forgotten();
    assert!(maker.batch.rows.is_empty(), "{:?}", maker.batch.rows);
}

/// The findings of a process that is not listed any more stand no longer, also where it is of an earlier daemon.
#[tokio::test]
async fn findings_of_a_process_that_is_gone_are_over() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = Maker {
        daemon: &daemon,
        node: &node,
        number: 1,
        room: Room::of(1 << 40),
        epoch: 2,
        now_ns: 1,
        processes: BTreeMap::from([(
            5,
            v1::Process {
                handle: 5,
                ..v1::Process::default()
            },
        )]),
        batch: Batch::default(),
    };
    maker.seen_in(1, 5).standing.insert(7);
    maker.seen_in(1, 5).ended = true;
    maker.seen_in(2, 5).standing.insert(8);
    maker.forgotten();
    let gone = v1::Process {
        handle: 5,
        ..v1::Process::default()
    };
    let over = rows::finding_over(&maker.origin(1), 7, Some(&gone), 1);
    assert_eq!(maker.batch.rows, [over]);
    assert_eq!(
        maker.batch.cursor.processes.keys().collect::<Vec<_>>(),
        [&key(2, 5)]
    );
}

/// A process that was given up is asked for once: the daemon has nothing of it any more.
#[tokio::test]
async fn a_process_that_was_given_up_is_not_asked_for_again() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = maker(&daemon, &node);
    let refused = |word| Err(DaemonError::refused("stats", word));
    // Another reason may pass, and so may this one of a process that still runs.
    for (ended, word) in [(true, "not_exact"), (false, "given_up")] {
        let taken = maker.take(5, Seen::default(), ended, refused(word));
        assert!(taken.is_err(), "{ended} {word}");
    }
    maker
        .take(5, Seen::default(), true, refused("given_up"))
        .unwrap();
    assert!(maker.seen(5).ended);
    let told: Vec<_> = gaps(&maker.batch)
        .into_iter()
        .map(|(reason, table, _)| (reason, table))
        .collect();
    let of = |table: &str| ("forgotten".to_owned(), table.to_owned());
    assert_eq!(told, ["peaks", "steps", "stacks", "ooms"].map(of));
}

/// A later process has the number of one that memscoped still lists, as after a reload of the policy: it is not forgotten.
#[tokio::test]
async fn a_process_whose_number_another_one_has_is_told_so() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let mut maker = maker(&daemon, &node);
    for ended in [false, true] {
        let mut seen = maker.seen(5).clone();
        let made = number_taken(&mut seen, ended);
        maker.take(5, seen, ended, Ok(made)).unwrap();
        assert_eq!(maker.seen(5).ended, ended);
        let told: Vec<_> = gaps(&maker.batch)
            .into_iter()
            .map(|(reason, table, _)| (reason, table))
            .collect();
        let of = |table: &str| ("number_taken".to_owned(), table.to_owned());
        let expected = match ended {
            true => ["peaks", "steps", "stacks", "ooms"].map(of).to_vec(),
            false => Vec::new(),
        };
        assert_eq!(told, expected);
    }
}

/// A number was several processes: a snapshot is of the one that was attached last before it, or at least of the job of all of them.
#[test]
fn a_snapshot_has_the_process_of_its_time() {
    let of = |handle, attached_boot_ns, job: &str| v1::Process {
        handle,
        attached_boot_ns,
        facts: Some(v1::ProcessFacts {
            pid: 7,
            ..v1::ProcessFacts::default()
        }),
        workload: Some(v1::Workload {
            slurm_job: Some(job.to_owned()),
            ..v1::Workload::default()
        }),
        ..v1::Process::default()
    };
    let kept = v1::KeptSnapshot {
        pid: 7,
        comm: "python".into(),
        ..v1::KeptSnapshot::default()
    };
    let node = Node::default();
    let row = |all: &[&v1::Process], then_boot_ns| {
        let origin = Origin {
            node: &node,
            batch: 1,
            epoch: 2,
        };
        let process = of_several(all, &kept, then_boot_ns);
        let row = rows::snapshot(&origin, &kept, None, Some(&process));
        let column = |name: &str| {
            let mut columns = Whose::TABLE.own.iter();
            let at = columns.position(|column| column.name == name).unwrap();
            row.cells[at].clone()
        };
        (column("process"), column("pid"), row.job.clone())
    };
    let (first, second, other) = (of(3, 100, "1"), of(4, 200, "1"), of(5, 300, "2"));
    let told = |handle, job: &str| (Cell::Int(handle), Cell::Int(Some(7)), job.to_owned());
    let both = [&second, &first];
    assert_eq!(row(&both, Some(150)), told(Some(3), "slurm-1"));
    assert_eq!(row(&both, Some(200)), told(Some(4), "slurm-1"));
    // It is not known when it was in their clock, or it was before all of them.
    assert_eq!(row(&both, None), told(None, "slurm-1"));
    assert_eq!(row(&both, Some(50)), told(None, "slurm-1"));
    assert_eq!(row(&[&first, &other], None), told(None, "none"));
    // One that is listed alone may be a later one.
    assert_eq!(row(&[&second], Some(250)), told(Some(4), "slurm-1"));
    assert_eq!(row(&[&second], Some(150)), told(None, "slurm-1"));
    assert_eq!(row(&[&second], None), told(Some(4), "slurm-1"));
    assert_eq!(row(&[], Some(150)), told(None, "none"));
}

/// A snapshot that the spool could never take would be asked for again and again, and no batch would be closed.
#[test]
fn a_snapshot_leaves_room_in_the_spool() {
    assert_eq!(snapshot_bytes(1 << 40), SNAPSHOT_BYTES);
    assert_eq!(snapshot_bytes(2 * SNAPSHOT_BYTES), SNAPSHOT_BYTES);
    assert_eq!(snapshot_bytes(SNAPSHOT_BYTES), SNAPSHOT_BYTES / 2);
    assert_eq!(snapshot_bytes(1 << 20), 1 << 19);
}

/// What the next batch tells of these rows of steps: reasons of gaps with how many rows are missing, and how many rows it has.
fn told_of_steps(
    seen: &mut Seen,
    source: v1::StepSource,
    rows: &[v1::StepRow],
) -> (Vec<(&'static str, Option<u64>)>, usize) {
    let (gaps, rows) = gaps_of_steps(seen, source, rows, (v1::Level::Trace, None));
    let gaps = gaps.iter().map(|gap| (gap.reason, gap.missing));
    (gaps.collect(), rows)
}

/// The same with the whole gaps, of a process at a level, with the end of what is no longer kept.
fn gaps_of_steps(
    seen: &mut Seen,
    source: v1::StepSource,
    rows: &[v1::StepRow],
    (level, forgotten_to_boot_ns): (v1::Level, Option<u64>),
) -> (Vec<Gap>, usize) {
    let node = Node::default();
    let origin = Origin {
        node: &node,
        batch: 1,
        epoch: 2,
    };
    let answer = v1::StepsResponse {
        as_of_boot_ns: 1_000,
        as_of: 10_000,
        summary: Some(v1::StepSummary {
            source: source.into(),
            ..v1::StepSummary::default()
        }),
        rows: rows.to_vec(),
        forgotten_to_boot_ns,
        ..v1::StepsResponse::default()
    };
    let mut made = Made::default();
    let process = v1::Process {
        attached_boot_ns: 8,
        facts: Some(v1::ProcessFacts {
            level: level.into(),
            ..v1::ProcessFacts::default()
        }),
        ..v1::Process::default()
    };
    new_steps(&origin, &answer, &process, seen, 2, &mut made);
    (made.gaps, made.rows.len())
}

/// A step from one moment to another, on two devices.
fn step_on_two(step: u64, from_boot_ns: u64, to_boot_ns: u64) -> [v1::StepRow; 2] {
    [0, 1].map(|device| v1::StepRow {
        step,
        from_boot_ns,
        to_boot_ns,
        device: Some(device),
        ..v1::StepRow::default()
    })
}

/// Each step that is not kept any more had a row for each device.
#[test]
fn forgotten_steps_are_counted_in_rows() {
    let mut seen = Seen::default();
    let (source, trace) = (v1::StepSource::Optimizer, v1::Level::Trace);
    let mut told = |rows: &[v1::StepRow], forgotten| {
        let (gaps, rows) = gaps_of_steps(&mut seen, source, rows, (trace, Some(forgotten)));
        let told = |gap: Gap| (gap.reason, gap.missing, gap.time_ns, gap.numbers);
        (gaps.into_iter().map(told).collect::<Vec<_>>(), rows)
    };
    // The first ones are missing from the attach on.
    let gap = ("forgotten", Some(6), (9_008, 9_030), (Some(1), Some(3)));
    assert_eq!(told(&step_on_two(4, 30, 40), 30), (vec![gap], 2));
    let gap = ("forgotten", Some(4), (9_040, 9_060), (Some(5), Some(6)));
    assert_eq!(told(&step_on_two(7, 60, 70), 60), (vec![gap], 2));
    // What is forgotten was written before.
    assert_eq!(told(&step_on_two(8, 70, 80), 70), (vec![], 2));
}

/// Where nothing was asked of the driver in a step, level `segments` has no row for it, nor has a pattern before it was recognised.
#[test]
fn steps_that_never_had_a_row_are_not_missed() {
    let optimizer = v1::StepSource::Optimizer;
    let mut seen = Seen::default();
    assert_eq!(
        told_of_steps(&mut seen, optimizer, &step_on_two(3, 30, 40)),
        (vec![], 2)
    );
    assert_eq!(
        told_of_steps(&mut seen, optimizer, &step_on_two(6, 60, 70)),
        (vec![], 2)
    );
    // How many had one is not known where not each had.
    let mut seen = Seen::default();
    let told = (v1::Level::Segments, Some(25));
    let (gaps, rows) = gaps_of_steps(&mut seen, optimizer, &step_on_two(3, 30, 40), told);
    assert_eq!((gaps[0].reason, gaps[0].missing), ("forgotten", None));
    assert_eq!((gaps.len(), rows), (1, 2));
}

/// Steps were counted anew, and the one that overlaps what is written is still the last one at the next batch.
#[test]
fn a_step_that_overlaps_what_is_written_is_told_once() {
    let mut seen = Seen::default();
    let before = told_of_steps(&mut seen, v1::StepSource::Backward, &step_on_two(1, 10, 20));
    assert_eq!(before, (vec![], 2));
    let source = v1::StepSource::Optimizer;
    let mut rows = step_on_two(1, 5, 30).to_vec();
    let once = vec![("renumbered", Some(1)), ("renumbered", Some(1))];
    assert_eq!(told_of_steps(&mut seen, source, &rows), (once, 0));
    assert_eq!(told_of_steps(&mut seen, source, &rows), (vec![], 0));
    rows.extend(step_on_two(2, 30, 40));
    assert_eq!(told_of_steps(&mut seen, source, &rows), (vec![], 2));
}

/// What one batch does not take comes with the next one, in whole steps.
#[test]
fn many_steps_come_in_several_batches() {
    let mut seen = Seen::default();
    let source = v1::StepSource::Optimizer;
    let steps = [1, 2, 3].map(|step| step_on_two(step, step * 10, step * 10 + 10));
    for _ in 0..3 {
        let told = told_of_steps(&mut seen, source, &steps.concat());
        assert_eq!(told, (vec![], 2));
    }
    let told = told_of_steps(&mut seen, source, &steps.concat());
    assert_eq!(told, (vec![], 0));
}
