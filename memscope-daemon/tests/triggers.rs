//! Triggers over the ledger and a small simulated allocator: what fires, when, and how often.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::world;

use memscope_daemon::triggers::Firing;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_rpc::{Caller, Certified, Refusal};
use std::sync::Arc;
use world::common::*;
use world::{ROOT, World, caller};

const GIB: u64 = 1 << 30;

fn reasons(fired: &[Firing]) -> Vec<(u64, &str)> {
    fired
        .iter()
        .map(|f| (f.trigger, f.reason.as_str()))
        .collect()
}

fn oom(device: i32, size: u64, now: &Sim) -> [Body; 2] {
    [
        Body::Trace(PoolTrace {
            action: TraceAction::Oom,
            allocator: 0xa110c000 + device as u64,
            device: Some(device),
            addr: 123,
            size,
            stream: 0,
            block_size: None,
            total_allocated: Some(now.allocated(device)),
            total_reserved: Some(now.reserved(device)),
            pool: Some((0, 0)),
        }),
        Body::Oom(PoolOom {
            device,
            size,
            total_allocated: now.allocated(device),
            total_reserved: now.reserved(device),
        }),
    ]
}

#[test]
fn a_level_fires_once_for_each_crossing_with_the_block_that_crossed() {
    for mode in [Mode::Reports, Mode::Uncalibrated, Mode::Calibrated] {
        let mut world = World::with(&["reserved > 50MiB", "allocated > 40MiB"]);
        let mut sim = Sim::new(mode);
        let mut live = Vec::new();
        let mut fired = Vec::new();
        for _ in 0..3 {
            for _ in 0..8 {
                sim.time += MS;
                live.push(sim.alloc(0, 0, 11 * MIB));
                let now = world.feed_call(&mut sim);
                fired.extend(now.iter().map(|f| (f.trigger, live.len())));
            }
            for addr in live.drain(..) {
                sim.time += MS;
                sim.free(addr, false);
            }
            assert_eq!(world.feed(&mut sim), [], "{mode:?}");
            sim.empty_cache(0);
            sim.time += MS;
        }
        // Segments have 12 MiB: with the fifth, 60 are reserved. With the fourth block, 44 or 48 are allocated.
        fired.sort_unstable();
        let expected = [(1, 5), (1, 5), (1, 5), (2, 4), (2, 4), (2, 4)];
        assert_eq!(fired, expected, "{mode:?}");
    }
}

#[test]
fn what_it_says() {
    let mut world = World::with(&[
        "reserved > 20MiB on device 1",
        "fragmentation > 40% with reserved > 10MiB",
        "oom",
    ]);
    let mut sim = Sim::default();
    sim.alloc(0, 0, 11 * MIB);
    sim.alloc(1, 0, 11 * MIB);
    let second = sim.alloc(1, 0, 11 * MIB);
    let fired = world.feed(&mut sim);
    assert_eq!(
        reasons(&fired),
        [(1, "reserved rose above 20.00 MiB on device 1: 24.00 MiB")]
    );
    assert_eq!(fired[0].device, Some(1));
    sim.free(second, false);
    sim.alloc(1, 0, 12 * MIB);
    assert_eq!(world.feed(&mut sim), [], "what was free served");
    sim.free(*sim.live.keys().last().unwrap(), false);
    sim.alloc(1, 7, 12 * MIB);
    let fired = world.feed(&mut sim);
    assert_eq!(
        reasons(&fired),
        [(
            2,
            "the pool took 12.00 MiB more on device 1 although 50.0% of it lay free: 12.00 MiB of \
             24.00 MiB"
        )]
    );
    for body in oom(1, 3 * GIB, &sim) {
        sim.emit(body);
    }
    let fired = world.feed(&mut sim);
    assert_eq!(
        reasons(&fired),
        [(
            3,
            "ran out of memory on device 1: a request of 3.00 GiB failed"
        )]
    );
}

