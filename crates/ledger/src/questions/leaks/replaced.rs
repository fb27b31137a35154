//! Who took the place of blocks from before the attach.
//!
//! A buffer that was full at the attach gives back an old block for each that it takes: what it took since then grows, by the blocks whose
//! line is known, until the last old one is gone. Beside it a leak of blocks of the same size grows as well, and nobody gives anything
//! back for it. Owns: which of the rows that rise beside a row that falls took whose place, by how well the one's rises follow the other's
//! falls over time. Refuses: verdicts; a row is judged together with what fell for it.

use crate::growth::floor::Row;

/// Parts of the time in which something fell that are compared. A block that goes at the end of a window raises its successor's floor in
/// the next one, so that single windows do not agree.
const PARTS: usize = 16;
/// Who rose by so much of what fell took the place of all of it.
const NEARLY_ALL: f64 = 0.75;

/// What fell, shared out among rows that rose.
pub(super) struct Shares {
    /// Of each row, what fell for it: a row that falls.
    pub(super) of: Vec<Option<Row>>,
    /// What fell for none of them.
    pub(super) rest: Row,
}

/// Shares a row that fell out among rows that rose. All have the same windows.
pub(super) fn shares(fallen: &Row, rows: &[&Row]) -> Shares {
    let mut found = Shares {
        of: rows.iter().map(|_| None).collect(),
        rest: fallen.clone(),
    };
    let cuts = cuts(fallen);
    let rises: Vec<Vec<f64>> = rows.iter().map(|row| changes(row, &cuts)).collect();
    let mut open: Vec<usize> = (0..rows.len()).collect();
    loop {
        let falls: Vec<f64> = changes(&found.rest, &cuts)
            .iter()
            .map(|change| -change)
            .collect();
        let all: f64 = falls.iter().sum();
        if all < 1.0 {
            break;
        }
        let best = open
            .iter()
            .enumerate()
            .map(|(at, &place)| {
                let (gain, share) = fit(rises.get(place).map_or(&[], Vec::as_slice), &falls, all);
                (gain, share, at)
            })
            .filter(|(gain, ..)| *gain > 0.0)
            // The first of several that fit equally well.
            .fold(None, |best: Option<(f64, f64, usize)>, one| match best {
                Some(best) if best.0 >= one.0 => Some(best),
                _ => Some(one),
            });
        let Some((_, share, at)) = best else {
            break;
        };
        let place = open.swap_remove(at);
        open.sort_unstable();
        let taken = part(&found.rest, share);
        found.rest.without(&taken, 1);
        if let Some(of) = found.of.get_mut(place) {
            *of = Some(taken);
        }
    }
    found
}

/// How much better what fell is understood with a row that rises, and which share of it fell for that row.
fn fit(rises: &[f64], falls: &[f64], all: f64) -> (f64, f64) {
    let risen: f64 = rises.iter().sum();
    if risen < 1.0 {
        return (0.0, 0.0);
    }
    let share = (risen / all).min(1.0);
    let off: f64 = rises
        .iter()
        .zip(falls)
        .map(|(rise, fall)| (rise - share * fall).abs())
        .sum();
    let share = if share >= NEARLY_ALL { 1.0 } else { share };
    (share * all - off, share)
}

/// The count in a window, and since the last one.
fn count(row: &Row, window: usize) -> u32 {
    row.over.get(window).copied().unwrap_or(row.now)
}

/// The ends of the parts into which the time is cut in which a row fell: a buffer that was not full at the attach fills first.
fn cuts(fallen: &Row) -> Vec<usize> {
    let falls = |window: &usize| count(fallen, window + 1) < count(fallen, *window);
    let windows = fallen.over.len();
    let Some(first) = (0..windows).find(falls) else {
        return Vec::new();
    };
    let last = (0..windows).rev().find(falls).unwrap_or(first);
    let end = (last + 2).min(windows);
    let mut cuts: Vec<usize> = (0..=PARTS)
        .map(|part| first + part * (end - first) / PARTS)
        .collect();
    cuts.dedup();
    cuts
}

/// What a row changed by from cut to cut.
fn changes(row: &Row, cuts: &[usize]) -> Vec<f64> {
    let change = |from: usize, to: usize| f64::from(count(row, to)) - f64::from(count(row, from));
    cuts.windows(2)
        .filter_map(|pair| Some(change(*pair.first()?, *pair.get(1)?)))
        .collect()
}

