//! Does a floor keep rising from step to step, since when, by how much, and how sure is that?
//!
//! Owns: the judgement of one row of floors whose windows are steps. Refuses: blocks, sizes, time.
//!
//! A row is read through its *lasting floor*: the count below which it never fell again afterwards. A rise of it is a
//! block that stayed. From the last rise backwards, earlier rises are taken into the growth as long as the gaps between
//! them are not much longer than the gaps after them. So a warm-up or a long quiet time before the growth changes
//! nothing. The growth is a leak if it goes on, does not slow down, was not given back, and is long enough: a cache
//! that fills looks the same until it is full.

use crate::growth::floor::{Row, largest_fall};
use crate::growth::rate;
use crate::report::Verdict;

/// Windows that a growth must span.
pub(crate) const ENOUGH_WINDOWS: usize = 12;
/// Blocks by which the lasting floor must have risen.
pub(crate) const ENOUGH_BLOCKS: u32 = 3;
/// A growth has ended when no rise came for more than PATIENCE times the mean gap between rises, and for more than
/// PATIENCE windows. The same rule, applied backwards, finds its beginning.
const PATIENCE: usize = 4;

/// Whether a growth has ended that has not risen for `quiet` windows, when `gap` is the mean number of windows between
/// its rises.
pub(crate) fn is_over(quiet: usize, gap: f64) -> bool {
    quiet > PATIENCE && quiet as f64 > gap * PATIENCE as f64
}
/// Number of steps after which we assume that half of all filling caches are full. The confidence of a leak is computed
/// from it.
const HALF_LIFE: f64 = 25.0;

/// A verdict and the numbers behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trend {
    pub(crate) verdict: Verdict,
    /// Blocks by which the lasting floor rose.
    pub(crate) growth: u32,
    /// Window in which the growth began.
    pub(crate) first_window: usize,
    /// Number of windows that the growth spans.
    pub(crate) windows: usize,
    /// Growth in blocks per window: lower end of the 95 % interval, rate, upper end. All are 0 if nothing grows.
    pub(crate) slope: [f64; 3],
    /// Confidence from 0 to 1 that it is a leak; `None` if nothing grows.
    pub(crate) confidence: Option<f64>,
    /// The floor rises, but was not watched for long enough for a verdict.
    pub(crate) young: bool,
    /// The floor rose in each window of the growth.
    pub(crate) in_every_window: bool,
    pub(crate) reason: String,
}

/// What a judgement needs besides the floors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Steps per window; less than 1 where several ticks make one step.
    pub(crate) steps: f64,
    /// Steps that a growth must have lasted before it is called a leak.
    pub(crate) sure_after: u64,
    /// At this rate the device is full before `sure_after` steps, so the verdict does not wait for them.
    pub(crate) urgent: bool,
    /// Writes an amount in words for the reason.
    pub(crate) amount: fn(u32) -> String,
    /// A growth must be at least this many times the largest amount that was given back.
    pub(crate) above_falls: u32,
    /// Minimum number of rises in a growth.
    pub(crate) rises: usize,
}

/// Writes a number of blocks in words; for [`Scale::amount`].
pub(crate) fn blocks(count: u32) -> String {
    format!("{count} {}", if count == 1 { "block" } else { "blocks" })
}

