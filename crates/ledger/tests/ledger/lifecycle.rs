//! Processes are attached and end, records are lost, and the ledger's memory stays bounded.

use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1;
use memscope_proto::v1::{FluctuationRequest, LeaksRequest, ListRequest};
use memscope_tests::limits::Met;

fn attach(ledger: &mut Ledger, handle: u32, pid: u32, ticks: u64, time: u64) {
    let mut facts = facts(pid, Level::Trace, false);
    facts.start_ticks = ticks;
    ledger.apply(&event(ProcessHandle(handle), time, Body::Attached(facts)));
}

fn ask(ledger: &Ledger, p: ProcessHandle) -> Option<v1::StatsResponse> {
    ledger.ask(&[p], as_of(0), &v1::StatsRequest::default())
}

#[test]
fn handles_pids_and_ends() {
    let mut ledger = Ledger::new(LedgerConfig::default());
    ledger.apply(&event(ProcessHandle(9), 1, Body::Exited));
    ledger.apply(&event(ProcessHandle(0), 1, Body::Exited));
    assert_eq!(ledger.ignored_events(), 2);
    attach(&mut ledger, 1, 42, 7, 100);
    attach(&mut ledger, 2, 43, 8, 110);
    ledger.apply(&event(ProcessHandle(1), 200, Body::Exited));
    assert_eq!(ledger.find(42), Some(ProcessHandle(1)));
    attach(&mut ledger, 3, 42, 9, 300);
    assert_eq!(ledger.find(42), Some(ProcessHandle(3)));
    ledger.apply(&event(ProcessHandle(3), 310, Body::Detached));
    assert_eq!(
        ledger.find(42),
        Some(ProcessHandle(3)),
        "newest of the ended"
    );
    let states: Vec<_> = ledger
        .processes()
        .iter()
        .map(|p| (p.handle.0, p.state, p.ended_ns))
        .collect();
    assert_eq!(
        states,
        [
            (1, ProcessState::Exited, Some(200)),
            (2, ProcessState::Attached, None),
            (3, ProcessState::Detached, Some(310)),
        ]
    );
    // An attach of the same pid ends the process that was thought to live.
    attach(&mut ledger, 4, 43, 8, 400);
    assert_eq!(
        ledger.summary(ProcessHandle(2)).unwrap().state,
        ProcessState::Replaced
    );
    attach(&mut ledger, 5, 43, 88, 500);
    assert_eq!(
        ledger.summary(ProcessHandle(4)).unwrap().state,
        ProcessState::Exited
    );
    assert_eq!(ledger.find(44), None);
    assert_eq!(ask(&ledger, ProcessHandle(77)), None);
}

#[test]
fn the_last_state_stands_until_it_expires() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let a = sim.alloc(0, 0, 512);
    sim.alloc(0, 0, MIB);
    sim.time = 10 * SECOND;
    sim.emit(Body::Exited);
    sim.free(a, false);
    sim.feed(&mut ledger);
    let report = stats(&ledger);
    assert_eq!(
        report.process.as_ref().unwrap().state(),
        v1::ProcessState::Exited
    );
    assert_eq!(
        report.process.as_ref().unwrap().allocated_bytes,
        Some(512 + MIB),
        "abandoned at exit"
    );
    assert_eq!(ledger.ignored_events(), 2);
    let leaks = ledger
        .ask(
            &[P],
            as_of(100 * SECOND),
            &LeaksRequest {
                include_steady: true,
                ..LeaksRequest::default()
            },
        )
        .unwrap();
    assert_eq!(
        leaks.watched_ns,
        9 * SECOND,
        "an ended process stands still"
    );
    let minutes = 60 * SECOND;
    assert_eq!(ledger.expire(10 * SECOND + 15 * minutes), vec![]);
    assert_eq!(ledger.expire(10 * SECOND + 15 * minutes + 1), vec![P]);
    assert_eq!(ask(&ledger, P), None);
    assert!(ledger.processes().is_empty());
    assert_eq!(ledger.find(42), None);
}