#[test]
fn a_failed_request_is_told_once_though_two_events_tell_it() {
    for (first, second) in [(true, true), (true, false), (false, true)] {
        let mut world = World::with(&["oom", "oom on device 1"]);
        let mut sim = Sim::default();
        sim.alloc(0, 0, MIB);
        sim.alloc(1, 0, MIB);
        assert_eq!(world.feed(&mut sim), []);
        for (device, count) in [(0, 1), (1, 2), (0, 1)] {
            let [trace, report] = oom(device, 5 * GIB, &sim);
            if first {
                sim.emit(trace);
            }
            if second {
                sim.emit(report);
            }
            let fired = world.feed(&mut sim);
            assert_eq!(fired.len(), count, "{device} {first} {second}");
            assert!(fired.iter().all(|f| f.device == Some(device)));
        }
        assert_eq!(world.status(1).fired, 3);
        assert_eq!(world.status(2).fired, 1);
    }
}

#[test]
fn a_trigger_rests_after_it_fired() {
    let mut world = World::new(&["oom"], 10 * SECOND);
    world.attach(P, 4242, 1, 0, true);
    world.attach(ProcessHandle(2), 4243, 1, 0, true);
    let mut sim = Sim::default();
    sim.alloc(0, 0, MIB);
    world.feed(&mut sim);
    let mut at = |second: u64, process: u32| {
        let [trace, _] = oom(0, GIB, &sim);
        let event = event(ProcessHandle(process), second * SECOND, trace);
        let fired = world.after(&event);
        (fired[0].paused, fired[0].paused_before)
    };
    assert_eq!(at(100, 1), (None, 0));
    assert_eq!(at(101, 1), (Some(1), 0));
    assert_eq!(at(102, 2), (None, 0), "another process has its own rest");
    assert_eq!(at(109, 1), (Some(2), 0));
    assert_eq!(at(110, 1), (None, 2), "as many as were left out");
    assert_eq!(at(119, 1), (Some(1), 0));
    let status = world.status(1);
    assert_eq!(status.fired, 6);
    assert_eq!(status.skipped, [("paused".to_owned(), 3)]);
}

/// Where there was no room for the snapshot, the next one that fits is taken.
#[test]
fn a_trigger_does_not_rest_after_a_snapshot_that_was_not_taken() {
    let mut world = World::new(&["oom"], 10 * SECOND);
    world.attach(P, 4242, 1, 0, true);
    let mut sim = Sim::default();
    sim.alloc(0, 0, MIB);
    world.feed(&mut sim);
    let mut at = |second: u64, has_room: bool| {
        let [trace, _] = oom(0, GIB, &sim);
        let fired = world.after(&event(P, second * SECOND, trace));
        if fired[0].paused.is_none() && !has_room {
            world.triggers.not_taken(&fired[0]);
        }
        (fired[0].paused, fired[0].paused_before)
    };
    assert_eq!(at(100, false), (None, 0));
    assert_eq!(at(101, true), (None, 0));
    assert_eq!(at(102, true), (Some(1), 0));
    assert_eq!(at(111, false), (None, 1));
    assert_eq!(
        at(112, true),
        (None, 1),
        "what was left out is told with this one"
    );
}

/// A call of another thread comes between a segment and the block that it was made for.
#[test]
fn a_call_in_between_does_not_make_a_level_exact() {
    let mut world = World::with(&["reserved > 10MiB"]);
    let mut sim = Sim::new(Mode::Calibrated);
    sim.alloc(0, 0, MIB);
    assert_eq!(world.feed(&mut sim), []);
    sim.time += MS;
    sim.alloc(0, 0, 11 * MIB);
    let is_segment = |body: &Body| matches!(body, Body::Trace(trace) if trace.action == TraceAction::SegmentAlloc);
    let mut events = std::mem::take(&mut sim.out);
    let at = events
        .iter()
        .position(|event| is_segment(&event.body))
        .unwrap();
    let other = call("cudaMemGetInfo", CallOp::MemInfo, 0, 0);
    let mut other = event(P, events[at].time_ns, other);
    other.tid = 101;
    events.insert(at + 1, other);
    let fired: Vec<usize> = (0..)
        .zip(&events)
        .flat_map(|(place, event)| world.after(event).into_iter().map(move |_| place))
        .collect();
    assert_eq!(fired.len(), 1);
    assert!(fired[0] > at + 1, "{fired:?} of {} events", events.len());
}

