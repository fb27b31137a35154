//! Level `read`: there are only readings, and after each of them the ledger's numbers equal the allocator's.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_proto::v1;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn step(sim: &mut Sim, dice: &mut Dice) {
    sim.time += 1 + dice.below(2 * MS);
    match dice.below(40) {
        0..18 => {
            let most = 1 << (8 + dice.below(17));
            sim.alloc(
                dice.below(2) as i32,
                dice.below(2) * 0x55,
                1 + dice.below(most),
            );
        }
        18..32 if !sim.live.is_empty() => {
            let at = dice.below(sim.live.len() as u64) as usize;
            let addr = *sim.live.keys().nth(at).unwrap();
            sim.free(addr, dice.below(3) == 0);
        }
        32..36 if !sim.pending.is_empty() => {
            let addr = *sim.pending.keys().min().unwrap();
            sim.complete(addr);
        }
        36..38 => sim.empty_cache(dice.below(2) as i32),
        _ => {}
    }
}

/// Blocks of a device in a reading, by address: requested bytes, rounded bytes, whether a stream still uses them.
type Shown = BTreeMap<u64, (u64, u64, bool)>;

fn shown(sim: &Sim, device: i32) -> Shown {
    let held = sim.held(device);
    let blocks = held.into_iter().flat_map(|s| s.blocks);
    blocks
        .map(|(addr, rounded, requested, pending)| (addr, (requested, rounded, pending)))
        .collect()
}

/// How many blocks were allocated and how many freed, as far as two readings show it.
fn difference(before: &Shown, after: &Shown) -> (u64, u64) {
    // A block keeps its sizes, and a pending one is never handed out again.
    let goes_on = |a: (u64, u64, bool), b: (u64, u64, bool)| (a.0, a.1) == (b.0, b.1) && a.2 <= b.2;
    let came: Vec<_> = after
        .iter()
        .filter(|(addr, b)| !before.get(addr).is_some_and(|a| goes_on(*a, **b)))
        .collect();
    let freed = before
        .iter()
        .filter(|(addr, a)| !a.2 && !after.get(addr).is_some_and(|b| goes_on(**a, *b) && !b.2));
    let at_once = came.iter().filter(|(_, b)| b.2).count() as u64;
    (came.len() as u64, freed.count() as u64 + at_once)
}

fn blocks(report: &SnapshotReport, device: i32) -> Vec<(u64, u64, u64, bool)> {
    let segments = report.segments.iter().filter(|s| s.device == device);
    segments
        .flat_map(|s| &s.blocks)
        .filter(|b| b.state != BlockState::Inactive)
        .map(|b| {
            (
                b.addr,
                b.size,
                b.requested.unwrap(),
                b.state == BlockState::PendingFree,
            )
        })
        .collect()
}

