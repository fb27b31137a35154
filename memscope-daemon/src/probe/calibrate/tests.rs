//! Tests of the search in a made-up process whose layout is known.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use std::cell::RefCell;

const OBJECT: u64 = 0x10_0000;
const TOTALS: usize = 0x98;
const PTR: u16 = 88;

/// A process with one allocator object and blocks, at the layout above.
#[derive(Default)]
struct Process {
    cells: RefCell<HashMap<u64, u64>>,
}

impl Places for Process {
    fn read(&self, addresses: &[u64], length: usize) -> Vec<Option<Vec<u8>>> {
        let cells = self.cells.borrow();
        let word = |address: u64| cells.get(&address).copied().unwrap_or(7).to_ne_bytes();
        let place = |address: &u64| {
            (*address..)
                .step_by(8)
                .flat_map(word)
                .take(length)
                .collect()
        };
        addresses
            .iter()
            .map(|address| Some(place(address)))
            .collect()
    }
}

impl Process {
    fn set(&self, address: u64, value: u64) {
        self.cells.borrow_mut().insert(address, value);
    }
}

/// Runs allocations and frees through the search until it decides. The probe reads the block at place 2 only, so that
/// a wrong layout yields no reading. With `often`, place 1 yields a reading too, in one of `often` calls. With `lie`,
/// the probe's allocated total is wrong by one byte.
fn run(
    process: &Process,
    search: &mut Calibrator,
    lie: bool,
    often: Option<u64>,
) -> CalibrationStep {
    run_with(process, search, lie, often, Frees::AtOnce)
}

/// How frees complete.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Frees {
    /// At once, as the probe expects.
    AtOnce,
    /// The probe expects nothing.
    Unexpected,
    /// One of so many completes only later, though the probe expects that it completes at once.
    Wrong(u64),
    /// The record of the completion of one of so many is lost.
    Lost(u64),
}

fn run_with(
    process: &Process,
    search: &mut Calibrator,
    lie: bool,
    often: Option<u64>,
    frees: Frees,
) -> CalibrationStep {
    let mut lost = 0;
    let mut allocated = 1u64 << 20;
    let reserved = 20u64 << 20;
    let mut layout = None;
    for n in 1..4000u64 {
        let block = 0x50_0000 + 0x100 * (n % 7);
        let addr = 0x7f00_0000_0000 + 4096 * n;
        let rounded = 512 * (1 + n % 5);
        process.set(block + PTR as u64, addr);
        process.set(block + PTR as u64 - 16, rounded - 100);
        process.set(block + PTR as u64 - 24, rounded);
        for (action, sign) in [(ALLOC, 1i64), (FREE_REQUESTED, -1)] {
            let before = allocated;
            allocated = allocated.wrapping_add_signed(sign * rounded as i64);
            let in_trap = if action == ALLOC { before } else { allocated };
            // Place 1 holds the block too, but in most calls not yet when the probe runs.
            let early = often.is_some_and(|often| n % often == 0);
            let read = layout.is_some_and(|l: Layout| {
                let place = [l.alloc_place, l.free_place][action as usize];
                place == 2 || place == 1 && early
            });
            let mut seen = TraceSeen {
                time_ns: n,
                tid: 1,
                allocator: OBJECT,
                action,
                addr,
                size: rounded - 100,
                candidates: &[
                    (0, 3),
                    (1, block),
                    (2, block),
                    (3, 0x60_0000),
                    (4, block + 4),
                ],
                block_size: read.then_some(rounded),
                totals: read.then_some((in_trap + u64::from(lie), reserved)),
                completes: action == FREE_REQUESTED && read && frees != Frees::Unexpected,
                lost,
            };
            search.trace(&seen);
            if action == FREE_REQUESTED {
                seen.action = FREE_COMPLETED;
                seen.completes = false;
                match frees {
                    Frees::Wrong(often) if n % often == 0 => {}
                    Frees::Lost(often) if n % often == 0 => lost += 1,
                    _ => search.trace(&seen),
                }
            }
            // Everything is in the small pool, so its numbers equal those of all pools.
            let ever = (1 << 40) + allocated;
            let blocks = [allocated, (1 << 20) + 2560, ever, 1 << 40];
            let segments = [reserved, reserved, reserved, 0];
            for (at, stat) in [
                (TOTALS, blocks),
                (TOTALS + 32, blocks),
                (TOTALS + 64, [0; 4]),
                (TOTALS + 96, segments),
                (TOTALS + 128, segments),
                (TOTALS + 160, [0; 4]),
            ] {
                for (i, value) in stat.into_iter().enumerate() {
                    process.set(OBJECT + (at + 8 * i) as u64, value);
                }
            }
            // Other fields that have the same values now and then.
            process.set(OBJECT + 0x200, if n % 3 == 0 { allocated } else { 1 });
            process.set(OBJECT + 0x260, reserved);
            let step = search.report(&ReportSeen {
                tid: 1,
                ptr: addr,
                size: sign * rounded as i64,
                allocated,
                reserved,
            });
            if step != CalibrationStep::Wait {
                return step;
            }
        }
        if n % 5 == 4 {
            match search.round(process) {
                CalibrationStep::Try(found) => {
                    layout = Some(found);
                    search.trial_began(n);
                }
                CalibrationStep::Wait => {}
                step => return step,
            }
        }
    }
    CalibrationStep::Wait
}

