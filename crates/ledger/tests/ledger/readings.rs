//! Readings of the allocator's structures, which the ledger takes over at any later moment, compared with a simulated
//! allocator.

use crate::common::pictures::*;
use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Answer, inexact};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1::{LeaksRequest, LeaksResponse, StepsRequest};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Allocations and frees that the ledger should count.
type Counts = BTreeMap<i32, (u64, u64)>;

struct Run {
    sim: Sim,
    dice: Dice,
    losses: bool,
    counts: Counts,
    /// What lived at the attach.
    before: BTreeMap<u64, Live>,
}

impl Run {
    fn step(&mut self) {
        let Run { sim, dice, .. } = self;
        sim.time += 1 + dice.below(2 * MS);
        sim.tid = 100 + dice.below(3) as u32;
        match dice.below(40) {
            0..18 => {
                let most = 1 << (8 + dice.below(17));
                let device = dice.below(2) as i32;
                sim.alloc(device, dice.below(2) * 0x55, 1 + dice.below(most));
                if sim.attached {
                    self.counts.entry(device).or_default().0 += 1;
                }
            }
            18..32 if !sim.live.is_empty() => {
                let at = dice.below(sim.live.len() as u64) as usize;
                let (&addr, &block) = sim.live.iter().nth(at).unwrap();
                sim.free(addr, dice.below(3) == 0);
                if sim.attached {
                    let counts = self.counts.entry(block.device).or_default();
                    counts.1 += 1;
                }
            }
            32..36 if !sim.pending.is_empty() => {
                let addr = *sim.pending.keys().min().unwrap();
                sim.complete(addr);
            }
            36..38 => sim.empty_cache(dice.below(2) as i32),
            _ if self.losses && sim.attached => sim.lose = 1 + dice.below(5) as u32,
            _ => {}
        }
    }

    fn steps(&mut self, count: u64, ledger: &mut Ledger) {
        for _ in 0..count {
            self.step();
            self.sim.feed(ledger);
        }
    }
}

/// Checks that the ledger's snapshot equals the simulator's, entry by entry.
fn check(run: &Run, ledger: &Ledger) -> Result<(), TestCaseError> {
    let sim = &run.sim;
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    for number in 0..2 {
        let Some(found) = find_device(ledger, Some(number)) else {
            prop_assert!(sim.held(number).is_empty());
            continue;
        };
        prop_assert_eq!(seen(&snapshot, number), truth(sim, number));
        for segment in snapshot.segments.iter().filter(|s| !s.expandable) {
            prop_assert_eq!(segment.large, segment.size > 2 * MIB);
        }
        prop_assert_eq!(found.allocated_bytes, Some(sim.allocated(number)));
        prop_assert_eq!(found.reserved_bytes, Some(sim.reserved(number)));
        let of_device = || sim.live.values().filter(|b| b.device == number);
        prop_assert_eq!(found.live_blocks, of_device().count() as u64);
        let pending = || sim.pending.values().filter(|b| b.device == number);
        let requested = of_device().chain(pending()).map(|b| b.requested);
        prop_assert_eq!(found.requested_bytes, Some(requested.sum()));
        prop_assert_eq!(
            found.pending_free_bytes,
            Some(pending().map(|b| b.rounded).sum())
        );
        if run.losses {
            let before = run.before.iter().filter(|(_, b)| b.device == number);
            let still = before.filter(|(addr, b)| is_as(sim.live.get(addr), b));
            let most = still.map(|(_, b)| b.rounded).sum();
            prop_assert!(found.baseline_bytes <= Some(most), "{:?}", found);
            continue;
        }
        let (allocs, frees) = run.counts.get(&number).copied().unwrap_or_default();
        prop_assert_eq!((found.alloc_count, found.free_count), (allocs, frees));
        // Blocks that were freed before the first reading were allocated before the attach, so no free is an orphan.
        prop_assert_eq!((found.orphan_free_count, found.orphan_free_bytes), (0, 0));
        let old = of_device().filter(|b| !b.told);
        prop_assert_eq!(found.baseline_blocks, Some(old.clone().count() as u64));
        prop_assert_eq!(found.baseline_bytes, Some(old.map(|b| b.rounded).sum()));
        prop_assert_eq!(found.resync_count, 0);
        prop_assert_eq!(found.sizes.as_ref().unwrap().count, allocs);
    }
    for block in snapshot.segments.iter().flat_map(|s| &s.blocks) {
        let live = sim.live.get(&block.addr);
        if live.is_some_and(|live| !live.told) {
            prop_assert_eq!(block.since_ns, 0, "its age is not known");
        }
        let stack = &snapshot.stacks[block.stack as usize];
        if block.state == BlockState::Active && stack.missing == Some("before_attach") {
            // Of two blocks of the same sizes at one address, no reading can tell that the first one went in a gap.
            let before = run.before.get(&block.addr);
            prop_assert!(before.is_some_and(|before| is_as(live, before)));
        }
    }
    Ok(())
}

