//! Verdicts on synthetic programs, with and without leaks, at the levels at which they may be watched.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1;
use memscope_proto::v1::{LeakGroup, LeaksRequest};
use std::collections::VecDeque;

/// One training step of a simple program: activations are allocated and freed.
fn step(sim: &mut Sim, dice: &mut Dice, transients: u64) {
    let mut held = VecDeque::new();
    for _ in 0..transients {
        sim.time += 200_000;
        let sizes = [700, 5000, 70_000, MIB, 3 * MIB];
        held.push_back(sim.alloc(0, 0, sizes[dice.below(5) as usize]));
        if held.len() > 8 {
            let at = dice.below(held.len() as u64) as usize;
            let addr = held.swap_remove_back(at).unwrap();
            sim.free(addr, false);
        }
    }
    for addr in held {
        sim.time += 100_000;
        sim.free(addr, false);
    }
    sim.time += 2_000_000;
}

struct Program {
    sim: Sim,
    dice: Dice,
    /// Blocks that the program keeps.
    kept: VecDeque<u64>,
}

type Scene = fn(&mut Program, u64);

fn run(mode: Mode, before: u64, steps: u64, scene: Scene) -> (Ledger, Program) {
    let mut program = Program {
        sim: Sim::new(mode),
        dice: Dice(11),
        kept: VecDeque::new(),
    };
    program.sim.attached = false;
    for i in 0..before {
        scene(&mut program, i);
    }
    program.sim.attached = true;
    let level = if mode == Mode::Reports {
        Level::Blocks
    } else {
        Level::Trace
    };
    let mut ledger = attached(level, before == 0, program.sim.time);
    for i in before..before + steps {
        scene(&mut program, i);
        program.sim.feed(&mut ledger);
    }
    (ledger, program)
}

fn growing(ledger: &Ledger, at: u64) -> Vec<LeakGroup> {
    let report = ledger
        .ask(&[P], as_of(at), &LeaksRequest::default())
        .unwrap();
    let growing: Vec<_> = report
        .groups
        .into_iter()
        .filter(|g| g.verdict() == v1::Verdict::Growing)
        .collect();
    assert_eq!(
        report.growing_bytes,
        growing.iter().map(|g| g.growth_bytes).sum::<u64>()
    );
    growing
}

/// Leaks one block of `size` bytes.
fn leak(p: &mut Program, size: u64) {
    p.sim.time += 50_000;
    p.sim.alloc(0, 0, size);
}

/// (name, steps before the attach, steps, program, exact sizes that must be found)
#[allow(clippy::type_complexity)]
const LEAKING: &[(&str, u64, u64, Scene, &[u64])] = &[
    (
        "one MiB a step",
        100,
        400,
        |p, _| {
            step(&mut p.sim, &mut p.dice, 40);
            leak(p, MIB + 12345);
        },
        &[MIB + 12345],
    ),
    (
        "size of the activations",
        100,
        400,
        |p, _| {
            step(&mut p.sim, &mut p.dice, 40);
            leak(p, MIB);
        },
        &[MIB],
    ),
    (
        "every tenth step",
        50,
        600,
        |p, i| {
            step(&mut p.sim, &mut p.dice, 30);
            if i % 10 == 0 {
                leak(p, 4096);
            }
        },
        &[4096],
    ),
    (
        "several sizes",
        0,
        400,
        |p, i| {
            step(&mut p.sim, &mut p.dice, 30);
            leak(p, [1000, 9000, 77_000][i as usize % 3]);
        },
        &[1000, 9000, 77_000],
    ),
    (
        "jitter",
        30,
        600,
        |p, _| {
            step(&mut p.sim, &mut p.dice, 20);
            for _ in 0..p.dice.below(4) {
                leak(p, 2048);
            }
        },
        &[2048],
    ),
    (
        "leaks and gives half back",
        30,
        600,
        |p, i| {
            step(&mut p.sim, &mut p.dice, 20);
            for _ in 0..4 {
                let a = p.sim.alloc(0, 0, 33_000);
                p.kept.push_back(a);
            }
            if i % 8 == 7 {
                for _ in 0..16 {
                    let a = p.kept.pop_back().unwrap();
                    p.sim.free(a, false);
                }
            }
        },
        &[33_000],
    ),
    (
        "list that is never cut, oldest freed slower",
        30,
        500,
        |p, _| {
            step(&mut p.sim, &mut p.dice, 20);
            for _ in 0..3 {
                let a = p.sim.alloc(0, 0, 600_000);
                p.kept.push_back(a);
            }
            let a = p.kept.pop_front().unwrap();
            p.sim.free(a, false);
        },
        &[600_000],
    ),
    (
        "after a long warm-up",
        0,
        800,
        |p, i| {
            step(&mut p.sim, &mut p.dice, 20);
            if i < 80 {
                leak(p, 5_000_000);
            } else {
                leak(p, 7777);
            }
        },
        &[7777],
    ),
    (
        "long steps",
        5,
        80,
        |p, _| {
            for _ in 0..10 {
                step(&mut p.sim, &mut p.dice, 20);
                p.sim.time += 100 * MS;
            }
            leak(p, 123_456);
        },
        &[123_456],
    ),
    (
        "on another stream",
        10,
        400,
        |p, _| {
            step(&mut p.sim, &mut p.dice, 20);
            p.sim.alloc(0, 99, 70_000);
        },
        &[70_000],
    ),
];

