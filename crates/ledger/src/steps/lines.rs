//! Which line's ticks are the steps, and how many steps there were.
//!
//! Owns: the loops of a program, one after the other (a warm-up, then the main loop). In each loop one line leads, and
//! its ticks are the steps. Of several lines with equally many ticks the last one leads: an iteration may step two
//! optimizers. A loop has ended when its anchor (the line that it began with, or one with more ticks) makes no tick for
//! much longer than ever before while other lines repeat; the ticks since then belong to the next loop. Refuses: names
//! and stacks; `steps` has them.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of last ticks that are remembered in order, so that they can be given to the next loop.
const REMEMBERED: usize = 256;
/// Steps that a loop must have had before the number of ticks per step of a next loop without stacks is derived from
/// it.
const MEASURED: u64 = 4;

/// Ticks of one line in the current loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LineCount {
    line: usize,
    count: u64,
    /// The most ticks that any one other line made between two ticks of this one.
    between: u64,
}

/// A line that led a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Led {
    /// Number of the loop.
    pub(crate) lap: u32,
    pub(crate) line: usize,
    /// Number of steps in the loop.
    pub(crate) steps: u64,
    /// Ticks of the line that make one step.
    pub(crate) each: u64,
}

/// What is known of a line besides its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of the line's name: lines of the same name have the same number.
    pub(crate) name: usize,
    /// The line's ticks have a stack.
    pub(crate) has_stack: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepLines {
    /// Number of the current loop.
    lap: u32,
    told: Vec<LineCount>,
    /// Lines of the last ticks, all of the current loop.
    recent: VecDeque<usize>,
    /// Line whose absence shows that the loop has ended.
    anchor: usize,
    /// Ticks of the leading line that make one step: more than one if lines cannot be told apart because stacks are
    /// missing.
    each: u64,
    /// The last loops that have ended.
    over: VecDeque<Led>,
    /// Number of steps in all loops that have ended.
    before: u64,
    /// Number of steps so far. It never falls, even if ticks turn out to belong to another loop or line.
    done: u64,
}

/// Maximum number of ended loops that are remembered.
const LOOPS: usize = 256;

impl StepLines {
    /// Takes a tick of a line. Returns how many of the last ticks, including this one, belong to a new loop; 0 if no
    /// loop began.
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

    /// Two lines turned out to be one: the ticks of `line` count for `into`.
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

    /// Number of steps so far.
    pub(crate) fn count(&self) -> u64 {
        self.done
    }

    /// Number of the current loop.
    pub(crate) fn lap(&self) -> u32 {
        self.lap
    }

    /// The loops that are remembered, oldest first; the current one is the last.
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

    /// The most ticks that any one other line made since the last tick of this one. `None` if no tick of this line is
    /// remembered.
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

    /// If another line makes more ticks than the anchor, it becomes the anchor.
    fn follow(&mut self) {
        let most = self.told.iter().max_by_key(|told| told.count);
        let own = count_of(&self.told, self.anchor).unwrap_or(0);
        if let Some(most) = most.filter(|most| most.count > own + 1) {
            self.anchor = most.line;
        }
    }

    /// Ends the loop with the last tick of its anchor and of lines with as many ticks, and begins the next loop with
    /// the ticks after it. Returns how many these are.
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

    /// How many ticks of the leading line make one step in the next loop. If stacks are missing there, all lines of one
    /// name look like one line: it then takes as many ticks as the lines of this name made per step in the loop that
    /// ended.
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

/// The line with the most ticks; of lines with as many, or one less, the last one.
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

    /// Makes a tick of each line, named by a letter; returns the count of steps after each tick.
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
        // The count may lag by one while the second line could still be a second optimizer.
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