/// Whether a block is as large as one that lived at its address before.
fn is_as(live: Option<&Live>, before: &Live) -> bool {
    live.is_some_and(|live| (live.rounded, live.requested) == (before.rounded, before.requested))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_from_the_reading_on(
        seed in any::<u64>(),
        before in 0u64..120,
        until_reading in 0u64..80,
        until_applied in 0u64..60,
        after in 0u64..60,
        mode in prop::sample::select(&[Mode::Calibrated, Mode::Uncalibrated, Mode::Both][..]),
        losses in any::<bool>(),
        expandable in any::<bool>(),
        // With losses, these calls are lost as well.
        driver_calls in any::<bool>(),
        blocks in 1usize..30,
        again in any::<bool>(),
    ) {
        let mut sim = Sim::new(mode);
        sim.expandable = expandable;
        sim.driver_calls = driver_calls;
        sim.attached = false;
        let mut run = Run { sim, dice: Dice(seed), losses, counts: Counts::new(), before: BTreeMap::new() };
        for _ in 0..before {
            run.step();
        }
        run.sim.attached = true;
        run.before = run.sim.live.iter().map(|(addr, block)| (*addr, *block)).collect();
        let mut ledger = attached(Level::Trace, before == 0, run.sim.time);
        for round in 0..=u32::from(again) {
            run.losses = losses;
            run.steps(until_reading, &mut ledger);
            // No more events are lost, and the next one shows the loss.
            run.losses = false;
            run.sim.lose = 0;
            run.sim.emit(Body::Forked { child: 1 });
            run.sim.feed(&mut ledger);
            let mut parts = run.sim.reading(0, blocks);
            // Parts of readings of two devices may alternate.
            for (at, part) in run.sim.reading(1, blocks).into_iter().enumerate() {
                parts.insert((2 * at + 1).min(parts.len()), part);
            }
            run.steps(until_applied, &mut ledger);
            tell(&mut ledger, run.sim.time, parts);
            run.losses = losses;
            check(&run, &ledger)?;
            for _ in 0..after {
                run.losses = false;
                run.step();
                run.sim.feed(&mut ledger);
                run.losses = losses;
                check(&run, &ledger)?;
            }
            let rounds = u64::from(round) + 1;
            // Memory of the driver that the pool was not seen to use is on an unknown device.
            for found in stats(&ledger).devices.iter().filter(|d| d.device.is_some()) {
                prop_assert_eq!((found.readings, found.readings_refused), (rounds, 0));
            }
        }
        let notes = stats(&ledger).coverage;
        for code in ["attached_late", "inexact_after_loss", "reading_too_old", "reading_contradicted"] {
            prop_assert!(!has_note(&notes, code), "{:?}", notes);
        }
        prop_assert_eq!(has_note(&notes, "records_lost"), run.sim.lost > 0);
        let old = stats(&ledger).devices.iter().any(|d| d.baseline_blocks > Some(0));
        prop_assert_eq!(has_note(&notes, "baseline_read"), old && before > 0);
        prop_assert!(run.sim.lost > 0 || !has_note(&notes, "came_unseen"), "{:?}", notes);
    }

    /// At level `blocks` no event shows segments and pending frees; blocks and sums are exact.
    #[test]
    fn exact_sums_at_level_blocks(
        seed in any::<u64>(),
        before in 1u64..120,
        until_reading in 0u64..60,
        until_applied in 0u64..60,
        losses in any::<bool>(),
        expandable in any::<bool>(),
    ) {
        let mut sim = Sim::new(Mode::Reports);
        sim.expandable = expandable;
        sim.driver_calls = true;
        sim.attached = false;
        let mut run = Run { sim, dice: Dice(seed), losses, counts: Counts::new(), before: BTreeMap::new() };
        for _ in 0..before {
            run.step();
        }
        run.sim.attached = true;
        let mut ledger = attached(Level::Blocks, false, run.sim.time);
        run.steps(until_reading, &mut ledger);
        run.losses = false;
        run.sim.lose = 0;
        run.sim.emit(Body::Forked { child: 1 });
        run.sim.feed(&mut ledger);
        let parts: Vec<HeldPart> = (0..2).flat_map(|d| run.sim.reading(d, 1000)).collect();
        run.steps(until_applied, &mut ledger);
        tell(&mut ledger, run.sim.time, parts);
        for _ in 0..60 {
            run.steps(1, &mut ledger);
            let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
            let blocks: Vec<(u64, u64)> = snapshot
                .segments
                .iter()
                .flat_map(|s| &s.blocks)
                .filter(|b| b.state == BlockState::Active)
                .map(|b| (b.addr, b.size))
                .collect();
            let mut live: Vec<(u64, u64)> = run.sim.live.iter().map(|(a, b)| (*a, b.rounded)).collect();
            live.sort_unstable_by_key(|(addr, _)| (run.sim.live[addr].device, *addr));
            prop_assert_eq!(blocks, live);
            for number in 0..2 {
                if let Some(found) = find_device(&ledger, Some(number)) {
                    prop_assert_eq!(found.allocated_bytes, Some(run.sim.allocated(number)));
                    prop_assert_eq!(found.pending_free_bytes, None);
                }
            }
        }
    }
}