#[test]
fn leaks_are_found() {
    let mut wrong = Vec::new();
    for &(name, before, steps, scene, sizes) in LEAKING {
        for mode in [Mode::Calibrated, Mode::Uncalibrated, Mode::Reports] {
            let (ledger, program) = run(mode, before, steps, scene);
            let mut found: Vec<u64> = growing(&ledger, program.sim.time)
                .iter()
                .map(|g| g.size_bytes)
                .collect();
            found.sort_unstable();
            let wanted: Vec<u64> = match mode {
                Mode::Reports => sizes.iter().map(|s| s.next_multiple_of(512)).collect(),
                _ => sizes.to_vec(),
            };
            if mode == Mode::Reports {
                // Where a remainder is not split off, a leaked block has a larger rounded size.
                found.retain(|size| {
                    let leaked = wanted.iter().any(|w| w < size && *size <= w + MIB);
                    wanted.contains(size) || !leaked
                });
            }
            if found != wanted {
                wrong.push(format!("{name}, {mode:?}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const CLEAN: &[(&str, u64, u64, Scene)] = &[
    ("steady training", 100, 400, |p, _| {
        step(&mut p.sim, &mut p.dice, 40)
    }),
    ("weights, then training", 0, 400, |p, i| {
        if i == 0 {
            for _ in 0..200 {
                leak(p, MIB);
            }
        }
        step(&mut p.sim, &mut p.dice, 40);
    }),
    ("warm-up that stops", 0, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 20);
        if i < 140 {
            leak(p, 8192);
        }
    }),
    ("cache that fills and stays", 0, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 20);
        if i < 250 {
            leak(p, 8192);
        }
    }),
    ("saw-tooth", 10, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 20);
        let a = p.sim.alloc(0, 0, 8192);
        p.kept.push_back(a);
        if i % 60 == 59 {
            while let Some(a) = p.kept.pop_front() {
                p.sim.free(a, false);
            }
        }
    }),
    ("long saw-tooth", 10, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 20);
        let a = p.sim.alloc(0, 0, 8192);
        p.kept.push_back(a);
        if i % 220 == 219 {
            while let Some(a) = p.kept.pop_front() {
                p.sim.free(a, false);
            }
        }
    }),
    ("periodic evaluation", 10, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 20);
        if i % 50 == 40 {
            for _ in 0..30 {
                let a = p.sim.alloc(0, 0, 3 * MIB);
                p.kept.push_back(a);
            }
        }
        if i % 50 == 49 {
            while let Some(a) = p.kept.pop_front() {
                p.sim.free(a, false);
            }
        }
    }),
    ("sizes of every kind", 10, 400, |p, _| {
        for _ in 0..40 {
            let a = p.sim.alloc(0, 0, 1 + p.dice.below(2_000_000));
            p.kept.push_back(a);
            p.sim.time += 100_000;
            if p.kept.len() > 20 {
                let at = p.dice.below(20) as usize;
                let a = p.kept.swap_remove_back(at).unwrap();
                p.sim.free(a, false);
            }
        }
    }),
    ("buffer of fixed length", 10, 600, |p, _| {
        step(&mut p.sim, &mut p.dice, 20);
        let a = p.sim.alloc(0, 0, 50_000);
        p.kept.push_back(a);
        if p.kept.len() > 64 {
            let a = p.kept.pop_front().unwrap();
            p.sim.free(a, false);
        }
    }),
    ("random walk between bounds", 10, 800, |p, _| {
        step(&mut p.sim, &mut p.dice, 10);
        for _ in 0..4 {
            if p.dice.below(40) > p.kept.len() as u64 {
                let a = p.sim.alloc(0, 0, 50_000);
                p.kept.push_back(a);
            } else {
                let a = p.kept.pop_front().unwrap();
                p.sim.free(a, false);
            }
        }
    }),
    ("steps longer than windows", 3, 60, |p, _| {
        for _ in 0..60 {
            let a = p.sim.alloc(0, 0, 90_000);
            p.kept.push_back(a);
            p.sim.time += 10 * MS;
        }
        while let Some(a) = p.kept.pop_back() {
            p.sim.free(a, false);
            p.sim.time += 10 * MS;
        }
    }),
    ("falls", 0, 400, |p, i| {
        if i == 0 {
            for _ in 0..500 {
                let a = p.sim.alloc(0, 0, 90_000);
                p.kept.push_back(a);
            }
        }
        step(&mut p.sim, &mut p.dice, 20);
        let a = p.kept.pop_front().unwrap();
        p.sim.free(a, false);
    }),
];