/// Judges a row. What was given back since its last ended window counts as given back. `follows` says whether a window
/// begins where the one before it in the row ends; only rises between such windows count for the rate.
pub(crate) fn judge(row: &Row, follows: &dyn Fn(usize) -> bool, scale: Scale) -> Trend {
    let floors = &row.over;
    let lasting = row.lasting();
    let rises: Vec<usize> = (1..lasting.len())
        .filter(|&i| lasting[i] > lasting[i - 1])
        .collect();
    let steady = |reason: &str| Trend {
        verdict: Verdict::Steady,
        growth: 0,
        first_window: 0,
        windows: 0,
        slope: [0.0; 3],
        confidence: None,
        young: false,
        in_every_window: false,
        reason: reason.to_owned(),
    };
    let (Some(&last), Some(&end)) = (rises.last(), lasting.last()) else {
        return if floors.len() < ENOUGH_WINDOWS {
            Trend {
                verdict: Verdict::Undecided,
                ..steady("watched for too few steps")
            }
        } else {
            steady("the floor has not risen")
        };
    };
    let (first, count) = stretch(&rises, lasting.len());
    let gap = (last - first) as f64 / (count.max(2) - 1) as f64;
    let quiet = lasting.len() - 1 - last;
    let before = first
        .checked_sub(1)
        .and_then(|i| lasting.get(i))
        .copied()
        .unwrap_or(0);
    let growth = end.saturating_sub(before);
    let windows = lasting.len() - first;
    let grown = floors.get(first.saturating_sub(1)..).unwrap_or_default();
    let fall = largest_fall(grown, row.now);
    let steps = windows as f64 * scale.steps;
    let words = |windows: usize| (windows as f64 * scale.steps).round().max(1.0);
    let rose = format!(
        "the floor rose by {} in {count} rises over {} steps",
        (scale.amount)(growth),
        words(windows)
    );
    let short = steps < scale.sure_after as f64;
    let watched = floors.len() as f64 * scale.steps;
    let mut young = false;
    let (verdict, reason) = if is_over(quiet, gap) {
        let reason = format!("the floor has not risen for {} steps", words(quiet));
        if quiet * 2 >= lasting.len() {
            (Verdict::Steady, reason)
        } else {
            (Verdict::Undecided, reason)
        }
    } else if fall >= growth {
        (
            Verdict::Steady,
            format!(
                "it goes up and down: {} were given back, the floor rose by {}",
                (scale.amount)(fall),
                (scale.amount)(growth)
            ),
        )
    } else if fall.saturating_mul(scale.above_falls) > growth {
        (
            Verdict::Undecided,
            format!("{rose}, but {} were given back", (scale.amount)(fall)),
        )
    } else if growth < ENOUGH_BLOCKS || count < scale.rises || windows < ENOUGH_WINDOWS {
        young = watched < scale.sure_after as f64;
        (Verdict::Undecided, format!("{rose}, too few to tell"))
    } else if slows_down(&lasting, first, before) {
        (
            Verdict::Undecided,
            format!("{rose}, and slows down, as a cache does that fills"),
        )
    } else if growth.saturating_mul(4) <= grew_before(floors, first).saturating_mul(5) {
        (
            Verdict::Undecided,
            format!("{rose}; it grew as far before, and that was given back"),
        )
    } else if short && !scale.urgent {
        young = true;
        let more = (scale.sure_after as f64 - steps).ceil();
        (
            Verdict::Undecided,
            format!("{rose}: in {more} more steps it is called a leak, unless it stops before"),
        )
    } else {
        (Verdict::Growing, format!("{rose}, and keeps rising"))
    };
    // The size of a usual rise: at least one block, and more where a step adds several, because one step may add none
    // of them.
    let usual = (f64::from(growth) / steps.max(1.0)).max(1.0);
    let chance = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let kept = 1.0 - f64::from(fall) / f64::from(growth.max(1));
    // A growth that has ended has neither a rate nor a confidence.
    let growing = !matches!(verdict, Verdict::Steady) && !is_over(quiet, gap);
    Trend {
        verdict,
        growth,
        first_window: first,
        windows,
        // Most groups do not grow, and the rate costs a comparison of all pairs of windows.
        slope: if growing {
            rate::of_rises(&rises_of(floors, first, follows), usual)
        } else {
            [0.0; 3]
        },
        confidence: growing
            .then(|| ((1.0 - chance) * kept * steps / (steps + HALF_LIFE)).clamp(0.0, 1.0)),
        young,
        in_every_window: count == windows,
        reason,
    }
}

/// The most by which the row grew before the window `first` and which it gave back until then, as a list does that is kept for an epoch.
/// The largest single rise of a growth is not counted: what a warm-up takes at once, and gives back, says nothing about a
/// growth from step to step.
fn grew_before(floors: &[u32], first: usize) -> u32 {
    let before = floors.get(..first).unwrap_or_default();
    let grown = |top: usize| {
        let (up, down) = before.split_at_checked(top + 1)?;
        let (&highest, &lowest) = (up.last()?, down.iter().min()?);
        let (mut low, mut largest) = (highest, 0);
        for floor in up.iter().rev() {
            largest = largest.max(low.saturating_sub(*floor));
            low = low.min(*floor);
        }
        let climbed = highest - low - largest;
        Some(climbed.min(highest.saturating_sub(lowest)))
    };
    (0..first).filter_map(grown).max().unwrap_or(0)
}

/// Rise of the floor in each window after the first one of a growth. The first one is left out, because it was chosen
/// for its rise.
pub(crate) fn rises_of(floors: &[u32], first: usize, follows: &dyn Fn(usize) -> bool) -> Vec<f64> {
    (first + 1..floors.len())
        .filter(|place| follows(*place))
        .filter_map(|place| {
            let (before, after) = (floors.get(place - 1)?, floors.get(place)?);
            Some(f64::from(*after) - f64::from(*before))
        })
        .collect()
}