#[test]
fn fragments_count_where_free_room_did_not_serve() {
    let mut world = World::with(&["fragmentation > 50% with reserved > 30MiB"]);
    let mut sim = Sim::default();
    // Six segments of 12 MiB, of which four are given back.
    let blocks: Vec<u64> = (0..6).map(|_| sim.alloc(0, 0, 12 * MIB)).collect();
    for addr in &blocks[..4] {
        sim.free(*addr, false);
    }
    assert_eq!(world.feed(&mut sim), [], "free room alone is no fragment");
    // A request for more than all free room: nothing could have served it.
    let large = sim.alloc(0, 0, 60 * MIB);
    assert_eq!(world.feed(&mut sim), []);
    sim.free(large, false);
    sim.empty_cache(0);
    let blocks: Vec<u64> = (0..4).map(|_| sim.alloc(0, 0, 12 * MIB)).collect();
    for addr in &blocks {
        sim.free(*addr, false);
    }
    sim.alloc(0, 0, 20 * MIB);
    let fired = world.feed(&mut sim);
    assert_eq!(fired.len(), 1, "48 of 72 MiB were free");
    assert!(fired[0].reason.contains("66.6%"), "{fired:?}");
    // The condition still holds, and does not fire again.
    sim.alloc(0, 0, 22 * MIB);
    assert_eq!(world.feed(&mut sim), []);
    // The pool takes more with little free room, which arms the trigger; then with much free room.
    for _ in 0..4 {
        sim.alloc(0, 0, 12 * MIB);
    }
    sim.alloc(0, 0, 12 * MIB);
    assert_eq!(world.feed(&mut sim), []);
    for addr in sim.live.keys().copied().collect::<Vec<_>>() {
        sim.free(addr, false);
    }
    sim.alloc(0, 0, 40 * MIB);
    assert_eq!(world.feed(&mut sim).len(), 1);
}

#[test]
fn growth_is_told_by_time_alone_too() {
    let mut world = World::with(&["growth > 100MiB in 16s"]);
    let mut sim = Sim::default();
    sim.time = 10 * SECOND;
    sim.alloc(0, 0, MIB);
    assert_eq!(world.feed(&mut sim), []);
    assert_eq!(world.tick(30 * SECOND), []);
    sim.time = 31 * SECOND;
    sim.alloc(0, 0, 200 * MIB);
    assert_eq!(world.feed(&mut sim), []);
    // Nothing happens any more: the floor follows within a quarter of the watched time.
    let found: Vec<(u64, Vec<Firing>)> = (32..60)
        .map(|second| (second, world.tick(second * SECOND)))
        .filter(|(_, fired)| !fired.is_empty())
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let (second, fired) = &found[0];
    assert!((35..=37).contains(second), "{second}");
    assert_eq!(
        reasons(fired),
        [(
            1,
            "the floor of allocated on device 0 rose by 200.00 MiB: from 1.00 MiB to 201.00 MiB"
        )]
    );
}

#[test]
fn what_stands_above_already_fires_when_its_baseline_is_known() {
    let mut sim = Sim::default();
    sim.attached = false;
    let old = sim.alloc(0, 0, 100 * MIB);
    sim.alloc(0, 0, 3 * MIB);
    sim.attached = true;
    let start = |given_up: bool| {
        let mut world = World::new(&["reserved > 50MiB"], 0);
        world.attach(P, 4242, 1, 0, false);
        if given_up {
            let note = CoverageNote {
                code: "baseline_not_read".into(),
                text: "it changes".into(),
            };
            world.after(&event(P, SECOND, Body::Coverage(note)));
        }
        world
    };
    sim.time += SECOND;
    sim.alloc(0, 0, MIB);
    let events = std::mem::take(&mut sim.out);
    let now = sim.time;

    // A reading comes: the trigger fires then.
    let mut world = start(false);
    for event in &events {
        assert_eq!(world.after(event), []);
    }
    assert_eq!(world.tick(now + SECOND), []);
    let mut fired = Vec::new();
    for part in sim.reading(0, 50) {
        fired.extend(world.after(&event(P, now + SECOND, Body::Held(Box::new(part)))));
    }
    fired.extend(world.tick(now + 2 * SECOND));
    assert_eq!(fired.len(), 1);
    assert!(
        fired[0]
            .reason
            .contains("was so when it was looked at first"),
        "{fired:?}"
    );
    assert_eq!(world.ledger.baseline(P), Some(Baseline::Known));
    assert_eq!(world.tick(now + 100 * SECOND), []);

    // The reading was given up: the trigger fires at once, without it.
    let mut world = start(true);
    let fired: Vec<Firing> = events.iter().flat_map(|e| world.after(e)).collect();
    assert_eq!(fired.len(), 1);

    // No reading comes: the trigger fires in the end.
    let mut world = start(false);
    for event in &events {
        assert_eq!(world.after(event), []);
    }
    assert_eq!(world.tick(now + 30 * SECOND), []);
    assert_eq!(world.tick(now + 61 * SECOND).len(), 1);

    // A crossing that was seen does not wait.
    let mut world = start(false);
    for event in &events {
        world.after(event);
    }
    sim.free(old, false);
    sim.empty_cache(0);
    sim.alloc(0, 0, 100 * MIB);
    let fired = world.feed(&mut sim);
    assert_eq!(fired.len(), 1);
    assert!(fired[0].reason.contains("rose above"), "{fired:?}");
    assert_eq!(world.ledger.baseline(P), Some(Baseline::Awaited));
}

