//! Does a floor keep rising over time?
//!
//! Owns: the judgement of one row of floors whose windows are of time. Refuses: blocks, sizes, the width of a window.
//!
//! A row is read through its *lasting floor*: the count below which it never fell again
//! afterwards. A saw-tooth or an evaluation that comes and goes does not raise it; a leak raises it
//! and nothing lowers it. The first quarter is warm-up and is not read. The row must also have grown by at least twice
//! the largest amount that it gave back since then, so that noise and slow waves do not pass.

use crate::growth::floor::{Row, largest_fall};
use crate::growth::{rate, trend};
use crate::report::Verdict;

/// Number of windows needed for a verdict.
const ENOUGH_WINDOWS: usize = 12;
/// Blocks by which the lasting floor must have risen for growth.
pub(crate) const ENOUGH_BLOCKS: u32 = 3;

/// A verdict and the numbers behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// Rise of the lasting floor since the growth began.
    pub(crate) growth: u32,
    /// Window in which the growth began, not before the end of the warm-up.
    pub(crate) first_window: usize,
    /// Growth in blocks per window.
    pub(crate) slope: f64,
    /// The floor rises, but was not watched for long enough for a verdict.
    pub(crate) young: bool,
    pub(crate) reason: String,
}

/// Judges a row. What was given back since its last ended window counts as given back. `follows` says whether a window
/// begins where the one before it in the row ends. A growth has at least `enough_rises` rises. `amount` writes an amount in
/// words for the reason.
pub(crate) fn judge(
    row: &Row,
    follows: &dyn Fn(usize) -> bool,
    enough_rises: usize,
    amount: fn(u32) -> String,
) -> Judgement {
    let floors = &row.over;
    let from_window = floors.len() / 4;
    let later = floors.get(from_window..).unwrap_or_default();
    let mut lasting = row.lasting();
    lasting.drain(..from_window);
    let (Some(&start), Some(&end)) = (lasting.first(), lasting.last()) else {
        return Judgement {
            verdict: Verdict::Undecided,
            growth: 0,
            first_window: from_window,
            slope: 0.0,
            young: false,
            reason: "watched too short".to_owned(),
        };
    };
    let growth = end - start;
    let rises: Vec<usize> = (1..lasting.len())
        .filter(|&i| lasting[i] > lasting[i - 1])
        .collect();
    let middle = lasting.get(lasting.len() / 2).copied().unwrap_or(end);
    let fall = largest_fall(later, row.now);
    let young = floors.len() < ENOUGH_WINDOWS && growth > 0;
    let (verdict, reason) = if floors.len() < ENOUGH_WINDOWS {
        (Verdict::Undecided, "watched too short".to_owned())
    } else if growth == 0 {
        (Verdict::Steady, "the floor has not risen".to_owned())
    } else if end == middle {
        (
            Verdict::Steady,
            "the floor has not risen in the later half".to_owned(),
        )
    } else if fall >= growth {
        (
            Verdict::Steady,
            format!(
                "it goes up and down: {} were given back, the floor rose by {}",
                amount(fall),
                amount(growth)
            ),
        )
    } else if growth < ENOUGH_BLOCKS || rises.len() < enough_rises {
        (
            Verdict::Undecided,
            format!(
                "the floor rose by {} in {} rises, too few to tell",
                amount(growth),
                rises.len()
            ),
        )
    } else if !is_spread(&rises, lasting.len()) {
        (
            Verdict::Undecided,
            format!("the floor rose by {}, but not throughout", amount(growth)),
        )
    } else if growth < fall.saturating_mul(2) {
        (
            Verdict::Undecided,
            format!(
                "the floor rose by {}, but {} were given back",
                amount(growth),
                amount(fall)
            ),
        )
    } else {
        (
            Verdict::Growing,
            format!(
                "the floor rose by {} in {} rises after the warm-up and keeps rising",
                amount(growth),
                rises.len()
            ),
        )
    };
    // The rate, and since when, are those of the growth: neither of what came before it, nor of the quiet time.
    let (first, _) = trend::stretch(&rises, lasting.len());
    let before = lasting.get(first.max(1) - 1).copied().unwrap_or(start);
    let first_window = from_window + first;
    let slope = match verdict {
        Verdict::Steady => 0.0,
        // Of the interval around the rate nothing is told here.
        _ => rate::of_rises(&trend::rises_of(floors, first_window, follows), 1.0)[1],
    };
    Judgement {
        verdict,
        growth: end - before,
        first_window,
        slope,
        young,
        reason,
    }
}