/// A late attach, with `count` blocks from before it.
fn late(count: u64) -> (Sim, Ledger, Vec<u64>) {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    let addrs = (0..count).map(|i| sim.alloc(0, 0, 600 + i)).collect();
    sim.attached = true;
    sim.time += MS;
    let ledger = attached(Level::Trace, false, sim.time);
    sim.time += MS;
    (sim, ledger, addrs)
}

#[test]
fn the_baseline_is_named_and_falls() {
    let (mut sim, mut ledger, addrs) = late(3);
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    assert_eq!(
        note(&ledger, "baseline_read").as_deref(),
        Some(
            "3.00 KiB in 3 blocks on device 0 were there before the attach; their ages are not known"
        )
    );
    let found = device(&ledger, 0);
    assert_eq!((found.live_blocks, found.alloc_count), (3, 0));
    assert_eq!(found.requested_bytes, Some(600 + 601 + 602));
    assert_eq!(found.segments, Some(1));
    assert_eq!(ledger.summary(P).unwrap().allocated_bytes, Some(3072));
    for (left, addr) in (0..3).rev().zip(addrs) {
        sim.time += MS;
        sim.free(addr, false);
        sim.feed(&mut ledger);
        let found = device(&ledger, 0);
        assert_eq!(
            (found.baseline_bytes, found.baseline_blocks),
            (Some(left * 1024), Some(left))
        );
        assert_eq!((found.orphan_free_count, found.free_count), (0, 3 - left));
        assert_eq!(
            found.lifetimes.as_ref().unwrap().count,
            0,
            "nobody knows how long it lived"
        );
    }
    assert_eq!(note(&ledger, "baseline_read"), None);
    assert_eq!(note(&ledger, "attached_late"), None);
}

/// The probes were in the pool's library later than the attach. A reading shows the blocks, and what is missing in the counts stays
/// missing, also when those blocks have gone.
#[test]
fn what_late_probes_missed_is_said_after_a_reading_too() {
    for reads_first in [true, false] {
        let mut sim = Sim::new(Mode::Calibrated);
        sim.attached = false;
        let mut ledger = Ledger::new(memscope_ledger::LedgerConfig::default());
        let placed = |pool_seen| {
            Body::Placed(Box::new(Placement {
                sites: 3,
                pool_seen,
                before_first_memory: Some(true),
                ..Placement::default()
            }))
        };
        let facts = Body::Attached(facts(42, Level::Trace, true));
        for body in [facts, Body::Backend(Backend::Native), placed(false)] {
            ledger.apply(&event(P, sim.time, body));
        }
        let missed = sim.alloc(0, 0, 10 * MIB);
        sim.time += MS;
        ledger.apply(&event(P, sim.time, placed(true)));
        sim.attached = true;
        sim.time += MS;
        if reads_first {
            tell(&mut ledger, sim.time, sim.reading(0, 100));
            sim.time += MS;
        }
        sim.alloc(0, 0, 512);
        sim.feed(&mut ledger);
        sim.time += MS;
        if !reads_first {
            tell(&mut ledger, sim.time, sim.reading(0, 100));
            sim.time += MS;
        }
        let said = note(&ledger, "probed_late").expect("it was missed");
        assert!(said.starts_with("10.00 MiB on device 0 were"), "{said}");
        assert_eq!(note(&ledger, "came_unseen"), None, "nothing was lost");
        assert_eq!(device(&ledger, 0).live_blocks, 2);
        sim.free(missed, false);
        sim.feed(&mut ledger);
        assert_eq!(note(&ledger, "probed_late"), Some(said));
        assert_eq!(device(&ledger, 0).alloc_count, 1);
    }
}

#[test]
fn nobody_probes_and_readings_follow_one_another() {
    let (mut sim, mut ledger, mut addrs) = late(5);
    sim.attached = false;
    let before: BTreeMap<u64, Live> = sim
        .live
        .iter()
        .map(|(addr, block)| (*addr, *block))
        .collect();
    for round in 0..4u64 {
        sim.time += MS;
        if round > 0 {
            sim.free(addrs.remove(0), round == 2);
            sim.alloc(0, 0, 3 * MIB + round);
        }
        sim.time += MS;
        tell(&mut ledger, sim.time, sim.reading(0, 2));
        let run = Run {
            sim,
            dice: Dice(1),
            losses: true,
            counts: Counts::new(),
            before: before.clone(),
        };
        check(&run, &ledger).unwrap();
        sim = run.sim;
        let found = device(&ledger, 0);
        assert_eq!((found.readings, found.readings_refused), (round + 1, 0));
        assert_eq!(found.baseline_blocks, Some(5 - round));
        assert_eq!(note(&ledger, "inexact_after_loss"), None);
    }
}