#[test]
fn ended_processes_are_forgotten_early_where_there_are_many() {
    let mut ledger = Ledger::new(LedgerConfig {
        ended_bytes: 200_000,
        ..LedgerConfig::default()
    });
    // Each process holds 300 blocks when it ends, except one that holds none, and the last one, which does not end.
    for number in 1..=8u32 {
        let process = ProcessHandle(number);
        let time = u64::from(number) * SECOND;
        ledger.apply(&event(
            process,
            time,
            Body::Attached(facts(40 + number, Level::Blocks, true)),
        ));
        let blocks = if number == 3 { 0 } else { 300 };
        for block in 1..=blocks {
            let report = PoolReport {
                device: 0,
                ptr: block << 20,
                size: 512,
                total_allocated: block * 512,
                total_reserved: 2 << 20,
            };
            ledger.apply(&event(process, time, Body::Report(report)));
        }
        if number < 8 {
            ledger.apply(&event(process, time + 1, Body::Detached));
        }
    }
    let mut gone = ledger.expire(9 * SECOND);
    gone.sort_unstable();
    let left: Vec<u32> = ledger
        .processes()
        .iter()
        .map(|process| process.handle.0)
        .collect();
    assert!(left.ends_with(&[7, 8]) && left.len() < 6, "{left:?}");
    let forgotten = 1..=8 - left.len() as u32;
    assert_eq!(gone, forgotten.map(ProcessHandle).collect::<Vec<_>>());
    // The processes that are left fit, so no more are forgotten.
    assert_eq!(ledger.expire(9 * SECOND), vec![]);
    assert!(ask(&ledger, ProcessHandle(7)).is_some());
    // The process that ended last is kept, however large it is.
    let mut one = Ledger::new(LedgerConfig {
        ended_bytes: 0,
        ..LedgerConfig::default()
    });
    let late = facts(42, Level::Blocks, false);
    one.apply(&event(P, SECOND, Body::Attached(late)));
    one.apply(&event(P, SECOND, Body::Exited));
    assert_eq!(one.expire(2 * SECOND), vec![]);
    Met {
        what: "bytes that ended processes take",
        most: format!("`{}`", LedgerConfig::default().ended_bytes),
        beyond: "those that ended first are forgotten",
        told: "they are not listed any more; the journal still has them",
        test: "ended_processes_are_forgotten_early_where_there_are_many",
    }
    .is_told();
}

/// A rule for many processes also follows shells, of which nobody will ask.
#[test]
fn nothing_is_kept_of_what_never_used_a_device() {
    let mut ledger = Ledger::new(LedgerConfig::default());
    let [shell, trainer, late] = [1, 2, 3].map(ProcessHandle);
    for (process, from_start) in [(shell, true), (trainer, true), (late, false)] {
        let facts = facts(40 + process.0, Level::Trace, from_start);
        ledger.apply(&event(process, SECOND, Body::Attached(facts)));
    }
    let waits = |ledger: &Ledger, process| {
        let all = ledger.processes();
        all.iter()
            .any(|one| one.handle == process && one.waits_for_device)
    };
    assert!(waits(&ledger, shell) && waits(&ledger, trainer) && !waits(&ledger, late));
    let placed = Placement {
        sites: 40,
        libraries: vec!["/usr/lib/libcuda.so.1".to_owned()],
        ..Placement::default()
    };
    ledger.apply(&event(
        trainer,
        SECOND,
        Body::Placed(Box::new(placed.clone())),
    ));
    // Its library is gone again, and what it did with it counts all the same.
    ledger.apply(&event(trainer, SECOND, Body::Placed(Box::default())));
    assert!(!waits(&ledger, trainer));
    assert_eq!(ledger.expire(2 * SECOND), [], "all of them run");
    for process in [shell, trainer, late] {
        ledger.apply(&event(process, 2 * SECOND, Body::Exited));
    }
    // No list has it, also before it is forgotten and in recordings, in which nothing is.
    let of = [shell, trainer, late];
    let listed = ledger
        .ask(&of, Default::default(), &ListRequest {})
        .unwrap();
    let handles: Vec<u32> = listed.processes.iter().map(|one| one.handle).collect();
    assert_eq!(handles, [trainer.0, late.0]);
    assert!(!ledger.is_listed(shell) && ledger.is_listed(trainer));
    // What is known in a whole list only is not 0 in other answers.
    assert_eq!(listed.processes[0].growing_lines, None);
    assert_eq!(listed.processes[0].growth_bytes_per_s, None);
    assert_eq!(ledger.expire(2 * SECOND), [shell]);

    // One that executes the trainer while it is attached gets its probes, and one that has used a device is kept.
    let [wrapper, user] = [4, 5].map(ProcessHandle);
    for process in [wrapper, user] {
        let facts = facts(40 + process.0, Level::Trace, true);
        ledger.apply(&event(process, 3 * SECOND, Body::Attached(facts)));
        ledger.apply(&event(
            process,
            3 * SECOND,
            Body::Placed(Box::new(placed.clone())),
        ));
    }
    ledger.apply(&event(
        user,
        3 * SECOND,
        call("cudaMalloc", CallOp::Alloc, 0x1000, 500),
    ));
    for process in [wrapper, user] {
        ledger.apply(&event(process, 4 * SECOND, Body::Replaced));
    }
    assert_eq!(ledger.expire(4 * SECOND), [wrapper]);
}

