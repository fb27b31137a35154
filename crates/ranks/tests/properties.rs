//! What holds for any ranks.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Dice, FAULTS, STRUCTURES, healthy, spoil};
use memscope_ranks::{Growth, Line, Rank, groups, judge};
use proptest::prelude::*;

fn any_rank() -> impl Strategy<Value = Rank> {
    let number = || prop_oneof![Just(None), any::<u64>().prop_map(Some), Just(Some(0))];
    let growth = (any::<bool>(), any::<f64>(), any::<Option<f64>>()).prop_map(
        |(grows, pace, confidence)| Growth {
            grows,
            pace,
            confidence,
        },
    );
    let line =
        ("[ab]", any::<u64>(), any::<u64>()).prop_map(|(name, live_bytes, peak_bytes)| Line {
            name,
            live_bytes,
            peak_bytes,
        });
    let lines = prop::collection::vec(line, 0..4);
    (
        any::<u64>(),
        number(),
        number(),
        number(),
        number(),
        prop::option::of(growth),
        lines,
    )
        .prop_map(
            |(rank, followed_ns, peak, floor, step, growth, lines)| Rank {
                rank,
                followed_ns,
                peak_bytes: peak,
                reserved_bytes: peak,
                floor_bytes: floor,
                step_ns: step,
                growth,
                lines,
            },
        )
}

proptest! {
    #[test]
    fn any_numbers_are_judged_within_bounds(ranks in prop::collection::vec(any_rank(), 0..40)) {
        let judgement = judge(&ranks);
        for odd in &judgement.odd {
            prop_assert!(ranks.iter().any(|rank| rank.rank == odd.rank));
            prop_assert!(!odd.findings.is_empty());
            for finding in &odd.findings {
                prop_assert!(finding.peers_low <= finding.peers_high);
                let all = odd.explained.iter().filter_map(|one| one.share);
                for share in all {
                    prop_assert!((0.0..=1.0).contains(&share));
                }
            }
        }
        prop_assert!(judgement.odd.len() <= ranks.len());
    }

    /// Neither the unit nor the order of the ranks decides.
    #[test]
    fn scale_and_order_do_not_matter(
        seed in any::<u64>(),
        structure in 0..STRUCTURES.len(),
        fault in 0..FAULTS.len(),
        size in 0.05..0.6_f64,
    ) {
        let mut dice = Dice::new(seed);
        let mut ranks = healthy(STRUCTURES[structure], 64, &mut dice);
        let odd = 1 + dice.below(62);
        spoil(&mut ranks[odd], FAULTS[fault], size);
        let accused = |ranks: &[Rank]| -> Vec<u64> {
            judge(ranks).odd.iter().map(|odd| odd.rank).collect()
        };
        let before = accused(&ranks);
        let mut turned = ranks.clone();
        turned.reverse();
        turned.rotate_left(dice.below(64));
        prop_assert_eq!(&accused(&turned), &before);
        for rank in &mut turned {
            for number in [&mut rank.peak_bytes, &mut rank.reserved_bytes, &mut rank.floor_bytes] {
                *number = number.map(|number| number * 4);
            }
        }
        prop_assert_eq!(&accused(&turned), &before);
    }

    /// What is farther away is not less sure.
    #[test]
    fn farther_is_surer(seed in any::<u64>(), fault in 1..FAULTS.len()) {
        let mut dice = Dice::new(seed);
        let ranks = healthy(common::Structure::Uniform, 64, &mut dice);
        let odd = 1 + dice.below(62);
        let mut was_found = false;
        for size in [0.1, 0.4, 1.6, 6.4, 25.6] {
            let mut spoilt = ranks.clone();
            spoil(&mut spoilt[odd], FAULTS[fault], size);
            let found = judge(&spoilt).odd.iter().any(|one| one.rank == odd as u64);
            prop_assert!(found || !was_found, "not found at {size}");
            was_found = found;
        }
        prop_assert!(was_found);
    }

    /// Each value is in one group, groups do not overlap, and neighbours within one are close.
    #[test]
    fn groups_divide_the_values(values in prop::collection::vec(0.0..1e12_f64, 0..60)) {
        let values: Vec<(usize, f64)> = values.into_iter().enumerate().collect();
        let groups = groups(&values, 0.02);
        let mut places: Vec<usize> = groups.iter().flat_map(|one| one.members.clone()).collect();
        places.sort_unstable();
        prop_assert_eq!(places, (0..values.len()).collect::<Vec<_>>());
        for pair in groups.windows(2) {
            prop_assert!(pair[1].low - pair[0].high > 0.02 * pair[0].high);
        }
        for group in &groups {
            prop_assert!(group.low <= group.median && group.median <= group.high);
        }
    }
}
