//! The shortest way to turn one sequence into another.
//!
//! This is the greedy algorithm of E. W. Myers, "An O(ND) difference algorithm and its variations" (Algorithmica 1,
//! 1986): of equally short ways it takes the one that removes before it adds. The furthest points of each round are
//! kept so that the way can be traced back. They need memory, so there is a bound on how much two sequences may differ.

/// Most furthest points that are kept. They take 1 GiB, enough for 23,000 differences.
const MOST_POINTS: usize = 1 << 28;
/// Number of points between two checks whether there is time left.
const POINTS_PER_LOOK: u32 = 1 << 14;

/// One step of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// An element that both sequences have.
    Both,
    /// An element that only the first sequence has.
    Base,
    /// An element that only the second sequence has.
    Compare,
}

/// Why no way was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// `go_on` said that there is no time left.
    OutOfTime,
    /// There are more differences than can be kept; at this number the search ended.
    TooDifferent(usize),
}

/// Finds a shortest way from `base` to `compare`. `go_on` is called in each round and every few thousand points; the
/// search ends if it returns false.
pub(crate) fn align(
    base: &[u32],
    compare: &[u32],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<Edit>, NoWay> {
    let mut rounds: Vec<Vec<u32>> = Vec::new();
    let mut points = 0;
    let mut countdown = POINTS_PER_LOOK;
    loop {
        let edits = rounds.len();
        points += edits + 1;
        if points > MOST_POINTS {
            return Err(NoWay::TooDifferent(edits));
        }
        if !go_on() {
            return Err(NoWay::OutOfTime);
        }
        let mut round = Vec::with_capacity(edits + 1);
        let before = rounds.last().map_or(&[][..], Vec::as_slice);
        for index in 0..=edits {
            countdown -= 1;
            if countdown == 0 {
                countdown = POINTS_PER_LOOK;
                if !go_on() {
                    return Err(NoWay::OutOfTime);
                }
            }
            let mut x = start(before, index) as usize;
            let mut y = across(x, edits, index);
            while let (Some(a), Some(b)) = (base.get(x), compare.get(y))
                && a == b
            {
                x += 1;
                y += 1;
            }
            if x >= base.len() && y >= compare.len() {
                return Ok(walk_back(&rounds, (base.len(), compare.len()), index));
            }
            round.push(u32::try_from(x).map_err(|_| NoWay::TooDifferent(edits))?);
        }
        rounds.push(round);
    }
}

/// The position in the first sequence at which a diagonal's snake (run of equal elements) begins. `index` counts the
/// diagonals of a round from the lowest. The diagonals of the round before lie between those of this round.
fn start(before: &[u32], index: usize) -> u32 {
    let below = index.checked_sub(1).and_then(|i| before.get(i));
    let above = before.get(index);
    match (below, above) {
        (None, None) => 0,
        (None, Some(&above)) => above,
        (Some(&below), None) => below + 1,
        (Some(&below), Some(&above)) if below < above => above,
        (Some(&below), Some(_)) => below + 1,
    }
}

/// The position in the second sequence for a position in the first. The diagonal is `2 * index - edits`.
fn across(x: usize, edits: usize, index: usize) -> usize {
    (x + edits).saturating_sub(2 * index)
}

fn walk_back(rounds: &[Vec<u32>], end: (usize, usize), index: usize) -> Vec<Edit> {
    let mut way = Vec::with_capacity(end.0.max(end.1));
    let (mut x, mut index) = (end.0, index);
    for before in rounds.iter().rev() {
        let from = start(before, index) as usize;
        way.extend(std::iter::repeat_n(Edit::Both, x.saturating_sub(from)));
        // The way came from the diagonal above by taking an element of the second sequence, or from the one below by
        // taking an element of the first.
        let down = index == 0
            || before
                .get(index)
                .is_some_and(|above| before[index - 1] < *above);
        if down {
            way.push(Edit::Compare);
            x = from;
        } else {
            way.push(Edit::Base);
            x = from.saturating_sub(1);
            index -= 1;
        }
    }
    way.extend(std::iter::repeat_n(Edit::Both, x));
    way.reverse();
    way
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn longest_common(a: &[u32], b: &[u32]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut diagonal = 0;
            for (j, y) in b.iter().enumerate() {
                let above = row[j + 1];
                row[j + 1] = if x == y {
                    diagonal + 1
                } else {
                    above.max(row[j])
                };
                diagonal = above;
            }
        }
        row[b.len()]
    }

    #[test]
    fn the_papers_example() {
        // ABCABBA to CBABAC: five edits.
        let way = align(&[0, 1, 2, 0, 1, 1, 0], &[2, 1, 0, 1, 0, 2], &mut || true).unwrap();
        use Edit::{Base, Both, Compare};
        assert_eq!(
            way,
            [Base, Base, Both, Compare, Both, Both, Base, Both, Compare]
        );
    }

    #[test]
    fn no_time_is_no_way() {
        assert_eq!(align(&[1], &[2], &mut || false), Err(NoWay::OutOfTime));
        assert_eq!(align(&[], &[], &mut || true), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn the_way_leads_there_and_is_shortest(
            a in proptest::collection::vec(0u32..4, 0..40),
            b in proptest::collection::vec(0u32..4, 0..40),
        ) {
            let way = align(&a, &b, &mut || true).unwrap();
            let (mut x, mut y, mut same) = (0, 0, 0);
            for step in way {
                match step {
                    Edit::Both => {
                        prop_assert_eq!(a[x], b[y]);
                        x += 1;
                        y += 1;
                        same += 1;
                    }
                    Edit::Base => x += 1,
                    Edit::Compare => y += 1,
                }
            }
            prop_assert_eq!((x, y), (a.len(), b.len()));
            prop_assert_eq!(same, longest_common(&a, &b));
        }
    }
}