#[test]
fn gaps_have_a_place() {
    let mut ledger = attached(Level::Trace, true, 100);
    let mut lost_at = |time: u64, lost: u64| {
        let mut e = event(P, time, Body::Forked { child: 5 });
        e.lost_before = lost;
        ledger.apply(&e);
    };
    lost_at(200, 0);
    lost_at(300, 7);
    lost_at(400, 7);
    lost_at(450, 0); // events of the daemon's own say nothing of loss
    // A loss that no record of the process has shown yet.
    let mut e = event(P, 600, Body::Lost);
    e.lost_before = 10;
    ledger.apply(&e);
    let mut e = event(P, 700, Body::Forked { child: 6 });
    e.lost_before = 10;
    ledger.apply(&e);
    e.time_ns = 800;
    e.lost_before = 11;
    ledger.apply(&e);
    let report = stats(&ledger);
    let gaps: Vec<_> = report
        .gaps
        .iter()
        .map(|g| (g.from_boot_ns, g.to_boot_ns, g.records))
        .collect();
    assert_eq!(gaps, [(200, 300, 7), (450, 600, 3), (700, 800, 1)]);
    assert_eq!(report.process.as_ref().unwrap().lost_records, 11);
    assert!(has_note(&report.coverage, "records_lost"));
    let forked = report.coverage.iter().find(|n| n.code == "forked").unwrap();
    assert!(
        forked.text.starts_with("6 children") && forked.text.contains("5, 5"),
        "{}",
        forked.text
    );
    for i in 0..1000 {
        e.time_ns = 1000 + i;
        e.lost_before = 12 + i;
        ledger.apply(&e);
    }
    let report = stats(&ledger);
    assert_eq!(
        (
            report.gaps.len(),
            report.process.as_ref().unwrap().lost_records
        ),
        (64, 1011)
    );
    assert_eq!(report.gaps[63].to_boot_ns, 1999);
}

#[test]
fn notes_are_replaced_and_withdrawn() {
    let mut ledger = attached(Level::Trace, true, 100);
    let mut note = |code: &str, text: &str| {
        let note = CoverageNote {
            code: code.into(),
            text: text.into(),
        };
        ledger.apply(&event(P, 200, Body::Coverage(note)));
    };
    note("python", "a");
    note("other", "x");
    note("python", "b");
    note("other", "");
    note("never", "");
    let notes = stats(&ledger).coverage;
    let told: Vec<(&str, &str)> = notes.iter().map(|n| (&*n.code, &*n.text)).collect();
    assert_eq!(told, [("python", "b")]);
}

#[test]
fn a_free_that_was_lost_shows_when_the_address_returns() {
    for mode in [Mode::Reports, Mode::Uncalibrated, Mode::Calibrated] {
        let mut sim = Sim::new(mode);
        let mut ledger = attached(Level::Trace, true, sim.time);
        let a = sim.alloc(0, 0, 4 * MIB);
        sim.alloc(0, 0, 512);
        sim.lose = 3;
        sim.free(a, false);
        sim.lose = 0;
        let again = sim.alloc(0, 0, 5 * MIB);
        assert_eq!(a, again);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(seen.allocated_bytes, Some(5 * MIB + 512), "{mode:?}");
        assert_eq!(
            (seen.live_blocks, seen.alloc_count, seen.free_count),
            (2, 3, 0)
        );
        assert_eq!(seen.baseline_bytes, Some(0));
        assert_eq!(seen.resync_count, 1);
        assert!(has_note(&stats(&ledger).coverage, "inexact_after_loss"));
    }
}

