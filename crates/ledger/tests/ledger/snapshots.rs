//! The answer to `snapshot`.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use proptest::prelude::*;

fn snapshot(ledger: &Ledger) -> SnapshotReport {
    ledger.snapshot(P, as_of(0)).unwrap()
}

/// Checks the properties of a snapshot on which every consumer relies.
fn check_shape(report: &SnapshotReport) {
    let mut last_end = (i32::MIN, 0);
    for segment in &report.segments {
        assert!(
            (segment.device, segment.addr) >= last_end,
            "segments overlap: {segment:?}"
        );
        let mut at = segment.addr;
        let mut last_inactive = false;
        for block in &segment.blocks {
            assert_eq!(block.addr, at, "blocks cover the segment");
            assert!(block.size > 0);
            let inactive = block.state == BlockState::Inactive;
            assert!(!(inactive && last_inactive), "room is merged");
            last_inactive = inactive;
            at += block.size;
        }
        assert_eq!(at, segment.addr + segment.size);
        last_end = (segment.device, at);
    }
}

fn active(report: &SnapshotReport) -> Vec<(i32, u64, u64)> {
    report
        .segments
        .iter()
        .flat_map(|s| s.blocks.iter().map(move |b| (s.device, b)))
        .filter(|(_, b)| b.state == BlockState::Active)
        .map(|(d, b)| (d, b.addr, b.size))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pictures_are_whole(
        seed in any::<u64>(),
        before in 0u64..40,
        steps in 1u64..150,
        mode in prop::sample::select(&[Mode::Calibrated, Mode::Uncalibrated, Mode::Reports][..]),
        driver_calls in any::<bool>(),
        losses in any::<bool>(),
    ) {
        let mut sim = Sim::new(mode);
        sim.driver_calls = driver_calls;
        let mut dice = Dice(seed);
        sim.attached = false;
        let mut ledger = attached(Level::Trace, before == 0, sim.time);
        for i in 0..before + steps {
            sim.attached = i >= before;
            sim.time += MS;
            match dice.below(20) {
                0..11 => { let most = 1 << (8 + dice.below(16)); sim.alloc(dice.below(2) as i32, dice.below(2), 1 + dice.below(most)); }
                11..18 if !sim.live.is_empty() => {
                    let at = dice.below(sim.live.len() as u64) as usize;
                    let addr = *sim.live.keys().nth(at).unwrap();
                    sim.free(addr, dice.below(4) == 0);
                }
                18 => sim.empty_cache(dice.below(2) as i32),
                _ if losses => sim.lose = 3,
                _ => {}
            }
            sim.feed(&mut ledger);
        }
        let report = snapshot(&ledger);
        check_shape(&report);
        if !losses {
            let mut wanted: Vec<_> = sim.live.iter().filter(|(_, b)| b.told).map(|(a, b)| (b.device, *a, b.rounded)).collect();
            wanted.sort_unstable();
            prop_assert_eq!(active(&report), wanted);
            if before == 0 && (mode != Mode::Reports || driver_calls) {
                prop_assert!(report.segments.iter().all(|s| s.seen));
            }
            if before == 0 && mode != Mode::Reports {
                let known: Vec<_> = report.segments.iter().map(|s| (s.device, s.addr, s.size)).collect();
                let truth: Vec<_> = (0..2).flat_map(|d| sim.segments(d).into_iter().map(move |(a, s)| (d, a, s))).collect();
                prop_assert_eq!(known, truth);
            }
        }
    }
}