#[test]
fn a_reading_from_before_a_loss_is_too_old() {
    let (mut sim, mut ledger, addrs) = late(3);
    let parts = sim.reading(0, 100);
    sim.time += MS;
    sim.lose = 2;
    sim.free(addrs[0], false);
    sim.time += MS;
    sim.alloc(0, 0, 5000);
    sim.feed(&mut ledger);
    tell(&mut ledger, sim.time, parts);
    assert!(note(&ledger, "reading_too_old").is_some());
    let found = device(&ledger, 0);
    assert_eq!((found.readings, found.readings_refused), (0, 1));
    assert_eq!(found.baseline_blocks, None);
    assert!(note(&ledger, "attached_late").is_some(), "as without it");
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    let found = device(&ledger, 0);
    assert_eq!((found.readings, found.readings_refused), (1, 1));
    assert_eq!(
        note(&ledger, "came_unseen").as_deref(),
        Some(
            "2.00 KiB in 2 blocks on device 0 came while records were lost, or were there before the attach: their \
             ages and stacks are not known"
        )
    );
    assert_eq!((found.baseline_bytes, found.baseline_blocks), (None, None));
    assert_eq!(note(&ledger, "baseline_read"), None);
    assert_eq!(note(&ledger, "reading_too_old"), None);
    assert_eq!(stats(&ledger).gaps.len(), 1, "the gap stays");
    for addr in &addrs[1..] {
        sim.time += MS;
        sim.free(*addr, false);
    }
    sim.feed(&mut ledger);
    assert_eq!(note(&ledger, "came_unseen"), None);
    let found = device(&ledger, 0);
    assert_eq!(
        (found.baseline_bytes, found.baseline_blocks),
        (Some(0), Some(0))
    );
}

/// An entry that arrives after the reading that has its block says when the block came, and from which stack.
#[test]
fn a_late_entry_tells_the_stack_of_a_block_that_was_read() {
    let (mut sim, mut ledger, _) = late(1);
    sim.stack = StackRef::NoPython;
    let addr = sim.alloc(0, 0, 3 * MIB);
    let waiting = std::mem::take(&mut sim.out);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    assert_eq!(device(&ledger, 0).baseline_blocks, Some(2));
    for event in &waiting {
        ledger.apply(event);
    }
    assert_eq!(device(&ledger, 0).baseline_blocks, Some(1));
    let snapshot = ledger.snapshot(P, as_of(sim.time)).unwrap();
    let mut blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
    let block = blocks.find(|b| b.addr == addr).unwrap();
    let stack = &snapshot.stacks[block.stack as usize];
    assert_eq!(
        (block.since_ns > 0, stack.missing),
        (true, Some("no_python"))
    );
    let rows = ledger.stacks(P, as_of(sim.time)).unwrap().rows;
    let live: Vec<_> = rows
        .iter()
        .map(|r| (r.stack.missing, r.live.bytes))
        .collect();
    assert_eq!(
        live,
        [(Some("no_python"), 3 * MIB), (Some("before_attach"), 1024)]
    );
}

/// Of several blocks of one size that came at one address before the reading, the last one is the block that it shows.
#[test]
fn of_late_entries_the_last_one_tells_the_stack() {
    let (mut sim, mut ledger, _) = late(1);
    sim.stack = StackRef::NoPython;
    let addr = sim.alloc(0, 0, 3 * MIB);
    sim.time += MS;
    sim.free(addr, false);
    sim.time += MS;
    sim.stack = StackRef::Busy;
    let again = sim.alloc(0, 0, 3 * MIB);
    assert_eq!(addr, again, "the model takes the same place");
    let waiting = std::mem::take(&mut sim.out);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    for event in &waiting {
        ledger.apply(event);
    }
    let rows = ledger.stacks(P, as_of(sim.time)).unwrap().rows;
    let live: Vec<_> = rows
        .iter()
        .filter(|row| row.live.count > 0)
        .map(|row| (row.stack.missing, row.live.bytes))
        .collect();
    assert_eq!(
        live,
        [(Some("busy"), 3 * MIB), (Some("before_attach"), 1024)]
    );
}

