//! Which lines make a rank odd: what its lines hold more than those of its peers.

use crate::found::{Difference, Explained, Finding};
use crate::groups::median;
use crate::rank::{Line, Metric, Rank};
use std::collections::{BTreeMap, HashSet};

/// Lines that are told at most.
const TOLD: usize = 20;
/// Share of the difference that a line must make up to be told.
const WORTH_TELLING: f64 = 0.02;

/// Peers with which the lines are compared, at least; of many, as many as their square root.
const NEAREST: usize = 3;

/// The lines whose differences have the direction of the finding. `None` where no lines are known.
pub(crate) fn explain(ranks: &[Rank], finding: &Finding) -> Option<Explained> {
    let rank = ranks.get(finding.place)?;
    if rank.lines.is_empty() {
        return None;
    }
    let of = |line: &Line| match finding.metric {
        Metric::Peak => line.peak_bytes,
        _ => line.live_bytes,
    };
    let own = summed(rank, of);
    let mut peers: Vec<(u64, u64, usize, BTreeMap<&str, u64>)> = finding
        .peer_places
        .iter()
        .filter_map(|place| Some((*place, ranks.get(*place)?)))
        .filter(|(_, peer)| !peer.lines.is_empty())
        .map(|(place, peer)| (place, peer.rank, summed(peer, of)))
        .map(|(place, number, lines)| (distance(&own, &lines), number, place, lines))
        .collect();
    // Ranks with the same task have the same lines but for those that make this one odd, so they are the nearest.
    peers.sort_by_key(|(distance, number, place, _)| (*distance, *number, *place));
    peers.truncate(peers.len().isqrt().max(NEAREST));
    let count = peers.len();
    let (_, beside, beside_place, _) = *peers.first()?;
    let mut of_peers: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, bytes) in peers.iter().flat_map(|(_, _, _, lines)| lines) {
        of_peers.entry(name).or_default().push(*bytes as f64);
    }
    let names: HashSet<&str> = own.keys().chain(of_peers.keys()).copied().collect();
    let typical = |name: &str| {
        let mut values = of_peers.get(name).cloned().unwrap_or_default();
        // Peers that do not have the line have nothing of it.
        values.resize(count.max(values.len()), 0.0);
        values.sort_by(f64::total_cmp);
        median(&values).unwrap_or_default()
    };
    let wanted = finding.difference();
    let mut lines: Vec<Difference> = names
        .into_iter()
        .map(|name| Difference {
            name: name.to_owned(),
            bytes: own.get(name).copied().unwrap_or_default(),
            peers_bytes: typical(name) as u64,
        })
        .filter(|line| line.difference() * wanted > 0.0)
        .collect();
    lines.sort_by(|a, b| {
        let size = |line: &Difference| line.difference().abs();
        size(b)
            .total_cmp(&size(a))
            .then_with(|| a.name.cmp(&b.name))
    });
    let whole = match finding.metric {
        Metric::Growth => lines.iter().map(Difference::difference).sum(),
        _ => wanted,
    };
    lines.retain(|line| line.difference() / whole >= WORTH_TELLING);
    lines.truncate(TOLD);
    let bytes: f64 = lines.iter().map(Difference::difference).sum();
    let share = (finding.metric != Metric::Growth).then(|| (bytes / wanted).clamp(0.0, 1.0));
    Some(Explained {
        lines,
        beside,
        beside_place,
        share,
        bytes,
    })
}

/// How many bytes two ranks hold otherwise than each other, over all lines.
fn distance(own: &BTreeMap<&str, u64>, other: &BTreeMap<&str, u64>) -> u64 {
    let of = |lines: &BTreeMap<&str, u64>, name: &str| lines.get(name).copied().unwrap_or_default();
    let names: HashSet<&str> = own.keys().chain(other.keys()).copied().collect();
    let each = names
        .into_iter()
        .map(|name| of(own, name).abs_diff(of(other, name)));
    each.fold(0, u64::saturating_add)
}

fn summed(rank: &Rank, of: impl Fn(&Line) -> u64) -> BTreeMap<&str, u64> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &rank.lines {
        let sum = sums.entry(line.name.as_str()).or_default();
        *sum = sum.saturating_add(of(line));
    }
    sums
}
