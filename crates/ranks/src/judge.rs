//! The judgement: which ranks stand out, by which numbers, and how sure that is.

use crate::found::{Finding, Judgement, NotJudged, Odd, Why};
use crate::groups::{Group, JUDGED_FROM, Split, median};
use crate::layout::expected;
use crate::lines::explain;
use crate::rank::{Growth, Metric, Rank};
use crate::tail::chance;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Confidence from which on a rank is said to stand out.
pub const SURE: f64 = 0.99;
/// Confidence of the leak detection from which on a rank that grows while the others do not is said to stand out. A growth
/// of the fewest steps that `leaks` goes by has it, if nothing of it was given back.
pub const LIKELY: f64 = 0.8;
/// A rank began later than the others if it was followed for less long by more than this, in nanoseconds, and by more than
/// [`LATER_SHARE`]. Ranks of one job start within some seconds.
const LATER_NS: f64 = 5e9;
/// See [`LATER_NS`]: what is collected at an equal pace differs by this share, which is worth telling of memory.
const LATER_SHARE: f64 = 0.05;
/// What rank 0 may have more and the last rank less of memory than the others, as a share: rank 0 often keeps what is
/// written and printed, and the last one the remainder of what is divided.
const AT_THE_ENDS: f64 = 0.10;
/// Where there are so many distances to one side, only these are taken as the others' spread. Where there are fewer,
/// the distances to both sides are taken.
const ONE_SIDED_FROM: usize = 22;
/// Metrics by which the peers for another metric are chosen.
const CHOOSE: [Metric; 3] = [Metric::Floor, Metric::Peak, Metric::Reserved];

/// A rank that is away from its peers, before the number of comparisons is known.
struct Candidate {
    place: usize,
    metric: Metric,
    peers: Vec<usize>,
    chance: f64,
    has_more: bool,
    peers_by: PeersBy,
}

/// How the peers of a rank were chosen, from what says least to what says most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeersBy {
    /// By another metric.
    Another,
    /// By their nearness in the metric itself.
    Nearness,
    /// By their numbers in the job.
    Numbers,
}

/// Compares the ranks of one job.
#[must_use]
pub fn judge(ranks: &[Rank]) -> Judgement {
    let later = later(ranks);
    let (mut began_later, _) = numbers(ranks, &later);
    began_later.dedup();
    let ranks = &without_memory(ranks, &later)[..];
    let mut comparisons = 0;
    let mut candidates = Vec::new();
    let mut not_judged = Vec::new();
    for metric in Metric::MEASURED {
        let values = values(ranks, metric);
        if let Err(why) = enough(values.len(), JUDGED_FROM) {
            not_judged.push(NotJudged { metric, why });
            continue;
        }
        let mut compare = |split: &Split, peers_by| {
            comparisons += 2;
            candidates.extend(away(ranks, metric, split, peers_by));
        };
        let split = Split::of(&values, metric.alike());
        let by_numbers = split.as_ref().and_then(|split| expected(ranks, split));
        match (&split, &by_numbers) {
            // What is expected by the numbers says more than the nearest group, to which an odd one does not belong.
            (Some(_), Some(_)) => {}
            (Some(split), None) => compare(split, PeersBy::Nearness),
            (None, _) => {
                let why = Why::NoneAlike;
                not_judged.push(NotJudged { metric, why });
            }
        }
        let by_numbers = by_numbers.into_iter().flatten();
        let by_numbers = by_numbers.map(|peers| (PeersBy::Numbers, peers));
        let by_another = chosen_by_another(ranks, metric).into_iter();
        let by_another = by_another.map(|peers| (PeersBy::Another, peers));
        for (by, peers) in by_numbers.chain(by_another) {
            let of_peers = only(&values, &peers, ranks.len());
            if of_peers.len() < JUDGED_FROM {
                continue;
            }
            if let Some(split) = Split::of(&of_peers, metric.alike()) {
                compare(&split, by);
            }
        }
    }
    let is_likely =
        |(_, finding): &(usize, Finding)| finding.confidence.is_none_or(|sure| sure >= LIKELY);
    let verdicts = match growth(ranks) {
        Growing::Few(few, others) => verdicts(ranks, &few, &others),
        Growing::Many(split) => {
            comparisons += 2;
            candidates.extend(away(ranks, Metric::Growth, &split, PeersBy::Nearness));
            Vec::new()
        }
        Growing::None => Vec::new(),
        Growing::NotJudged(why) => {
            let metric = Metric::Growth;
            not_judged.push(NotJudged { metric, why });
            Vec::new()
        }
    };
    let (sure, nearest) = sure(ranks, candidates, comparisons);
    let (verdicts, unsure): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(is_likely);
    let odd = odd(ranks, verdicts, sure);
    let unsure = unsure.into_iter().map(|(_, finding)| finding);
    let unsure = unsure.filter(|finding| odd.iter().all(|odd| odd.place != finding.place));
    Judgement {
        nearest: unsure.chain(nearest).min_by(by_confidence),
        odd,
        comparisons,
        not_judged,
        began_later,
    }
}