#[test]
fn an_allocation_that_was_lost_is_in_the_baseline() {
    let mut sim = Sim::new(Mode::Uncalibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(0, 0, 512);
    sim.lose = 2;
    let lost = sim.alloc(0, 0, 1024);
    sim.alloc(0, 0, 2048);
    sim.feed(&mut ledger);
    let seen = device(&ledger, 0);
    assert_eq!(
        (seen.allocated_bytes, seen.baseline_bytes),
        (Some(3584), Some(1024))
    );
    assert_eq!((seen.live_blocks, seen.resync_count), (2, 1));
    sim.free(lost, false);
    sim.feed(&mut ledger);
    let seen = device(&ledger, 0);
    assert_eq!(
        (seen.allocated_bytes, seen.baseline_bytes),
        (Some(2560), Some(0))
    );
    assert_eq!(
        (
            seen.orphan_free_count,
            seen.orphan_free_bytes,
            seen.resync_count
        ),
        (1, 1024, 1)
    );
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let mut ledger = Ledger::new(LedgerConfig {
        trace_entries: 1000,
        leak_groups: 500,
        ..LedgerConfig::default()
    });
    let mut sim = Sim::new(Mode::Calibrated);
    ledger.apply(&event(
        P,
        sim.time,
        Body::Attached(facts(42, Level::Trace, true)),
    ));
    let mut dice = Dice(3);
    for round in 0..250_000u64 {
        sim.time += 1_000_000;
        sim.tid = 100 + (round % 8) as u32;
        sim.mode = [
            Mode::Calibrated,
            Mode::Uncalibrated,
            Mode::Reports,
            Mode::Both,
        ][(round / 1000 % 4) as usize];
        if round % 5000 == 0 {
            sim.lose = 2;
        }
        let addrs: Vec<u64> = (0..4)
            .map(|_| sim.alloc(0, 0, 1 + dice.below(100_000)))
            .collect();
        for (i, addr) in addrs.iter().enumerate() {
            sim.free(*addr, i == 0);
        }
        sim.complete(addrs[0]);
        sim.feed(&mut ledger);
    }
    let kept = ledger.kept(P).unwrap();
    assert!(kept.blocks < 20, "{kept:?}");
    assert!(kept.loose < 2000, "{kept:?}");
    assert!(kept.groups <= 500 && kept.trace_entries <= 1000, "{kept:?}");
    let report = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(report.trace.len(), 1000);
    assert!(report.trace_dropped > 2_000_000);
    let seen = device(&ledger, 0);
    assert!(seen.alloc_count > 999_000);
    assert!(has_note(&stats(&ledger).coverage, "records_lost"));
}

#[test]
fn clock_pairs() {
    let mut ledger = Ledger::new(LedgerConfig::default());
    assert_eq!(ledger.unix_ns(1), 0);
    ledger.apply(&event(
        ProcessHandle(0),
        1000,
        Body::Clock {
            unix_ns: 1_700_000_000_000_001_000,
        },
    ));
    assert_eq!(ledger.unix_ns(3000), 1_700_000_000_000_003_000);
    assert_eq!(ledger.ignored_events(), 0);
}

/// Only children that are not attached themselves are told to be missing, whichever of the two was found first.
#[test]
fn children_that_are_followed_are_not_missing() {
    let mut ledger = attached(Level::Trace, true, 100);
    let parent = ledger.summary(P).unwrap().facts.pid;
    let follow = |ledger: &mut Ledger, child: u32, generation: u32| {
        let mut facts = facts(child, Level::Trace, false);
        (facts.parent_pid, facts.generation) = (parent, generation);
        let handle = ProcessHandle(1000 * (generation + 1) + child);
        ledger.apply(&event(handle, 300, Body::Attached(facts)));
    };
    let forked = |ledger: &Ledger| {
        let notes = stats(ledger).coverage.into_iter();
        let mut texts = notes
            .filter(|note| note.code == "forked")
            .map(|note| note.text);
        texts.next().unwrap_or_default()
    };
    for child in 501..=520 {
        ledger.apply(&event(P, 200, Body::Forked { child }));
    }
    assert!(forked(&ledger).starts_with("20 children"));
    for child in (501..=520).filter(|child| *child != 507) {
        follow(&mut ledger, child, 0);
        // It executes a program of its own.
        follow(&mut ledger, child, 1);
    }
    let text = forked(&ledger);
    assert!(
        text.starts_with("1 children") && text.contains("507"),
        "{text}"
    );
    follow(&mut ledger, 507, 0);
    assert_eq!(forked(&ledger), "");
    ledger.apply(&event(P, 400, Body::Forked { child: 530 }));
    assert!(forked(&ledger).starts_with("1 children"));
    follow(&mut ledger, 530, 0);
    // Of many only the first are listed. Where these are followed, the others have no process ids.
    for child in 601..=620 {
        ledger.apply(&event(P, 500, Body::Forked { child }));
    }
    for child in 601..=616 {
        follow(&mut ledger, child, 0);
    }
    assert_eq!(
        forked(&ledger),
        "4 children were forked and are not followed here"
    );
}

#[test]
fn fluctuation_over_time() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let base = sim.alloc(0, 0, 10 * MIB);
    sim.time += SECOND;
    let begin = sim.time;
    for _ in 0..1000 {
        sim.time += 10 * MS;
        let a = sim.alloc(0, 0, 30 * MIB);
        sim.time += 10 * MS;
        sim.free(a, false);
    }
    sim.feed(&mut ledger);
    let query = FluctuationRequest {
        window_ns: sim.time - begin,
        ..FluctuationRequest::default()
    };
    let all = ledger.ask(&[P], as_of(sim.time), &query).unwrap();
    let d = &all.devices[0];
    assert_eq!(
        (d.device, d.source(), d.intervals.len()),
        (Some(0), v1::Source::Pool, 20)
    );
    assert_eq!(
        d.overall.unwrap().min_allocated_bytes,
        sim.live[&base].rounded
    );
    assert_eq!(d.overall.unwrap().max_allocated_bytes, 40 * MIB);
    // The answer begins with the bucket in which the window starts.
    assert!(
        (1000..=1001).contains(&d.overall.unwrap().allocs),
        "{:?}",
        d.overall
    );
    assert!((d.swing - 0.75).abs() < 1e-9, "{}", d.swing);
    assert_eq!(d.floor_slope_bytes_per_s, 0.0);
    let part = ledger
        .ask(
            &[P],
            as_of(sim.time + SECOND),
            &FluctuationRequest {
                window_ns: 2 * SECOND,
                intervals: 4,
                ..FluctuationRequest::default()
            },
        )
        .unwrap();
    let d = &part.devices[0];
    assert_eq!(d.intervals.len(), 4);
    assert_eq!(
        d.intervals[3].max_allocated_bytes,
        10 * MIB,
        "the quiet end"
    );
    assert_eq!(d.intervals[3].allocs, 0);
    assert_eq!(d.overall.unwrap().to_boot_ns, sim.time + SECOND);
    assert!(
        d.overall.unwrap().allocs >= 50 && d.overall.unwrap().allocs <= 53,
        "{:?}",
        d.overall
    );
}

