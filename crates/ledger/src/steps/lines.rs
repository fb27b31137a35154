//! Which line's moments are the steps, and how many steps there were.
//!
//! Owns: the loops of a program one after the other (a warm-up, then the main loop): in each of them one line leads, and each of its
//! moments is a step. Of several lines that tell equally often the last one leads: an iteration may step two optimizers. A
//! loop is over when the line that it began with stays away for longer than it ever did, while others repeat themselves;
//! what came since then belongs to the next one. Refuses: names and stacks; `steps` has them.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Moments that are remembered in order, to be given to the next loop.
const REMEMBERED: usize = 256;
/// Steps of a loop by which another one without stacks is measured.
const MEASURED: u64 = 4;

/// What one line told in the loop that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LineCount {
    line: usize,
    count: u64,
    /// The most often that another line came between two moments of this one.
    between: u64,
}

/// A line that led a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Led {
    /// The loop.
    pub(crate) lap: u32,
    pub(crate) line: usize,
    /// Its steps.
    pub(crate) steps: u64,
    /// Moments of the line that make a step.
    pub(crate) each: u64,
}

/// What is known of a line beside its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Lines with one name have one of these.
    pub(crate) name: usize,
    /// Its stack is known.
    pub(crate) has_stack: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepLines {
    /// Number of the loop that runs.
    lap: u32,
    told: Vec<LineCount>,
    /// Lines of the last moments, all of this loop.
    recent: VecDeque<usize>,
    /// By its absence the end of the loop is known.
    anchor: usize,
    /// Moments of the leading line that make a step: more than one where stacks are missing that told lines apart.
    each: u64,
    /// Loops that are over: the last ones, and the steps of all.
    over: VecDeque<Led>,
    before: u64,
    /// It never falls.
    done: u64,
}

/// Loops that are remembered.
const LOOPS: usize = 256;

impl StepLines {
    /// A line told of a step. Says how many of the last moments, this one among them, belong to a loop that is new.
    pub(crate) fn tell(&mut self, line: usize, seen: impl Fn(usize) -> Seen) -> usize {
        if self.told.is_empty() {
            (self.anchor, self.each) = (line, 1);
        }
        let between = self.since(line).unwrap_or(0);
        match self.told.iter_mut().find(|told| told.line == line) {
            Some(told) => {
                told.count += 1;
                told.between = told.between.max(between);
            }
            None => self.told.push(LineCount {
                line,
                count: 1,
                between: 0,
            }),
        }
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        let moved = if self.has_ended() { self.next(seen) } else { 0 };
        if moved == 0 {
            self.follow();
        }
        self.done = self.done.max(self.before + self.steps());
        moved
    }

    /// Two lines turn out to be one.
    pub(crate) fn join(&mut self, line: usize, into: usize) {
        let Some(place) = self.told.iter().position(|told| told.line == line) else {
            return;
        };
        let one = self.told.remove(place);
        match self.told.iter_mut().find(|told| told.line == into) {
            Some(told) => {
                told.count += one.count;
                told.between = told.between.max(one.between);
            }
            None => self.told.insert(place, LineCount { line: into, ..one }),
        }
        for known in self.recent.iter_mut().chain([&mut self.anchor]) {
            if *known == line {
                *known = into;
            }
        }
        for led in &mut self.over {
            if led.line == line {
                led.line = into;
            }
        }
    }

    /// Steps so far.
    pub(crate) fn count(&self) -> u64 {
        self.done
    }

    /// Number of the loop that runs.
    pub(crate) fn lap(&self) -> u32 {
        self.lap
    }

    /// The loops, the one that runs last.
    pub(crate) fn loops(&self) -> impl Iterator<Item = Led> {
        let now = leading(&self.told).map(|line| Led {
            lap: self.lap,
            line,
            steps: self.steps(),
            each: self.each,
        });
        self.over.iter().copied().chain(now)
    }

    fn steps(&self) -> u64 {
        let count = leading(&self.told).and_then(|line| count_of(&self.told, line));
        count.unwrap_or(0) / self.each.max(1)
    }

    /// The most often that another line came since this one came last; `None`: it never did, as far as is remembered.
    fn since(&self, line: usize) -> Option<u64> {
        let at = self.recent.iter().rposition(|known| *known == line)?;
        let mut counts: Vec<u64> = Vec::new();
        for known in self.recent.iter().skip(at + 1) {
            if counts.len() <= *known {
                counts.resize(known + 1, 0);
            }
            if let Some(count) = counts.get_mut(*known) {
                *count += 1;
            }
        }
        Some(counts.into_iter().max().unwrap_or(0))
    }

    fn has_ended(&self) -> bool {
        let anchor = self.told.iter().find(|told| told.line == self.anchor);
        let Some(anchor) = anchor else {
            return false;
        };
        let longest = (2 * anchor.between + 1).max(2);
        self.since(self.anchor).is_none_or(|away| away >= longest)
    }

    /// Another line tells more often: by its absence the end is known from now on.
    fn follow(&mut self) {
        let most = self.told.iter().max_by_key(|told| told.count);
        let own = count_of(&self.told, self.anchor).unwrap_or(0);
        if let Some(most) = most.filter(|most| most.count > own + 1) {
            self.anchor = most.line;
        }
    }