/// The allocator's totals said before the loss that nothing was there at the attach, so a first reading after it shows what
/// came in it.
#[test]
fn what_came_in_a_gap_was_not_there_at_the_attach() {
    let (mut sim, mut ledger, _) = late(0);
    sim.alloc(0, 0, 3 * MIB);
    sim.feed(&mut ledger);
    assert_eq!(device(&ledger, 0).baseline_bytes, Some(0));
    sim.lose = 100;
    let unseen = [5 * MIB, 6 * MIB].map(|size| sim.alloc(0, 0, size));
    sim.time += MS;
    sim.feed(&mut ledger);
    sim.lose = 0;
    sim.time += MS;
    sim.alloc(0, 0, 2 * MIB);
    sim.feed(&mut ledger);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    let found = device(&ledger, 0);
    assert_eq!(found.allocated_bytes, Some(16 * MIB));
    assert_eq!(
        (found.baseline_bytes, found.baseline_blocks),
        (Some(0), Some(0))
    );
    assert_eq!(note(&ledger, "baseline_read"), None);
    let said = note(&ledger, "came_unseen");
    assert_eq!(
        said.as_deref(),
        Some(
            "11.00 MiB in 2 blocks on device 0 came while records were lost: their ages and stacks are not known"
        )
    );
    let snapshot = ledger.snapshot(P, as_of(sim.time)).unwrap();
    for addr in unseen {
        let mut blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
        let block = blocks.find(|b| b.addr == addr).unwrap();
        let stack = &snapshot.stacks[block.stack as usize];
        assert_eq!((block.since_ns, stack.missing), (0, Some("not_taken")));
    }
    let stacks = ledger.stacks(P, as_of(sim.time)).unwrap();
    let words: Vec<_> = stacks.rows.iter().map(|row| row.stack.missing).collect();
    assert!(!words.contains(&Some("before_attach")), "{words:?}");
    let leaks: LeaksResponse = ledger
        .ask(&[P], as_of(sim.time), &LeaksRequest::default())
        .unwrap();
    for (answer, notes) in [
        (Answer::Stacks, &stacks.coverage),
        (Answer::Leaks, &leaks.coverage),
    ] {
        let spoiled = inexact(answer, notes);
        assert!(
            spoiled.iter().any(|note| note.code == "came_unseen"),
            "{answer:?}"
        );
    }
    for addr in unseen {
        sim.time += MS;
        sim.free(addr, false);
    }
    sim.feed(&mut ledger);
    assert_eq!(note(&ledger, "came_unseen"), None);
}

#[test]
fn a_reading_older_than_what_is_kept_is_refused() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = Ledger::new(LedgerConfig {
        trace_entries: 10,
        ..LedgerConfig::default()
    });
    ledger.apply(&event(P, 1, Body::Attached(facts(42, Level::Trace, false))));
    for (rounds, count) in [(20_000, 1), (30_000, 0)] {
        let parts = sim.reading(0, 100);
        for _ in 0..rounds {
            sim.time += 100;
            let addr = sim.alloc(0, 0, 600);
            sim.free(addr, false);
        }
        sim.feed(&mut ledger);
        tell(&mut ledger, sim.time, parts);
        let found = device(&ledger, 0);
        assert_eq!(found.readings_refused, 1 - count, "{rounds}");
        assert_eq!(found.readings, 1);
        assert_eq!(note(&ledger, "reading_too_old").is_some(), count == 0);
    }
    assert_eq!(ledger.snapshot(P, as_of(0)).unwrap().trace.len(), 10);
}

/// After a loss, a process that was traced from its start needs a reading as one that was attached late does: what happens
/// meanwhile is kept for it.
#[test]
fn what_comes_after_a_loss_is_kept_for_the_reading() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = Ledger::new(LedgerConfig {
        trace_entries: 10,
        ..LedgerConfig::default()
    });
    let placement = Placement {
        sites: 3,
        pool_seen: true,
        ..Placement::default()
    };
    for body in [
        Body::Attached(facts(42, Level::Trace, true)),
        Body::Backend(Backend::Native),
        Body::Placed(Box::new(placement)),
    ] {
        ledger.apply(&event(P, sim.time, body));
    }
    let rounds = |sim: &mut Sim, ledger: &mut Ledger| {
        for _ in 0..33_000 {
            sim.time += 10;
            let addr = sim.alloc(0, 0, 600);
            sim.free(addr, false);
        }
        sim.feed(ledger);
    };
    let allocator = 0x7000;
    let kept = |ledger: &Ledger, since| {
        let changes = ledger.pool_changes(P, 0, allocator, since);
        changes.map(|changes| changes.len())
    };
    let (first, unlost) = (sim.alloc(0, 0, 5000), sim.time);
    rounds(&mut sim, &mut ledger);
    assert_eq!(kept(&ledger, unlost), None, "there is nothing to read");
    sim.time += MS;
    sim.lose = 2;
    sim.free(first, false);
    sim.alloc(0, 0, 5000);
    sim.feed(&mut ledger);
    let (parts, since) = (sim.reading(0, 100), sim.time);
    rounds(&mut sim, &mut ledger);
    assert_eq!(kept(&ledger, since), Some(3 * 33_000));
    tell(&mut ledger, sim.time, parts);
    let found = device(&ledger, 0);
    assert_eq!((found.readings, found.readings_refused), (1, 0));
    assert_eq!(note(&ledger, "inexact_after_loss"), None);
    rounds(&mut sim, &mut ledger);
    assert_eq!(kept(&ledger, since), None, "it has been read");
}