/// Places of the ranks that began to be followed later than the others.
fn later(ranks: &[Rank]) -> Vec<usize> {
    let followed = ranks.iter().enumerate();
    let followed = followed.filter_map(|(place, rank)| Some((place, rank.followed_ns? as f64)));
    let followed: Vec<(usize, f64)> = followed.collect();
    let mut sorted: Vec<f64> = followed.iter().map(|(_, ns)| *ns).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(usual) = median(&sorted) else {
        return Vec::new();
    };
    let tolerance = LATER_NS.max(usual * LATER_SHARE);
    let is_later = |(_, ns): &(usize, f64)| usual - ns > tolerance;
    let later = followed.into_iter().filter(is_later);
    later.map(|(place, _)| place).collect()
}

/// The ranks, of which those at these places say nothing of memory.
fn without_memory<'a>(ranks: &'a [Rank], places: &[usize]) -> Cow<'a, [Rank]> {
    let mut ranks = Cow::Borrowed(ranks);
    for place in places {
        if let Some(rank) = ranks.to_mut().get_mut(*place) {
            rank.peak_bytes = None;
            rank.reserved_bytes = None;
            rank.floor_bytes = None;
        }
    }
    ranks
}

fn enough(known: usize, needed: usize) -> Result<(), Why> {
    match known < needed {
        true => Err(Why::TooFew { known, needed }),
        false => Ok(()),
    }
}

fn values(ranks: &[Rank], metric: Metric) -> Vec<(usize, f64)> {
    let values = ranks.iter().enumerate();
    values
        .filter_map(|(place, rank)| Some((place, metric.of(rank)?)))
        .collect()
}

/// The values of these places.
fn only(values: &[(usize, f64)], places: &[usize], ranks: usize) -> Vec<(usize, f64)> {
    let mut is_one = vec![false; ranks];
    for place in places {
        if let Some(is) = is_one.get_mut(*place) {
            *is = true;
        }
    }
    let is_one = |place: usize| is_one.get(place) == Some(&true);
    let values = values.iter().copied();
    values.filter(|(place, _)| is_one(*place)).collect()
}

/// Groups of ranks that another metric tells apart clearly. A rank that is odd by one metric may have the level of another
/// group there, while its other numbers say to which group it belongs.
fn chosen_by_another(ranks: &[Rank], metric: Metric) -> Vec<Vec<usize>> {
    if !metric.is_memory() {
        return Vec::new();
    }
    let others = CHOOSE.into_iter().filter(|other| *other != metric);
    let splits = others.filter_map(|other| Split::of(&values(ranks, other), other.alike()));
    splits
        .filter(|split| split.groups.len() > 1 && split.is_clear())
        .flat_map(|split| split.groups)
        .map(|group| group.members)
        .collect()
}

