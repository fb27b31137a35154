//! Growth, as distinct from the rise and fall of memory within each step.
//!
//! A program's memory rises and falls within every step. Its *floor* is the lowest level within the last quarter of
//! the time over which growth is watched. As long as a step is shorter than that, the floor stands still while
//! nothing grows. Growth is how much higher the floor is than the lowest floor within that time. It counts only when
//! the floor is higher than all of these floors: a return to an earlier level after a pause is no growth.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of pieces into which the watched time is cut.
const PIECES: usize = 16;
/// Number of pieces that make a floor.
const FLOOR: usize = PIECES / 4;

/// One level over time. After each firing the watch begins again, from the floor at that time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Growth {
    above: u64,
    piece_ns: u64,
    /// End of the current piece in nanoseconds; `None` before the first level.
    end_ns: Option<u64>,
    level: u64,
    lowest: u64,
    /// Lowest levels of the last pieces that have ended.
    pieces: VecDeque<u64>,
    /// Floors since the last firing, at the ends of the last pieces.
    floors: VecDeque<u64>,
}

/// A rise of the floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Risen {
    /// The lowest floor within the watched time.
    pub from: u64,
    /// The present floor.
    pub to: u64,
}

impl Growth {
    /// Watches for the floor to rise by more than `above` within `within_ns` nanoseconds.
    pub fn new(above: u64, within_ns: u64) -> Growth {
        Growth {
            above,
            piece_ns: (within_ns / PIECES as u64).max(1),
            end_ns: None,
            level: 0,
            lowest: 0,
            pieces: VecDeque::with_capacity(FLOOR + 1),
            floors: VecDeque::with_capacity(PIECES + 1),
        }
    }

    /// Sets the level from `time_ns` on. Returns a rise of the floor up to then.
    pub fn note(&mut self, time_ns: u64, level: u64) -> Option<Risen> {
        let risen = self.advance(time_ns);
        if self.end_ns.is_none() {
            self.end_ns = Some(time_ns.saturating_add(self.piece_ns));
            self.lowest = level;
        }
        self.level = level;
        self.lowest = self.lowest.min(level);
        risen
    }

    /// Lets time go on. Returns a rise of the floor since the last call.
    pub fn advance(&mut self, time_ns: u64) -> Option<Risen> {
        let mut risen = None;
        let mut left = 2 * PIECES;
        while let Some(end) = self.end_ns.filter(|end| time_ns >= *end) {
            if left == 0 {
                // Everything that is kept has this level by now, so the pieces in between are all alike.
                let skipped = (time_ns - end) / self.piece_ns;
                self.end_ns = Some(end + (skipped + 1) * self.piece_ns);
                break;
            }
            left -= 1;
            risen = match (risen, self.piece_is_over()) {
                (Some(Risen { from, .. }), Some(Risen { to, .. })) => Some(Risen { from, to }),
                (before, now) => now.or(before),
            };
            self.end_ns = Some(end + self.piece_ns);
        }
        risen
    }