#[test]
fn one_that_is_added_looks_at_once_without_an_event() {
    let mut world = World::with(&["oom"]);
    let mut sim = Sim::default();
    sim.alloc(0, 0, 100 * MIB);
    assert_eq!(world.feed(&mut sim), []);
    let condition = "allocated > 50MiB".parse().unwrap();
    let added = world.triggers.add(ROOT, condition, Some(4242)).unwrap();
    assert_eq!((added.trigger, added.watching), (2, 1));
    let fired = world.tick(sim.time + 1);
    assert_eq!(
        reasons(&fired),
        [(
            2,
            "allocated is above 50.00 MiB on device 0, and was so when it was looked at first: 100.00 MiB"
        )]
    );
    assert_eq!(world.tick(sim.time + SECOND), []);
    // The same trigger added again is the same one, and does not begin anew.
    let same = world.triggers.add(ROOT, condition, Some(4242)).unwrap();
    assert_eq!((same.trigger, same.fired), (2, 1));
    assert_eq!(world.tick(sim.time + 2 * SECOND), []);
    // For all processes it is another trigger.
    assert_eq!(
        world.triggers.add(ROOT, condition, None).unwrap().trigger,
        3
    );
    assert_eq!(world.tick(sim.time + 3 * SECOND).len(), 1);
}

/// A level at which nothing tells of what a trigger waits for counts as not watched.
#[test]
fn what_a_level_hides_is_not_watched() {
    let conditions = [
        "oom",
        "allocated > 50MiB",
        "reserved > 50MiB",
        "growth > 1MiB in 10m",
        "every 5 steps",
    ];
    for (level, from_start, watched) in [
        (Level::Segments, false, [0, 0, 0, 0, 1]),
        (Level::Segments, true, [0, 0, 1, 0, 1]),
        (Level::Read, false, [0, 1, 1, 1, 1]),
        (Level::Trace, false, [1, 1, 1, 1, 1]),
    ] {
        let mut world = World::new(&conditions, 0);
        world.after(&event(
            P,
            SECOND,
            Body::Attached(facts(42, level, from_start)),
        ));
        let pool_seen = level == Level::Trace;
        let placed = Placement {
            pool_seen,
            ..Placement::default()
        };
        world.after(&event(P, SECOND, Body::Placed(Box::new(placed))));
        // What allocates is learnt last.
        world.after(&event(P, SECOND, Body::Backend(Backend::Native)));
        let watching: Vec<u64> = (1..=5)
            .map(|number| world.status(number).watching)
            .collect();
        assert_eq!(watching, watched, "{level:?} {from_start}");
    }
}

