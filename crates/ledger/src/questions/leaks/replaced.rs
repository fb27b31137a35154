//! Which groups replaced blocks from before the attach.
//!
//! A buffer that was full at the attach frees an old block for each new one. The line of the old blocks is not known,
//! so the row of the line that allocates the new ones rises until the last old block is gone, although the buffer does
//! not grow. A leak of blocks of the same size rises as well, but frees nothing.
//!
//! Owns: which rows that rise replaced the blocks of a row that falls, judged by how well the rises of one follow the
//! falls of the other over time. Refuses: verdicts; a row is judged together with the falls that belong to it.

use crate::growth::floor::Row;

/// Number of parts into which the time of the falls is cut for the comparison. Single windows do not agree: when a
/// block is replaced at the end of a window, the new block raises its floor only in the next window.
const PARTS: usize = 16;
/// A row that rose by at least this share of the fall is taken to have replaced all of it.
const NEARLY_ALL: f64 = 0.75;

/// A row that fell, divided among the rows that rose.
pub(super) struct Shares {
    /// For each row that rose, the part of the falling row that it replaced.
    pub(super) of: Vec<Option<Row>>,
    /// The part of the falling row that none of them replaced.
    pub(super) rest: Row,
}

/// Divides a row that fell among rows that rose. All rows must have the same windows.
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
            // Of several rows that fit equally well, the first one is taken.
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

/// How well a row's rises explain the falls (more is better; nothing is explained at 0 or below), and which share of
/// the falls they explain.
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

/// The floor of a window; for the number after the last window the lowest count since then.
fn count(row: &Row, window: usize) -> u32 {
    row.over.get(window).copied().unwrap_or(row.now)
}

/// Cuts the time from the first fall of a row to its last one into [`PARTS`] parts, and returns the windows at their
/// ends. The time before the first fall is left out, because a buffer that was not full at the attach fills first.
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

/// The change of a row's count in each part.
fn changes(row: &Row, cuts: &[usize]) -> Vec<f64> {
    let change = |from: usize, to: usize| f64::from(count(row, to)) - f64::from(count(row, from));
    cuts.windows(2)
        .filter_map(|pair| Some(change(*pair.first()?, *pair.get(1)?)))
        .collect()
}

/// A row with the given share of each count, rounded.
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

    /// The rise of a row together with the falls that belong to it.
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
        /// What is divided among the rows, and the rest, are in every window the row that fell.
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