    fn piece_is_over(&mut self) -> Option<Risen> {
        self.pieces.push_back(self.lowest);
        self.lowest = self.level;
        if self.pieces.len() > FLOOR {
            self.pieces.pop_front();
        }
        if self.pieces.len() < FLOOR {
            return None;
        }
        let floor = self.pieces.iter().copied().min()?;
        let before = self.floors.iter().copied();
        let risen = match (before.clone().min(), before.max()) {
            (Some(from), Some(highest))
                if floor > highest && floor.saturating_sub(from) > self.above =>
            {
                self.floors.clear();
                Some(Risen { from, to: floor })
            }
            _ => None,
        };
        self.floors.push_back(floor);
        if self.floors.len() > PIECES {
            self.floors.pop_front();
        }
        risen
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Firings for a sequence of (time, level), with times in ms, up to the time `end`.
    fn firings(course: &[(u64, u64)], above: u64, within: u64, end: u64) -> Vec<Risen> {
        let mut growth = Growth::new(above, within * MS);
        let mut all = Vec::new();
        let mut next = course.iter().peekable();
        for time in 0..=end {
            if let Some((_, level)) = next.next_if(|(at, _)| *at == time) {
                all.extend(growth.note(time * MS, *level));
            } else {
                all.extend(growth.advance(time * MS));
            }
        }
        assert!(next.peek().is_none());
        all
    }

    /// A sawtooth of steps of `step` ms between `low` and `high`, higher by `leak` after each step.
    fn breathing(steps: u64, step: u64, low: u64, high: u64, leak: u64) -> Vec<(u64, u64)> {
        (0..steps)
            .flat_map(|n| {
                let base = n * leak;
                [
                    (n * step, low + base),
                    (n * step + step / 10, high + base),
                    (n * step + step * 9 / 10, low + base + leak),
                ]
            })
            .collect()
    }

    #[test]
    fn breathing_is_no_growth_and_a_leak_is() {
        // Steps of 200 ms, watched over 1,600: a floor takes 400.
        let calm = breathing(100, 200, 10, 5_000, 0);
        assert_eq!(firings(&calm, 100, 1600, 20_000), []);
        // 10 more with each step: 80 within the watched time.
        let leaks = breathing(100, 200, 10, 5_000, 10);
        assert_eq!(firings(&leaks, 100, 1600, 20_000), [], "too slow");
        let found = firings(&leaks, 70, 1600, 20_000);
        assert!((9..=13).contains(&found.len()), "{found:?}");
        for one in &found {
            assert!(one.to - one.from > 70 && one.to - one.from <= 90, "{one:?}");
        }
        // Each rise begins where the one before ended.
        assert!(found.windows(2).all(|w| w[1].from >= w[0].to));
    }

    #[test]
    fn coming_back_is_no_growth() {
        // Training at 1,000, an evaluation at 100, training again.
        let course = [(0, 1000), (5_000, 100), (5_800, 1000)];
        assert_eq!(firings(&course, 500, 1600, 20_000), []);
        let more = [(0, 1000), (5_000, 100), (5_800, 1001)];
        assert_eq!(
            firings(&more, 500, 1600, 20_000),
            [Risen {
                from: 100,
                to: 1001
            }]
        );
    }

    #[test]
    fn a_step_up_fires_once_and_also_when_nothing_happens_after_it() {
        let course = [(0, 10), (1000, 10), (2000, 600)];
        let found = firings(&course, 500, 1600, 60_000);
        assert_eq!(found, [Risen { from: 10, to: 600 }]);
        // All at once, after a long silence.
        let mut growth = Growth::new(500, 1600 * MS);
        for (time, level) in course {
            assert_eq!(growth.note(time * MS, level), None);
        }
        assert_eq!(
            growth.advance(3_600_000 * MS),
            Some(Risen { from: 10, to: 600 })
        );
        assert_eq!(growth.note(3_600_001 * MS, 700), None);
        // Several firings in one silence are reported as one.
        let mut stairs = Growth::new(5, 1600 * MS);
        for (time, level) in [(0, 0), (1_050, 10), (1_150, 20), (1_250, 40)] {
            assert_eq!(stairs.note(time * MS, level), None);
        }
        assert_eq!(stairs.advance(9_000 * MS), Some(Risen { from: 0, to: 40 }));
        // A rise that is slower than the watched time.
        let slow: Vec<(u64, u64)> = (0..200).map(|n| (n * 100, n * 20)).collect();
        assert_eq!(firings(&slow, 500, 1600, 20_000), []);
        assert_ne!(firings(&slow, 300, 1600, 20_000), []);
    }

    /// A second implementation to compare with, which looks at all levels again for each piece.
    fn naive(course: &[(u64, u64)], above: u64, within: u64, end: u64) -> Vec<Risen> {
        let piece = within / PIECES as u64;
        let start = course[0].0;
        let lowest = |n: u64| {
            let (from, to) = (start + n * piece, start + (n + 1) * piece);
            // The level with which a piece begins may change at once.
            let at_start = course.iter().rev().find(|(time, _)| *time < from);
            let within = course.iter().filter(|(t, _)| *t >= from && *t < to);
            within
                .map(|(_, level)| *level)
                .chain(at_start.iter().map(|(_, level)| *level))
                .min()
                .unwrap()
        };
        let pieces: Vec<u64> = (0..(end - start) / piece).map(lowest).collect();
        let floors: Vec<u64> = pieces
            .windows(FLOOR)
            .map(|w| *w.iter().min().unwrap())
            .collect();
        let mut found = Vec::new();
        let mut since = 0;
        for (at, floor) in floors.iter().enumerate() {
            let before = &floors[since.max(at.saturating_sub(PIECES))..at];
            let (Some(from), Some(highest)) = (before.iter().min(), before.iter().max()) else {
                continue;
            };
            if floor > highest && floor - from > above {
                found.push(Risen {
                    from: *from,
                    to: *floor,
                });
                since = at;
            }
        }
        found
    }

    proptest! {
        #[test]
        fn the_same_as_with_everything_kept(
            gaps in prop::collection::vec((1..90u64, 0..1000u64), 1..150),
            above in 1..600u64,
            within in 1..20u64,
            tail in 0..3_000u64,
        ) {
            let within = within * PIECES as u64;
            let mut time = 500;
            let course: Vec<(u64, u64)> = gaps
                .iter()
                .map(|(gap, level)| {
                    time += gap;
                    (time, *level)
                })
                .collect();
            let end = time + tail;
            prop_assert_eq!(
                firings(&course, above, within, end),
                naive(&course, above, within, end)
            );
        }
    }
}
