//! Compares the ledger with a simulated allocator.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        device: u8,
        stream: u8,
        size: u32,
        tid: u8,
    },
    Free {
        pick: u16,
        later: bool,
        tid: u8,
    },
    Complete {
        pick: u16,
    },
    EmptyCache {
        device: u8,
    },
    Lose {
        count: u8,
    },
    Mode {
        mode: Mode,
    },
}

fn op(modes: &'static [Mode], losses: bool) -> impl Strategy<Value = Op> {
    let size = prop_oneof![1u32..4000, 4000u32..3_000_000, 3_000_000u32..40_000_000];
    let alloc = (0u8..2, 0u8..2, size, 0u8..3).prop_map(|(device, stream, size, tid)| Op::Alloc {
        device,
        stream,
        size,
        tid,
    });
    let free = (any::<u16>(), prop::bool::weighted(0.2), 0u8..3)
        .prop_map(|(pick, later, tid)| Op::Free { pick, later, tid });
    prop_oneof![
        10 => alloc,
        9 => free,
        2 => any::<u16>().prop_map(|pick| Op::Complete { pick }),
        1 => (0u8..2).prop_map(|device| Op::EmptyCache { device }),
        1 => (1u8..6).prop_map(move |count| Op::Lose { count: if losses { count } else { 0 } }),
        2 => prop::sample::select(modes).prop_map(|mode| Op::Mode { mode }),
    ]
}

/// Numbers that the ledger should have.
#[derive(Default)]
struct Counts {
    allocs: u64,
    frees: u64,
    orphans: u64,
    orphan_bytes: u64,
}

struct Run {
    sim: Sim,
    counts: BTreeMap<i32, Counts>,
    /// Devices with a bare trace entry that no total has confirmed.
    open: HashSet<i32>,
    /// Devices for which an event had a total.
    told: HashSet<i32>,
}

impl Run {
    fn new(mode: Mode) -> Run {
        Run {
            sim: Sim::new(mode),
            counts: BTreeMap::new(),
            open: HashSet::new(),
            told: HashSet::new(),
        }
    }

    /// Sets the mode for a call on this device. A second bare entry without a total between them would leave two sizes
    /// unknown.
    fn mode_for(&mut self, device: i32, mode: Mode) {
        self.sim.mode = mode;
        if mode == Mode::Bare && (self.open.contains(&device) || !self.told.contains(&device)) {
            self.sim.mode = Mode::Uncalibrated;
        }
        if self.sim.mode == Mode::Bare {
            self.open.insert(device);
        } else {
            self.open.remove(&device);
            if self.sim.attached {
                self.told.insert(device);
            }
        }
    }

    fn step(&mut self, op: &Op, mode: &mut Mode) -> Option<i32> {
        self.sim.time += 1_000_003;
        match *op {
            Op::Alloc {
                device,
                stream,
                size,
                tid,
            } => {
                let device = i32::from(device);
                self.sim.tid = 100 + u32::from(tid);
                self.mode_for(device, *mode);
                self.sim
                    .alloc(device, u64::from(stream) * 0x55, u64::from(size));
                if self.sim.attached {
                    self.counts.entry(device).or_default().allocs += 1;
                }
                Some(device)
            }
            Op::Free { pick, later, tid } => {
                let len = self.sim.live.len();
                let (&addr, &block) = self.sim.live.iter().nth(usize::from(pick) % len.max(1))?;
                self.sim.tid = 100 + u32::from(tid);
                self.mode_for(block.device, *mode);
                self.sim.free(addr, later);
                if self.sim.attached {
                    let counts = self.counts.entry(block.device).or_default();
                    counts.frees += 1;
                    if !block.told {
                        counts.orphans += 1;
                        counts.orphan_bytes += block.rounded;
                    }
                }
                Some(block.device)
            }
            Op::Complete { pick } => {
                let mut all: Vec<u64> = self.sim.pending.keys().copied().collect();
                all.sort_unstable();
                let addr = *all.get(usize::from(pick) % all.len().max(1))?;
                self.sim.mode = *mode;
                if self.sim.mode == Mode::Bare {
                    self.sim.mode = Mode::Uncalibrated;
                }
                let device = self.sim.pending[&addr].device;
                if self.sim.mode == Mode::Calibrated || self.sim.mode == Mode::Both {
                    self.open.remove(&device);
                    if self.sim.attached {
                        self.told.insert(device);
                    }
                }
                self.sim.complete(addr);
                None
            }
            Op::EmptyCache { device } => {
                self.sim.mode = *mode;
                self.sim.mode = match *mode {
                    Mode::Calibrated | Mode::Both => Mode::Uncalibrated,
                    other => other,
                };
                self.sim.empty_cache(i32::from(device));
                None
            }
            Op::Lose { count } => {
                self.sim.lose = u32::from(count);
                None
            }
            Op::Mode { mode: new } => {
                *mode = new;
                None
            }
        }
    }

