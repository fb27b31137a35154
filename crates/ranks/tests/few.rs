//! Small jobs: what is too few to judge is not judged.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Dice, Fault, Structure, healthy, spoil};
use memscope_ranks::{JUDGED_FROM, LIKELY, Metric, Rank, Why, judge};

#[test]
fn fewer_than_eight_are_too_few_for_distances() {
    for count in [0, 1, 2, 3, 4, 7] {
        let mut ranks = healthy(Structure::Equal, count, &mut Dice::new(1));
        if let Some(last) = ranks.last_mut() {
            spoil(last, Fault::MissingSharding, 0.5);
        }
        let judgement = judge(&ranks);
        assert!(judgement.odd.is_empty(), "{count}: {:?}", judgement.odd);
        for metric in Metric::MEASURED {
            let why = Why::TooFew {
                known: count,
                needed: JUDGED_FROM,
            };
            let told = |one: &&memscope_ranks::NotJudged| one.metric == metric && one.why == why;
            assert!(judgement.not_judged.iter().any(|one| told(&one)));
        }
    }
}

#[test]
fn a_leak_stands_out_among_two() {
    for count in [2, 3, 4, 8] {
        let mut ranks = healthy(Structure::Uniform, count, &mut Dice::new(7));
        spoil(&mut ranks[1], Fault::Leak, 0.2);
        let judgement = judge(&ranks);
        let odd = judgement.odd.first().unwrap();
        assert_eq!(odd.rank, 1);
        assert_eq!(odd.findings[0].metric, Metric::Growth);
        assert_eq!(odd.findings[0].confidence, Some(0.97));
        assert_eq!(
            odd.explained.as_ref().unwrap().lines[0].name,
            common::CULPRIT
        );
    }
    // One alone has nobody to be compared with, and where all grow none is odd.
    let mut alone = healthy(Structure::Uniform, 1, &mut Dice::new(7));
    spoil(&mut alone[0], Fault::Leak, 0.2);
    assert!(judge(&alone).odd.is_empty());
    let mut all = healthy(Structure::Uniform, 4, &mut Dice::new(7));
    all.iter_mut()
        .for_each(|rank| spoil(rank, Fault::Leak, 0.2));
    assert!(judge(&all).odd.is_empty());
}

/// What rose by chance now and then is called a growth as well. Of such a one no rank is said to be odd.
#[test]
fn a_growth_that_is_not_sure_accuses_nobody() {
    let judged = |confidence| {
        let mut ranks = healthy(Structure::Uniform, 4, &mut Dice::new(7));
        spoil(&mut ranks[1], Fault::Leak, 0.2);
        ranks[1].growth.as_mut().unwrap().confidence = confidence;
        judge(&ranks)
    };
    let unsure = judged(Some(0.425));
    assert!(unsure.odd.is_empty(), "{:?}", unsure.odd);
    let nearest = unsure.nearest.unwrap();
    assert_eq!((nearest.rank, nearest.metric), (1, Metric::Growth));
    assert!(judged(Some(LIKELY - 0.001)).odd.is_empty());
    assert_eq!(judged(Some(LIKELY)).odd.len(), 1);
    // Where no steps are known, the verdict has no confidence.
    assert_eq!(judged(None).odd.len(), 1);
}

/// A job that keeps more and more memory, in which one rank was started anew.
#[test]
fn a_rank_that_began_later_is_not_accused_by_what_the_others_collected() {
    const SECOND: u64 = 1_000_000_000;
    let rank = |number: u64, seconds: u64| Rank {
        rank: number,
        followed_ns: Some(seconds * SECOND),
        peak_bytes: Some((512 + 20 * seconds) << 20),
        reserved_bytes: Some((512 + 20 * seconds) << 20),
        floor_bytes: Some((512 + 20 * seconds) << 20),
        ..Rank::default()
    };
    let of = |usual: u64, anew: u64| -> Vec<Rank> {
        let seconds = |number| {
            if number == 3 {
                anew
            } else {
                usual + number % 2
            }
        };
        (0..12)
            .map(|number| rank(number, seconds(number)))
            .collect()
    };
    for (usual, anew) in [(18, 8), (600, 500), (36_000, 30_000)] {
        let judgement = judge(&of(usual, anew));
        assert!(judgement.odd.is_empty(), "{:?}", judgement.odd);
        assert_eq!(judgement.began_later, [3]);
    }
    // Ranks start within some seconds, and after a long time the same distance is nothing.
    for (usual, anew) in [(18, 14), (36_000, 35_900)] {
        assert_eq!(judge(&of(usual, anew)).began_later, [] as [u64; 0]);
    }
    // All the same, whoever has less since its beginning is odd.
    let mut less = of(600, 600);
    less[3].peak_bytes = Some(1 << 30);
    assert_eq!(judge(&less).odd[0].rank, 3);
}

