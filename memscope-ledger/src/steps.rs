//! The steps of a process: where one ends and the next begins, and how we know.
//!
//! Owns: the choice of what steps are told by, their count, and the levels of the last few thousand. What tells of steps is,
//! from the best to the weakest: a name that the user picked at the attach; marks (`step` of memscope's library, ranges
//! called `step start`, as msMemScope's); the profiler's steps; the steps of optimizers; backward passes; a pattern of
//! allocations that repeats itself. The best that was ever seen is believed; when a better one comes, the count begins again. Refuses: to
//! guess: where there is nothing, nothing is said.

use crate::cycle::{Pattern, Token, period};
use crate::device::Devices;
use crate::event::{Mark, MarkKind, MarkSource};
use crate::report::StepSource;
use crate::stacks::{StackIndex, Stacks};
use crate::step_levels::StepLevels;
use crate::survivors::Survivors;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Steps whose levels are kept.
const ROWS: usize = 4096;
/// Different lines that may tell of steps.
const KEYS: usize = 64;
/// The name of msMemScope's ranges.
const STEP_RANGE: &str = "step start";

/// One line that tells of steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) name: Arc<str>,
    pub(crate) stack: StackIndex,
    pub(crate) tid: u32,
    pub(crate) count: u64,
    /// The tick at which it told of one first.
    pub(crate) first: u64,
}

/// The levels of one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The step's number, from 1.
    pub(crate) step: u64,
    /// Which line ended it.
    pub(crate) key: usize,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// By device: pool, driver.
    pub(crate) devices: Vec<(Option<i32>, Option<StepLevels>, Option<StepLevels>)>,
}

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Steps {
    pub(crate) source: StepSource,
    pub(crate) keys: Vec<Key>,
    /// Ends of steps so far: of lines, each counts. Of ranges: ranges that began.
    pub(crate) ticks: u64,
    /// They are ranges: a step has an end of its own.
    pub(crate) ranges: bool,
    /// A range is open.
    open: Option<(u64, u32)>,
    pub(crate) rows: VecDeque<Row>,
    /// Where the step that is going on began.
    from_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) survivors: Survivors,
    pub(crate) launches: Option<u64>,
    pub(crate) pattern: Pattern,
    /// The line that told of the last one.
    last_key: usize,
    /// How often what tells of steps has changed.
    pub(crate) generation: u32,
}

/// See [`Steps::leading`].
pub(crate) struct Leading {
    pub(crate) line: usize,
    pub(crate) count: u64,
    /// Line of each key.
    pub(crate) lines: Vec<usize>,
}

/// What a moment means for steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing.
    None,
    /// A step ends here, and the next one begins.
    Both,
    /// A step begins.
    Begin,
    /// A step ends.
    End,
}

impl Steps {
    /// Watched from `from_ns`.
    pub(crate) fn new(from_ns: u64) -> Steps {
        Steps {
            from_ns,
            ..Steps::default()
        }
    }

    /// The step that is going on, by msMemScope's count: 0 before the first.
    pub(crate) fn current(&self) -> u64 {
        if self.ranges || self.source == StepSource::Unknown {
            self.ticks
        } else {
            self.ticks + 1
        }
    }

