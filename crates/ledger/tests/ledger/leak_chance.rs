//! What rises by chance is no leak, and what leaks beside it is found: caches that are bounded and turn over blocks of many
//! sizes, seen again and again for as long as they run.

use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1;
use memscope_proto::v1::LeaksRequest;
use std::collections::VecDeque;

/// Stacks, each with one line of its own.
const CACHE: u64 = 51;
const STEP: u64 = 60;
/// Steps after which somebody looks, as often as `memscoped` does where a step takes 50 ms.
const LOOK: u64 = 40;

/// A program with a cache whose blocks all come from one line.
struct Program {
    sim: Sim,
    ledger: Ledger,
    dice: Dice,
    cached: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut sim = Sim::new(Mode::Calibrated);
        sim.attached = true;
        let mut ledger = attached(Level::Trace, true, sim.time);
        for id in [CACHE, STEP] {
            sim.line(id);
        }
        sim.feed(&mut ledger);
        Program {
            sim,
            ledger,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            cached: VecDeque::new(),
            bytes: 0,
        }
    }

    fn alloc(&mut self, size: u64) -> u64 {
        self.sim.stack = StackRef::Id(CACHE);
        self.sim.time += MS / 10;
        self.sim.alloc(0, 0, size)
    }

    fn put(&mut self, size: u64) {
        let addr = self.alloc(size);
        self.cached.push_back((addr, size));
        self.bytes += size;
    }

    fn evict(&mut self, place: usize) {
        let (addr, size) = self.cached.remove(place).unwrap();
        self.bytes -= size;
        self.sim.time += MS / 10;
        self.sim.free(addr, false);
    }

    fn end_step(&mut self) {
        self.sim.time += 50 * MS;
        self.sim.stack = StackRef::Id(STEP);
        self.sim.emit(Body::Mark(Box::new(Mark {
            kind: MarkKind::Begin,
            source: MarkSource::RecordFunction,
            name: "Optimizer.step#SGD.step".into(),
            ..Mark::default()
        })));
        self.sim.feed(&mut self.ledger);
    }

    /// What is said to grow now.
    fn growing(&self) -> Vec<v1::LeakGroup> {
        let report = self
            .ledger
            .ask(&[P], as_of(self.sim.time), &LeaksRequest::default())
            .unwrap();
        let groups = report.groups.into_iter();
        groups
            .filter(|group| group.verdict() == v1::Verdict::Growing)
            .collect()
    }
}

type Cache = fn(&mut Program);

/// Caches that are bounded. Each is full after 110 steps at most.
const CACHES: &[(&str, Cache)] = &[
    ("16 MiB of random lengths, the oldest leaves", |p| {
        if p.dice.below(10) < 8 {
            let size = 16_384 * (1 + p.dice.below(32));
            p.put(size);
        }
        while p.bytes > 16 * MIB {
            p.evict(0);
        }
    }),
    (
        "16 MiB of random lengths, the one not used for longest leaves",
        |p| {
            let key = p.dice.below(400) as usize;
            if let Some(used) = p.cached.remove(key) {
                p.cached.push_back(used);
                return;
            }
            let size = 16_384 * (1 + p.dice.below(32));
            p.put(size);
            while p.bytes > 16 * MIB {
                p.evict(0);
            }
        },
    ),
    ("80 entries of random lengths, the oldest leaves", |p| {
        let size = 16_384 * (1 + p.dice.below(64));
        p.put(size);
        if p.cached.len() > 80 {
            p.evict(0);
        }
    }),
    ("100 entries of 12 lengths, any one leaves", |p| {
        let size = 16_384 * (1 + 5 * p.dice.below(12));
        p.put(size);
        if p.cached.len() > 100 {
            let place = p.dice.below(100) as usize;
            p.evict(place);
        }
    }),
    ("60 entries of 3 lengths, the oldest leaves", |p| {
        let size = 65_536 * (1 + p.dice.below(3));
        p.put(size);
        if p.cached.len() > 60 {
            p.evict(0);
        }
    }),
];

/// What leaks beside a cache, at its line: a size, and after how many steps a block more.
const LEAKS: &[(u64, u64)] = &[
    (8704, 1),
    (8704, 5),
    (512, 1),
    (MIB + 512, 20),
    // Blocks of this size are cached as well.
    (65_536, 2),
];

/// Each look at each size is a chance to see something that is not there. The number of looks grows with the time, but the rows
/// cover twice the time after twice the steps, so that ever fewer looks see something new. What counts for users is how often they
/// are told of a leak that is none. The rule was chosen with the seeds from 1 to 60, so others are taken here. With the seeds from
/// 1001 to 1060 it was 7 times in 11.5 hours of all caches together, and never in the 4.6 hours of those that are bounded by bytes. A cache
/// of 400 blocks, of which any one leaves in each fourth step, is not among them: it was accused 23 times in 4 hours.
#[test]
fn full_caches_are_left_alone() {
    const SEEDS: u64 = 20;
    const STEPS: u64 = 3000;
    const FULL: u64 = 240;
    let (mut told, mut looks, mut hours) = (Vec::new(), 0, 0.0);
    for (name, cache) in CACHES {
        for seed in 1001..=1000 + SEEDS {
            let mut p = Program::new(seed);
            let (mut growing, mut full) = (0, 0);
            for step in 1..=STEPS {
                cache(&mut p);
                p.end_step();
                if step < FULL {
                    full = p.sim.time;
                    continue;
                }
                if step % LOOK == 0 {
                    looks += 1;
                    let found = p.growing();
                    if found.len() > growing {
                        told.push(format!("{name}, seed {seed}, step {step}: {found:?}"));
                    }
                    growing = found.len();
                }
            }
            hours += (p.sim.time - full) as f64 / SECOND as f64 / 3600.0;
        }
    }
    println!("{} in {looks} looks over {hours:.1} h", told.len());
    assert!(told.len() as f64 <= hours, "{hours:.1} h: {told:#?}");
    let by_bytes = told.iter().filter(|one| one.starts_with("16 MiB"));
    assert_eq!(by_bytes.count(), 0, "{told:#?}");
}

#[test]
fn leaks_beside_a_cache_are_found_and_stay_found() {
    for (name, cache) in CACHES {
        for (size, every) in LEAKS {
            for seed in 1..=5 {
                let mut p = Program::new(seed);
                for step in 1..=1200 {
                    cache(&mut p);
                    if step % every == 0 {
                        p.alloc(*size);
                    }
                    p.end_step();
                    if step >= 400 && step % LOOK == 0 {
                        let found = p.growing();
                        let is_it = |group: &v1::LeakGroup| group.size_bytes == *size;
                        assert!(
                            found.iter().any(is_it),
                            "{name}, {size} each {every} steps, seed {seed}, step {step}: {found:#?}"
                        );
                    }
                }
            }
        }
    }
}