/// Finds the rises that belong to the growth, from the last one backwards. Returns the first of them and their number.
pub(crate) fn stretch(rises: &[usize], len: usize) -> (usize, usize) {
    let Some(&last) = rises.last() else {
        return (0, 0);
    };
    let mut first = last;
    let mut count = 1usize;
    for &rise in rises.iter().rev().skip(1) {
        let gap = first - rise;
        let usual = if count > 1 {
            (last - first) as f64 / (count - 1) as f64 * PATIENCE as f64
        } else {
            len as f64 / PATIENCE as f64
        };
        if gap > PATIENCE && gap as f64 > usual {
            break;
        }
        first = rise;
        count += 1;
    }
    (first, count)
}

/// Whether the later half of the growth added less than half of what the first half added.
fn slows_down(lasting: &[u32], first: usize, before: u32) -> bool {
    let middle = first + (lasting.len() - first) / 2;
    let at = |i: usize| lasting.get(i).copied().unwrap_or(before);
    let early = at(middle.saturating_sub(1)).saturating_sub(before);
    let late = at(lasting.len() - 1).saturating_sub(at(middle.saturating_sub(1)));
    late.saturating_mul(2) < early
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(row: &Row, scale: Scale) -> Trend {
        super::judge(row, &|_| true, scale)
    }

    const ONE: Scale = Scale {
        steps: 1.0,
        sure_after: 100,
        urgent: false,
        amount: blocks,
        above_falls: 2,
        rises: 4,
    };

    /// A row of which nothing was given back since its last window.
    fn row(floors: impl IntoIterator<Item = u32>) -> Row {
        Row {
            over: floors.into_iter().collect(),
            now: u32::MAX,
        }
    }

    fn verdict(floors: impl IntoIterator<Item = u32>, steps: f64) -> Verdict {
        judge(&row(floors), Scale { steps, ..ONE }).verdict
    }

    #[test]
    fn what_was_given_back_after_the_last_step_is_not_there() {
        let mut grown = row(0..120);
        assert_eq!(judge(&grown, ONE).growth, 119);
        grown.now = 60;
        let half = judge(&grown, ONE);
        assert_eq!((half.verdict, half.growth), (Verdict::Undecided, 60));
        grown.now = 0;
        let none = judge(&grown, ONE);
        assert_eq!((none.verdict, none.growth), (Verdict::Steady, 0));
    }

    #[test]
    fn amounts_are_said_in_what_they_are() {
        let scale = Scale {
            amount: |units| format!("{} KiB", units / 2),
            ..ONE
        };
        let judged = judge(&row((0..120).map(|i| i * 8)), scale);
        assert!(
            judged.reason.starts_with("the floor rose by 476 KiB in "),
            "{}",
            judged.reason
        );
    }

    #[test]
    fn what_is_too_young_to_tell() {
        let young = |floors: std::ops::Range<u32>| {
            let judged = judge(&row(floors), ONE);
            (judged.young, judged.in_every_window)
        };
        assert_eq!(young(0..3), (true, true));
        assert_eq!(young(0..90), (true, true));
        assert_eq!(young(0..120), (false, true));
        assert!(!judge(&row([7; 40]), ONE).young);
    }

    #[test]
    fn rows() {
        assert_eq!(verdict([], 2.0), Verdict::Undecided);
        assert_eq!(verdict(0..8, 50.0), Verdict::Undecided);
        assert_eq!(verdict(0..99, 1.0), Verdict::Undecided);
        assert_eq!(verdict(0..120, 1.0), Verdict::Growing);
        assert_eq!(verdict(0..48, 4.0), Verdict::Growing);
        assert_eq!(verdict([7; 48], 4.0), Verdict::Steady);
        assert_eq!(verdict((0..48).rev(), 4.0), Verdict::Steady);
        // A cache that was full at some time.
        assert_eq!(verdict((0..100).map(|i| i.min(10)), 2.0), Verdict::Steady);
        assert_eq!(
            verdict((0..100).map(|i| i.min(70)), 2.0),
            Verdict::Undecided
        );
        assert_eq!(
            verdict((0..100).map(|i| i.min(92)), 2.0),
            Verdict::Undecided
        );
        // It goes up and down.
        assert_eq!(verdict((0..100).map(|i| i % 9), 2.0), Verdict::Steady);
        assert_eq!(
            verdict((0..100).map(|i| i / 5 + (i * 7) % 3), 2.0),
            Verdict::Growing
        );
        // One jump is no leak, and three are few.
        assert_ne!(
            verdict((0..100).map(|i| 50 * u32::from(i > 30)), 2.0),
            Verdict::Growing
        );
        assert_ne!(verdict((0..100).map(|i| i / 30), 2.0), Verdict::Growing);
        // It slows down.
        assert_eq!(
            verdict(
                (0..120u32).map(|i| (f64::from(i + 1).ln() * 20.0) as u32),
                1.0
            ),
            Verdict::Undecided
        );
    }

    #[test]
    fn what_was_before_changes_nothing() {
        // Half a million quiet steps, then a leak.
        let floors = row((0..120u32).map(|i| 40 + i.saturating_sub(100)));
        let judged = judge(
            &floors,
            Scale {
                steps: 4000.0,
                ..ONE
            },
        );
        assert_eq!(judged.verdict, Verdict::Growing);
        assert_eq!((judged.first_window, judged.growth), (101, 19));
        // A warm-up, then one each third step.
        let floors = row((0..128u32).map(|i| (i * 10).min(90) + i.saturating_sub(30) / 3));
        let judged = judge(&floors, Scale { steps: 2.0, ..ONE });
        assert_eq!(judged.verdict, Verdict::Growing);
        assert!((20..40).contains(&judged.first_window), "{judged:?}");
    }

    /// The row of a clock that has counted so many steps, of floors at the end of each step.
    fn counted(steps: u32, floor: impl Fn(u32) -> u32) -> (Row, f64) {
        let mut width = 1;
        while steps / width >= 128 {
            width *= 2;
        }
        let window = |number: u32| (number * width..(number + 1) * width).map(&floor).min();
        let row = Row {
            over: (0..steps / width).filter_map(window).collect(),
            now: (steps / width * width..=steps)
                .map(&floor)
                .min()
                .unwrap_or(0),
        };
        (row, f64::from(width))
    }

    #[test]
    fn a_list_that_is_kept_for_an_epoch_is_no_leak_again_and_again() {
        let at = |steps, floor: &dyn Fn(u32) -> u32| {
            let (row, width) = counted(steps, floor);
            judge(
                &row,
                Scale {
                    steps: width,
                    ..ONE
                },
            )
        };
        for epoch in [110, 150, 300, 500] {
            let accused = |steps: &u32| at(*steps, &|i| i % epoch).verdict == Verdict::Growing;
            // Of the first epoch nobody can know better.
            assert_eq!((0..epoch).filter(accused).count() > 0, epoch > 101);
            assert_eq!((epoch..epoch * 12).find(accused), None, "{epoch}");
        }
        let again = at(290, &|i| i % 150);
        assert!(
            again.reason.contains("it grew as far before"),
            "{}",
            again.reason
        );
        assert!(!again.young);
        // A leak that follows is found as soon as it has grown further.
        let leaks = |i: u32| if i < 300 { i % 150 } else { i - 300 };
        assert_eq!(at(470, &leaks).verdict, Verdict::Undecided);
        assert_eq!(at(500, &leaks).verdict, Verdict::Growing);
        // What was taken at once and given back is no such growth.
        let warm = |i: u32| {
            if i < 30 {
                900 * u32::from(i > 2)
            } else {
                i - 30
            }
        };
        assert_eq!(at(160, &warm).verdict, Verdict::Growing);
    }

    #[test]
    fn what_is_urgent_is_said_at_once() {
        let floors = row(0..20);
        assert_eq!(judge(&floors, ONE).verdict, Verdict::Undecided);
        let urgent = Scale {
            urgent: true,
            ..ONE
        };
        assert_eq!(judge(&floors, urgent).verdict, Verdict::Growing);
    }

    #[test]
    fn noise_is_no_growth() {
        let mut state = 7u64;
        let mut growing = 0;
        for _ in 0..2000 {
            let floors = row((0..128).map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                ((state >> 40) % 20) as u32
            }));
            let scale = Scale { steps: 10.0, ..ONE };
            growing += usize::from(judge(&floors, scale).verdict == Verdict::Growing);
        }
        assert_eq!(growing, 0);
    }

    #[test]
    fn confidence_comes_with_time() {
        let at = |n: u32| judge(&row(0..n), ONE).confidence.unwrap_or(0.0);
        assert!(at(20) < at(50) && at(50) < at(120) && at(120) < 1.0);
        assert!(at(120) > 0.8);
    }
}