/// The trace entry of the first block comes before the first total, without which no level is known.
#[test]
fn the_first_block_counts_in_the_course_over_time() {
    for from_start in [true, false] {
        let mut sim = Sim::new(Mode::Uncalibrated);
        let mut ledger = attached(Level::Trace, from_start, sim.time);
        let begin = sim.time;
        for _ in 0..50 {
            sim.time += 10 * MS;
            let kept = sim.alloc(0, 0, MIB);
            sim.free(kept, false);
        }
        sim.alloc(0, 0, MIB);
        sim.feed(&mut ledger);
        let query = FluctuationRequest {
            window_ns: sim.time - begin,
            ..FluctuationRequest::default()
        };
        let course = ledger.ask(&[P], as_of(sim.time), &query).unwrap();
        let overall = course.devices[0].overall.unwrap();
        let stats = stats(&ledger);
        let counted = (stats.devices[0].alloc_count, stats.devices[0].free_count);
        assert_eq!(counted, (51, 50));
        assert_eq!((overall.allocs, overall.frees), counted);
    }
}

/// A list of processes has no coverage notes, so a sum of calls of which some may be missing is left out there.
#[test]
fn a_sum_in_the_list_is_proven_or_unknown() {
    for (from_start, lost_before, known) in [(true, 0, true), (false, 0, false), (true, 3, false)] {
        let mut ledger = attached_as(Level::Segments, from_start, 0, Backend::Uncached);
        let taken = call("cudaMalloc", CallOp::Alloc, 0x1000, 4096);
        let mut event = event(P, MS, taken);
        event.lost_before = lost_before;
        ledger.apply(&event);
        let listed = ledger.summary(P).unwrap();
        assert_eq!(
            listed.allocated_bytes.is_some(),
            known,
            "{from_start} {lost_before}"
        );
        assert_eq!(
            listed.reserved_bytes.is_some(),
            known,
            "{from_start} {lost_before}"
        );
    }
}

