//! What only readings show and no event does.

use crate::common::pictures::*;
use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;

/// The trace entry of a snapshot that the program took. It is about no memory.
fn snapshot_taken(allocator: u64, pool: Option<(u64, u64)>) -> Body {
    Body::Trace(PoolTrace {
        action: TraceAction::Snapshot,
        allocator,
        device: Some(0),
        addr: 0,
        size: 0,
        stream: 0,
        block_size: None,
        total_allocated: None,
        total_reserved: None,
        pool,
    })
}

/// PyTorch's trace does not name the device of a `snapshot` entry. If nothing else ever happened on that device, only a
/// reading shows which device the allocator belongs to.
#[test]
fn a_reading_tells_whose_an_allocator_is() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.alloc(0, 0, 600);
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.feed(&mut ledger);
    let asked = |time_ns, device: u64| {
        let body = snapshot_taken(0x7000 + device, Some((0, 0)));
        event(P, time_ns, body)
    };
    ledger.apply(&asked(sim.time + 1, 1));
    // The entry is about no memory, so only the note for snapshots is made.
    assert!(note(&ledger, "snapshot_device_unknown").is_some());
    assert_eq!(note(&ledger, "pool_device_unknown"), None);
    sim.time += 2;
    for device in [0, 1] {
        let parts = match device {
            0 => sim.reading(0, 9),
            _ => vec![HeldPart {
                at_ns: sim.time,
                device,
                allocator: 0x7001,
                parts: 1,
                ..HeldPart::default()
            }],
        };
        tell(&mut ledger, sim.time, parts);
    }
    ledger.apply(&asked(sim.time + 1, 1));
    assert_eq!(note(&ledger, "snapshot_device_unknown"), None);
    let trace = ledger.snapshot(P, as_of(0)).unwrap().trace;
    let on_it = trace.iter().filter(|entry| entry.device == 1);
    assert_eq!(on_it.count(), 2);
}

/// At level `blocks` no event shows when a stream no longer uses a freed block: only a reading shows the pending
/// blocks, and only until the next event.
#[test]
fn pending_blocks_of_a_reading_without_a_trace() {
    let mut sim = Sim::new(Mode::Reports);
    let mut ledger = attached(Level::Blocks, true, sim.time);
    sim.stack = StackRef::NoPython;
    let a = sim.alloc(0, 0x55, 5000);
    let b = sim.alloc(0, 0x55, 700);
    sim.alloc(0, 0x55, 900);
    sim.stack = StackRef::Busy;
    sim.free(a, true);
    sim.free(b, false);
    sim.feed(&mut ledger);
    sim.time += MS;
    let pending = |ledger: &Ledger| {
        let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
        let blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
        let pending = blocks.filter(|b| b.state == BlockState::PendingFree);
        pending.count()
    };
    assert_eq!(pending(&ledger), 0, "no event told of one");
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(seen(&snapshot, 0), truth(&sim, 0));
    assert_eq!(snapshot.allocator.devices, 1, "as many as were read");
    assert_eq!(pending(&ledger), 1);
    assert_eq!(missing(&ledger, a), Some("no_python"), "as it came");
    // From the next event on the state of the block is not known.
    sim.time += MS;
    sim.complete(a);
    sim.alloc(0, 0x55, 800);
    sim.feed(&mut ledger);
    assert_eq!(pending(&ledger), 0);
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(seen(&snapshot, 0), truth(&sim, 0));
}

/// Why a block has no frames. The reason shows from which event its stack was taken.
fn missing(ledger: &Ledger, addr: u64) -> Option<&'static str> {
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    let mut blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
    let block = blocks.find(|block| block.addr == addr).unwrap();
    snapshot.stacks[block.stack as usize].missing
}

/// If records were lost since a block was allocated, another block may have been allocated at its address since. Then
/// the stack of the pending block there is not known.
#[test]
fn a_loss_leaves_a_pending_block_without_a_stack() {
    for (losses, wanted) in [(0, "no_python"), (2, "not_taken")] {
        let mut sim = Sim::new(Mode::Reports);
        let mut ledger = attached(Level::Blocks, true, sim.time);
        sim.stack = StackRef::NoPython;
        sim.alloc(0, 0x55, 900);
        let a = sim.alloc(0, 0x55, 5000);
        sim.feed(&mut ledger);
        sim.time += MS;
        // With two losses the free and the allocation are lost; the next allocation shows the loss.
        sim.lose = losses;
        sim.free(a, false);
        assert_eq!(sim.alloc(0, 0x55, 5000), a);
        sim.alloc(0, 0x55, 100);
        sim.free(a, true);
        sim.feed(&mut ledger);
        sim.time += MS;
        tell(&mut ledger, sim.time, sim.reading(0, 9));
        assert_eq!(missing(&ledger, a), Some(wanted), "{losses} lost");
    }
}

fn picture_note(ledger: &Ledger, code: &str) -> bool {
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    has_note(&snapshot.coverage, code)
}

/// At level `blocks` only a reading shows segments, streams and requested sizes. If there was none since the last
/// event, a note says so in the snapshot, and in no other answer.
#[test]
fn a_picture_that_was_not_read_says_so() {
    let mut sim = Sim::new(Mode::Reports);
    let mut ledger = attached(Level::Blocks, true, sim.time);
    sim.alloc(0, 0x55, 5000);
    sim.feed(&mut ledger);
    assert!(picture_note(&ledger, "layout_not_read"));
    assert_eq!(note(&ledger, "layout_not_read"), None);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    assert!(!picture_note(&ledger, "layout_not_read"));
    sim.time += MS;
    sim.alloc(0, 0x55, 700);
    sim.feed(&mut ledger);
    assert!(picture_note(&ledger, "layout_not_read"));
}