const TRUE: Layout = Layout {
    allocated_offset: TOTALS as u32,
    reserved_offset: TOTALS as u32 + 96,
    block_ptr_offset: PTR,
    alloc_place: 2,
    free_place: 2,
    frees_at_once: true,
};

#[test]
fn a_free_completes_at_once_only_where_that_was_always_so() {
    for (frees, frees_at_once) in [
        (Frees::AtOnce, true),
        (Frees::Unexpected, false),
        (Frees::Wrong(3), false),
        // What is lost proves nothing, and refutes nothing.
        (Frees::Lost(3), true),
    ] {
        let process = Process::default();
        let step = run_with(&process, &mut Calibrator::default(), false, None, frees);
        let layout = Layout {
            frees_at_once,
            ..TRUE
        };
        assert_eq!(step, CalibrationStep::Proven(layout), "{frees:?}");
    }
}

/// Once the reporting probe is removed, the calls without a reading would have neither size nor totals.
#[test]
fn a_place_that_holds_the_block_now_and_then_is_taken_back() {
    for often in [2, 3, 5, 40] {
        let process = Process::default();
        let step = run(&process, &mut Calibrator::default(), false, Some(often));
        assert_eq!(step, CalibrationStep::Proven(TRUE), "one in {often}");
    }
}

#[test]
fn finds_and_proves_the_layout() {
    let process = Process::default();
    let step = run(&process, &mut Calibrator::default(), false, None);
    assert_eq!(step, CalibrationStep::Proven(TRUE));
}

#[test]
fn a_reading_that_differs_once_is_not_believed() {
    let process = Process::default();
    let step = run(&process, &mut Calibrator::default(), true, None);
    assert!(matches!(step, CalibrationStep::GiveUp(_)), "{step:?}");
}

/// Everything has been freed, so the words from the peak on look like a total: the bytes freed, less the small pool's
/// current zero, are the peak.
#[test]
fn the_peak_is_not_taken_for_the_total() {
    let found = |allocated: [u64; 4], reserved: [u64; 4]| -> Vec<usize> {
        let nothing = [0; 4];
        let stats = [allocated, allocated, nothing, reserved, reserved, nothing];
        let words = [0; 4].into_iter().chain(stats.into_iter().flatten());
        let words = words.chain([0; 8]);
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        // A process that reports a block has memory reserved.
        let recent = HashSet::from([0, allocated[1]]);
        let room = HashSet::from([reserved[1]]);
        let is_there = |at: &usize| are_totals(&bytes, *at, &recent, &room);
        let places = (8..bytes.len() - 2 * STAT_ARRAY).step_by(8);
        places.filter(is_there).collect()
    };
    let (size, room) = (33_280, 2 << 20);
    let gone = |bytes| [0, bytes, bytes, bytes];
    let there = |bytes| [bytes, bytes, bytes, 0];
    let again = |bytes| [bytes, bytes, 2 * bytes, bytes];
    assert!(found(gone(size), gone(room)).is_empty());
    // Once something is allocated again, no other words look like the totals.
    assert_eq!(found(again(size), again(room)), [32]);
    assert_eq!(found(again(size), there(room)), [32]);
    assert_eq!(found(gone(size), there(room)), [32]);
    // If nothing was freed yet, the totals cannot be distinguished from that case. They are found later.
    assert!(found(there(size), there(room)).is_empty());
}