#[test]
fn one_of_eight_is_found_if_the_others_are_alike() {
    let mut ranks = healthy(Structure::Equal, 8, &mut Dice::new(3));
    spoil(&mut ranks[5], Fault::HigherPeak, 0.3);
    let judgement = judge(&ranks);
    let odd = judgement.odd.first().unwrap();
    assert_eq!((judgement.odd.len(), odd.rank), (1, 5));
    assert_eq!(odd.findings[0].metric, Metric::Peak);
    let explained = odd.explained.as_ref().unwrap();
    assert_eq!(explained.lines[0].name, common::CULPRIT);
    assert!(explained.share.unwrap() > 0.99);
}

#[test]
fn stages_of_one_rank_each_are_no_oddities() {
    // A pipeline of eight ranks: no two have the same level.
    let rank = |number: u64| Rank {
        rank: number,
        peak_bytes: Some((40 - 3 * number) << 30),
        ..Rank::default()
    };
    let ranks: Vec<Rank> = (0..8).map(rank).collect();
    assert!(judge(&ranks).odd.is_empty());
}

/// Rank 0 is allowed some memory more, which may leave it nearer to the others than some of them are to one another.
#[test]
fn rank_0_with_as_much_as_another_one_accuses_nobody() {
    const LEVEL: f64 = 40.0 * (1_u64 << 30) as f64;
    let mut ranks: Vec<Rank> = Vec::new();
    let mut place = 0.0;
    for number in 0..24 {
        let share = if number == 0 || number == 9 {
            1.057
        } else {
            place += 1.0;
            0.965 + 0.07 * (place - 1.0) / 21.0
        };
        ranks.push(Rank {
            rank: number,
            peak_bytes: Some((LEVEL * share) as u64),
            ..Rank::default()
        });
    }
    let judgement = judge(&ranks);
    assert!(judgement.odd.is_empty(), "{:?}", judgement.odd);
    assert!(judgement.comparisons > 0);
}

#[test]
fn the_one_of_two_with_its_number_is_accused_and_is_no_peer_of_itself() {
    for (own, other) in [(3, 15), (15, 3)] {
        let twelve = || healthy(Structure::Equal, 12, &mut Dice::new(3));
        let mut ranks = twelve();
        ranks.extend(twelve());
        assert_eq!(ranks[own].rank, ranks[other].rank);
        spoil(&mut ranks[own], Fault::HigherPeak, 0.3);
        let judgement = judge(&ranks);
        let odd = judgement.odd.first().unwrap();
        assert_eq!((judgement.odd.len(), odd.rank, odd.place), (1, 3, own));
        let finding = &odd.findings[0];
        assert_eq!(finding.place, own);
        assert!(!finding.peer_places.contains(&own));
        assert!(finding.peer_places.contains(&other));
        let explained = odd.explained.as_ref().unwrap();
        assert_ne!(explained.beside_place, own);
        assert_eq!(explained.lines[0].name, common::CULPRIT);
    }
}

#[test]
fn the_slowest_of_many_that_grow_is_compared_with_those() {
    let mut ranks = healthy(Structure::Uniform, 64, &mut Dice::new(5));
    ranks
        .iter_mut()
        .for_each(|rank| spoil(rank, Fault::Leak, 0.2));
    if let Some(growth) = &mut ranks[9].growth {
        growth.pace *= 5.0;
    }
    let judgement = judge(&ranks);
    let odd = judgement.odd.first().unwrap();
    assert_eq!((judgement.odd.len(), odd.rank), (1, 9));
    assert_eq!(odd.findings[0].metric, Metric::Growth);
}