#[test]
fn a_contradicted_reading_changes_nothing() {
    let (mut sim, mut ledger, addrs) = late(3);
    sim.alloc(0, 0, 700);
    sim.feed(&mut ledger);
    let before = (stats(&ledger).devices, ledger.snapshot(P, as_of(0)));
    sim.time += MS;
    let whole = sim.reading(0, 100);
    let mut without = whole.clone();
    let (_, bytes, _, _) = without[0].segments[0].blocks.remove(1);
    without[0].total_allocated -= bytes;
    let mut sums = whole.clone();
    sums[0].total_reserved += 1;
    for (refused, parts) in [(1, without), (2, sums)] {
        tell(&mut ledger, sim.time, parts);
        assert!(note(&ledger, "reading_contradicted").is_some());
        let mut after = stats(&ledger).devices;
        assert_eq!(after[0].readings_refused, refused);
        after[0].readings_refused = 0;
        assert_eq!(after, before.0);
        let (after, before) = (ledger.snapshot(P, as_of(0)).unwrap(), &before.1);
        assert_eq!(after.segments, before.as_ref().unwrap().segments);
    }
    // Since the reading a block was freed that the reading does not have.
    let mut other = sim.reading(0, 100);
    other[0].segments[0].blocks.remove(0);
    other[0].segments[0].blocks[0].1 += 1024;
    sim.time += MS;
    sim.free(addrs[0], false);
    sim.feed(&mut ledger);
    tell(&mut ledger, sim.time, other);
    assert_eq!(device(&ledger, 0).readings_refused, 3);
    tell(&mut ledger, sim.time, whole);
    assert_eq!(note(&ledger, "reading_contradicted"), None);
    assert_eq!(device(&ledger, 0).baseline_blocks, Some(2));
}

#[test]
fn interrupted_readings_are_dropped() {
    let (sim, mut ledger, _) = late(9);
    let parts = sim.reading(0, 3);
    assert_eq!(parts.len(), 3);
    tell(
        &mut ledger,
        sim.time,
        vec![parts[0].clone(), parts[2].clone()],
    );
    assert!(find_device(&ledger, Some(0)).is_none(), "nothing is known");
    assert!(note(&ledger, "reading_incomplete").is_some());
    assert!(note(&ledger, "attached_late").is_some());
    tell(&mut ledger, sim.time, parts);
    let found = device(&ledger, 0);
    assert_eq!((found.readings, found.readings_refused), (1, 1));
    assert_eq!(found.live_blocks, 9);
    assert_eq!(note(&ledger, "reading_incomplete"), None);
    assert_eq!(ledger.kept(P).unwrap().loose, 0);
}

#[test]
fn events_that_come_after_a_reading_that_had_them() {
    for mode in [Mode::Calibrated, Mode::Uncalibrated, Mode::Reports] {
        let (mut sim, mut ledger, addrs) = late(4);
        sim.mode = mode;
        let born = sim.time;
        let new = sim.alloc(0, 0, 5000);
        sim.free(addrs[1], false);
        sim.time += MS;
        let parts = sim.reading(0, 100);
        tell(&mut ledger, sim.time, parts);
        sim.feed(&mut ledger);
        let found = device(&ledger, 0);
        assert_eq!((found.alloc_count, found.free_count), (1, 1), "{mode:?}");
        assert_eq!(found.orphan_free_count, 0);
        assert_eq!((found.live_blocks, found.resync_count), (4, 0));
        assert_eq!(found.allocated_bytes, Some(sim.allocated(0)));
        if mode != Mode::Reports {
            assert_eq!(found.baseline_blocks, Some(3), "one came after the attach");
            let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
            let mut blocks = snapshot.segments.iter().flat_map(|s| &s.blocks);
            let block = blocks.find(|b| b.addr == new).unwrap();
            assert_eq!(block.since_ns, born);
        }
        sim.time += MS;
        sim.free(new, false);
        sim.free(addrs[0], false);
        sim.feed(&mut ledger);
        let found = device(&ledger, 0);
        assert_eq!(found.allocated_bytes, Some(sim.allocated(0)));
        assert_eq!((found.live_blocks, found.orphan_free_count), (2, 0));
    }
}

/// The driver's call for a segment may come after the reading that shows the segment, too. Its memory is the pool's and counts once.
#[test]
fn a_segment_whose_call_comes_after_the_reading_is_the_pools() {
    for mode in [Mode::Calibrated, Mode::Uncalibrated, Mode::Reports] {
        for expandable in [false, true] {
            let (mut sim, mut ledger, _) = late(0);
            (sim.mode, sim.driver_calls, sim.expandable) = (mode, true, expandable);
            sim.alloc(0, 0, 3 * MIB);
            sim.time += MS;
            let parts = sim.reading(0, 100);
            tell(&mut ledger, sim.time, parts);
            sim.feed(&mut ledger);
            let unclaimed = find_device(&ledger, None).map_or(0, |d| d.driver.unwrap().bytes);
            let row = device(&ledger, 0);
            let (all, direct) = (row.driver.unwrap().bytes, row.direct.unwrap().bytes);
            assert_eq!((unclaimed, direct), (0, 0), "{mode:?} {expandable}");
            assert_eq!(Some(all), row.reserved_bytes, "{mode:?} {expandable}");
        }
    }
}

