//! The floor of a group over time or over steps: the lowest number of its live blocks (or of units of its live bytes)
//! in each window.
//!
//! Owns: the windows, which all groups of a process share, and one group's minima in them. When all windows are in use,
//! neighbours are merged (the lower minimum stays), and each window covers twice the time. In a clock that counts
//! steps, one "nanosecond" is one step. Refuses: to judge floors; see `verdict` and `trend`.

use serde::{Deserialize, Serialize};

/// Maximum number of windows of time.
const WINDOWS: u64 = 64;
/// Maximum number of windows of steps. `trend` needs a growth of 12 windows, which is a tenth of a full row: so a
/// growth is seen although it began only in the last tenth.
const STEP_WINDOWS: u64 = 128;

/// Windows of equal width, and the current one among them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WindowClock {
    start_ns: u64,
    width_ns: u64,
    /// Number of times that windows were merged.
    generation: u8,
    index: u32,
    /// End of the current window.
    end_ns: u64,
    windows: u64,
    /// Generation of the steps (`Steps::generation`) that are counted; 0 in a clock of time.
    epoch: u32,
}

impl WindowClock {
    /// Creates a clock whose first window begins at `start_ns`. Windows are `width_ns` wide at first.
    pub(crate) fn new(start_ns: u64, width_ns: u64) -> WindowClock {
        let width_ns = width_ns.max(1);
        WindowClock {
            start_ns,
            width_ns,
            generation: 0,
            index: 0,
            end_ns: start_ns.saturating_add(width_ns),
            windows: WINDOWS,
            epoch: 0,
        }
    }

    /// Creates a clock that counts steps of one generation. A window is one step wide at first.
    pub(crate) fn of_steps(epoch: u32, began: u64) -> WindowClock {
        WindowClock {
            windows: STEP_WINDOWS,
            epoch,
            ..WindowClock::new(began, 1)
        }
    }

    /// Moves the clock to `time_ns`. It never moves back.
    pub(crate) fn advance(&mut self, time_ns: u64) {
        if time_ns < self.end_ns {
            return;
        }
        let since = time_ns.saturating_sub(self.start_ns);
        while since / self.width_ns >= self.windows && self.generation < u8::MAX {
            self.width_ns = self.width_ns.saturating_mul(2);
            self.generation += 1;
        }
        let index = since / self.width_ns;
        self.index = index as u32;
        self.end_ns = self
            .start_ns
            .saturating_add(self.width_ns.saturating_mul(index + 1));
    }

    /// Whether the clock counts the steps of this generation.
    pub(crate) fn is_of(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Start of the first window.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Number of windows that have ended.
    #[cfg(test)]
    pub(crate) fn complete(&self) -> usize {
        self.index as usize
    }
}

/// The floors of a group in the form in which they are judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Floor of each window that has ended, oldest first.
    pub(crate) over: Vec<u32>,
    /// Lowest count in the window that is still open. With it, memory that was given back after the last ended window
    /// does not count any more.
    pub(crate) now: u32,
}

impl Row {
    /// Adds the row of another group. The result is never above the floors of both groups together, because their
    /// minima need not fall on the same moment.
    pub(crate) fn add(&mut self, other: &Row) {
        for (sum, part) in self.over.iter_mut().zip(&other.over) {
            *sum = sum.saturating_add(*part);
        }
        self.now = self.now.saturating_add(other.now);
    }

    /// Subtracts the row of another group, each of whose blocks counts as `each` in this row.
    pub(crate) fn without(&mut self, other: &Row, each: u32) {
        for (rest, part) in self.over.iter_mut().zip(&other.over) {
            *rest = rest.saturating_sub(part.saturating_mul(each));
        }
        self.now = self.now.saturating_sub(other.now.saturating_mul(each));
    }