/// A share of what a row fell by, as a row that ends with what it would have without the rest.
fn part(row: &Row, share: f64) -> Row {
    let of = |count: &u32| (f64::from(*count) * share).round() as u32;
    Row {
        over: row.over.iter().map(of).collect(),
        now: of(&row.now),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    const WINDOWS: u32 = 160;

    fn row(count: impl Fn(u32) -> u32) -> Row {
        Row {
            over: (0..WINDOWS).map(&count).collect(),
            now: count(WINDOWS),
        }
    }

    /// What a row rose by, together with what fell for it.
    fn net(row: &Row, share: Option<&Row>) -> u32 {
        let mut sum = row.clone();
        if let Some(share) = share {
            sum.add(share);
        }
        sum.risen_since(1)
    }

    #[test]
    fn a_buffer_and_a_leak_of_blocks_of_one_size() {
        let before = row(|at| 300 - at.min(140));
        let buffer = row(|at| at.min(140));
        let leak = row(|at| at / 13);
        let faster = row(|at| at * 2);
        for rows in [[&buffer, &leak, &faster], [&faster, &leak, &buffer]] {
            let found = shares(&before, &rows);
            for (row, share) in rows.iter().zip(&found.of) {
                let is_buffer = **row == buffer;
                assert_eq!(share.is_some(), is_buffer);
                let risen = if is_buffer { 0 } else { row.risen_since(1) };
                assert_eq!(net(row, share.as_ref()), risen);
            }
        }
    }

    #[test]
    fn a_buffer_that_fills_first() {
        let before = row(|at| 300 - at.saturating_sub(120));
        let (buffer, leak) = (row(|at| at), row(|at| at / 20));
        let found = shares(&before, &[&leak, &buffer]);
        assert!(found.of[0].is_none());
        let mut net = buffer;
        net.add(found.of[1].as_ref().unwrap());
        assert_eq!(net.risen_since(122), 0, "full since then");
    }

    #[test]
    fn two_buffers_that_take_turns() {
        let before = row(|at| 200 - at);
        let (one, other) = (row(|at| at / 2), row(|at| at.div_ceil(2)));
        let leak = row(|at| at * 3);
        let found = shares(&before, &[&leak, &one, &other]);
        assert!(found.of[0].is_none());
        assert!(net(&one, found.of[1].as_ref()) <= 1);
        assert!(net(&other, found.of[2].as_ref()) <= 1);
    }

    #[test]
    fn what_goes_at_once_is_nobodys_place() {
        let before = row(|at| if at < 40 { 100 } else { 20 });
        let leak = row(|at| at);
        assert!(shares(&before, &[&leak]).of[0].is_none());
        let still = row(|_| 100);
        assert!(shares(&still, &[&leak]).of[0].is_none());
    }

    #[test]
    fn no_windows_yet() {
        let row = Row::default();
        assert!(shares(&row, &[&row]).of[0].is_none());
        assert!(shares(&row, &[]).of.is_empty());
    }

    proptest! {
        /// A block takes one block's place, and nobody falls for more than fell.
        #[test]
        fn shares_are_no_more_than_what_fell(
            falls in proptest::collection::vec(0_u32..4, 1..200),
            rises in proptest::collection::vec(proptest::collection::vec(0_u32..4, 200), 0..5),
        ) {
            let mut left: u32 = falls.iter().sum();
            let over: Vec<u32> = falls.iter().map(|fall| { left -= fall; left }).collect();
            let before = Row { now: *over.last().unwrap(), over };
            let rows: Vec<Row> = rises.iter().map(|rises| {
                let mut sum = 0;
                let over: Vec<u32> = rises.iter().take(before.over.len()).map(|rise| { sum += rise; sum }).collect();
                Row { now: sum, over }
            }).collect();
            let rows: Vec<&Row> = rows.iter().collect();
            let found = shares(&before, &rows);
            for at in 0..before.over.len() {
                let taken: u32 = found.of.iter().flatten().map(|share| share.over[at]).sum();
                prop_assert_eq!(taken + found.rest.over[at], before.over[at]);
            }
        }
    }
}