#[test]
fn clean_programs_are_left_alone() {
    let mut wrong = Vec::new();
    for &(name, before, steps, scene) in CLEAN {
        for mode in [Mode::Calibrated, Mode::Reports] {
            let (ledger, program) = run(mode, before, steps, scene);
            // The verdict must be right at any time, also in the middle of a step.
            for group in growing(&ledger, program.sim.time) {
                wrong.push(format!("{name}, {mode:?}: {group:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn clean_programs_are_left_alone_at_any_time() {
    let mut wrong = Vec::new();
    let scenes = CLEAN.iter().filter(|c| {
        ![
            "saw-tooth",
            "long saw-tooth",
            "warm-up that stops",
            "cache that fills and stays",
        ]
        .contains(&c.0)
    });
    for &(name, before, steps, scene) in scenes {
        let mut program = Program {
            sim: Sim::new(Mode::Calibrated),
            dice: Dice(5),
            kept: VecDeque::new(),
        };
        program.sim.attached = false;
        for i in 0..before {
            scene(&mut program, i);
        }
        program.sim.attached = true;
        let mut ledger = attached(Level::Trace, before == 0, program.sim.time);
        let mut number = 0;
        for i in before..before + steps {
            scene(&mut program, i);
            for event in std::mem::take(&mut program.sim.out) {
                ledger.apply(&event);
                number += 1;
                if number % 509 == 0 {
                    for group in growing(&ledger, event.time_ns) {
                        wrong.push(format!("{name} at {i}: {group:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} {:#?}", wrong.len(), wrong.first());
}

#[test]
fn counts_are_accurate() {
    let (mut ledger, program) = run(Mode::Calibrated, 100, 400, |p, _| {
        step(&mut p.sim, &mut p.dice, 40);
        leak(p, MIB + 12345);
    });
    let free = Call {
        device: Some(0),
        size: 80 << 30,
        extra: 1 << 30,
        ..match call("cudaMemGetInfo", CallOp::MemInfo, 0, 0) {
            Body::Call(call) => call,
            _ => unreachable!(),
        }
    };
    ledger.apply(&event(P, program.sim.time, Body::Call(free)));
    let report = ledger
        .ask(&[P], as_of(program.sim.time), &LeaksRequest::default())
        .unwrap();
    let group = &report.groups[0];
    assert_eq!(group.verdict(), v1::Verdict::Growing);
    // The answer has the rounded sizes, not the requested ones.
    let leaked = program.sim.live.values();
    let leaked: Vec<u64> = leaked
        .filter(|block| block.told && block.requested == MIB + 12345)
        .map(|block| block.rounded)
        .collect();
    let bytes = leaked.iter().sum::<u64>();
    assert_eq!((group.live_count, group.live_bytes), (400, bytes));
    assert_eq!(leaked.len(), 400);
    assert!(
        group.growth_count >= 280 && group.growth_count <= 300,
        "{group:?}"
    );
    assert_eq!(group.growth_bytes, group.growth_count * bytes / 400);
    assert_eq!(
        (group.device, group.stream, group.source()),
        (Some(0), Some(0), v1::Source::Pool)
    );
    assert_eq!(group.examples.len(), 5);
    assert!(group.oldest_age_ns > group.newest_age_ns);
    let rate = (MIB + 12345) as f64 * 400.0 / (report.watched_ns as f64 / 1e9);
    assert!(
        (group.growth_bytes_per_s / rate - 1.0).abs() < 0.06,
        "{} {rate}",
        group.growth_bytes_per_s
    );
    let full = report.seconds_to_full.unwrap();
    assert!((full / ((1u64 << 30) as f64 / rate) - 1.0).abs() < 0.06);
    // Host memory that leaks on a device that is not known fills no device.
    let mut of_host = ledger.clone();
    let at = program.sim.time;
    let Body::Call(mut asked) = call("cudaMemGetInfo", CallOp::MemInfo, 0, 0) else {
        unreachable!()
    };
    (asked.size, asked.extra) = (80 << 30, 1 << 20);
    for number in 0..400u64 {
        let pinned = call("cudaHostAlloc", CallOp::HostAlloc, (number + 1) << 30, MIB);
        of_host.apply(&event(P, at + number * 100 * MS, pinned));
    }
    of_host.apply(&event(P, at + 40 * SECOND, Body::Call(asked)));
    let now = as_of(at + 40 * SECOND);
    let asked = LeaksRequest::default();
    let pinned = of_host.ask(&[P], now, &asked).unwrap();
    let host = |group: &&LeakGroup| group.source() == v1::Source::Host;
    let found = pinned
        .groups
        .iter()
        .find(host)
        .expect("pinned memory grows");
    assert_eq!(found.verdict(), v1::Verdict::Growing);
    assert_eq!(
        pinned.seconds_to_full, None,
        "the device's own is stale by now"
    );
    // Free bytes that were seen a while ago are not used, and a process that has ended fills nothing.
    let later = as_of(program.sim.time + 60 * SECOND);
    let stale = ledger.ask(&[P], later, &LeaksRequest::default()).unwrap();
    assert_eq!(stale.seconds_to_full, None);
    let mut ended = ledger.clone();
    ended.apply(&event(P, program.sim.time, Body::Exited));
    let dead = ended.ask(&[P], as_of(program.sim.time), &LeaksRequest::default());
    let dead = dead.unwrap();
    assert_eq!(dead.groups[0].verdict(), v1::Verdict::Growing);
    assert_eq!(dead.seconds_to_full, None);
    // Only blocks of at least this age are asked for.
    let half = LeaksRequest {
        min_age_ns: report.watched_ns / 2,
        ..LeaksRequest::default()
    };
    let old = ledger.ask(&[P], as_of(program.sim.time), &half).unwrap();
    assert!(old.groups[0].live_count >= 195 && old.groups[0].live_count <= 205);
    let all = LeaksRequest {
        include_steady: true,
        limit: 1,
        ..LeaksRequest::default()
    };
    assert_eq!(
        ledger
            .ask(&[P], as_of(program.sim.time), &all)
            .unwrap()
            .groups
            .len(),
        1
    );
}

#[test]
fn a_leak_amid_thousands() {
    let (ledger, program) = run(Mode::Calibrated, 3, 60, |p, _| {
        step(&mut p.sim, &mut p.dice, 2000);
        leak(p, MIB);
    });
    let found = growing(&ledger, program.sim.time);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].size_bytes, found[0].live_count), (MIB, 60));
}

#[test]
fn leaked_blocks_that_all_differ_are_found_by_class() {
    let (ledger, program) = run(Mode::Calibrated, 20, 500, |p, _| {
        step(&mut p.sim, &mut p.dice, 20);
        let size = 10_000 + p.dice.below(6_000);
        leak(p, size);
    });
    let found = growing(&ledger, program.sim.time);
    assert_eq!(found.len(), 1, "{found:#?}");
    let group = &found[0];
    assert_eq!(group.size_bytes, 16_384);
    assert!(
        group.reason.contains("many sizes up to 16.00 KiB"),
        "{}",
        group.reason
    );
    // It is not known yet whether blocks of the current window will stay.
    assert!(
        group.live_count >= 475 && group.live_count <= 500,
        "{group:?}"
    );
    let mean = group.growth_bytes / group.growth_count;
    assert!((12_000..14_000).contains(&mean), "{mean}");
}

#[test]
fn direct_allocations_leak_too() {
    for backend in [Backend::Unknown, Backend::Native] {
        let mut ledger = attached_as(Level::Segments, true, SECOND, backend);
        // It frees nothing, so only time tells it from a program that loads what it works on.
        const PAUSE: u64 = 2100 * MS;
        for i in 0..300u64 {
            let Body::Call(mut c) =
                call("cudaMalloc", CallOp::Alloc, 0x1_0000_0000 + i * MIB, 4096)
            else {
                unreachable!()
            };
            c.device = Some(0);
            ledger.apply(&event(P, SECOND + i * PAUSE, Body::Call(c)));
            if i == 200 {
                assert_eq!(growing(&ledger, SECOND + i * PAUSE), []);
            }
        }
        let found = growing(&ledger, SECOND + 300 * PAUSE);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].source(), found[0].size_bytes, found[0].live_count),
            (v1::Source::Driver, 4096, 300)
        );
    }
}

/// A program that is followed from its start: it imports, builds a model, trains for a few steps and then waits. All that time
/// it keeps more and more memory at the same sizes, and it leaks nothing.
#[test]
fn a_program_that_starts_is_left_alone() {
    for seed in 0..200u64 {
        let mut dice = Dice(seed * 7919 + 13);
        let mut sim = Sim::new(Mode::Calibrated);
        let mut ledger = attached(Level::Trace, true, sim.time);
        let start = sim.time;
        let mut asked = start;
        let mut look = |sim: &mut Sim, phase: &str| {
            sim.feed(&mut ledger);
            if sim.time < asked {
                return;
            }
            asked = sim.time + 500 * MS;
            let found = growing(&ledger, sim.time);
            let ms = (sim.time - start) / MS;
            assert!(
                found.is_empty(),
                "seed {seed}, {phase}, {ms} ms: {found:#?}"
            );
        };
        sim.time += (500 + dice.below(12_000)) * MS;
        look(&mut sim, "imports");
        let layers = 4 + dice.below(60);
        let pause = dice.below(200) * MS;
        for _ in 0..layers {
            for size in [4 * MIB, MIB, 4096, 4096] {
                sim.alloc(0, 0, size);
                sim.time += 100_000;
            }
            sim.time += pause;
            look(&mut sim, "builds");
        }
        sim.time += dice.below(3) * SECOND;
        look(&mut sim, "has built");
        let (step, is_marked) = ((5 + dice.below(600)) * MS, dice.below(2) == 0);
        for i in 0..20 {
            let mut held = Vec::new();
            for layer in 0..layers {
                held.push(sim.alloc(0, 0, 2 * MIB + 512 * (layer % 7)));
                // A workspace that stays.
                if i < 2 + dice.below(4) && dice.below(4) == 0 {
                    sim.alloc(0, 0, [8192, 4096, 70_000][dice.below(3) as usize]);
                }
                sim.time += step / layers;
            }
            for addr in held {
                sim.free(addr, false);
            }
            if is_marked {
                sim.emit(update(MarkKind::Begin, "AdamW"));
            }
            if i == 0 {
                // The optimizer's state.
                for size in [4 * MIB, MIB, 4096, 4096].repeat(2 * layers as usize) {
                    sim.alloc(0, 0, size);
                }
            }
            if is_marked {
                sim.emit(update(MarkKind::End, "AdamW"));
            }
            look(&mut sim, "trains");
        }
        for _ in 0..90 {
            sim.time += 500 * MS;
            look(&mut sim, "waits");
        }
    }
}

/// A pool hands out what it has before it takes any of what is free, so that little is free is no reason to judge early.
#[test]
fn a_device_is_not_full_while_the_pool_has_room() {
    for (spare, verdict) in [(0, v1::Verdict::Growing), (16, v1::Verdict::Undecided)] {
        let mut sim = Sim::new(Mode::Calibrated);
        let mut ledger = attached(Level::Trace, true, sim.time);
        sim.line(7);
        if spare > 0 {
            let large = sim.alloc(0, 0, spare << 30);
            sim.free(large, false);
        }
        for _ in 0..20 {
            sim.stack = StackRef::Id(7);
            sim.alloc(0, 0, 100 * MIB);
            sim.time += 500 * MS;
            sim.emit(update(MarkKind::Begin, "AdamW"));
            sim.emit(update(MarkKind::End, "AdamW"));
        }
        let Body::Call(mut free) = call("cudaMemGetInfo", CallOp::MemInfo, 0, 0) else {
            unreachable!()
        };
        (free.device, free.size, free.extra) = (Some(0), 80 << 30, 1 << 30);
        sim.emit(Body::Call(free));
        sim.feed(&mut ledger);
        assert!(sim.reserved(0) >= spare << 30);
        let report = ledger.ask(&[P], as_of(sim.time), &LeaksRequest::default());
        let report = report.unwrap();
        assert_eq!(report.groups[0].verdict(), verdict, "{spare}");
        assert_eq!(report.seconds_to_full.is_some(), spare == 0, "{spare}");
    }
}

/// Cycles of a pattern that came before it was recognised say nothing of what was there in them.
#[test]
fn a_leak_stays_one_when_its_pattern_is_recognised() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let mut dice = Dice(3);
    for size in 0..5000u64 {
        let varied = sim.alloc(0, 0, 512 * (1 + size) + dice.below(512));
        sim.time += MS;
        sim.free(varied, false);
    }
    let (mut is_known, mut source) = (false, v1::StepSource::Unknown);
    for pass in 0..1700u64 {
        for layer in 1..20u64 {
            let temporary = sim.alloc(0, 0, layer * 4096);
            sim.time += 10 * MS;
            sim.free(temporary, false);
        }
        sim.alloc(0, 0, 65_536);
        sim.feed(&mut ledger);
        if pass % 10 != 9 {
            continue;
        }
        let report = ledger.ask(&[P], as_of(sim.time), &LeaksRequest::default());
        let report = report.unwrap();
        let grows = report.groups.iter();
        let grows = grows.filter(|one| one.verdict() == v1::Verdict::Growing);
        let grows = grows.count() > 0;
        assert!(grows || !is_known, "pass {pass}: {:?}", report.steps);
        is_known |= grows;
        source = report.steps.map_or(source, |steps| steps.source());
    }
    assert!(is_known);
    assert_eq!(source, v1::StepSource::Pattern, "it was recognised");
}

/// A program that waits gives nothing back, and nothing shows that its growth has ended: what its steps have shown stands. That ends when
/// the program has allocated as often as in its steps without keeping more, or keeps more at another line.
#[test]
fn a_leak_stands_while_the_program_waits() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    for id in [7, 8, 9] {
        sim.line(id);
    }
    let Body::Call(mut free) = call("cudaMemGetInfo", CallOp::MemInfo, 0, 0) else {
        unreachable!()
    };
    (free.device, free.size, free.extra) = (Some(0), 80 << 30, 1 << 30);
    let ask = |ledger: &memscope_ledger::Ledger, at| {
        let asked = LeaksRequest::default();
        ledger.ask(&[P], as_of(at), &asked).unwrap()
    };
    let of = |report: &v1::LeaksResponse| -> Vec<u32> {
        let lines = report.lines.iter();
        let growing = lines.filter(|line| line.verdict() == v1::Verdict::Growing);
        let line = |line: &v1::LeakLine| line.line.as_ref().unwrap().line;
        growing.map(line).collect()
    };
    fn work(sim: &mut Sim, keeps: Option<u64>) {
        sim.stack = StackRef::Id(8);
        for _ in 0..4 {
            let temporary = sim.alloc(0, 0, 4 * MIB);
            sim.time += 50 * MS;
            sim.free(temporary, false);
        }
        if let Some(line) = keeps {
            sim.stack = StackRef::Id(line);
            sim.alloc(0, 0, 65_536);
        }
    }
    for _ in 0..200 {
        work(&mut sim, Some(7));
        sim.emit(update(MarkKind::Begin, "AdamW"));
        sim.emit(update(MarkKind::End, "AdamW"));
    }
    sim.emit(Body::Call(free));
    sim.feed(&mut ledger);
    let before = ask(&ledger, sim.time);
    assert_eq!(of(&before), [7]);
    assert_eq!(before.steps.unwrap().quiet_ns, None);
    assert!(before.seconds_to_full.is_some());

    sim.time += 50 * SECOND;
    let waits = ask(&ledger, sim.time);
    assert_eq!(of(&waits), [7]);
    assert_eq!(waits.steps.unwrap().quiet_ns, Some(50 * SECOND));
    assert_eq!(waits.lines[0].growth_bytes_per_step, Some(65_536.0));
    // In its steps it grew by five blocks a second; by now it has waited for longer than they took.
    let rate = waits.lines[0].growth_bytes_per_s;
    assert!(rate > 65_536.0 && rate < 65_536.0 * 3.0, "{rate}");
    assert_eq!(waits.seconds_to_full, None, "nothing is filled meanwhile");

    let mut keeps = ledger.clone();
    // It validates, which takes less than its steps did, and what they have shown still stands.
    (0..150).for_each(|_| work(&mut sim, None));
    sim.feed(&mut ledger);
    assert_eq!(of(&ask(&ledger, sim.time)), [7]);
    // It works on without steps, and keeps no more.
    (0..2000).for_each(|_| work(&mut sim, None));
    sim.feed(&mut ledger);
    assert_eq!(of(&ask(&ledger, sim.time)), [0u32; 0]);

    // The same program goes on without steps from where it waited, and keeps more at another line.
    sim.time -= 2150 * 200 * MS;
    (0..1500).for_each(|_| work(&mut sim, Some(9)));
    sim.feed(&mut keeps);
    assert_eq!(of(&ask(&keeps, sim.time)), [9]);
}

#[test]
fn losses_do_not_look_like_leaks() {
    let (ledger, program) = run(Mode::Calibrated, 20, 600, |p, i| {
        step(&mut p.sim, &mut p.dice, 40);
        if i % 4 == 0 {
            p.sim.lose = 6;
        }
    });
    let found = growing(&ledger, program.sim.time);
    assert!(found.is_empty(), "{found:#?}");
    assert!(ledger.kept(P).unwrap().blocks < 200);
}

#[test]
fn a_class_is_silent_when_one_size_explains_it() {
    let (ledger, program) = run(Mode::Calibrated, 0, 400, |p, i| {
        if i == 0 {
            for _ in 0..100 {
                leak(p, 15_000);
            }
        }
        step(&mut p.sim, &mut p.dice, 20);
        leak(p, 12_000);
    });
    let sizes: Vec<u64> = growing(&ledger, program.sim.time)
        .iter()
        .map(|g| g.size_bytes)
        .collect();
    assert_eq!(sizes, [12_000]);
}
