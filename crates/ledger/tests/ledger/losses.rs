//! What a loss of records makes inexact in the ledger, and what a reading after it corrects.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1;

const BASE: u64 = 0x7f00_0000_0000;

fn notes(ledger: &Ledger) -> Vec<String> {
    let notes = stats(ledger).coverage;
    notes.into_iter().map(|note| note.code).collect()
}

fn segment(addr: u64, size: u64) -> Body {
    Body::Trace(PoolTrace {
        action: TraceAction::SegmentAlloc,
        allocator: 0x7000,
        device: Some(0),
        addr,
        size,
        stream: 0,
        block_size: None,
        total_allocated: None,
        total_reserved: None,
        pool: Some((0, 0)),
    })
}

fn lost(ledger: &mut Ledger, time_ns: u64, count: u64) {
    let mut told = event(P, time_ns, Body::Lost);
    told.lost_before = count;
    ledger.apply(&told);
}

fn reading(ledger: &mut Ledger, at_ns: u64, segments: &[(u64, u64)]) {
    let held = segments.iter().map(|&(addr, size)| HeldSegment {
        addr,
        size,
        stream: 0,
        large: true,
        pool: (0, 0),
        expandable: false,
        blocks: vec![(addr, MIB, MIB, false)],
        ..HeldSegment::default()
    });
    let part = HeldPart {
        at_ns,
        allocator: 0,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: segments.len() as u64 * MIB,
        total_reserved: segments.iter().map(|s| s.1).sum(),
        segments: held.collect(),
    };
    ledger.apply(&event(P, at_ns, Body::Held(Box::new(part))));
}

/// What `devices` says of the process on its only device.
fn holder(ledger: &Ledger) -> v1::DeviceHolder {
    let answer = ledger.ask(&[P], as_of(9 * SECOND), &v1::DevicesRequest {});
    answer.unwrap().devices.remove(0).holders.remove(0)
}

/// Address and size of the segments in a snapshot.
fn shown(ledger: &Ledger) -> Vec<(u64, u64)> {
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    snapshot.segments.iter().map(|s| (s.addr, s.size)).collect()
}

/// The driver's frees were lost together with the pool's: what they freed is in no reading, so it is no segment.
#[test]
fn a_reading_takes_back_what_the_driver_did_unseen() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut at = SECOND;
    let mut tell = |ledger: &mut Ledger, body: Body| {
        at += MS;
        ledger.apply(&event(P, at, body));
    };
    for nth in 0..3 {
        let addr = BASE + nth * 20 * MIB;
        tell(
            &mut ledger,
            call("cudaMalloc", CallOp::Alloc, addr, 20 * MIB),
        );
        tell(&mut ledger, segment(addr, 20 * MIB));
    }
    // An allocation outside the pool.
    let direct = BASE + 100 * MIB;
    tell(
        &mut ledger,
        call("cudaMalloc", CallOp::Alloc, direct, 7 * MIB),
    );
    assert_eq!(shown(&ledger).len(), 3);
    // The first segment is given back, and a smaller one takes a part of its addresses. The second one is given back.
    // Of the third one, only the pool's own trace entry was seen.
    tell(&mut ledger, {
        let Body::Trace(mut entry) = segment(BASE + 40 * MIB, 20 * MIB) else {
            unreachable!()
        };
        entry.action = TraceAction::SegmentFree;
        Body::Trace(entry)
    });
    lost(&mut ledger, 2 * SECOND, 5);
    assert!(notes(&ledger).contains(&"inexact_after_loss".to_owned()));
    let left = (BASE + 4 * MIB, 2 * MIB);
    reading(&mut ledger, 2 * SECOND + 1, &[left]);
    assert_eq!(shown(&ledger), [left]);
    assert!(!notes(&ledger).contains(&"inexact_after_loss".to_owned()));
    // Nothing shows what happened to memory outside the pool; a note says so.
    let mut notes = stats(&ledger).coverage.into_iter();
    let note = notes.find(|note| note.code == "driver_inexact_after_loss");
    assert_eq!(
        note.unwrap().text,
        "allocations and frees of the runtime and the driver may be missing: sums of these allocations may be off by what \
         was lost"
    );
    let driver = device(&ledger, 0).driver.unwrap().bytes
        + find_device(&ledger, None).map_or(0, |d| d.driver.unwrap().bytes);
    assert_eq!(driver, 7 * MIB);
}