    /// A moment was named. Says what that means; the caller then calls [`Steps::end`] and [`Steps::begin`].
    pub(crate) fn mark(
        &mut self,
        mark: &Mark,
        wanted: Option<&str>,
        stack: StackIndex,
        tid: u32,
        time_ns: u64,
    ) -> Turn {
        let name = mark.name.trim_matches('"');
        let range = name == STEP_RANGE
            && matches!(
                mark.source,
                MarkSource::Mstx | MarkSource::Memscope | MarkSource::Nvtx
            );
        let source = match (mark.kind, mark.source) {
            (MarkKind::End, _) => {
                let closes = self.ranges
                    && self.open.is_some_and(|(number, by)| {
                        if number == 0 || mark.range == 0 {
                            by == tid
                        } else {
                            number == mark.range
                        }
                    });
                if closes {
                    self.open = None;
                    return Turn::End;
                }
                return Turn::None;
            }
            _ if wanted.is_some_and(|wanted| matches(wanted, name)) => StepSource::Named,
            (MarkKind::Step, _) => StepSource::Mark,
            (MarkKind::Begin, _) if range => StepSource::Mark,
            (MarkKind::Begin, MarkSource::RecordFunction) if name.starts_with("ProfilerStep#") => {
                StepSource::Profiler
            }
            (MarkKind::Begin, MarkSource::RecordFunction) if is_optimizer_step(name) => {
                StepSource::Optimizer
            }
            (_, MarkSource::Backward) => StepSource::Backward,
            _ => return Turn::None,
        };
        if source < self.source {
            return Turn::None;
        }
        if source > self.source {
            self.restart(source, time_ns);
        }
        // Passes inside passes (checkpoints) run on threads of the engine.
        if source == StepSource::Backward && self.keys.first().is_some_and(|key| key.tid != tid) {
            return Turn::None;
        }
        let is_range = range && mark.kind == MarkKind::Begin && source == StepSource::Mark;
        self.ranges = is_range;
        // Their names are numbered: all of them are one.
        let name = match (source, wanted) {
            (StepSource::Profiler, _) => "ProfilerStep#*",
            (StepSource::Named, Some(wanted)) => wanted,
            _ => name,
        };
        self.tell(name, stack, tid);
        if is_range {
            self.open = Some((mark.range, tid));
            return Turn::Begin;
        }
        Turn::Both
    }

    /// A block comes. Says whether a step ends before it, by the pattern.
    pub(crate) fn token(&mut self, token: Token, time_ns: u64) -> bool {
        if self.source > StepSource::Pattern {
            return false;
        }
        let begins = self.pattern.take(token);
        match self.pattern.cycles() {
            Some((count, _)) => {
                if self.source == StepSource::Unknown {
                    self.restart(StepSource::Pattern, time_ns);
                }
                // Those before the pattern was recognised count as well; the one that begins has not ended.
                self.ticks = count.saturating_sub(1 + u64::from(begins));
            }
            None if self.source == StepSource::Pattern => {
                self.restart(StepSource::Unknown, time_ns);
            }
            None => {}
        }
        begins
    }

    fn tell(&mut self, name: &str, stack: StackIndex, tid: u32) {
        let ticks = self.ticks;
        let known = self
            .keys
            .iter()
            .position(|key| key.stack == stack && *key.name == *name);
        match known {
            Some(place) => {
                self.last_key = place;
                if let Some(key) = self.keys.get_mut(place) {
                    key.count += 1;
                }
            }
            None if self.keys.len() < KEYS => {
                self.last_key = self.keys.len();
                self.keys.push(Key {
                    name: name.into(),
                    stack,
                    tid,
                    count: 1,
                    first: ticks,
                });
            }
            None => self.last_key = KEYS,
        }
    }

    fn restart(&mut self, source: StepSource, time_ns: u64) {
        *self = Steps {
            source,
            from_ns: time_ns,
            launches: self.launches,
            generation: self.generation + 1,
            pattern: if source <= StepSource::Pattern {
                std::mem::take(&mut self.pattern)
            } else {
                Pattern::default()
            },
            ..Steps::default()
        };
    }

    /// A step ends: its levels are taken.
    pub(crate) fn end(&mut self, devices: &mut Devices, time_ns: u64) {
        let step = self.current();
        if !self.ranges {
            self.ticks += 1;
        }
        if self.rows.len() >= ROWS {
            self.rows.pop_front();
        }
        self.rows.push_back(Row {
            step,
            key: self.last_key,
            from_ns: self.from_ns,
            to_ns: time_ns,
            devices: close(devices),
        });
        self.from_ns = time_ns;
        self.last_ns = time_ns;
    }

    /// A step begins, where it does not begin by the end of another.
    pub(crate) fn begin(&mut self, devices: &mut Devices, time_ns: u64) {
        self.ticks += 1;
        self.from_ns = time_ns;
        // What happened between two steps is of none.
        close(devices);
    }

