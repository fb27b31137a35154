//! Leaks after a late attach, where the blocks from before it were read.

use crate::common::*;
use memscope_ledger::event::*;
use memscope_proto::v1;
use memscope_proto::v1::{LeakGroup, LeaksRequest, LeaksResponse};

/// A program with many blocks from before the attach. With `plant`, blocks of one size leak from the attach on.
fn program(read_at: Option<u64>, plant: bool) -> LeaksResponse {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    for i in 0..300 {
        sim.time += MS;
        sim.alloc(0, 0, [700, 40_000, 3 * MIB][i % 3]);
    }
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    let mut parts = Vec::new();
    for step in 0..100u64 {
        sim.time += 50 * MS;
        let tensors: Vec<u64> = (0..6)
            .map(|i| {
                sim.time += MS;
                sim.alloc(0, 0, [700, 5000, 40_000][i % 3])
            })
            .collect();
        if plant {
            sim.alloc(0, 0, 40_000);
        }
        // Old blocks are replaced by new ones of the same size, which is no growth.
        let old = *sim
            .live
            .iter()
            .find(|(_, b)| b.requested == 700 && !b.told)
            .unwrap()
            .0;
        sim.time += MS;
        sim.free(old, false);
        sim.alloc(0, 0, 700);
        for addr in tensors {
            if sim.live.contains_key(&addr) {
                sim.time += MS;
                sim.free(addr, false);
            }
        }
        sim.feed(&mut ledger);
        if read_at == Some(step) {
            parts = sim.reading(0, 50);
        }
        if read_at == Some(step.saturating_sub(2)) {
            for part in std::mem::take(&mut parts) {
                ledger.apply(&event(P, sim.time, Body::Held(Box::new(part))));
            }
        }
    }
    let query = LeaksRequest {
        include_steady: true,
        sure_after_steps: 50,
        ..LeaksRequest::default()
    };
    ledger.ask(&[P], as_of(sim.time), &query).unwrap()
}

#[test]
fn a_leak_after_a_late_attach_is_found_and_the_baseline_is_not_blamed() {
    let report = program(Some(1), true);
    let growing: Vec<&LeakGroup> = report
        .groups
        .iter()
        .filter(|g| g.verdict() == v1::Verdict::Growing)
        .collect();
    assert_eq!(growing.len(), 1, "{:#?}", report.groups);
    assert_eq!(growing[0].size_bytes, 40_000);
    assert_eq!(
        growing[0].live_count, 100,
        "leaked ones, not those from before"
    );
    assert!((85..=95).contains(&growing[0].growth_count), "{growing:?}");
    let find = |size| report.groups.iter().find(|g| g.size_bytes == size).unwrap();
    let large = find(3 * MIB);
    assert_eq!(
        (large.verdict(), large.live_count),
        (v1::Verdict::Steady, 100)
    );
    assert_eq!(large.growth_count, 0);
    assert!(large.oldest_age_ns <= report.watched_ns, "at least so old");
    assert_eq!(find(700).verdict(), v1::Verdict::Steady);
    let clean = program(Some(1), false);
    assert_eq!(clean.growing_bytes, 0, "{:#?}", clean.groups);
}

#[test]
fn without_the_reading_replaced_blocks_would_look_like_growth() {
    let groups = program(None, false).groups;
    let found = groups.iter().find(|g| g.size_bytes == 700).unwrap();
    assert!(found.growth_count > 0, "else the test above shows nothing");
}

#[test]
fn what_a_late_reading_finds_was_there_all_the_time() {
    let groups = program(Some(60), false).groups;
    let found = groups.iter().find(|g| g.size_bytes == 3 * MIB).unwrap();
    assert_eq!((found.live_count, found.growth_count), (100, 0));
    assert_eq!(found.verdict(), v1::Verdict::Steady);
}