#[test]
fn a_reading_tells_sizes_that_entries_left_open() {
    let (mut sim, mut ledger, addrs) = late(3);
    sim.mode = Mode::Bare;
    // The last piece of a 20 MiB segment is not split off, so the block is rounded up by more than 512 bytes.
    sim.alloc(0, 0, 19 * MIB + MIB / 2);
    sim.free(addrs[0], false);
    sim.feed(&mut ledger);
    assert!(has_note(&stats(&ledger).coverage, "rounded_size_unknown"));
    let parts = sim.reading(0, 100);
    sim.time += MS;
    // Only the next total shows the size of this block.
    sim.alloc(0, 0x55, 19 * MIB + MIB / 2);
    sim.free(addrs[1], false);
    sim.feed(&mut ledger);
    assert_eq!(device(&ledger, 0).orphan_free_count, 2);
    tell(&mut ledger, sim.time, parts);
    let found = device(&ledger, 0);
    // Blocks that were freed before the first reading were allocated before the attach: no answer counts these frees.
    assert_eq!((found.readings, found.orphan_free_count), (1, 0));
    assert_eq!(found.orphan_free_bytes, 0);
    assert!(has_note(&stats(&ledger).coverage, "rounded_size_unknown"));
    sim.mode = Mode::Calibrated;
    sim.alloc(0, 0, 600);
    sim.feed(&mut ledger);
    let found = device(&ledger, 0);
    assert_eq!((found.resync_count, found.baseline_bytes), (0, Some(1024)));
    assert_eq!((found.orphan_free_count, found.orphan_free_bytes), (0, 0));
    assert_eq!(found.allocated_bytes, Some(sim.allocated(0)));
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(seen(&snapshot, 0), truth(&sim, 0));
    assert!(!has_note(&stats(&ledger).coverage, "rounded_size_unknown"));
}

#[test]
fn a_loss_after_a_reading_is_inexact_again() {
    let (mut sim, mut ledger, addrs) = late(3);
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    sim.time += MS;
    sim.lose = 2;
    sim.free(addrs[0], false);
    sim.time += MS;
    sim.alloc(0, 0, 3 * MIB);
    sim.feed(&mut ledger);
    assert!(note(&ledger, "inexact_after_loss").is_some());
    // A new block at the addresses of the old one proves that it is gone, with or without a reading.
    sim.alloc(0, 0, 600);
    sim.feed(&mut ledger);
    let found = device(&ledger, 0);
    assert_eq!((found.live_blocks, found.baseline_blocks), (4, Some(2)));
    assert_eq!(found.allocated_bytes, Some(sim.allocated(0)));
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    assert_eq!(note(&ledger, "inexact_after_loss"), None);
    assert!(note(&ledger, "records_lost").is_some());
    assert_eq!(device(&ledger, 0).baseline_blocks, Some(2));
}

#[test]
fn sums_made_since_the_last_total_are_no_evidence() {
    let (mut sim, mut ledger, _) = late(3);
    sim.mode = Mode::Uncalibrated;
    let used = sim.alloc(0, 0, 5000);
    sim.feed(&mut ledger);
    sim.time += MS;
    sim.lose = 2;
    sim.free(used, true);
    sim.alloc(0, 0, 600);
    sim.feed(&mut ledger);
    sim.time += MS;
    let parts = sim.reading(0, 100);
    sim.time += MS;
    // The ledger still takes the block for a live one, and subtracts its bytes from a total that no longer had them.
    sim.complete(used);
    sim.feed(&mut ledger);
    assert_ne!(device(&ledger, 0).allocated_bytes, Some(sim.allocated(0)));
    tell(&mut ledger, sim.time, parts);
    let found = device(&ledger, 0);
    assert_eq!((found.readings, found.readings_refused), (1, 0));
    assert_eq!(found.allocated_bytes, Some(sim.allocated(0)));
    assert_eq!((found.live_blocks, found.pending_free_bytes), (4, Some(0)));
}

