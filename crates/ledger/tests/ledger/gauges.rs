//! The gauges, which are read after each event, have the same numbers as `stats`, and the baseline is known once it was
//! read.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use proptest::prelude::*;

fn baseline(ledger: &Ledger) -> Baseline {
    ledger.baseline(P).unwrap()
}

#[track_caller]
fn same_as_stats(ledger: &Ledger) {
    let stats = stats(ledger);
    let mut notes = stats.coverage.iter();
    let is_doubtful = notes.any(|n| !n.lower_bound && n.affects.iter().any(|of| of == "totals"));
    for told in stats.devices.iter().filter(|d| d.device.is_some()) {
        let gauge = ledger.gauge(P, told.device.unwrap()).unwrap();
        // Answers leave out numbers that are not proven.
        if !is_doubtful {
            assert_eq!(gauge.allocated_bytes, told.allocated_bytes);
            assert_eq!(gauge.reserved_bytes, told.reserved_bytes);
        }
        assert_eq!(gauge.oom_count, told.oom_count);
        assert!(ledger.gauges(P).any(|g| g == gauge));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn gauges_are_the_numbers_of_stats(
        seed in any::<u64>(),
        from_start in any::<bool>(),
        mode in prop::sample::select(vec![Mode::Reports, Mode::Uncalibrated, Mode::Calibrated]),
        steps in 1..200u64,
    ) {
        let mut sim = Sim::new(mode);
        let mut random = Dice(seed);
        let level = if mode == Mode::Reports { Level::Blocks } else { Level::Trace };
        let mut ledger = attached(level, from_start, sim.time);
        for _ in 0..steps {
            sim.time += MS;
            match random.below(4) {
                0 | 1 => {
                    let device = random.below(2) as i32;
                    sim.alloc(device, 0, 1 + random.below(12 * MIB));
                }
                2 if !sim.live.is_empty() => {
                    let nth = random.below(sim.live.len() as u64) as usize;
                    let addr = *sim.live.keys().nth(nth).unwrap();
                    sim.free(addr, false);
                }
                _ => sim.empty_cache(random.below(2) as i32),
            }
            sim.feed(&mut ledger);
            same_as_stats(&ledger);
        }
    }
}

#[test]
fn a_late_attach_waits_for_its_reading() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    sim.alloc(0, 0, 3 * MIB);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    assert_eq!(baseline(&ledger), Baseline::Awaited);
    sim.time += MS;
    sim.alloc(0, 0, 700);
    sim.feed(&mut ledger);
    same_as_stats(&ledger);
    assert_eq!(baseline(&ledger), Baseline::Awaited);

    let mut given_up = ledger.clone();
    let note = |text: &str| {
        Body::Coverage(CoverageNote {
            code: "baseline_not_read".into(),
            text: text.into(),
        })
    };
    given_up.apply(&event(P, sim.time, note("it changes too often")));
    assert_eq!(baseline(&given_up), Baseline::Unknown);
    given_up.apply(&event(P, sim.time, note("")));
    assert_eq!(baseline(&given_up), Baseline::Awaited);

    for part in sim.reading(0, 50) {
        ledger.apply(&event(P, sim.time, Body::Held(Box::new(part))));
    }
    assert_eq!(baseline(&ledger), Baseline::Known);
    same_as_stats(&ledger);
}

#[test]
fn what_needs_no_reading_is_known() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut from_start = attached(Level::Trace, true, sim.time);
    assert_eq!(baseline(&from_start), Baseline::Known);
    let mut late = attached(Level::Trace, false, sim.time);
    // The first total is the size of the first block, so nothing was allocated before.
    sim.time += MS;
    sim.alloc(0, 0, 700);
    for event in sim.out.clone() {
        late.apply(&event);
    }
    sim.feed(&mut from_start);
    assert_eq!(baseline(&late), Baseline::Known);
    assert_eq!(late.baseline(ProcessHandle(77)), None);
    assert_eq!(late.gauge(P, 5), None);
    assert_eq!(late.gauges(ProcessHandle(77)).count(), 0);
    // A process without a pool has nothing that can be read.
    let driver = attached_as(Level::Segments, false, SECOND, Backend::Uncached);
    assert_eq!(baseline(&driver), Baseline::Unknown);
}