/// Whether the rises span at least half of the row and lie in at least three of its quarters, one of which is the last.
fn is_spread(rises: &[usize], len: usize) -> bool {
    let (Some(&first), Some(&last)) = (rises.first(), rises.last()) else {
        return false;
    };
    let mut quarters = [false; 4];
    for rise in rises {
        if let Some(quarter) = quarters.get_mut(rise * 4 / len.max(1)) {
            *quarter = true;
        }
    }
    let covered = quarters.iter().filter(|rose| **rose).count();
    (last - first) * 2 >= len && covered >= 3 && quarters[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(floors: impl IntoIterator<Item = u32>) -> Judgement {
        let row = Row {
            over: floors.into_iter().collect(),
            now: u32::MAX,
        };
        judge(&row, &|_| true, 4, trend::blocks)
    }

    fn verdict(floors: impl IntoIterator<Item = u32>) -> Verdict {
        judged(floors).verdict
    }

    #[test]
    fn what_was_given_back_since_is_not_there() {
        let grown = |now| {
            let over = (0..48).collect();
            judge(&Row { over, now }, &|_| true, 4, trend::blocks)
        };
        assert_eq!(grown(60).growth, 35);
        assert_eq!((grown(2).verdict, grown(2).growth), (Verdict::Steady, 0));
    }

    #[test]
    fn rows() {
        assert_eq!(verdict([]), Verdict::Undecided);
        assert_eq!(verdict(0..8), Verdict::Undecided);
        assert_eq!(verdict(0..48), Verdict::Growing);
        assert_eq!(verdict([7; 48]), Verdict::Steady);
        assert_eq!(verdict((0..48).rev()), Verdict::Steady);
        assert_eq!(verdict((0..48).map(|i| i.min(10))), Verdict::Steady);
        assert_eq!(verdict((0..48).map(|i| i.min(22))), Verdict::Steady);
        assert_eq!(verdict((0..48).map(|i| i.min(33))), Verdict::Undecided);
        assert_eq!(verdict((0..48).map(|i| i % 9)), Verdict::Steady);
        assert_eq!(
            verdict((0..48).map(|i| i / 5 + (i * 7) % 3)),
            Verdict::Growing
        );
        // One jump is no leak.
        assert_ne!(
            verdict((0..48).map(|i| 50 * u32::from(i > 30))),
            Verdict::Growing
        );
    }

    #[test]
    fn noise_is_no_growth() {
        let mut state = 7u64;
        let mut growing = 0;
        for _ in 0..2000 {
            let row: Vec<u32> = (0..50)
                .map(|_| {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    ((state >> 40) % 20) as u32
                })
                .collect();
            growing += usize::from(verdict(row) == Verdict::Growing);
        }
        assert_eq!(growing, 0);
    }

    #[test]
    fn growth_is_after_the_warm_up() {
        let judged = judged(0..40);
        assert_eq!((judged.first_window, judged.growth), (11, 29));
    }

    #[test]
    fn the_rate_is_that_of_the_growth() {
        // A quiet time, and something large beside that stays.
        let quiet = judged((0..60u32).map(|i| 3 * i.saturating_sub(25)));
        assert_eq!((quiet.verdict, quiet.slope), (Verdict::Growing, 3.0));
        assert_eq!((quiet.first_window, quiet.growth), (26, 102));
        let jump = judged((0..60u32).map(|i| 3 * i + 100 * u32::from(i > 20)));
        assert_eq!((jump.verdict, jump.slope), (Verdict::Growing, 3.0));
    }
}