    /// Splits the row by the windows in which it falls. The first result falls with it where `counts` is not 0, and
    /// keeps what is left at the end; the second falls with it where `counts` is 0. If this row never rises, the two
    /// add up to it.
    pub(crate) fn split_falls(&self, counts: &Row) -> [Row; 2] {
        let count = |row: &Row, window: usize| row.over.get(window).copied().unwrap_or(row.now);
        let windows = self.over.len();
        let mut rows = [self.now, 0].map(|now| Row {
            over: vec![now; windows],
            now,
        });
        let mut left = [self.now, 0];
        for window in (0..windows).rev() {
            let fall = count(self, window).saturating_sub(count(self, window + 1));
            let [counted, others] = &mut left;
            match count(counts, window + 1) {
                0 => *others = others.saturating_add(fall),
                _ => *counted = counted.saturating_add(fall),
            }
            for (row, left) in rows.iter_mut().zip(left) {
                if let Some(floor) = row.over.get_mut(window) {
                    *floor = left;
                }
            }
        }
        rows
    }

    /// The row with every count multiplied by `by`.
    pub(crate) fn times(&self, by: u32) -> Row {
        let times = |count: &u32| count.saturating_mul(by);
        Row {
            over: self.over.iter().map(times).collect(),
            now: times(&self.now),
        }
    }

    /// How much the lasting floor rose in `window` and the windows after it.
    pub(crate) fn risen_since(&self, window: usize) -> u32 {
        let lasting = self.lasting();
        let before = window.checked_sub(1).and_then(|before| lasting.get(before));
        let end = lasting.last().copied().unwrap_or(0);
        end.saturating_sub(before.copied().unwrap_or(0))
    }

    /// The lasting floor: for each window, the count below which the row never fell again.
    pub(crate) fn lasting(&self) -> Vec<u32> {
        let mut lasting = self.over.clone();
        let mut lowest = self.now;
        for floor in lasting.iter_mut().rev() {
            lowest = lowest.min(*floor);
            *floor = lowest;
        }
        lasting
    }
}

/// The minima of one group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Floor {
    live: u32,
    /// Lowest count in the current window.
    lowest: u32,
    index: u32,
    generation: u8,
    epoch: u32,
    /// Window of `floors[0]`. In earlier windows the floor was 0.
    first: u32,
    /// Minima of the windows that have ended.
    floors: Vec<u32>,
}

impl Floor {
    /// Floor of a group that has had no block until now.
    pub(crate) fn new(clock: &WindowClock) -> Floor {
        Floor {
            live: 0,
            lowest: 0,
            index: clock.index,
            generation: clock.generation,
            epoch: clock.epoch,
            first: clock.index,
            floors: Vec::new(),
        }
    }

    /// Bytes of its row, as the C library's allocator rounds them.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self.floors.capacity() {
            0 => 0,
            places => (places as u64 * 4 + 8).max(32).next_multiple_of(16),
        }
    }

    /// Number of live blocks (or units of live bytes).
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Counts `by` more from now on.
    pub(crate) fn came(&mut self, clock: &WindowClock, by: u32) {
        self.catch_up(clock);
        self.live = self.live.saturating_add(by);
    }

    /// Counts `by` more that have been there since the first window: the floors of all windows rise.
    pub(crate) fn was_there(&mut self, clock: &WindowClock, by: u32) {
        self.catch_up(clock);
        let mut floors = vec![0; self.first as usize];
        floors.append(&mut self.floors);
        for floor in &mut floors {
            *floor = floor.saturating_add(by);
        }
        self.floors = floors;
        self.first = 0;
        self.lowest = self.lowest.saturating_add(by);
        self.live = self.live.saturating_add(by);
    }

    /// Counts `by` less from now on.
    pub(crate) fn went(&mut self, clock: &WindowClock, by: u32) {
        self.catch_up(clock);
        self.live = self.live.saturating_sub(by);
        self.lowest = self.lowest.min(self.live);
    }

    fn catch_up(&mut self, clock: &WindowClock) {
        if self.epoch != clock.epoch {
            // The count has not changed since the clock was restarted, so it is also the minimum.
            *self = Floor {
                live: self.live,
                lowest: self.live,
                index: 0,
                generation: 0,
                epoch: clock.epoch,
                first: 0,
                floors: Vec::new(),
            };
        }
        while self.generation < clock.generation {
            self.merge();
        }
        while self.index < clock.index {
            if self.floors.is_empty() && self.lowest == 0 {
                self.first = self.index + 1;
            } else {
                self.floors.push(self.lowest);
            }
            self.lowest = self.live;
            self.index += 1;
        }
    }

    fn merge(&mut self) {
        if self.index % 2 == 1 {
            // The last ended window becomes part of the current one.
            self.lowest = self.lowest.min(self.floors.pop().unwrap_or(0));
            self.index -= 1;
            self.first = self.first.min(self.index);
        }
        if self.first % 2 == 1 {
            // Its older neighbour had floor 0, so the merged window has floor 0 as well.
            if !self.floors.is_empty() {
                self.floors.remove(0);
            }
            self.first += 1;
        }
        let merged = self
            .floors
            .chunks(2)
            .map(|pair| pair.iter().copied().min().unwrap_or(0))
            .collect();
        self.floors = merged;
        self.first /= 2;
        self.index /= 2;
        self.generation += 1;
    }

    /// The floors of all windows that have ended at the clock's time, and the lowest count in the open one.
    pub(crate) fn row(&self, clock: &WindowClock) -> Row {
        let mut copy = self.clone();
        copy.catch_up(clock);
        let mut over = vec![0; copy.first as usize];
        over.extend(copy.floors);
        Row {
            over,
            now: copy.lowest,
        }
    }
}

