//! How often the interval of a rate contains the true rate, for programs whose growth is known, with many seeds.

use crate::common::*;
use memscope_ledger::event::*;
use memscope_proto::v1;
use memscope_proto::v1::LeaksRequest;
use std::collections::VecDeque;

/// Number of seeds for each kind of program.
const SEEDS: u64 = 250;
/// Steps after which `leaks` is asked; a run uses one of these numbers.
const STEPS: [u64; 3] = [120, 170, 260];

struct Program {
    sim: Sim,
    dice: Dice,
    kept: VecDeque<u64>,
    /// Parameters of this run: every how many steps it leaks, and how many blocks at most.
    every: u64,
    most: u64,
    share: u64,
}

const LEAK: u64 = 40_960;

impl Program {
    /// Allocates a block with the stack of the leaking line.
    fn leak(&mut self, size: u64) -> u64 {
        self.sim.stack = StackRef::Id(51);
        let addr = self.sim.alloc(0, 0, size);
        self.sim.stack = StackRef::Id(52);
        addr
    }

    fn step(&mut self, line: u64) {
        self.sim.time += 5 * MS;
        self.sim.stack = StackRef::Id(line);
        self.sim.emit(update(MarkKind::Begin, "SGD"));
        self.sim.emit(update(MarkKind::End, "SGD"));
    }
}

/// A kind of program: its name, one step of it, and the bytes that it leaks per step on average.
type Kind = (&'static str, fn(&mut Program, u64), fn(&Program) -> f64);

const KINDS: &[Kind] = &[
    (
        "constant",
        |p, _| {
            for _ in 0..p.every {
                p.leak(LEAK);
            }
        },
        |p| (p.every * LEAK) as f64,
    ),
    (
        "every so many steps",
        |p, i| {
            if i % p.every == 0 {
                p.leak(LEAK);
            }
        },
        |p| LEAK as f64 / p.every as f64,
    ),
    (
        "any number of blocks",
        |p, _| {
            for _ in 0..p.dice.below(p.most + 1) {
                p.leak(LEAK);
            }
        },
        |p| p.most as f64 / 2.0 * LEAK as f64,
    ),
    (
        "now and then",
        |p, _| {
            if p.dice.below(100) < p.share {
                p.leak(LEAK);
            }
        },
        |p| p.share as f64 / 100.0 * LEAK as f64,
    ),
    (
        "nearly always",
        |p, _| {
            if p.dice.below(200) < 200 - p.every {
                p.leak(LEAK);
            }
        },
        |p| (200 - p.every) as f64 / 200.0 * LEAK as f64,
    ),
    (
        "sizes that vary",
        |p, _| {
            let size = 512 * (1 + p.dice.below(300));
            p.leak(size);
        },
        |_| 512.0 * 301.0 / 2.0,
    ),
    (
        "sizes of one class",
        |p, _| {
            let size = 33_000 + p.dice.below(30_000);
            p.leak(size);
        },
        |_| 33_000.0 + 29_999.0 / 2.0,
    ),
    (
        "a warm-up with another line, then the main loop",
        |p, _| {
            p.leak(LEAK);
        },
        |_| LEAK as f64,
    ),
    (
        "bursts",
        |p, i| {
            if i % 20 == 0 {
                for _ in 0..p.dice.below(2 * p.most + 1) {
                    p.leak(LEAK);
                }
            }
        },
        |p| p.most as f64 / 20.0 * LEAK as f64,
    ),
    (
        "a cache of the same size breathes",
        |p, _| {
            p.leak(LEAK);
            let size = p.dice.below(p.most + 1);
            while (p.kept.len() as u64) < size {
                let block = p.leak(LEAK);
                p.kept.push_back(block);
            }
            while p.kept.len() as u64 > size {
                let block = p.kept.pop_front().unwrap();
                p.sim.free(block, false);
            }
        },
        |_| LEAK as f64,
    ),
    (
        "half of it is given back later",
        |p, _| {
            for _ in 0..2 * p.every {
                let block = p.leak(LEAK);
                p.kept.push_back(block);
            }
            while p.kept.len() > 24 {
                for _ in 0..12 {
                    let at = p.dice.below(p.kept.len() as u64) as usize;
                    let block = p.kept.swap_remove_back(at).unwrap();
                    p.sim.free(block, false);
                }
                p.kept.drain(..12);
            }
        },
        |p| (p.every * LEAK) as f64,
    ),
];

/// Rate and interval of the group that grows, if there is exactly one.
fn asked(ledger: &memscope_ledger::Ledger, at: u64) -> Option<[f64; 3]> {
    let report = ledger
        .ask(&[P], as_of(at), &LeaksRequest::default())
        .unwrap();
    let mut growing = report
        .groups
        .iter()
        .filter(|g| g.verdict() == v1::Verdict::Growing);
    let one = growing.next()?;
    if growing.next().is_some() {
        return None;
    }
    per_step(one)
}

#[test]
fn intervals_hold_the_truth() {
    let mut wrong = Vec::new();
    let only = std::env::var("RATES_ONLY").ok();
    let seeds = std::env::var("RATES_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for (kind, step, truth) in KINDS {
        if only
            .as_ref()
            .is_some_and(|only| !kind.contains(only.as_str()))
        {
            continue;
        }
        let (mut asks, mut holds, mut width, mut below) = (0u64, 0u64, 0.0, 0u64);
        for seed in 0..seeds {
            let mut dice = Dice(seed * 7919 + 13);
            for _ in 0..8 {
                dice.next();
            }
            let mut program = Program {
                sim: Sim::new(Mode::Calibrated),
                every: 1 + dice.below(9),
                most: 1 + dice.below(8),
                share: 20 + dice.below(75),
                dice,
                kept: VecDeque::new(),
            };
            let mut ledger = attached(Level::Trace, true, program.sim.time);
            for id in [51, 52, 60, 61] {
                program.sim.emit(Body::Stack(Box::new(StackSeen {
                    id,
                    frames: vec![(id, 1)],
                    ..StackSeen::default()
                })));
            }
            let warm = program.dice.below(60);
            // Each run is asked at one moment only, because answers of the same run are not independent.
            let last = STEPS[seed as usize % STEPS.len()];
            for i in 0..last {
                step(&mut program, i);
                let line = if kind.contains("warm-up") && i < warm {
                    60
                } else {
                    61
                };
                program.step(line);
                program.sim.feed(&mut ledger);
            }
            if let Some([low, middle, high]) = asked(&ledger, program.sim.time) {
                let truth = truth(&program);
                asks += 1;
                holds += u64::from(low <= truth && truth <= high);
                below += u64::from(high < truth);
                width += (high - low) / truth;
                assert!(low <= middle && middle <= high, "{low} {middle} {high}");
                assert!(
                    low < high || (low - truth).abs() < 1e-6,
                    "{kind}, seed {seed}: sure of {low}, which is {truth}"
                );
            }
        }
        let share = holds as f64 / asks.max(1) as f64;
        println!(
            "{kind}: {holds} of {asks} hold ({:.1} %), {below} too low, width {:.2} of the rate",
            share * 100.0,
            width / asks.max(1) as f64
        );
        // The limit is three standard deviations below 95 %.
        let asked = asks as f64;
        let least = 0.95 * asked - 3.0 * (0.95 * 0.05 * asked).sqrt();
        if asks < seeds / 2 || (holds as f64) < least {
            wrong.push(format!("{kind}: {holds} of {asks}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