/// A value without company: its place, the distance from the nearest group as a share of that one's level, and the group.
struct Stray<'a> {
    place: usize,
    distance: f64,
    group: &'a Group,
}

/// The strays of a split that are so far away that it is worth telling, with the chance of that.
fn away(ranks: &[Rank], metric: Metric, split: &Split, peers_by: PeersBy) -> Vec<Candidate> {
    let mut found = Vec::new();
    for has_more in [true, false] {
        let mut strays: Vec<Stray<'_>> = split
            .strays
            .iter()
            .filter_map(|stray| stray_of(ranks, metric, split, *stray, has_more))
            .collect();
        strays.sort_by(|a, b| b.distance.total_cmp(&a.distance));
        let spread = spread(split, has_more);
        let outermost = |count: usize| {
            let (outer, rest) = strays.split_at_checked(count)?;
            let mut others: Vec<f64> = rest.iter().map(|stray| stray.distance).collect();
            others.extend(&spread);
            // The strays that are left may be nearer than members of the groups: rank 0 and the last one are allowed some distance.
            others.sort_by(|a, b| b.total_cmp(a));
            let distance = outer.last()?.distance;
            let (alike, heavy) = (metric.alike(), metric.heavy_from());
            let chance = chance(distance, count, &others, alike, heavy);
            // Each number of outermost ones is one more way to find something.
            Some((count, (chance * strays.len() as f64).min(1.0)))
        };
        let best = (1..=strays.len())
            .filter_map(outermost)
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((count, chance)) = best else {
            continue;
        };
        let told = strays.iter().take(count);
        let told = told.filter(|stray| stray.distance >= metric.worth_telling());
        found.extend(told.map(|stray| Candidate {
            place: stray.place,
            metric,
            peers: stray.group.members.clone(),
            chance,
            has_more,
            peers_by,
        }));
    }
    found
}

/// The stray, if it is on this side of the group that is nearest to it.
fn stray_of<'a>(
    ranks: &[Rank],
    metric: Metric,
    split: &'a Split,
    (place, value): (usize, f64),
    has_more: bool,
) -> Option<Stray<'a>> {
    let edge = |group: &Group| (group.low - value).max(value - group.high);
    let nearest = split.groups.iter();
    let group = nearest.min_by(|a, b| edge(a).total_cmp(&edge(b)))?;
    let level = group.median.abs();
    let is_on_this_side = (value > group.median) == has_more;
    if !is_on_this_side || level <= 0.0 {
        return None;
    }
    let number = ranks.get(place)?.rank;
    let is_at_its_end = match has_more {
        true => number == 0,
        false => ranks.iter().all(|rank| rank.rank <= number),
    };
    let allowed = match metric.is_memory() && is_at_its_end {
        true => AT_THE_ENDS,
        false => 0.0,
    };
    Some(Stray {
        place,
        distance: (value - group.median).abs() / level - allowed,
        group,
    })
}

/// How far the members of all groups are from the centres of their groups to one side, as shares, largest first.
fn spread(split: &Split, has_more: bool) -> Vec<f64> {
    let of_all = |takes: &dyn Fn(f64) -> bool| {
        let mut distances = Vec::new();
        for group in split.groups.iter().filter(|group| group.median != 0.0) {
            let all = group.values.iter();
            let shares = all.map(|value| (value - group.median) / group.median.abs());
            distances.extend(shares.filter(|share| takes(*share)).map(f64::abs));
        }
        distances.sort_by(|a, b| b.total_cmp(a));
        distances
    };
    let one_sided = of_all(&|share| if has_more { share > 0.0 } else { share < 0.0 });
    match one_sided.len() < ONE_SIDED_FROM {
        true => of_all(&|_| true),
        false => one_sided,
    }
}