#[test]
fn a_trigger_for_one_process_lives_as_long_as_the_process() {
    let mut world = World::new(&[], 0);
    world.attach(ProcessHandle(1), 10, 100, 0, true);
    world.attach(ProcessHandle(2), 20, 200, 0, true);
    let condition = "allocated > 50MiB".parse().unwrap();
    for pid in [10, 20] {
        world.triggers.add(ROOT, condition, Some(pid)).unwrap();
    }
    let refused = world.triggers.add(ROOT, condition, Some(30)).unwrap_err();
    assert!(
        matches!(refused, Refusal::NotTraced { pid: 30 }),
        "{refused}"
    );
    let watching = |world: &World| {
        let all = world.triggers.list();
        all.iter()
            .map(|t| (t.trigger, t.watching))
            .collect::<Vec<_>>()
    };
    // The process executes another image, is detached and attached again: its trigger stays.
    world.after(&event(ProcessHandle(1), 2 * SECOND, Body::Replaced));
    assert_eq!(watching(&world), [(1, 0), (2, 1)]);
    assert_eq!(world.triggers.waiting(), [(10, 100)]);
    world.attach(ProcessHandle(3), 10, 100, 0, true);
    assert_eq!(watching(&world), [(1, 1), (2, 1)]);
    world.after(&event(ProcessHandle(3), 2 * SECOND, Body::Detached));
    world.attach(ProcessHandle(4), 10, 100, 0, true);
    assert_eq!(watching(&world), [(1, 1), (2, 1)]);
    // The process ends.
    world.after(&event(ProcessHandle(4), 3 * SECOND, Body::Exited));
    assert_eq!(watching(&world), [(2, 1)]);
    // The process ends untraced, and its pid is given to another one.
    world.after(&event(ProcessHandle(2), 3 * SECOND, Body::Detached));
    assert_eq!(watching(&world), [(2, 0)]);
    world.attach(ProcessHandle(5), 20, 999, 0, true);
    assert_eq!(watching(&world), []);
    world.triggers.add(ROOT, condition, Some(20)).unwrap();
    world.after(&event(ProcessHandle(5), 3 * SECOND, Body::Detached));
    world.triggers.end(20, 999);
    assert_eq!(watching(&world), []);
    assert_eq!(world.triggers.waiting(), []);
}

#[test]
fn users_reach_their_own_only() {
    let (ada, bob) = (caller(1000), caller(1001));
    let mut world = World::new(&["oom"], 0);
    world.attach(ProcessHandle(1), 10, 1, 1000, true);
    world.attach(ProcessHandle(2), 20, 1, 1001, true);
    let condition = "allocated > 5MiB".parse().unwrap();
    let refused = world
        .triggers
        .add(ada.clone(), condition, Some(20))
        .unwrap_err();
    assert!(
        matches!(refused, Refusal::NotTraced { pid: 20 }),
        "{refused}"
    );
    let own = world.triggers.add(ada.clone(), condition, None).unwrap();
    assert_eq!(own.watching, 1, "of two processes, hers");
    for process in [1, 2] {
        let mut sim = Sim::default();
        sim.alloc(0, 0, 20 * MIB);
        let events = std::mem::take(&mut sim.out);
        let fired: Vec<_> = events
            .into_iter()
            .flat_map(|e| {
                world.after(&Event {
                    process: ProcessHandle(process),
                    ..e
                })
            })
            .collect();
        assert_eq!(fired.len(), usize::from(process == 1), "{fired:?}");
    }
    let mut remove = |who, number| world.triggers.remove(who, number);
    assert!(matches!(
        remove(bob, own.trigger),
        Err(Refusal::NoSuchTrigger { .. })
    ));
    assert!(matches!(
        remove(ada.clone(), 1),
        Err(Refusal::NotPermitted { .. })
    ));
    assert!(matches!(
        remove(ada.clone(), 9),
        Err(Refusal::NoSuchTrigger { .. })
    ));
    remove(ada.clone(), own.trigger).unwrap();
    remove(ROOT, 1).unwrap();
    assert_eq!(world.triggers.list(), []);

    // No user can fill the daemon with triggers.
    let add = |world: &mut World, who, n: u64| {
        let condition = format!("allocated > {n}MiB").parse().unwrap();
        world.triggers.add(who, condition, None)
    };
    for n in 1..=16 {
        add(&mut world, ada.clone(), n).unwrap();
    }
    assert!(
        add(&mut world, ada.clone(), 1).is_ok(),
        "the same is no other"
    );
    let refused = add(&mut world, ada, 17).unwrap_err();
    assert!(refused.to_string().contains("too many"), "{refused}");
    // Nor can several of them together keep root from adding its own.
    for uid in 2001..=2003 {
        for n in 1..=16 {
            add(&mut world, caller(uid), n).unwrap();
        }
    }
    let refused = add(&mut world, caller(2004), 1).unwrap_err();
    assert!(refused.to_string().contains("too many"), "{refused}");
    for n in 1..=64 {
        add(&mut world, ROOT, n).unwrap();
    }
    assert!(add(&mut world, ROOT, 65).is_err());
}