/// Trace entries without totals and without reports: no event has the sizes of these blocks. A note on the peak says so
/// from then on, and a note on the snapshot until the next reading.
#[test]
fn sizes_that_nothing_told() {
    let mut sim = Sim::new(Mode::Bare);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let first = sim.alloc(0, 0, 3 * MIB + 1);
    let second = sim.alloc(0, 0, 5 * MIB + 1);
    sim.free(first, false);
    sim.mode = Mode::Calibrated;
    sim.alloc(0, 0, 600);
    sim.free(second, false);
    sim.feed(&mut ledger);
    assert!(note(&ledger, "sizes_untold").is_some());
    assert!(picture_note(&ledger, "layout_not_read"));
    assert!(ledger.wants_reading(P));
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    assert!(!picture_note(&ledger, "layout_not_read"));
    assert!(!ledger.wants_reading(P));
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(seen(&snapshot, 0), truth(&sim, 0));
    // No reading shows what was handed out before it.
    assert!(note(&ledger, "sizes_untold").is_some());
}

/// The only event is an entry about no memory, so it is not known what was allocated before the attach.
#[test]
fn a_snapshot_entry_is_no_evidence_of_what_is_held() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.time += MS;
    let body = snapshot_taken(0x7000, None);
    ledger.apply(&event(P, sim.time, body));
    for code in ["attached_late", "totals_unknown"] {
        assert!(note(&ledger, code).is_some(), "{code}");
    }
}

/// At level `read`, nothing is known of what a process holds before its first reading.
#[test]
fn level_read_before_the_first_reading() {
    let mut sim = Sim::new(Mode::Reports);
    sim.attached = false;
    sim.alloc(0, 0, 600);
    let mut ledger = attached(Level::Read, false, sim.time);
    assert!(note(&ledger, "totals_unknown").is_some());
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    assert_eq!(note(&ledger, "totals_unknown"), None);
}

/// The trace of older versions of PyTorch does not say to which pool a segment belongs. It is shown as the default
/// pool's with a note, and a reading corrects that; memory that is mapped next to it afterwards belongs to the same
/// pool.
#[test]
fn private_pools_that_no_trace_tells() {
    const BASE: u64 = 0x6000_0000_0000;
    let mut ledger = attached(Level::Trace, true, SECOND);
    let entry = |action, addr, size, time_ns| {
        let body = Body::Trace(PoolTrace {
            action,
            allocator: 0x7000,
            device: Some(0),
            addr,
            size,
            stream: 0,
            block_size: (action == TraceAction::Alloc).then_some(size),
            total_allocated: None,
            total_reserved: None,
            pool: None,
        });
        event(P, time_ns, body)
    };
    ledger.apply(&entry(TraceAction::SegmentMap, BASE, 2 * MIB, SECOND + 1));
    ledger.apply(&entry(TraceAction::Alloc, BASE, 512, SECOND + 2));
    let pools = |ledger: &Ledger| {
        let segments = ledger.snapshot(P, as_of(0)).unwrap().segments;
        let pool = |s: &SnapshotSegment| s.pool_told.then_some(s.pool);
        let all = segments.iter().map(|s| (pool(s), s.size, s.large));
        all.collect::<Vec<_>>()
    };
    assert_eq!(pools(&ledger), [(None, 2 * MIB, false)]);
    assert!(note(&ledger, "pool_ids_unknown").is_some());
    assert!(ledger.wants_reading(P));
    let held = HeldSegment {
        addr: BASE,
        size: 2 * MIB,
        pool: (0, 7),
        expandable: true,
        space: BASE,
        blocks: vec![(BASE, 512, 512, false)],
        ..HeldSegment::default()
    };
    let reading = HeldPart {
        at_ns: SECOND + 3,
        parts: 1,
        total_allocated: 512,
        total_reserved: 2 * MIB,
        segments: vec![held],
        ..HeldPart::default()
    };
    tell(&mut ledger, SECOND + 3, vec![reading]);
    assert_eq!(note(&ledger, "pool_ids_unknown"), None);
    assert!(!ledger.wants_reading(P));
    let more = entry(TraceAction::SegmentMap, BASE + 2 * MIB, 2 * MIB, SECOND + 4);
    ledger.apply(&more);
    assert_eq!(pools(&ledger), [(Some((0, 7)), 4 * MIB, false)]);
    assert_eq!(note(&ledger, "pool_ids_unknown"), None);
}

/// At the attach nothing was allocated, but the pool held cached memory: only the allocator's own total shows it until
/// the first reading.
#[test]
fn a_cache_that_no_event_told_of() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    let old = sim.alloc(0, 0x55, 9 * MIB);
    sim.free(old, false);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.alloc(0, 0, 600);
    sim.feed(&mut ledger);
    let unknown = note(&ledger, "segments_unknown").unwrap();
    assert!(unknown.starts_with("20"), "{unknown}");
    assert!(ledger.wants_reading(P));
    assert_ne!(
        seen(&ledger.snapshot(P, as_of(0)).unwrap(), 0),
        truth(&sim, 0)
    );
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    assert_eq!(note(&ledger, "segments_unknown"), None);
    assert!(!ledger.wants_reading(P));
    assert_eq!(
        seen(&ledger.snapshot(P, as_of(0)).unwrap(), 0),
        truth(&sim, 0)
    );
}