/// What is known of growth.
enum Growing {
    /// No rank grows.
    None,
    /// A few grow, and the others do not: places of the former and of the latter.
    Few(Vec<usize>, Vec<usize>),
    /// So many grow that their paces can be compared.
    Many(Split),
    NotJudged(Why),
}

/// Ranks that grow while all others do not: at most an eighth of them, and at most so many.
const FEW_GROW: usize = 16;

fn growth(ranks: &[Rank]) -> Growing {
    let known: Vec<(usize, Growth)> = ranks
        .iter()
        .enumerate()
        .filter_map(|(place, rank)| Some((place, rank.growth?)))
        .collect();
    if let Err(why) = enough(known.len(), 2) {
        return Growing::NotJudged(why);
    }
    let (growing, quiet): (Vec<_>, Vec<_>) = known.iter().partition(|(_, growth)| growth.grows);
    let places = |of: &[(usize, Growth)]| of.iter().map(|(place, _)| *place).collect();
    if growing.is_empty() {
        return Growing::None;
    }
    if growing.len() <= (quiet.len() / 8).clamp(1, FEW_GROW) && !quiet.is_empty() {
        return Growing::Few(places(&growing), places(&quiet));
    }
    let values = values(ranks, Metric::Growth);
    if let Err(why) = enough(values.len(), JUDGED_FROM) {
        return Growing::NotJudged(why);
    }
    match Split::of(&values, Metric::Growth.alike()) {
        Some(split) => Growing::Many(split),
        None => Growing::NotJudged(Why::NoneAlike),
    }
}

/// The findings about ranks that grow while the others do not. How sure they are the verdicts say.
fn verdicts(ranks: &[Rank], few: &[usize], others: &[usize]) -> Vec<(usize, Finding)> {
    let finding = |place: &usize| {
        let rank = ranks.get(*place)?;
        let growth = rank.growth?;
        let (peers, peer_places) = numbers(ranks, others);
        let finding = Finding {
            rank: rank.rank,
            place: *place,
            metric: Metric::Growth,
            value: growth.pace,
            peers_median: 0.0,
            peers_low: 0.0,
            peers_high: 0.0,
            peers,
            peer_places,
            confidence: growth.confidence,
        };
        Some((*place, finding))
    };
    few.iter().filter_map(finding).collect()
}

/// The numbers of the ranks at these places, smallest first, and the places in the same order.
fn numbers(ranks: &[Rank], places: &[usize]) -> (Vec<u64>, Vec<usize>) {
    let numbers = places
        .iter()
        .filter_map(|place| Some((ranks.get(*place)?.rank, *place)));
    let mut numbers: Vec<(u64, usize)> = numbers.collect();
    numbers.sort_unstable();
    numbers.into_iter().unzip()
}

/// A candidate as a finding.
fn finding(ranks: &[Rank], candidate: &Candidate, comparisons: usize) -> Option<Finding> {
    let rank = ranks.get(candidate.place)?;
    let metric = candidate.metric;
    let peers = candidate.peers.iter().filter_map(|place| ranks.get(*place));
    let mut values: Vec<f64> = peers.filter_map(|rank| metric.of(rank)).collect();
    values.sort_by(f64::total_cmp);
    let (peers, peer_places) = numbers(ranks, &candidate.peers);
    Some(Finding {
        rank: rank.rank,
        place: candidate.place,
        metric,
        value: metric.of(rank)?,
        peers_median: median(&values)?,
        peers_low: *values.first()?,
        peers_high: *values.last()?,
        peers,
        peer_places,
        confidence: Some((1.0 - candidate.chance * comparisons as f64).clamp(0.0, 1.0)),
    })
}