fn step() -> Body {
    Body::Mark(Box::new(Mark {
        kind: MarkKind::Step,
        source: MarkSource::Memscope,
        range: 0,
        name: "step".into(),
        cut: false,
    }))
}

#[test]
fn a_step_fires_when_it_ends_and_every_so_many_steps() {
    let mut world = World::with(&["step = 3", "every 4 steps"]);
    let mut sim = Sim::default();
    let mut fired = Vec::new();
    let mut go = |world: &mut World, steps: std::ops::RangeInclusive<u64>| {
        for number in steps {
            sim.time += 20_000 * MS;
            let block = sim.alloc(0, 0, MIB);
            sim.emit(step());
            let now = world.feed(&mut sim);
            fired.extend(now.into_iter().map(|f| (number, f.trigger, f.reason)));
            sim.free(block, false);
        }
        std::mem::take(&mut fired)
    };
    let ended = |number: u64, trigger: u64| (number, trigger, format!("step {number} has ended"));
    assert_eq!(
        go(&mut world, 1..=9),
        [ended(3, 1), ended(4, 2), ended(8, 2)]
    );
    // What has passed when a trigger comes is none of its steps.
    for when in ["step = 5", "step = 11"] {
        world
            .triggers
            .add(ROOT, when.parse().unwrap(), None)
            .unwrap();
    }
    assert_eq!(go(&mut world, 10..=13), [ended(11, 4), ended(12, 2)]);
}

/// The holder of a certificate with the role to control has triggers for the processes of all, and removes no others. They
/// are written down with whom they belong to, and so are those of users, as they always were.
#[test]
fn a_certificate_has_triggers_of_its_own() {
    let certified = |name: &str, role: &str| {
        Caller::Certified(Arc::new(Certified {
            certificate: name.to_owned(),
            serial: "01".to_owned(),
            roles: role.parse().unwrap(),
        }))
    };
    let mut world = World::new(&[], 0);
    world.attach(ProcessHandle(1), 10, 100, 1000, true);
    let condition = "oom".parse().unwrap();
    let of = |caller: &Caller| caller.clone();
    let (ops, other) = (certified("ops", "control"), certified("other", "control"));
    let added = world.triggers.add(of(&ops), condition, Some(10)).unwrap();
    assert_eq!((added.watching, added.user.wire_uid()), (1, u32::MAX));
    let beside = world.triggers.add(of(&other), condition, Some(10)).unwrap();
    assert_ne!(
        beside.trigger, added.trigger,
        "another one's is another one"
    );
    world.triggers.add(caller(1000), condition, None).unwrap();
    // Neither a certificate nor a user who has no name for messages reaches them.
    for stranger in [of(&other), caller(1000), caller(u32::MAX)] {
        let refused = world.triggers.remove(stranger, added.trigger);
        assert!(matches!(refused, Err(Refusal::NoSuchTrigger { .. })));
    }
    let written = serde_json::to_string(&world.triggers).unwrap();
    assert!(
        written.contains(r#""user":{"uid":1000,"gid":1000,"pid":null}"#),
        "{written}"
    );
    world.triggers = serde_json::from_str(&written).unwrap();
    assert_eq!(world.triggers.list().len(), 3);
    world.triggers.remove(ops, added.trigger).unwrap();
    let admin = certified("root", "admin");
    world.triggers.remove(admin, beside.trigger).unwrap();
    assert_eq!(world.triggers.list().len(), 1);
}

/// A trigger for failed allocations does not claim to watch a process in which nothing tells of them.
#[test]
fn a_trigger_watches_only_what_is_told() {
    let mut world = World::with(&["oom", "reserved > 1GiB"]);
    world.attach(ProcessHandle(1), 10, 100, 0, true);
    let place = |world: &mut World, way: &str| {
        let placement = Placement {
            sites: 3,
            pool_seen: true,
            ways: vec![way.to_owned()],
            ..Placement::default()
        };
        let placed = Body::Placed(Box::new(placement));
        world.after(&event(ProcessHandle(1), 2 * SECOND, placed));
        [1, 2].map(|trigger| world.status(trigger).watching)
    };
    let blocks = "torch_npu::profiler::reportMemoryDataToNpuProfiler";
    assert_eq!(place(&mut world, blocks), [0, 1]);
    let trace = "NPUCachingAllocator::DeviceCachingAllocator::record_trace";
    assert_eq!(place(&mut world, trace), [1, 1]);
}