    /// Keys of the same name and line, as the number of the first of them. An interpreter that specialises its code gives one
    /// line several stacks.
    pub(crate) fn lines(&self, stacks: &Stacks) -> Vec<usize> {
        let frames: Vec<_> = self
            .keys
            .iter()
            .map(|key| stacks.frames_of(key.stack))
            .collect();
        (0..self.keys.len())
            .map(|place| {
                let same = |other: usize| {
                    let (Some(a), Some(b)) = (self.keys.get(place), self.keys.get(other)) else {
                        return false;
                    };
                    let known = frames.get(place).is_some_and(|frames| {
                        !frames.is_empty() && frames.iter().all(|frame| frame.line > 0)
                    });
                    a.name == b.name
                        && (a.stack == b.stack || known && frames.get(place) == frames.get(other))
                };
                (0..place).find(|other| same(*other)).unwrap_or(place)
            })
            .collect()
    }

    /// The line whose moments are the loop's steps, of several the one that tells most often, and of those that do so
    /// equally often the last one: an iteration may step two optimizers. Gives the first of its keys, the keys' lines, and
    /// how often it told.
    pub(crate) fn leading(&self, stacks: &Stacks) -> Option<Leading> {
        let lines = self.lines(stacks);
        let mut counts = vec![0u64; lines.len()];
        for (key, line) in self.keys.iter().zip(&lines) {
            if let Some(count) = counts.get_mut(*line) {
                *count += key.count;
            }
        }
        let most = counts.iter().copied().max()?;
        let (line, count) = counts
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, count)| *count > 0 && count + 1 >= most)
            .max_by_key(|(line, _)| self.keys.get(*line).map(|key| key.first))?;
        Some(Leading { line, count, lines })
    }

    /// Steps that are over, and how many ticks one has. `None`: there is nothing to tell them by.
    pub(crate) fn count(&self, stacks: &Stacks) -> Option<(u64, f64)> {
        match self.source {
            StepSource::Unknown => None,
            // Of each pass the beginning is seen.
            StepSource::Pattern => Some((self.ticks + 1, 1.0)),
            StepSource::Backward => {
                let passes = self.passes();
                Some((self.ticks / passes, passes as f64))
            }
            _ if self.ranges => Some((self.ticks - u64::from(self.open.is_some()), 1.0)),
            _ => {
                let count = self.leading(stacks)?.count;
                Some((count, self.ticks as f64 / count.max(1) as f64))
            }
        }
    }

    /// Backward passes in a step: where gradients are accumulated, passes differ in what is allocated between them, and
    /// repeat themselves from step to step.
    pub(crate) fn passes(&self) -> u64 {
        let signs: Vec<Vec<(u64, u64)>> = self
            .rows
            .iter()
            .map(|row| {
                row.devices
                    .iter()
                    .map(|(_, pool, driver)| {
                        let levels = pool.or(*driver).unwrap_or_default();
                        (levels.allocs, levels.allocated_bytes)
                    })
                    .collect()
            })
            .collect();
        let recent = signs
            .get(signs.len().saturating_sub(256)..)
            .unwrap_or_default();
        period(recent, 2).map_or(1, |found| found as u64)
    }
}

fn close(devices: &mut Devices) -> Vec<(Option<i32>, Option<StepLevels>, Option<StepLevels>)> {
    let mut closed: Vec<_> = devices
        .iter_mut()
        .map(|row| {
            let (pool, driver) = (row.pool.step.close(), row.driver.step.close());
            (row.ordinal, pool, driver)
        })
        .filter(|(_, pool, driver)| pool.is_some() || driver.is_some())
        .collect();
    closed.sort_by_key(|(ordinal, _, _)| (ordinal.is_none(), *ordinal));
    closed
}

/// `Optimizer.step#AdamW.step`.
fn is_optimizer_step(name: &str) -> bool {
    name.starts_with("Optimizer.step#")
}

/// Whether a name is one of those that a pattern means; `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(first) = parts.next() else {
        return name.is_empty();
    };
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("train", "train", true),
            ("train", "train 1", false),
            ("train*", "train 1", true),
            ("*step", "my step", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern:?} {name:?}");
        }
    }
}