    fn check(&self, ledger: &Ledger, number: i32) -> Result<(), TestCaseError> {
        if self.open.contains(&number) || !self.told.contains(&number) {
            return Ok(());
        }
        let seen = device(ledger, number);
        let none = Counts::default();
        let counts = self.counts.get(&number).unwrap_or(&none);
        let of_device = || self.sim.live.values().filter(|b| b.device == number);
        let baseline: u64 = of_device().filter(|b| !b.told).map(|b| b.rounded).sum();
        prop_assert_eq!(seen.allocated_bytes, Some(self.sim.allocated(number)));
        // An answer leaves out numbers where entries may belong to another device.
        if has_note(&stats(ledger).coverage, "pool_device_unknown") {
            prop_assert_eq!(seen.sizes, None);
        } else {
            prop_assert_eq!(seen.baseline_bytes, Some(baseline));
            prop_assert_eq!(seen.sizes.as_ref().unwrap().count, counts.allocs);
            prop_assert_eq!(
                seen.lifetimes.as_ref().unwrap().count,
                counts.frees - counts.orphans
            );
        }
        prop_assert_eq!(
            seen.live_blocks,
            of_device().filter(|b| b.told).count() as u64
        );
        prop_assert_eq!(seen.alloc_count, counts.allocs);
        prop_assert_eq!(seen.free_count, counts.frees);
        prop_assert_eq!(seen.orphan_free_count, counts.orphans);
        prop_assert_eq!(seen.orphan_free_bytes, counts.orphan_bytes);
        prop_assert_eq!(seen.resync_count, 0);
        // The whole course over time has all of them.
        let whole = v1::FluctuationRequest::default();
        let course = ledger.ask(&[P], as_of(self.sim.time), &whole).unwrap();
        let of_device = course.devices.iter().find(|one| one.device == Some(number));
        let overall = of_device.and_then(|one| one.overall).unwrap();
        prop_assert_eq!(
            (overall.allocs, overall.frees),
            (counts.allocs, counts.frees)
        );
        Ok(())
    }
}

fn run_exact(
    before: &[Op],
    ops: &[Op],
    first: Mode,
    names_device: bool,
) -> Result<(), TestCaseError> {
    let mut run = Run::new(first);
    run.sim.names_device = names_device;
    let mut mode = first;
    run.sim.attached = false;
    for op in before {
        run.step(op, &mut mode);
    }
    run.open.clear();
    run.told.clear();
    run.sim.attached = true;
    mode = first;
    let late = !before.is_empty();
    let mut ledger = attached(Level::Trace, !late, run.sim.time);
    let mut peak: BTreeMap<i32, u64> = BTreeMap::new();
    for op in ops {
        let before: Vec<u64> = (0..2).map(|d| run.sim.allocated(d)).collect();
        let touched = run.step(op, &mut mode);
        run.sim.feed(&mut ledger);
        if let Some(device) = touched {
            run.check(&ledger, device)?;
            let peak = peak.entry(device).or_default();
            *peak = (*peak)
                .max(before[device as usize])
                .max(run.sim.allocated(device));
        }
    }
    for number in run.told.clone() {
        if !run.open.contains(&number) {
            run.check(&ledger, number)?;
            // An answer leaves out numbers where entries may belong to another device.
            let Some(told) = device(&ledger, number).peak_allocated_bytes else {
                let notes = stats(&ledger).coverage;
                prop_assert!(has_note(&notes, "pool_device_unknown"), "{notes:?}");
                continue;
            };
            let most = peak
                .get(&number)
                .copied()
                .unwrap_or(0)
                .max(run.sim.allocated(number));
            prop_assert!(told <= most, "{told} {most}");
            prop_assert!(told >= run.sim.allocated(number));
        }
    }
    let notes = stats(&ledger).coverage;
    prop_assert!(!has_note(&notes, "inexact_after_loss"), "{:?}", notes);
    if run.open.is_empty() {
        prop_assert!(!has_note(&notes, "rounded_size_unknown"));
    }
    Ok(())
}

const SWITCHES: &[Mode] = &[
    Mode::Reports,
    Mode::Uncalibrated,
    Mode::Calibrated,
    Mode::Both,
    Mode::Bare,
];

const NO_BARE: &[Mode] = &[
    Mode::Reports,
    Mode::Uncalibrated,
    Mode::Calibrated,
    Mode::Both,
];