/// Largest fall of the row below an earlier high, up to `now`.
pub(crate) fn largest_fall(row: &[u32], now: u32) -> u32 {
    let mut highest = 0;
    let mut fall = 0;
    for &value in row.iter().chain([&now]) {
        highest = highest.max(value);
        fall = fall.max(highest - value);
    }
    fall
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the same floors from the list of all changes.
    fn naive(steps: &[(u64, bool)], start: u64, clock: &WindowClock) -> Vec<u32> {
        let windows = clock.complete();
        let mut floors = vec![u32::MAX; windows + 1];
        let mut live = 0u32;
        let at = |t: u64| (((t - start) / clock.width_ns()) as usize).min(windows);
        let mut window = 0;
        floors[0] = 0;
        for &(time, up) in steps {
            for floor in &mut floors[window + 1..=at(time).max(window)] {
                *floor = live;
            }
            window = at(time).max(window);
            live = if up { live + 1 } else { live.saturating_sub(1) };
            floors[window] = floors[window].min(live);
        }
        for floor in &mut floors[window + 1..] {
            *floor = live;
        }
        floors.truncate(windows);
        floors
    }

    #[test]
    fn what_was_there_is_in_every_window() {
        let mut clock = WindowClock::new(0, 10);
        let mut floor = Floor::new(&clock);
        clock.advance(25);
        floor.came(&clock, 1);
        clock.advance(45);
        floor.was_there(&clock, 1);
        clock.advance(55);
        assert_eq!(floor.row(&clock).over, [1, 1, 1, 2, 2]);
        floor.went(&clock, 1);
        let row = floor.row(&clock);
        assert_eq!((row.now, row.lasting()), (1, vec![1; 5]));
        clock.advance(1000);
        assert!(floor.row(&clock).over.iter().all(|floor| *floor == 1));
    }

    proptest! {
        #[test]
        fn merged_windows_are_the_minima(
            gaps in prop::collection::vec((0u64..400, any::<bool>()), 1..300),
            tail in 0u64..5000,
        ) {
            let start = 1000;
            let mut clock = WindowClock::new(start, 10);
            let mut floor = Floor::new(&clock);
            let mut time = start;
            let mut steps = Vec::new();
            for (gap, up) in gaps {
                time += gap;
                clock.advance(time);
                if up { floor.came(&clock, 1) } else { floor.went(&clock, 1) }
                steps.push((time, up));
            }
            clock.advance(time + tail);
            prop_assert!(clock.complete() < WINDOWS as usize);
            prop_assert_eq!(floor.row(&clock).over, naive(&steps, start, &clock));
        }
    }
}