/// A total that may be too large as well as too small is left out.
#[test]
fn totals_that_are_not_proven_are_unknown() {
    for (code, known) in [
        ("records_lost", true),
        ("driver_baseline_unknown", true),
        ("totals_inexact_after_loss", false),
        ("totals_old", false),
        ("made_up_today", false),
    ] {
        let mut sim = Sim::new(Mode::Calibrated);
        let mut ledger = attached(Level::Trace, true, sim.time);
        sim.alloc(0, 0, 512);
        sim.emit(Body::Coverage(CoverageNote {
            code: code.to_owned(),
            text: format!("it is {code}"),
        }));
        sim.feed(&mut ledger);
        let seen = &stats(&ledger).devices[0];
        assert_eq!(seen.allocated_bytes.is_some(), known, "{code}");
        assert_eq!(seen.reserved_bytes.is_some(), known, "{code}");
        assert_eq!(
            seen.peak_allocated_bytes.is_some(),
            known || code == "totals_old"
        );
    }
}

/// A forked process frees what its parent has allocated, but only one that uses a device itself allocates there.
#[test]
fn who_allocates_uses_the_device_itself() {
    let uses = |bodies: Vec<Body>| {
        let mut ledger = attached(Level::Trace, false, 1);
        for body in bodies {
            ledger.apply(&event(P, 2, body));
        }
        (ledger.has_devices(P), ledger.uses_devices_itself(P))
    };
    assert_eq!(uses(vec![]), (false, false));
    let entry = |action| {
        Body::Trace(PoolTrace {
            action,
            allocator: 0x10,
            device: Some(0),
            addr: 0x7000_0000,
            size: 512,
            stream: 0,
            block_size: Some(512),
            total_allocated: None,
            total_reserved: None,
            pool: None,
        })
    };
    assert_eq!(uses(vec![entry(TraceAction::FreeRequested)]), (true, false));
    assert_eq!(uses(vec![entry(TraceAction::Alloc)]), (true, true));
    let taken = call("cudaMalloc", CallOp::Alloc, 0x7000_0000, 512);
    assert_eq!(uses(vec![taken]), (true, true));
    let places = RunsOn {
        devices: vec![Hardware {
            uuid: "GPU-1".to_owned(),
            mig_uuid: None,
            pci_address: None,
        }],
    };
    assert_eq!(uses(vec![Body::RunsOn(places)]), (false, true));
}

/// What was there before the first probes: the word of who looked goes before the order in which attach and libraries came.
#[test]
fn whether_memory_was_missed_at_the_beginning() {
    let missed = |from_start, before_first_memory| {
        let mut ledger = attached_as(Level::Trace, from_start, SECOND, Backend::MallocAsync);
        let placed = |before_first_memory| {
            Body::Placed(Box::new(Placement {
                sites: 4,
                before_first_memory,
                ..Placement::default()
            }))
        };
        ledger.apply(&event(P, SECOND, placed(before_first_memory)));
        // Later placements have nothing to say of it.
        ledger.apply(&event(P, SECOND, placed(None)));
        let stats = ask(&ledger, P).unwrap();
        let notes = stats.coverage.iter();
        let codes: Vec<&str> = notes.map(|note| note.code.as_str()).collect();
        codes.contains(&"driver_baseline_unknown")
    };
    assert!(!missed(true, None));
    assert!(missed(false, None));
    // It was linked with its libraries, and quicker than the probes.
    assert!(missed(true, Some(false)));
    // Its libraries were loaded, and it had used none.
    assert!(!missed(false, Some(true)));
}