fn ops(modes: &'static [Mode], losses: bool, most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(modes, losses), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn level_blocks(before in ops(&[Mode::Reports], false, 60), after in ops(&[Mode::Reports], false, 150)) {
        run_exact(&before, &after, Mode::Reports, true)?;
    }

    #[test]
    fn level_trace_uncalibrated(before in ops(&[Mode::Uncalibrated], false, 60), after in ops(&[Mode::Uncalibrated], false, 150)) {
        run_exact(&before, &after, Mode::Uncalibrated, true)?;
    }

    #[test]
    fn level_trace_calibrated(before in ops(&[Mode::Calibrated], false, 60), after in ops(&[Mode::Calibrated], false, 150)) {
        run_exact(&before, &after, Mode::Calibrated, true)?;
    }

    #[test]
    fn switches_in_any_order(before in ops(&[Mode::Calibrated], false, 60), after in ops(SWITCHES, false, 200)) {
        run_exact(&before, &after, Mode::Uncalibrated, true)?;
    }

    #[test]
    fn devices_learned_from_reports(before in ops(&[Mode::Uncalibrated], false, 60), after in ops(&[Mode::Uncalibrated], false, 150)) {
        run_exact(&before, &after, Mode::Uncalibrated, false)?;
    }

    /// Whatever is lost, the ledger has the last total that an event reported. Once nothing more is lost and memory was
    /// handed out again, no freed block is left.
    #[test]
    fn totals_stand_after_losses(
        before in ops(&[Mode::Calibrated], false, 40),
        after in ops(NO_BARE, true, 200),
        first in prop::sample::select(NO_BARE),
    ) {
        let mut run = Run::new(first);
        let mut mode = first;
        run.sim.attached = false;
        for op in &before {
            run.step(op, &mut mode);
        }
        run.sim.attached = true;
        mode = first;
        let mut ledger = attached(Level::Trace, before.is_empty(), run.sim.time);
        for op in &after {
            run.step(op, &mut mode);
            let last_total = run.sim.out.iter().rev().find_map(|event| match &event.body {
                Body::Report(r) => Some((r.device, r.total_allocated)),
                Body::Trace(t) => t.total_allocated.map(|total| (t.device.unwrap(), total)),
                _ => None,
            });
            run.sim.feed(&mut ledger);
            if let Some((number, total)) = last_total {
                let seen = device(&ledger, number);
                prop_assert_eq!(seen.allocated_bytes, Some(total));
                prop_assert!(seen.baseline_bytes.is_none_or(|baseline| baseline <= total));
                prop_assert!(seen.peak_allocated_bytes.is_none_or(|peak| peak >= total));
            }
        }
        // No more events are lost. Everything is freed, and then handed out again in full.
        run.sim.lose = 0;
        run.sim.mode = Mode::Calibrated;
        for addr in run.sim.pending.keys().copied().collect::<Vec<_>>() {
            run.sim.complete(addr);
        }
        for addr in run.sim.live.keys().copied().collect::<Vec<_>>() {
            run.sim.free(addr, false);
        }
        run.sim.feed(&mut ledger);
        let kept = ledger.kept(P).unwrap();
        for number in 0..2 {
            for (_, size) in run.sim.segments(number) {
                for stream in [0, 0x55] {
                    if size == 2 * MIB {
                        run.sim.alloc(number, stream, MIB);
                        run.sim.alloc(number, stream, MIB);
                    } else {
                        run.sim.alloc(number, stream, size);
                    }
                }
            }
        }
        let live = run.sim.live.len();
        run.sim.emit(Body::Forked { child: 1 });
        run.sim.feed(&mut ledger);
        let after = ledger.kept(P).unwrap();
        prop_assert_eq!(stats(&ledger).process.as_ref().unwrap().lost_records, run.sim.lost);
        {
            prop_assert!(after.blocks >= live);
            prop_assert!(after.blocks <= live + kept.blocks);
            let known: u64 = (0..2).filter_map(|d| find_device(&ledger, Some(d))).map(|d| d.live_blocks).sum();
            prop_assert!(known >= live as u64);
            // A block whose free was lost, and whose addresses were not handed out again since, looks like a live one;
            // only a reading of the structures shows the difference.
            prop_assert!(known <= live as u64 + run.sim.lost, "{known} {live} {}", run.sim.lost);
        }
        for number in 0..2 {
            // Without a segment nothing was handed out since the loss, so no event has had a total since.
            let told = !run.sim.segments(number).is_empty();
            if let (true, Some(seen)) = (told, find_device(&ledger, Some(number))) {
                prop_assert_eq!(seen.allocated_bytes, Some(run.sim.allocated(number)));
            }
        }
    }
}