/// Several segments of a private pool's own allocator may lie in one allocation of the driver.
#[test]
fn one_allocation_behind_several_segments_stays() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut custom = call("cudaMalloc", CallOp::Alloc, BASE, 64 * MIB);
    if let Body::Call(call) = &mut custom {
        call.device = Some(0);
    }
    ledger.apply(&event(P, SECOND + 1, custom));
    let part = HeldPart {
        at_ns: 2 * SECOND,
        allocator: 0,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: 2 * MIB,
        total_reserved: 4 * MIB,
        segments: [BASE + 2 * MIB, BASE + 8 * MIB]
            .map(|addr| HeldSegment {
                addr,
                size: 2 * MIB,
                stream: 0,
                large: false,
                pool: (0, 1),
                expandable: false,
                blocks: vec![(addr, MIB, MIB, false)],
                ..HeldSegment::default()
            })
            .into(),
    };
    for _ in 0..2 {
        ledger.apply(&event(P, 3 * SECOND, Body::Held(Box::new(part.clone()))));
        assert_eq!(device(&ledger, 0).driver.unwrap().bytes, 64 * MIB);
        // The pool has 4 MiB of it as segments, and the process has all of it from the driver.
        assert_eq!(device(&ledger, 0).reserved_bytes, Some(4 * MIB));
        assert_eq!(holder(&ledger).held_bytes, Some(64 * MIB));
        assert_eq!(
            shown(&ledger),
            [(BASE + 2 * MIB, 2 * MIB), (BASE + 8 * MIB, 2 * MIB)]
        );
    }
}

/// If no later event shows the effect of a loss, that does not prove that the numbers are right.
#[test]
fn a_loss_is_inexact_until_a_reading() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let first = sim.alloc(0, 0, MIB);
    sim.feed(&mut ledger);
    sim.time += MS;
    // The freed and the new block have the same size, so no total ever shows the loss.
    sim.lose = 2;
    sim.free(first, false);
    sim.alloc(0, 0x55, MIB);
    sim.feed(&mut ledger);
    lost(&mut ledger, sim.time, sim.lost);
    assert!(notes(&ledger).contains(&"inexact_after_loss".to_owned()));
    sim.time += MS;
    for part in sim.reading(0, 100) {
        ledger.apply(&event(P, sim.time, Body::Held(Box::new(part))));
    }
    assert!(!notes(&ledger).contains(&"inexact_after_loss".to_owned()));
    assert_eq!(device(&ledger, 0).live_blocks, 1);
}

/// What was lost may have been the first entry that names the device.
#[test]
fn a_device_without_entries_is_not_empty_after_a_loss() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, BASE, MIB) else {
        unreachable!()
    };
    one.device = Some(0);
    ledger.apply(&event(P, 2 * SECOND, Body::Call(one)));
    let seen = device(&ledger, 0);
    assert_eq!(
        (seen.allocated_bytes, seen.reserved_bytes),
        (Some(0), Some(0))
    );
    lost(&mut ledger, 3 * SECOND, 2);
    let seen = device(&ledger, 0);
    assert_eq!((seen.allocated_bytes, seen.reserved_bytes), (None, None));
}

/// After a loss nothing shows what happened beside the pool, and a reading shows what the pool has handed out.
#[test]
fn what_a_pool_has_handed_out_is_known_after_a_loss() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    ledger.apply(&event(P, 2 * SECOND, segment(BASE, 2 * MIB)));
    lost(&mut ledger, 3 * SECOND, 5);
    reading(&mut ledger, 4 * SECOND, &[(BASE, 2 * MIB)]);
    assert!(notes(&ledger).contains(&"driver_inexact_after_loss".to_owned()));
    let holder = holder(&ledger);
    assert_eq!(
        (holder.allocated_bytes, holder.held_bytes),
        (Some(MIB), None)
    );
}