#[test]
fn states_and_kinds() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let a = sim.alloc(0, 7, 1000);
    let b = sim.alloc(0, 7, 600);
    let c = sim.alloc(0, 0, 3 * MIB);
    sim.free(a, true);
    sim.feed(&mut ledger);
    let report = snapshot(&ledger);
    check_shape(&report);
    let [small, large] = &report.segments[..] else {
        panic!("{:?}", report.segments)
    };
    assert_eq!(
        (small.size, small.large, small.stream, small.seen),
        (2 * MIB, false, 7, true)
    );
    assert_eq!((large.size, large.large, large.addr), (20 * MIB, true, c));
    let states: Vec<_> = small
        .blocks
        .iter()
        .map(|b| (b.addr, b.size, b.requested, b.state))
        .collect();
    assert_eq!(
        states,
        [
            (a, 1024, Some(1000), BlockState::PendingFree),
            (b, 1024, Some(600), BlockState::Active),
            (b + 1024, 2 * MIB - 2048, Some(0), BlockState::Inactive),
        ]
    );
    let actions: Vec<_> = report.trace.iter().map(|t| t.action).collect();
    use TraceAction::*;
    assert_eq!(
        actions,
        [
            SegmentAlloc,
            Alloc,
            Alloc,
            SegmentAlloc,
            Alloc,
            FreeRequested
        ]
    );
    assert_eq!(
        (report.trace[1].size, report.trace[1].pool),
        (1000, Some((0, 0)))
    );
}

#[test]
fn segments_older_than_the_attach_are_put_together() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    let first = sim.alloc(0, 0, 512);
    let hole = sim.alloc(0, 0, 512);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    let b = sim.alloc(0, 0, 512);
    let c = sim.alloc(0, 0, 1024);
    sim.free(first, false);
    let a = sim.alloc(0, 0, 512);
    assert_eq!(a, first);
    sim.feed(&mut ledger);
    let report = snapshot(&ledger);
    check_shape(&report);
    let runs: Vec<_> = report
        .segments
        .iter()
        .map(|s| (s.addr, s.size, s.seen, s.blocks.len()))
        .collect();
    assert_eq!(runs, [(a, 512, false, 1), (b, 1536, false, 2)]);
    assert_eq!(c, b + 512);
    assert!(hole > a && hole < b);
}

#[test]
fn reports_alone_still_give_a_trace() {
    let mut sim = Sim::new(Mode::Reports);
    let mut ledger = attached(Level::Blocks, true, sim.time);
    let a = sim.alloc(0, 0, 600);
    sim.free(a, false);
    sim.feed(&mut ledger);
    ledger.apply(&event(
        ProcessHandle(0),
        SECOND,
        Body::Clock {
            unix_ns: 50 * SECOND,
        },
    ));
    let report = snapshot(&ledger);
    let entries: Vec<_> = report
        .trace
        .iter()
        .map(|t| (t.action, t.addr, t.size, t.unix_ns))
        .collect();
    use TraceAction::*;
    let at = 50 * SECOND;
    assert_eq!(
        entries,
        [
            (Alloc, a, 1024, at),
            (FreeRequested, a, 1024, at),
            (FreeCompleted, a, 1024, at)
        ]
    );
}

#[test]
fn without_a_pool_every_allocation_is_a_segment() {
    let mut ledger = attached_as(Level::Segments, true, SECOND, Backend::Uncached);
    for (ptr, size, on) in [
        (0x10_0000u64, 5 * MIB, Some(0)),
        (0x9000_0000, 77, Some(0)),
        (0x1000, 9, None),
    ] {
        let Body::Call(mut c) = call("cudaMalloc", CallOp::Alloc, ptr, size) else {
            unreachable!()
        };
        c.device = on;
        ledger.apply(&event(P, SECOND, Body::Call(c)));
    }
    let report = snapshot(&ledger);
    check_shape(&report);
    assert_eq!(
        active(&report),
        [(0, 0x10_0000, 5 * MIB), (0, 0x9000_0000, 77)]
    );
    assert!(has_note(&report.coverage, "device_unknown"));
}