#[test]
fn a_reading_confirms_what_a_loss_made_doubtful() {
    let (mut sim, mut ledger, addrs) = late(3);
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    sim.time += MS;
    sim.lose = 2;
    sim.free(addrs[0], false);
    sim.time += MS;
    sim.alloc(0, 0, 3 * MIB);
    sim.feed(&mut ledger);
    let doubt = "blocks that lived at the last loss are not confirmed since";
    assert!(note(&ledger, "inexact_after_loss").unwrap().contains(doubt));
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    // No event explains this total: the blocks are inexact again, but not because of the loss.
    sim.time += MS;
    sim.emit(Body::Oom(PoolOom {
        device: 0,
        size: 1 << 40,
        total_allocated: sim.allocated(0) + 512,
        total_reserved: sim.reserved(0),
    }));
    sim.feed(&mut ledger);
    assert!(!note(&ledger, "inexact_after_loss").unwrap().contains(doubt));
}

/// Of two blocks of the same sizes at one address, no reading can tell that the first one went in a gap.
#[test]
fn what_only_has_the_place_of_an_earlier_block_is_said() {
    let (mut sim, mut ledger, _) = late(1);
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    sim.time += MS;
    sim.stack = StackRef::NoPython;
    let addr = sim.alloc(0, 0, 3 * MIB);
    sim.feed(&mut ledger);
    sim.time += MS;
    sim.lose = 3;
    sim.free(addr, false);
    sim.stack = StackRef::Busy;
    let again = sim.alloc(0, 0, 3 * MIB);
    assert_eq!(addr, again, "the model takes the same place");
    sim.time += MS;
    let later = sim.alloc(0, 0, 5 * MIB);
    sim.feed(&mut ledger);
    assert_eq!(note(&ledger, "stayed_by_place"), None, "no reading yet");
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    assert_eq!(note(&ledger, "inexact_after_loss"), None);
    // One from before the attach, and the one of which we know a stack. What came after the loss is certain.
    let said = note(&ledger, "stayed_by_place").unwrap();
    assert!(said.starts_with("3.00 MiB in 2 blocks were"), "{said}");
    let stats = stats(&ledger).coverage;
    for (answer, doubtful) in [
        (Answer::Stacks, true),
        (Answer::Leaks, true),
        (Answer::Picture, false),
    ] {
        let spoiled = inexact(answer, &stats);
        let spoils = spoiled.iter().any(|note| note.code == "stayed_by_place");
        assert_eq!(spoils, doubtful, "{answer:?}");
    }
    // It goes with the blocks, and a reading without a loss before it brings it back for none.
    sim.time += MS;
    sim.free(later, false);
    sim.free(again, false);
    let old = *sim.live.keys().next().unwrap();
    sim.feed(&mut ledger);
    let said = note(&ledger, "stayed_by_place").unwrap();
    assert!(said.starts_with("1.00 KiB in 1 blocks were"), "{said}");
    sim.time += MS;
    sim.free(old, false);
    sim.alloc(0, 0, 3 * MIB);
    sim.feed(&mut ledger);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 100));
    assert_eq!(note(&ledger, "stayed_by_place"), None);
}

/// The trace entry of an allocation is lost, and only its report arrives. That does not mean that the pool has no trace:
/// a reading that follows still counts requested sizes and pending frees.
#[test]
fn a_lost_entry_does_not_make_a_pool_untraced() {
    let mut sim = Sim::new(Mode::Uncalibrated);
    sim.attached = false;
    sim.alloc(0, 0, 1000);
    let used = sim.alloc(0, 0, 3000);
    sim.free(used, true);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.lose = 1;
    sim.alloc(0, 0, 2000);
    sim.feed(&mut ledger);
    let parts = sim.reading(0, 8);
    tell(&mut ledger, sim.time, parts);
    let row = device(&ledger, 0);
    assert_eq!(row.requested_bytes, Some(6000));
    assert_eq!(row.pending_free_bytes, Some(3072));
    // Entries that arrive from now on change nothing about what the reading said.
    sim.time += MS;
    sim.alloc(0, 0, 500);
    sim.feed(&mut ledger);
    assert_eq!(device(&ledger, 0).pending_free_bytes, Some(3072));
    let snapshot = ledger.snapshot(P, as_of(0)).unwrap();
    assert_eq!(seen(&snapshot, 0), truth(&sim, 0));
}

/// What was there before the attach was not allocated in the first step.
#[test]
fn the_first_step_does_not_allocate_what_was_there() {
    let mut sim = Sim::new(Mode::Reports);
    sim.attached = false;
    sim.alloc(0, 0, 10 * MIB);
    let mut ledger = attached(Level::Blocks, false, sim.time);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 9));
    sim.attached = true;
    sim.time += MS;
    sim.alloc(0, 0, 512);
    sim.feed(&mut ledger);
    let mark = Mark {
        kind: MarkKind::Step,
        ..Mark::default()
    };
    ledger.apply(&event(P, sim.time + MS, Body::Mark(Box::new(mark))));
    let report = ledger
        .ask(&[P], as_of(0), &StepsRequest::default())
        .unwrap();
    let row = &report.rows[0];
    assert_eq!((row.allocated_bytes, row.freed_bytes), (512, 0));
    assert_eq!(row.max_allocated_bytes, 10 * MIB + 512);
}