fn tell(ledger: &mut Ledger, time_ns: u64, parts: Vec<HeldPart>) {
    for part in parts {
        ledger.apply(&event(P, time_ns, Body::Held(Box::new(part))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_are_the_last_reading(
        seed in any::<u64>(),
        expandable in any::<bool>(),
        rounds in prop::collection::vec(0u64..60, 1..8),
        in_a_part in 1usize..30,
    ) {
        let mut sim = Sim::new(Mode::Calibrated);
        sim.expandable = expandable;
        sim.attached = false;
        let mut dice = Dice(seed);
        let mut ledger = attached_as(Level::Read, false, sim.time, Backend::Native);
        let mut before: BTreeMap<i32, Shown> = BTreeMap::new();
        let mut counts: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
        for (round, steps) in rounds.into_iter().enumerate() {
            for _ in 0..steps {
                step(&mut sim, &mut dice);
            }
            sim.time += MS;
            let at = sim.time;
            for device in 0..2 {
                tell(&mut ledger, at, sim.reading(device, in_a_part));
                let now = shown(&sim, device);
                if let Some(before) = before.get(&device) {
                    let (came, freed) = difference(before, &now);
                    let counts = counts.entry(device).or_default();
                    *counts = (counts.0 + came, counts.1 + freed);
                }
                before.insert(device, now);
            }
            let snapshot = ledger.snapshot(P, as_of(at)).unwrap();
            for number in 0..2 {
                let truth: Vec<(u64, u64, u64, bool)> =
                    sim.held(number).into_iter().flat_map(|s| s.blocks).collect();
                prop_assert_eq!(blocks(&snapshot, number), truth);
                let found = find_device(&ledger, Some(number)).unwrap();
                prop_assert_eq!(found.allocated_bytes, Some(sim.allocated(number)));
                prop_assert_eq!(found.reserved_bytes, Some(sim.reserved(number)));
                let live = || before[&number].values().filter(|b| !b.2);
                prop_assert_eq!(found.live_blocks, live().count() as u64);
                // PyTorch counts what was requested until the stream has finished.
                let requested = before[&number].values().map(|b| b.0);
                prop_assert_eq!(found.requested_bytes, Some(requested.sum()));
                prop_assert_eq!(found.segments, Some(sim.segments(number).len() as u64));
                prop_assert_eq!((found.readings, found.readings_refused), (round as u64 + 1, 0));
                let (came, went) = counts.get(&number).copied().unwrap_or_default();
                prop_assert_eq!((found.alloc_count, found.free_count), (came, went));
            }
        }
        let notes = stats(&ledger).coverage;
        for code in ["attached_late", "inexact_after_loss", "reading_too_old", "reading_contradicted", "records_lost"] {
            prop_assert!(!has_note(&notes, code), "{:?}", notes);
        }
        prop_assert!(has_note(&notes, "level_read"));
    }
}

#[test]
fn a_block_is_as_old_as_the_reading_that_first_had_it() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    let mut ledger = attached_as(Level::Read, false, sim.time, Backend::Native);
    let old = sim.alloc(0, 0, 3000);
    tell(&mut ledger, sim.time, sim.reading(0, 10));
    sim.time += 10 * SECOND;
    let new = sim.alloc(0, 0, 5000);
    sim.time += SECOND;
    let read_at = sim.time;
    tell(&mut ledger, sim.time, sim.reading(0, 10));
    sim.time += 10 * SECOND;
    tell(&mut ledger, sim.time, sim.reading(0, 10));
    let snapshot = ledger.snapshot(P, as_of(sim.time)).unwrap();
    let since = |addr| {
        let mut blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
        blocks.find(|b| b.addr == addr).unwrap().since_ns
    };
    assert_eq!(since(old), 0, "it was there before");
    assert_eq!(since(new), read_at);
}

/// Where no reading has succeeded there is no older one to be shown.
#[test]
fn totals_are_old_only_where_a_reading_has_told_them() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    sim.alloc(0, 0, 512);
    let mut ledger = attached_as(Level::Read, false, sim.time, Backend::Native);
    let failed = Body::Coverage(CoverageNote {
        code: "reading_failed".to_owned(),
        text: "it failed".to_owned(),
    });
    ledger.apply(&event(P, sim.time, failed.clone()));
    assert!(!has_note(&stats(&ledger).coverage, "totals_old"));
    tell(&mut ledger, sim.time, sim.reading(0, 10));
    // As the daemon says that a reading has succeeded.
    let succeeded = Body::Coverage(CoverageNote {
        code: "reading_failed".to_owned(),
        text: String::new(),
    });
    ledger.apply(&event(P, sim.time, succeeded));
    // A list has no notes, so it does not have what one would limit.
    let listed = |ledger: &Ledger| {
        let list = ledger.ask(&[P], as_of(sim.time), &v1::ListRequest::default());
        let one = list.unwrap().processes.remove(0);
        (one.allocated_bytes, one.reserved_bytes)
    };
    assert_eq!(listed(&ledger), (Some(512), Some(sim.reserved(0))));
    ledger.apply(&event(P, sim.time, failed));
    assert!(has_note(&stats(&ledger).coverage, "totals_old"));
    assert_eq!(listed(&ledger), (None, None));
}
