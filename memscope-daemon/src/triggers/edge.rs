//! A rising edge: fires when a level rises above its threshold, and again only after it has clearly fallen below it.

use serde::{Deserialize, Serialize};

/// A level has clearly fallen if it is at most this part of its threshold, in hundredths.
pub const CLEARLY_BELOW: u64 = 95;

/// State of a rising edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edge {
    /// No level was seen yet.
    #[default]
    New,
    /// The level is below: the next level above fires.
    Armed,
    /// It has fired, and the level has not clearly fallen since.
    Fired,
}

/// What a level did compared with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// Nothing that matters.
    Quiet,
    /// It rose above.
    Rose,
    /// It is above, and was never seen below.
    WasAbove,
}

impl Edge {
    /// Takes in a level. Returns [`Crossing::WasAbove`] again and again until [`Edge::fire`] is called.
    pub fn step(&mut self, level: u64, above: u64) -> Crossing {
        let is_above = level > above;
        match self {
            Edge::New if is_above => Crossing::WasAbove,
            Edge::Armed if is_above => {
                *self = Edge::Fired;
                Crossing::Rose
            }
            Edge::New => {
                *self = Edge::Armed;
                Crossing::Quiet
            }
            Edge::Fired if is_clearly_below(level, above) => {
                *self = Edge::Armed;
                Crossing::Quiet
            }
            Edge::Armed | Edge::Fired => Crossing::Quiet,
        }
    }

    /// Takes in a level that may have fallen, while it is too early to say that it rose.
    pub fn fall(&mut self, level: u64, above: u64) {
        if level <= above {
            self.step(level, above);
        }
    }

    /// Sets the edge as if the level had risen now.
    pub fn fire(&mut self) {
        *self = Edge::Fired;
    }
}

fn is_clearly_below(level: u64, above: u64) -> bool {
    u128::from(level) * 100 <= u128::from(above) * u128::from(CLEARLY_BELOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fires_once_for_each_crossing() {
        let mut edge = Edge::default();
        let mut seen = Vec::new();
        for level in [50, 101, 150, 100, 96, 101, 95, 100, 101, 0, 100, 101] {
            seen.push(edge.step(level, 100) == Crossing::Rose);
        }
        let fired: Vec<usize> = (0..seen.len()).filter(|i| seen[*i]).collect();
        assert_eq!(fired, [1, 8, 11], "at 96 it has not clearly fallen");
    }

    #[test]
    fn what_was_above_from_the_beginning_is_told_until_it_is_taken() {
        let mut edge = Edge::default();
        assert_eq!(edge.step(101, 100), Crossing::WasAbove);
        assert_eq!(edge.step(102, 100), Crossing::WasAbove);
        edge.fire();
        assert_eq!(edge.step(103, 100), Crossing::Quiet);
        assert_eq!(edge.step(95, 100), Crossing::Quiet);
        assert_eq!(edge.step(101, 100), Crossing::Rose);
        let mut small = Edge::default();
        assert_eq!(small.step(1, 1), Crossing::Quiet);
        assert_eq!(small.step(2, 1), Crossing::Rose);
        assert_eq!(small.step(1, 1), Crossing::Quiet);
        assert_eq!(
            small.step(2, 1),
            Crossing::Quiet,
            "one byte is not clearly less"
        );
        assert_eq!(small.step(0, 1), Crossing::Quiet);
        assert_eq!(small.step(2, 1), Crossing::Rose);
        let mut huge = Edge::Armed;
        assert_eq!(huge.step(u64::MAX, u64::MAX - 1), Crossing::Rose);
    }

    proptest! {
        /// Between two firings the level was clearly below; and a level above that comes after one below always
        /// fires.
        #[test]
        fn the_same_as_by_looking_back(
            levels in prop::collection::vec(0..200u64, 1..200),
            above in 1..150u64,
        ) {
            let mut edge = Edge::default();
            let mut fired_at: Option<usize> = None;
            for (at, level) in levels.iter().enumerate() {
                let step = edge.step(*level, above);
                if step == Crossing::WasAbove {
                    prop_assert!(levels[..=at].iter().all(|l| *l > above));
                    continue;
                }
                let since = fired_at.map_or(0, |fired| fired + 1);
                let was_low = levels[since..at].iter().any(|l| match fired_at {
                    None => *l <= above,
                    Some(_) => *l as f64 <= above as f64 * 0.95,
                });
                prop_assert_eq!(step == Crossing::Rose, *level > above && was_low, "at {}", at);
                if step == Crossing::Rose {
                    fired_at = Some(at);
                }
            }
        }
    }
}