#[test]
fn pending_frees_and_requested_bytes() {
    for mode in [Mode::Uncalibrated, Mode::Calibrated, Mode::Both] {
        let mut sim = Sim::new(mode);
        let mut ledger = attached(Level::Trace, true, sim.time);
        let a = sim.alloc(0, 7, 1000);
        let b = sim.alloc(0, 7, 5000);
        sim.free(a, true);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(seen.pending_free_bytes, Some(1024), "{mode:?}");
        assert_eq!(seen.allocated_bytes, Some(5120));
        // PyTorch counts what was requested until the stream has finished.
        assert_eq!(seen.requested_bytes, Some(6000), "{mode:?}");
        assert_eq!(seen.segments, Some(1));
        assert_eq!(seen.reserved_bytes, Some(2 * MIB));
        assert_eq!(
            (seen.alloc_count, seen.free_count, seen.live_blocks),
            (2, 1, 1)
        );
        sim.complete(a);
        sim.free(b, false);
        sim.empty_cache(0);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(seen.pending_free_bytes, Some(0));
        assert_eq!(seen.requested_bytes, Some(0), "{mode:?}");
        assert_eq!(seen.allocated_bytes, Some(0));
        assert_eq!(seen.reserved_bytes, Some(0), "{mode:?}");
        assert_eq!(seen.peak_reserved_bytes, Some(2 * MIB));
        assert_eq!(seen.peak_allocated_bytes, Some(6144));
        assert_eq!(seen.segments, Some(0));
    }
}

#[test]
fn nothing_seen_is_zero_only_when_nothing_was_missed() {
    let ledger = attached(Level::Trace, true, 5);
    assert_eq!(ledger.summary(P).unwrap().allocated_bytes, Some(0));
    let ledger = attached(Level::Trace, false, 5);
    assert_eq!(ledger.summary(P).unwrap().allocated_bytes, None);
    assert!(has_note(&stats(&ledger).coverage, "attached_late"));
}

#[test]
fn the_first_free_tells_the_total_before_it() {
    let mut sim = Sim::new(Mode::Reports);
    sim.attached = false;
    let a = sim.alloc(0, 0, 10 * MIB);
    let _b = sim.alloc(0, 0, 512);
    sim.attached = true;
    let mut ledger = attached(Level::Blocks, false, sim.time);
    sim.free(a, false);
    sim.feed(&mut ledger);
    let seen = device(&ledger, 0);
    assert_eq!(seen.peak_allocated_bytes, Some(10 * MIB + 512));
    assert_eq!(seen.baseline_bytes, Some(512));
    assert_eq!(
        (seen.orphan_free_count, seen.orphan_free_bytes),
        (1, 10 * MIB)
    );
    assert_eq!(seen.requested_bytes, None);
    let report = stats(&ledger);
    let note = report
        .coverage
        .iter()
        .find(|n| n.code == "attached_late")
        .unwrap();
    assert_eq!(
        note.text,
        "512 B on device 0 were allocated before the attach; their blocks are not known"
    );
}

/// PyTorch was loaded after the attach, and had allocated before the probes were in it, as when the daemon was held up: that came
/// after the attach, and counts and peaks lack it.
#[test]
fn what_a_pool_had_before_its_late_probes_is_no_baseline() {
    let placed = |pool_seen, before_first_memory| {
        Body::Placed(Box::new(Placement {
            sites: 3,
            pool_seen,
            before_first_memory,
            ..Placement::default()
        }))
    };
    // Whether the driver's probes were there before the first device was opened changes nothing.
    for opened_later in [None, Some(true)] {
        let mut sim = Sim::new(Mode::Reports);
        sim.attached = false;
        let mut ledger = Ledger::new(memscope_ledger::LedgerConfig::default());
        let facts = Body::Attached(facts(42, Level::Blocks, true));
        for body in [
            facts,
            Body::Backend(Backend::Native),
            placed(false, opened_later),
        ] {
            ledger.apply(&event(P, sim.time, body));
        }
        let _kept = sim.alloc(0, 0, 10 * MIB);
        ledger.apply(&event(P, sim.time, placed(true, opened_later)));
        sim.attached = true;
        sim.alloc(0, 0, 512);
        sim.feed(&mut ledger);
        let report = stats(&ledger);
        let note = report.coverage.iter().find(|n| n.code == "probed_late");
        let note = note.expect("its first event shows it");
        assert!(
            note.text
                .starts_with("10.00 MiB on device 0 were allocated before the probes"),
            "{}",
            note.text
        );
        assert!(note.lower_bound && note.affects.contains(&"history".to_owned()));
        for code in ["attached_late", "baseline_read"] {
            assert!(!has_note(&report.coverage, code), "{:#?}", report.coverage);
        }
        assert_eq!(device(&ledger, 0).allocated_bytes, Some(10 * MIB + 512));
    }
}

