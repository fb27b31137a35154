//! Made-up jobs: healthy ones of several structures, and one rank of them made odd.

#![allow(dead_code, clippy::unwrap_used)]

use memscope_ranks::{Growth, Line, Rank};

const GIB: f64 = (1_u64 << 30) as f64;

/// A generator of numbers that are the same for the same seed (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0 and at most 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// Normally distributed, of mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// At least 1, with the tail index 1.5: its variance is infinite.
    pub fn pareto(&mut self) -> f64 {
        self.unit().powf(-1.0 / 1.5)
    }
}

/// How the ranks of a healthy job differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// By noise of a few per cent.
    Uniform,
    /// By the stage of a pipeline, in blocks of ranks that follow one another.
    Stages,
    /// By the stage of a pipeline, in turn, and the first and last stage have embeddings and head.
    StridedStages,
    /// Rank 0 keeps a little more.
    RankZero,
    /// Single steps take up to many times as long as others.
    HeavyTails,
    /// Ranks themselves are slower than others by some per cent, by a power law of index 3, though none by a tenth.
    HeavyRanks,
    /// A quarter of the ranks has one piece more, and the last one has a remainder.
    Remainders,
    /// Nothing differs at all.
    Equal,
}

pub const STRUCTURES: [Structure; 8] = [
    Structure::Uniform,
    Structure::Stages,
    Structure::StridedStages,
    Structure::RankZero,
    Structure::HeavyTails,
    Structure::HeavyRanks,
    Structure::Remainders,
    Structure::Equal,
];

/// What is wrong with the odd rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Leak,
    HigherPeak,
    Straggler,
    MissingSharding,
    Fragmentation,
}

pub const FAULTS: [Fault; 5] = [
    Fault::Leak,
    Fault::HigherPeak,
    Fault::Straggler,
    Fault::MissingSharding,
    Fault::Fragmentation,
];

/// A job of `count` ranks with this structure.
pub fn healthy(structure: Structure, count: usize, dice: &mut Dice) -> Vec<Rank> {
    let weights = dice.between(6.0, 30.0) * GIB;
    let activations = dice.between(0.2, 1.5) * weights;
    let noise = match structure {
        Structure::Equal => 0.0,
        _ => dice.between(0.001, 0.02),
    };
    let stages = match structure {
        Structure::Stages | Structure::StridedStages if count >= 32 => 4 << dice.below(2),
        _ => 1,
    };
    let extra = 1.0 + dice.between(0.0, 0.08);
    let step = dice.between(0.2, 4.0) * 1e9;
    (0..count)
        .map(|rank| {
            let stage = match structure {
                Structure::Stages => rank * stages / count,
                _ => rank % stages,
            };
            // One pass forward before one backward: the first stages keep the activations of most micro-batches.
            let mut own = weights;
            let kept = (stages - stage) as f64 / stages as f64;
            if structure == Structure::StridedStages && stage == 0 {
                own *= 1.3;
            }
            if structure == Structure::StridedStages && stage + 1 == stages {
                own *= 1.45;
            }
            if structure == Structure::Remainders && rank % 4 == 0 {
                own *= 1.06;
            }
            let mut floor = own * (1.0 + noise / 2.0 * dice.normal());
            let mut peak = floor + activations * kept * (1.0 + noise * dice.normal());
            if structure == Structure::RankZero && rank == 0 {
                floor *= extra;
                peak *= extra;
            }
            if structure == Structure::Remainders && rank + 1 == count {
                floor *= 0.94;
                peak *= 0.95;
            }
            let reserved = peak * 1.04 * (1.0 + (noise * dice.normal()).abs());
            let slow = match structure {
                Structure::HeavyRanks => {
                    1.0 + (0.01 * (dice.unit().powf(-1.0 / 3.0) - 1.0)).min(0.08)
                }
                _ => 1.0,
            };
            let mut times: Vec<f64> = (0..41)
                .map(|_| match structure {
                    Structure::Equal => step,
                    Structure::HeavyTails => step * (0.9 + 0.1 * dice.pareto()),
                    _ => slow * step * (1.0 + 0.02 * dice.normal().abs()),
                })
                .collect();
            times.sort_by(f64::total_cmp);
            let line = |name: &str, live: f64, at_peak: f64| Line {
                name: name.into(),
                live_bytes: live as u64,
                peak_bytes: at_peak as u64,
            };
            Rank {
                rank: rank as u64,
                followed_ns: None,
                peak_bytes: Some(peak as u64),
                reserved_bytes: Some(reserved as u64),
                floor_bytes: Some(floor as u64),
                step_ns: Some(times[20] as u64),
                growth: Some(Growth::default()),
                lines: vec![
                    line("model.py:12 __init__", floor * 0.4, floor * 0.4),
                    line("train.py:40 step", floor * 0.6, floor * 0.6),
                    line("model.py:88 forward", 0.0, peak - floor),
                ],
            }
        })
        .collect()
}

/// Line that a fault shows in.
pub const CULPRIT: &str = "train.py:118 keep_loss";

/// Makes one rank odd. `size` is how much of its level it has more.
pub fn spoil(rank: &mut Rank, fault: Fault, size: f64) {
    let more = |number: &mut Option<u64>, by: f64| {
        *number = number.map(|number| number + by as u64);
    };
    let peak = rank.peak_bytes.unwrap() as f64;
    let floor = rank.floor_bytes.unwrap() as f64;
    let mut line = |live: f64, at_peak: f64| {
        rank.lines.push(Line {
            name: CULPRIT.into(),
            live_bytes: live as u64,
            peak_bytes: at_peak as u64,
        });
    };
    match fault {
        Fault::Leak => {
            // A leak that was found after it had come to a twentieth of the memory, as leaks are.
            line(peak * size / 4.0, peak * size / 4.0);
            more(&mut rank.peak_bytes, peak * size / 4.0);
            more(&mut rank.reserved_bytes, peak * size / 4.0);
            more(&mut rank.floor_bytes, peak * size / 4.0);
            rank.growth = Some(Growth {
                grows: true,
                pace: 2e6,
                confidence: Some(0.97),
            });
        }
        Fault::HigherPeak => {
            line(0.0, peak * size);
            more(&mut rank.peak_bytes, peak * size);
            more(&mut rank.reserved_bytes, peak * size);
        }
        Fault::Straggler => {
            let step = rank.step_ns.unwrap() as f64;
            more(&mut rank.step_ns, step * size);
        }
        Fault::MissingSharding => {
            line(floor * size, floor * size);
            more(&mut rank.peak_bytes, floor * size);
            more(&mut rank.reserved_bytes, floor * size);
            more(&mut rank.floor_bytes, floor * size);
        }
        Fault::Fragmentation => more(&mut rank.reserved_bytes, peak * size),
    }
}
