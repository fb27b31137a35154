//! Memory that a pool gives back between reports: the reserved total follows the driver's calls, or is unknown.

use crate::common::calls::Calls;
use crate::common::pictures::tell;
use crate::common::*;
use memscope_ledger::event::*;

const MIB: u64 = 1 << 20;

fn calls(from_start: bool) -> Calls {
    Calls {
        ledger: attached_as(Level::Blocks, from_start, SECOND, Backend::Native),
        time: SECOND,
    }
}

/// Applies a report of a block on device 0, with the allocator's totals.
fn report(calls: &mut Calls, ptr: u64, size: i64, allocated: u64, reserved: u64) {
    report_on(calls, 0, ptr, size, allocated, reserved);
}

/// The same on any device.
fn report_on(calls: &mut Calls, on: i32, ptr: u64, size: i64, allocated: u64, reserved: u64) {
    calls.time += 1000;
    let report = PoolReport {
        device: on,
        ptr,
        size,
        total_allocated: allocated,
        total_reserved: reserved,
    };
    let body = Body::Report(report);
    calls.ledger.apply(&event(P, calls.time, body));
}

#[test]
fn a_segment_of_the_pool_goes_by_a_call() {
    let mut c = calls(true);
    c.at(CallOp::Alloc, 0x1000_0000, 20 * MIB);
    report(&mut c, 0x1000_0000, 4 * MIB as i64, 4 * MIB, 20 * MIB);
    c.at(CallOp::Alloc, 0x2000_0000, 2 * MIB);
    report(&mut c, 0x2000_0000, 512, 4 * MIB + 512, 22 * MIB);
    report(&mut c, 0x1000_0000, -4 * MIB as i64, 512, 22 * MIB);
    assert_eq!(c.device().reserved_bytes, Some(22 * MIB));
    // A failed call gives nothing back, and memory outside the pool does not change the pool's total.
    c.send(CallOp::Free, |call| {
        call.ptr = 0x1000_0000;
        call.status = 1;
    });
    c.at(CallOp::Alloc, 0x4000_0000, 8 * MIB);
    c.at(CallOp::Free, 0x4000_0000, 0);
    assert_eq!(c.device().reserved_bytes, Some(22 * MIB));
    c.at(CallOp::Free, 0x1000_0000, 0);
    assert_eq!(c.device().reserved_bytes, Some(2 * MIB));
    assert_eq!(c.device().allocated_bytes, Some(512));
    assert_eq!(c.device().peak_reserved_bytes, Some(22 * MIB));
}

#[test]
fn what_nobody_knows_leaves_the_total_unknown() {
    let mut c = calls(false);
    c.at(CallOp::Alloc, 0x2000_0000, 2 * MIB);
    report(&mut c, 0x2000_0000, 512, 4 * MIB + 512, 22 * MIB);
    assert_eq!(c.device().reserved_bytes, Some(22 * MIB));
    // It may be a segment from before the attach, whose size is in no call.
    c.at(CallOp::Free, 0x1000_0000, 0);
    assert_eq!(c.device().reserved_bytes, None);
    assert_eq!(c.ledger.summary(P).unwrap().reserved_bytes, None);
    let levels: Vec<_> = c.ledger.levels(P).collect();
    assert!(
        levels[0].level.is_none(),
        "allocated bytes are no reserved ones: {levels:?}"
    );
    report(&mut c, 0x2000_0000, -512, 4 * MIB, 2 * MIB);
    assert_eq!(c.device().reserved_bytes, Some(2 * MIB));
}

/// The device of a call is the thread's. `empty_cache` frees the segments of all devices while one of them is selected.
#[test]
fn what_is_freed_may_be_of_another_device_than_the_threads() {
    let mut c = calls(false);
    report_on(&mut c, 1, 0x2000_0000, 512, 4 * MIB + 512, 22 * MIB);
    let reserved = |c: &Calls| device(&c.ledger, 1).reserved_bytes;
    assert_eq!(reserved(&c), Some(22 * MIB));
    c.at(CallOp::Free, 0x1000_0000, 0);
    assert_eq!(reserved(&c), None);
    report_on(&mut c, 1, 0x2000_0000, -512, 4 * MIB, 2 * MIB);
    assert_eq!(reserved(&c), Some(2 * MIB));
    // A reading of a device's pool hears of all that may have gone from it since.
    let from = c.time;
    c.send(CallOp::Alloc, |call| {
        (call.ptr, call.size, call.device) = (0x4000_0000, 2 * MIB, Some(1));
    });
    // The last one: a state that is stored has none of them.
    let gone = |c: &Calls, on| {
        let changes = c.ledger.pool_changes(P, on, 0, from).unwrap();
        let mut changes = changes.iter().rev();
        let last = changes.find(|change| change.action == TraceAction::SegmentFree);
        last.map(|change| change.addr)
    };
    c.at(CallOp::Free, 0x4000_0000, 0);
    assert_eq!((gone(&c, 0), gone(&c, 1)), (None, Some(0x4000_0000)));
    c.at(CallOp::Free, 0x5000_0000, 0);
    assert_eq!([gone(&c, 0), gone(&c, 1)], [Some(0x5000_0000); 2]);
}

