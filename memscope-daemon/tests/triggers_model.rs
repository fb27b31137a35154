//! Triggers against a model that looks at the simulated allocator itself.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::world;

use proptest::prelude::*;
use std::collections::BTreeMap;
use world::World;
use world::common::*;

/// Where a level fires, computed from every level at rest.
fn naive_crossings(levels: &[u64], above: u64) -> Vec<usize> {
    let mut armed = true;
    let mut found = Vec::new();
    for (at, level) in levels.iter().enumerate() {
        if armed && *level > above {
            found.push(at);
            armed = false;
        } else if *level * 20 <= above * 19 {
            armed = true;
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Every crossing of every level at rest fires once, on its device, and nothing else does.
    #[test]
    fn the_same_as_by_looking_at_the_allocator(
        seed in any::<u64>(),
        calibrated in any::<bool>(),
        expandable in any::<bool>(),
        steps in 10..250usize,
        allocated_above in 5..80u64,
        reserved_above in 20..120u64,
        share in 10..90u64,
    ) {
        let conditions = [
            format!("allocated > {allocated_above}MiB"),
            format!("reserved > {reserved_above}MiB"),
            format!("fragmentation > {share}% with reserved > 10MiB"),
        ];
        let words: Vec<&str> = conditions.iter().map(String::as_str).collect();
        let mut world = World::with(&words);
        let mut sim = Sim::new(if calibrated { Mode::Calibrated } else { Mode::Uncalibrated });
        sim.expandable = expandable;
        let mut dice = Dice(seed);
        // By (trigger, device): the level at rest after each call.
        let mut courses: BTreeMap<(u64, i32), Vec<(usize, u64)>> = BTreeMap::new();
        let mut fired: BTreeMap<(u64, i32), Vec<usize>> = BTreeMap::new();
        for call in 0..steps {
            sim.time += MS;
            let device = dice.below(2) as i32;
            let (free, reserved) = (
                sim.reserved(device) - sim.allocated(device),
                sim.reserved(device),
            );
            match dice.below(5) {
                0..=2 => {
                    sim.alloc(device, dice.below(2), 1 + dice.below(14 * MIB));
                }
                3 if !sim.live.is_empty() => {
                    let nth = dice.below(sim.live.len() as u64) as usize;
                    let addr = *sim.live.keys().nth(nth).unwrap();
                    sim.free(addr, false);
                }
                4 if dice.below(6) == 0 => sim.empty_cache(device),
                _ => {}
            }
            let taken = sim.reserved(device).saturating_sub(reserved);
            for device in 0..2 {
                let levels = [(1, sim.allocated(device)), (2, sim.reserved(device))];
                for (trigger, level) in levels {
                    courses.entry((trigger, device)).or_default().push((call, level));
                }
            }
            let part = (free * 10_000).checked_div(reserved).unwrap_or(0);
            let could_not = free < taken && part > share * 100;
            if taken > 0 && reserved > 10 * MIB && !could_not {
                courses.entry((3, device)).or_default().push((call, part));
            }
            for one in world.feed_call(&mut sim) {
                let key = (one.trigger, one.device.unwrap());
                fired.entry(key).or_default().push(call);
            }
        }
        prop_assert_eq!(world.tick(sim.time + SECOND), []);
        for (key, course) in &courses {
            let above = match key.0 {
                1 => allocated_above * MIB,
                2 => reserved_above * MIB,
                _ => share * 100,
            };
            let levels: Vec<u64> = course.iter().map(|(_, level)| *level).collect();
            let expected: Vec<usize> = naive_crossings(&levels, above)
                .into_iter()
                .map(|at| course[at].0)
                .collect();
            let found = fired.remove(key).unwrap_or_default();
            prop_assert_eq!(found, expected, "{:?}", key);
        }
        prop_assert!(fired.is_empty(), "{:?}", fired);
    }
}
