//! Any window of any course, cut into any number of intervals, is what a plain list of its samples says.

use memscope_ledger::course::{Course, Cut, Grid, Level, Sample};
use memscope_proto::v1::Interval;
use proptest::prelude::*;

/// Samples with pauses of very different lengths, several at one moment, levels that go up and down and are sometimes not known.
fn samples(most: usize) -> impl Strategy<Value = Vec<Sample>> {
    let pause = prop_oneof![Just(0u64), 1..4u64, 1..1_000u64, 1..50_000_000u64];
    let level = prop_oneof![
        8 => (0..1u64 << 40, 0..4u64).prop_map(|(allocated, reserved)| Some(Level {
            allocated,
            reserved: reserved << 30,
        })),
        1 => Just(None),
        1 => Just(Some(Level { allocated: u64::MAX, reserved: u64::MAX })),
    ];
    let one = (pause, level, 0..5u64, 0..300u64);
    proptest::collection::vec(one, 0..most).prop_map(|all| {
        let mut time_ns = 1_000;
        let sample = |(pause, level, allocs, frees): (u64, Option<Level>, u64, u64)| {
            time_ns += pause;
            Sample {
                time_ns,
                level,
                allocs,
                frees: frees / 100,
            }
        };
        all.into_iter().map(sample).collect()
    })
}

/// The same by looking at every sample for every interval.
fn plain(
    begin: (u64, Option<Level>),
    samples: &[Sample],
    (from, to, count): (u64, u64, u64),
    until: u64,
) -> Vec<Interval> {
    let count = count.min(to - from).max(1);
    let edge = |number: u64| {
        from + (u128::from(to - from) * u128::from(number) / u128::from(count)) as u64
    };
    let mut all = Vec::new();
    for number in 0..count {
        let (a, b) = (edge(number), edge(number + 1));
        let is_last = number + 1 == count;
        let ended = |ns: u64| if is_last { ns <= b } else { ns < b };
        if a > until {
            continue;
        }
        let within: Vec<&Sample> = samples
            .iter()
            .filter(|one| one.time_ns >= a && ended(one.time_ns))
            .collect();
        let before = samples.iter().rev().find(|one| one.time_ns < a);
        let carried = match before {
            Some(sample) => sample.level,
            None if ended(begin.0) => begin.1,
            None => None,
        };
        let mut levels: Vec<Level> = within.iter().filter_map(|one| one.level).collect();
        if within.first().is_none_or(|first| first.time_ns > a) {
            levels.extend(carried);
        }
        if levels.is_empty() {
            continue;
        }
        let last = within.last().map_or(carried, |one| one.level);
        let allocated = || levels.iter().map(|level| level.allocated);
        let reserved = || levels.iter().map(|level| level.reserved);
        all.push(Interval {
            from_boot_ns: a,
            to_boot_ns: b.min(until),
            min_allocated_bytes: allocated().min().unwrap(),
            max_allocated_bytes: allocated().max().unwrap(),
            min_reserved_bytes: reserved().min().unwrap(),
            max_reserved_bytes: reserved().max().unwrap(),
            allocs: within.iter().map(|one| one.allocs).sum(),
            frees: within.iter().map(|one| one.frees).sum(),
            last_allocated_bytes: last.map(|level| level.allocated),
            last_reserved_bytes: last.map(|level| level.reserved),
            detail_ns: Some(0),
        });
    }
    all
}

fn windows(end: u64) -> impl Strategy<Value = (u64, u64, u64)> {
    let count = prop_oneof![1..20u64, 1..2_000u64];
    (0..end, 0..end, count).prop_map(|(one, other, count)| (one.min(other), one.max(other), count))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn any_window_is_what_a_plain_list_says(
        (all, window, parts, known) in samples(9_000).prop_flat_map(|all| {
            let end = all.last().map_or(2_000, |last| last.time_ns) + 5_000;
            let pieces = proptest::collection::vec(0..all.len().max(1), 0..4);
            (Just(all), windows(end), pieces, any::<bool>())
        })
    ) {
        let begin = (900, known.then_some(Level { allocated: 77, reserved: 99 }));
        let mut edges: Vec<usize> = parts.into_iter().filter(|at| *at < all.len()).collect();
        edges.extend([0, all.len()]);
        edges.sort_unstable();
        let mut cut = Cut::new(Grid::new(window.0, window.1, window.2));
        let mut level = begin;
        for pair in edges.windows(2) {
            let part = &all[pair[0]..pair[1]];
            let mut course = Course::new(level.0, level.1);
            part.iter().for_each(|sample| course.push(*sample));
            prop_assert_eq!(course.samples(), part.len());
            cut.add(&course);
            if let Some(last) = part.last() {
                level = (last.time_ns, last.level);
            }
        }
        let told = cut.finish(u64::MAX);
        prop_assert_eq!(told, plain(begin, &all, window, u64::MAX));
    }
}

#[test]
fn a_window_of_one_moment_has_what_is_held_then() {
    let mut course = Course::new(10, None);
    let level = |allocated| {
        Some(Level {
            allocated,
            reserved: 100,
        })
    };
    for (time_ns, allocated) in [(20, 1), (30, 2), (30, 3), (40, 4)] {
        course.push(Sample {
            time_ns,
            level: level(allocated),
            allocs: 1,
            frees: 0,
        });
    }
    let at = |from, to, until| {
        let mut cut = Cut::new(Grid::new(from, to, 5));
        cut.add(&course);
        cut.finish(until)
    };
    assert_eq!(at(15, 15, 100), []);
    for (moment, allocated) in [(20, 1), (29, 1), (30, 3), (39, 3), (40, 4), (90, 4)] {
        let told = at(moment, moment, 100);
        assert_eq!(told.len(), 1, "{moment}");
        assert_eq!(told[0].last_allocated_bytes, Some(allocated), "{moment}");
    }
    // Nothing is said of what has not come yet.
    let told = at(0, 500, 150);
    assert_eq!(told.len(), 2);
    assert_eq!((told[1].from_boot_ns, told[1].to_boot_ns), (100, 150));
}

/// What the daemon wrote itself has the time at which it was written, and records that the kernel sent just before it follow.
#[test]
fn a_sample_that_is_ahead_of_those_behind_it_comes_with_them() {
    let mut course = Course::new(0, None);
    for (time_ns, allocated) in [(10, 1), (50, 2), (20, 3), (60, 4)] {
        let level = Some(Level {
            allocated,
            reserved: 0,
        });
        course.push(Sample {
            time_ns,
            level,
            ..Sample::default()
        });
    }
    let mut cut = Cut::new(Grid::new(0, 40, 4));
    cut.add(&course);
    let told = cut.finish(100);
    let last: Vec<_> = told.iter().map(|one| one.last_allocated_bytes).collect();
    // From 10, from 20 and from 30 on; nothing is known before 10.
    assert_eq!(last, [Some(1), Some(3), Some(3)]);
}

#[test]
fn a_million_samples_take_a_few_bytes_each() {
    let mut course = Course::new(0, None);
    for number in 0..1_000_000u64 {
        course.push(Sample {
            time_ns: number * 30_000 + number % 977,
            level: Some(Level {
                allocated: (number * 7919 % 4096) * 512,
                reserved: (number >> 12) << 21,
            }),
            allocs: number % 2,
            frees: 1 - number % 2,
        });
    }
    course.shrink();
    assert!(course.bytes() < 9 << 20, "{}", course.bytes());
}