/// At level `trace` the pool itself reports what it gives back, even where that is its first entry.
#[test]
fn what_a_trace_tells_counts_once() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.expandable = true;
    sim.driver_calls = true;
    sim.attached = false;
    let addr = sim.alloc(0, 0, 50 * MIB);
    let kept = sim.alloc(0, 0x55, 30 * MIB);
    sim.free(addr, false);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    let reserved = |ledger: &memscope_ledger::Ledger| stats(ledger).devices[0].reserved_bytes;
    assert_eq!(reserved(&ledger), Some(sim.reserved(0)));
    sim.time += MS;
    sim.empty_cache(0);
    sim.feed(&mut ledger);
    assert!(sim.reserved(0) < 50 * MIB, "{}", sim.reserved(0));
    assert_eq!(reserved(&ledger), Some(sim.reserved(0)));
    sim.time += MS;
    sim.free(kept, false);
    sim.feed(&mut ledger);
    assert_eq!(reserved(&ledger), Some(sim.reserved(0)));
}

/// Of expandable segments from before the attach nobody knows the handles and mappings.
#[test]
fn an_unknown_mapping_that_goes_leaves_the_total_unknown() {
    for from_start in [false, true] {
        let mut c = calls(from_start);
        report(&mut c, 0x2000_0000, 512, 4 * MIB + 512, 22 * MIB);
        c.map(0x5000_0000, 2 * MIB, 5);
        c.at(CallOp::Unmap, 0x5000_0000, 2 * MIB);
        assert_eq!(c.device().reserved_bytes, Some(22 * MIB), "it is known");
        c.at(CallOp::Unmap, 0x1000_0000, 2 * MIB);
        c.handle(CallOp::Release, 77, 0);
        let known = from_start.then_some(22 * MIB);
        assert_eq!(c.device().reserved_bytes, known);
        report(&mut c, 0x2000_0000, -512, 4 * MIB, 20 * MIB);
        assert_eq!(c.device().reserved_bytes, Some(20 * MIB));
    }
}

/// Ascend's calls that unmap give no size.
#[test]
fn an_unmap_of_unknown_size_leaves_the_total_unknown() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.expandable = true;
    sim.attached = false;
    let addr = sim.alloc(0, 0, 50 * MIB);
    sim.time += MS;
    let mut c = calls(false);
    tell(&mut c.ledger, sim.time, sim.reading(0, 9));
    c.time = sim.time;
    let segments = |c: &Calls| c.ledger.snapshot(P, as_of(0)).unwrap().segments.len();
    assert_eq!(
        (c.device().reserved_bytes, segments(&c)),
        (Some(60 * MIB), 1)
    );
    c.send(CallOp::Unmap, |call| {
        call.vendor = Vendor::Ascend;
        call.ptr = addr + 20 * MIB;
    });
    assert_eq!((c.device().reserved_bytes, segments(&c)), (None, 1));
}

/// A reading shows a segment of 20 MiB, whose first bytes are a block where there is one.
fn read(c: &mut Calls, addr: u64, block: &[u64]) {
    let blocks = block.iter().map(|size| (addr, *size, *size, false));
    let segment = HeldSegment {
        addr,
        size: 20 * MIB,
        large: true,
        blocks: blocks.collect(),
        ..HeldSegment::default()
    };
    let part = HeldPart {
        at_ns: c.time,
        allocator: 0,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: block.iter().sum(),
        total_reserved: 20 * MIB,
        segments: vec![segment],
    };
    tell(&mut c.ledger, c.time, vec![part]);
}

/// A free is told when it returns. By then another thread may have got the same address for a new segment, which a reading shows.
#[test]
fn a_free_that_was_overtaken_leaves_the_new_segment() {
    const AT: u64 = 0x1000_0000;
    let mut c = calls(false);
    c.at(CallOp::Alloc, AT, 20 * MIB);
    report(&mut c, AT, 4 * MIB as i64, 4 * MIB, 20 * MIB);
    report(&mut c, AT, -4 * MIB as i64, 0, 20 * MIB);
    let free_began = c.time;
    c.at(CallOp::Alloc, AT, 20 * MIB);
    report(&mut c, AT, 4 * MIB as i64, 4 * MIB, 20 * MIB);
    read(&mut c, AT, &[4 * MIB]);
    let shown = |c: &Calls| {
        let segments = c.ledger.snapshot(P, as_of(0)).unwrap().segments;
        (segments.len(), c.device().reserved_bytes)
    };
    assert_eq!(shown(&c), (1, Some(20 * MIB)));
    let lasted = c.time + 1000 - free_began;
    c.send(CallOp::Free, |call| {
        (call.ptr, call.duration_ns) = (AT, lasted);
    });
    assert_eq!(shown(&c), (1, Some(20 * MIB)));
    // The free of the new one is none of these.
    report(&mut c, AT, -4 * MIB as i64, 0, 20 * MIB);
    c.at(CallOp::Free, AT, 0);
    assert_eq!(shown(&c), (0, Some(0)));
}

/// The same where no reading has shown the new memory: what the reading shows is what was freed.
#[test]
fn a_free_that_was_overtaken_takes_the_segment_of_before() {
    const AT: u64 = 0x1000_0000;
    let mut c = calls(false);
    c.at(CallOp::Alloc, AT, 20 * MIB);
    report(&mut c, AT, 4 * MIB as i64, 4 * MIB, 20 * MIB);
    report(&mut c, AT, -4 * MIB as i64, 0, 20 * MIB);
    read(&mut c, AT, &[]);
    let free_began = c.time;
    c.at(CallOp::Alloc, AT, 2 * MIB);
    let lasted = c.time + 1000 - free_began;
    c.send(CallOp::Free, |call| {
        (call.ptr, call.duration_ns) = (AT, lasted);
    });
    let segments = c.ledger.snapshot(P, as_of(0)).unwrap().segments;
    assert_eq!((segments.len(), c.device().reserved_bytes), (0, Some(0)));
}