#[test]
fn an_oom_told_twice_is_one() {
    let mut sim = Sim::new(Mode::Uncalibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(0, 0, 512);
    let oom = PoolOom {
        device: 0,
        size: 1 << 40,
        total_allocated: 512,
        total_reserved: 2 * MIB,
    };
    let trace = PoolTrace {
        action: TraceAction::Oom,
        allocator: 0x7000,
        device: Some(0),
        addr: 12345,
        size: 1 << 40,
        stream: 0,
        block_size: None,
        total_allocated: None,
        total_reserved: None,
        pool: None,
    };
    sim.emit(Body::Trace(trace));
    sim.emit(Body::Oom(oom));
    sim.emit(Body::Oom(oom));
    sim.emit(Body::Trace(trace));
    sim.feed(&mut ledger);
    assert_eq!(device(&ledger, 0).oom_count, 3);
}

#[test]
fn bare_entries_say_that_the_size_is_open() {
    let mut sim = Sim::new(Mode::Uncalibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(0, 0, 512);
    sim.mode = Mode::Bare;
    // The last piece of a 20 MiB segment is not split off, so the block is rounded up by more than 512 bytes.
    sim.alloc(0, 0, 19 * MIB + MIB / 2);
    sim.feed(&mut ledger);
    assert!(has_note(&stats(&ledger).coverage, "rounded_size_unknown"));
    sim.mode = Mode::Calibrated;
    sim.alloc(0, 0, 512);
    sim.feed(&mut ledger);
    assert!(!has_note(&stats(&ledger).coverage, "rounded_size_unknown"));
    let seen = device(&ledger, 0);
    assert_eq!(seen.allocated_bytes, Some(sim.allocated(0)));
    assert_eq!((seen.baseline_bytes, seen.resync_count), (Some(0), 0));
}

#[test]
fn a_segment_given_back_takes_what_a_loss_left_in_it() {
    for (mode, calls) in [(Mode::Calibrated, false), (Mode::Reports, true)] {
        let mut sim = Sim::new(mode);
        sim.driver_calls = calls;
        let mut ledger = attached(Level::Trace, true, sim.time);
        let addrs: Vec<u64> = (0..4).map(|_| sim.alloc(0, 0, 3 * MIB)).collect();
        let kept = sim.alloc(0, 0, 512);
        sim.lose = 8;
        for addr in &addrs {
            sim.free(*addr, false);
        }
        sim.lose = 0;
        let other = sim.alloc(0, 0, 600);
        sim.feed(&mut ledger);
        assert_eq!(device(&ledger, 0).live_blocks, 6);
        assert!(has_note(&stats(&ledger).coverage, "inexact_after_loss"));
        // This free was called after the allocation; it is not one whose record only came late.
        sim.time += MS;
        sim.empty_cache(0);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(seen.live_blocks, 2, "{mode:?}");
        assert_eq!(seen.allocated_bytes, Some(512 + 1024));
        sim.free(kept, false);
        sim.free(other, false);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(
            (seen.allocated_bytes, seen.baseline_bytes),
            (Some(0), Some(0))
        );
        assert_eq!(seen.resync_count, 1);
    }
}

#[test]
fn a_block_over_others_proves_that_they_are_gone() {
    for mode in [Mode::Reports, Mode::Uncalibrated, Mode::Calibrated] {
        let mut sim = Sim::new(mode);
        let mut ledger = attached(Level::Trace, true, sim.time);
        let addrs: Vec<u64> = (0..3).map(|_| sim.alloc(0, 0, 3 * MIB)).collect();
        sim.alloc(0, 0, 512);
        sim.lose = 9;
        for addr in &addrs {
            sim.free(*addr, false);
        }
        sim.lose = 0;
        assert_eq!(sim.alloc(0, 0, 2 * MIB), addrs[0]);
        sim.alloc(0, 0, 6 * MIB);
        sim.feed(&mut ledger);
        let seen = device(&ledger, 0);
        assert_eq!(seen.live_blocks, 3, "{mode:?}");
        assert_eq!(seen.allocated_bytes, Some(sim.allocated(0)));
        assert_eq!((seen.baseline_bytes, seen.resync_count), (Some(0), 1));
    }
}