/// The candidates that are sure, one for each rank and metric, and the one that is nearest to it of the rest.
fn sure(
    ranks: &[Rank],
    candidates: Vec<Candidate>,
    comparisons: usize,
) -> (Vec<(usize, Finding)>, Option<Finding>) {
    let mut nearest: Option<Finding> = None;
    let mut kept: BTreeMap<(usize, Metric), (PeersBy, bool, Finding)> = BTreeMap::new();
    for candidate in candidates {
        let Some(finding) = finding(ranks, &candidate, comparisons) else {
            continue;
        };
        if finding.confidence < Some(SURE) {
            if surer(&finding, nearest.as_ref()) {
                nearest = Some(finding);
            }
            continue;
        }
        let key = (candidate.place, candidate.metric);
        let is_better = match kept.get(&key) {
            None => true,
            Some((by, _, before)) => {
                (candidate.peers_by, finding.confidence) > (*by, before.confidence)
            }
        };
        if is_better {
            kept.insert(key, (candidate.peers_by, candidate.has_more, finding));
        }
    }
    // Where the peers of a rank were chosen by a metric in which it is odd, all others seem to be odd: what is known without
    // that says more, and of the rest a rank has rather too much than too little.
    let known_better = |by: &dyn Fn(PeersBy, bool) -> bool| -> Vec<usize> {
        let kept = kept
            .iter()
            .filter(|(_, (peers_by, more, _))| by(*peers_by, *more));
        kept.map(|((place, _), _)| *place).collect()
    };
    let certain = known_better(&|by, _| by != PeersBy::Another);
    let has_more = known_better(&|_, more| more);
    kept.retain(|(place, _), (by, more, _)| {
        *by != PeersBy::Another || !certain.contains(place) && (*more || !has_more.contains(place))
    });
    let accused: Vec<usize> = kept.keys().map(|(place, _)| *place).collect();
    let nearest = nearest.filter(|finding| !accused.contains(&finding.place));
    let sure = kept
        .into_iter()
        .map(|((place, _), (_, _, finding))| (place, finding));
    (sure.collect(), nearest)
}

fn surer(finding: &Finding, than: Option<&Finding>) -> bool {
    than.is_none_or(|than| by_confidence(finding, than) == Ordering::Less)
}

/// The surer one first.
fn by_confidence(a: &Finding, b: &Finding) -> Ordering {
    let of = |finding: &Finding| finding.confidence.unwrap_or_default();
    of(b).total_cmp(&of(a))
}

/// In which order the metrics of a rank are told: growth says most, and step time least about memory.
fn order(metric: Metric) -> u8 {
    match metric {
        Metric::Growth => 0,
        Metric::Peak => 1,
        Metric::Floor => 2,
        Metric::Reserved => 3,
        Metric::StepTime => 4,
    }
}

/// The findings by rank, with the lines that explain them.
fn odd(ranks: &[Rank], verdicts: Vec<(usize, Finding)>, sure: Vec<(usize, Finding)>) -> Vec<Odd> {
    let mut by_rank: BTreeMap<usize, Vec<Finding>> = BTreeMap::new();
    for (place, finding) in verdicts.into_iter().chain(sure) {
        by_rank.entry(place).or_default().push(finding);
    }
    let mut odd: Vec<Odd> = by_rank
        .into_iter()
        .filter_map(|(place, mut findings)| {
            findings.sort_by_key(|finding| order(finding.metric));
            let rank = ranks.get(place)?;
            let about_memory = findings.iter().find(|one| one.metric != Metric::StepTime);
            Some(Odd {
                rank: rank.rank,
                place,
                explained: about_memory.and_then(|finding| explain(ranks, finding)),
                findings,
            })
        })
        .collect();
    odd.sort_by(|a, b| match (a.findings.first(), b.findings.first()) {
        (Some(a), Some(b)) => order(a.metric)
            .cmp(&order(b.metric))
            .then_with(|| by_confidence(a, b))
            .then_with(|| b.difference().abs().total_cmp(&a.difference().abs()))
            .then((a.rank, a.place).cmp(&(b.rank, b.place))),
        _ => Ordering::Equal,
    });
    odd
}
