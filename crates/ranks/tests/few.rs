//! Small jobs: what is too few to judge is not judged.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Dice, Fault, Structure, healthy, spoil};
use memscope_ranks::{JUDGED_FROM, Metric, Rank, Why, judge};

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