    /// The loop is over with the last moment of its anchor, and of what told as often; the next one has begun after it.
    fn next(&mut self, seen: impl Fn(usize) -> Seen) -> usize {
        let own = count_of(&self.told, self.anchor).unwrap_or(0);
        let after = |line: usize| {
            let last = self.recent.iter().rposition(|known| *known == line);
            last.map_or(0, |at| at + 1)
        };
        let from = after(self.anchor);
        let once = |line: usize| {
            let tail = self.recent.iter().skip(from);
            tail.filter(|known| **known == line).count() == 1
        };
        let from = self
            .told
            .iter()
            .filter(|told| told.count + 1 >= own && told.count > 1 && once(told.line))
            .map(|told| after(told.line))
            .fold(from, usize::max)
            .min(self.recent.len().saturating_sub(1));
        let tail: Vec<usize> = self.recent.iter().skip(from).copied().collect();
        let mut told: Vec<LineCount> = Vec::new();
        for line in &tail {
            if let Some(known) = self.told.iter_mut().find(|told| told.line == *line) {
                known.count = known.count.saturating_sub(1);
            }
            match told.iter_mut().find(|told| told.line == *line) {
                Some(known) => known.count += 1,
                None => told.push(LineCount {
                    line: *line,
                    count: 1,
                    between: 0,
                }),
            }
        }
        self.told.retain(|told| told.count > 0);
        let steps = self.steps();
        if let Some(line) = leading(&self.told) {
            if self.over.len() >= LOOPS {
                self.over.pop_front();
            }
            self.over.push_back(Led {
                lap: self.lap,
                line,
                steps,
                each: self.each,
            });
        }
        self.before += steps;
        self.lap += 1;
        self.anchor = tail.first().copied().unwrap_or(self.anchor);
        self.each = self.moments(seen(self.anchor), steps, &seen);
        self.told = told;
        self.recent = tail.into();
        self.recent.len()
    }

    /// How many moments of a line make a step in the next loop. Where its stack is missing, lines that it told apart are one
    /// now: as many as they were.
    fn moments(&self, next: Seen, steps: u64, seen: impl Fn(usize) -> Seen) -> u64 {
        if next.has_stack || steps < MEASURED {
            return 1;
        }
        let same = self.told.iter().filter(|told| {
            let seen = seen(told.line);
            seen.name == next.name
        });
        let moments: u64 = same.map(|told| told.count).sum();
        ((moments + steps / 2) / steps).max(1)
    }
}

/// The line that tells most often, and of those that do so equally often the last one.
fn leading(told: &[LineCount]) -> Option<usize> {
    let most = told.iter().map(|told| told.count).max()?;
    let mut lines = told.iter().rev();
    lines
        .find(|told| told.count + 1 >= most)
        .map(|told| told.line)
}

fn count_of(told: &[LineCount], line: usize) -> Option<u64> {
    let told = told.iter().find(|told| told.line == line)?;
    Some(told.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: usize) -> Seen {
        Seen {
            name,
            has_stack: true,
        }
    }

    /// Lines by letter; gives the count after each.
    fn counts(lines: &str) -> Vec<u64> {
        let mut steps = StepLines::default();
        lines
            .bytes()
            .map(|line| {
                steps.tell(usize::from(line - b'A'), known);
                steps.count()
            })
            .collect()
    }

    fn count(lines: &str) -> u64 {
        counts(lines).last().copied().unwrap_or(0)
    }

    #[test]
    fn one_loop_after_the_other() {
        assert_eq!(count(&"A".repeat(127)), 127);
        let both = "A".repeat(127) + &"B".repeat(403);
        let counts = counts(&both);
        assert_eq!(counts.last(), Some(&530));
        // It lags by one, where nobody can know that a second line is no second optimizer.
        for (place, count) in counts.iter().enumerate() {
            assert!((place as u64..=place as u64 + 1).contains(count), "{place}");
        }
        let five = ["A", "B", "A", "C", "A"]
            .map(|line| line.repeat(50))
            .concat();
        assert_eq!(count(&five), 250);
        assert_eq!(count("ABB"), 3);
        assert_eq!(count(&("A".to_owned() + &"BC".repeat(30))), 31);
    }

    #[test]
    fn several_optimizers_make_one_step() {
        assert_eq!(count(&"AB".repeat(20)), 20);
        assert_eq!(count(&"ABCD".repeat(20)), 20);
        assert_eq!(count(&"AAAAAB".repeat(20)), 100);
        assert_eq!(count(&"AAAAAB".repeat(20).replace("AB", "ABA")), 120);
        // A scaler skips one now and then.
        let skipped = "AB".repeat(20) + "B" + &"AB".repeat(20) + "A" + &"AB".repeat(20);
        assert!((61..=62).contains(&count(&skipped)), "{}", count(&skipped));
        // A warm-up of one, then two; and of two, then two others.
        assert_eq!(count(&("A".repeat(30) + &"BC".repeat(50))), 80);
        assert_eq!(count(&("AB".repeat(30) + &"CD".repeat(50))), 80);
        assert_eq!(count(&("AB".repeat(30) + &"B".repeat(50))), 80);
        assert_eq!(count(&("AB".repeat(30) + &"A".repeat(50))), 80);
    }

    #[test]
    fn without_stacks_as_many_as_before_make_a_step() {
        let mut steps = StepLines::default();
        let seen = |line: usize| Seen {
            name: 0,
            has_stack: line < 2,
        };
        for _ in 0..50 {
            steps.tell(0, seen);
            steps.tell(1, seen);
        }
        for _ in 0..100 {
            steps.tell(2, seen);
        }
        assert!((99..=100).contains(&steps.count()), "{}", steps.count());
        for _ in 0..50 {
            steps.tell(0, seen);
            steps.tell(1, seen);
        }
        assert!((149..=151).contains(&steps.count()), "{}", steps.count());
    }

    #[test]
    fn lines_that_turn_out_to_be_one() {
        let mut steps = StepLines::default();
        for place in 0..40 {
            steps.tell(usize::from(place % 3 == 0), known);
        }
        steps.join(1, 0);
        assert_eq!(steps.loops().map(|led| led.steps).sum::<u64>(), 40);
        steps.tell(0, known);
        assert_eq!(steps.count(), 41);
    }
}