#[test]
fn expandable_ranges_join_and_split() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut send = |action, addr: u64, size: u64, block: Option<u64>| {
        ledger.apply(&event(
            P,
            SECOND,
            Body::Trace(PoolTrace {
                action,
                allocator: 1,
                device: Some(0),
                addr,
                size,
                stream: 3,
                block_size: block,
                total_allocated: None,
                total_reserved: None,
                pool: Some((0, 1)),
            }),
        ));
    };
    let base = 0x7000_0000u64;
    for i in 0..4 {
        send(TraceAction::SegmentMap, base + i * 20 * MIB, 20 * MIB, None);
    }
    send(TraceAction::Alloc, base, 25 * MIB, Some(25 * MIB));
    send(TraceAction::SegmentUnmap, base + 40 * MIB, 20 * MIB, None);
    let report = snapshot(&ledger);
    check_shape(&report);
    let seen: Vec<_> = report
        .segments
        .iter()
        .map(|s| {
            (
                s.addr - base,
                s.size,
                s.expandable,
                s.large,
                s.pool,
                s.stream,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, 40 * MIB, true, true, (0, 1), 3),
            (60 * MIB, 20 * MIB, true, true, (0, 1), 3)
        ]
    );
    assert_eq!(device(&ledger, 0).segments, Some(2));
}

/// At level `blocks` only the driver shows that an expandable segment became larger, and a block may lie across the place where
/// it ended when it was read.
#[test]
fn what_the_driver_maps_joins_the_segment_that_was_read() {
    let base = 0x7000_0000u64;
    let mut ledger = attached(Level::Blocks, false, SECOND);
    let part = HeldPart {
        at_ns: SECOND,
        allocator: 0,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: 15 * MIB,
        total_reserved: 20 * MIB,
        segments: vec![HeldSegment {
            addr: base,
            size: 20 * MIB,
            stream: 0x55,
            large: true,
            pool: (0, 1),
            expandable: true,
            blocks: vec![(base, 15 * MIB, 15 * MIB, false)],
            ..HeldSegment::default()
        }],
    };
    ledger.apply(&event(P, SECOND + 1, Body::Held(Box::new(part))));
    for (op, ptr) in [(CallOp::Create, 0), (CallOp::Map, base + 20 * MIB)] {
        let Body::Call(mut call) = call(&format!("{op:?}"), op, ptr, 20 * MIB) else {
            unreachable!()
        };
        call.handle = 7;
        ledger.apply(&event(P, 2 * SECOND, Body::Call(call)));
    }
    let report = PoolReport {
        device: 0,
        ptr: base + 15 * MIB,
        size: 13 * MIB as i64,
        total_allocated: 28 * MIB,
        total_reserved: 40 * MIB,
    };
    ledger.apply(&event(P, 2 * SECOND + 1, Body::Report(report)));
    let report = snapshot(&ledger);
    check_shape(&report);
    assert_eq!(
        active(&report),
        [(0, base, 15 * MIB), (0, base + 15 * MIB, 13 * MIB)]
    );
    let [segment] = &report.segments[..] else {
        panic!("{:?}", report.segments)
    };
    assert_eq!((segment.addr, segment.size), (base, 40 * MIB));
    assert_eq!(
        (segment.stream, segment.pool, segment.large),
        (0x55, (0, 1), true)
    );
    assert!(segment.expandable);
}

/// The entry that says so names no device, and an allocator that never allocates has none that is known.
#[test]
fn any_number_of_snapshots_of_an_unknown_device_hides_no_memory() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(0, 0, 1000);
    sim.feed(&mut ledger);
    for nth in 0..5_000 {
        let taken = PoolTrace {
            action: TraceAction::Snapshot,
            allocator: 0x7001,
            device: Some(0),
            addr: 0,
            size: 0,
            stream: 0,
            block_size: None,
            total_allocated: None,
            total_reserved: None,
            pool: None,
        };
        ledger.apply(&event(P, sim.time + nth, Body::Trace(taken)));
    }
    let report = stats(&ledger);
    assert!(!has_note(&report.coverage, "pool_device_unknown"));
    assert_eq!(report.devices[0].allocated_bytes, Some(1024));
    let mut notes = report.coverage.into_iter();
    let said = notes.find(|note| note.code == "snapshot_device_unknown");
    let said = said.unwrap().text;
    assert!(said.starts_with("5000 entries"), "{said}");
    assert!(ledger.kept(P).unwrap().loose < 100);
}
