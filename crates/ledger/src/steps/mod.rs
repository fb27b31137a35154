//! The steps of a process: where one ends and the next begins, and how we know.
//!
//! Owns: the choice of the source of ticks, the count of steps, and the levels of the last few thousand steps. The
//! sources of ticks are, from the best to the weakest: a name that the user picked at the attach; marks (`step` of
//! memscope's library, and ranges called `step start`, as msMemScope has them); the steps of optimizers; backward passes;
//! the profiler's steps; a pattern of allocations that repeats itself. The best source that was ever seen is
//! used; when a better one comes, the count begins again. A step that an optimizer tells of ends where the optimizer's ends, so that what
//! the optimizer allocates is part of it. Refuses: to guess: without a source there are no steps.

pub(crate) mod cycle;
pub(crate) mod lines;
mod passes;
pub(crate) mod survivors;
mod updates;

use crate::event::{Mark, MarkKind, MarkSource};
use crate::fast_hash::FastMap;
use crate::report::StepSource;
use crate::state::device::Devices;
use crate::state::stacks::{self, NOT_TAKEN, StackIndex, Stacks};
use crate::state::step_levels::StepLevels;
use crate::steps::cycle::{Pattern, token};
use crate::steps::lines::{Led, Seen, StepLines};
use crate::steps::passes::Passes;
use crate::steps::survivors::Survivors;
use crate::steps::updates::{AfterPass, LastPasses};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of steps whose levels are kept.
const ROWS: usize = 4096;
/// Maximum number of different keys; all further ones share one key.
const KEYS: usize = 64;
/// Most threads whose optimizers may be in their steps at the same time. Of further ones, the step that began first is forgotten.
const UPDATES: usize = 64;
/// Name of the ranges that are msMemScope's steps.
const STEP_RANGE: &str = "step start";

/// A name and a stack from which ticks came. Several keys can be the same line of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) name: Arc<str>,
    pub(crate) stack: StackIndex,
    pub(crate) tid: u32,
    pub(crate) count: u64,
    /// Key that stands for the line of the program, as far as the names in stacks are known.
    line: usize,
    /// `line` is final: the names of the stack's Python frames are known, or there is no stack with such frames.
    settled: bool,
    /// Of the key that stands for a line: the steps of the line's optimizers since the last backward pass.
    #[serde(default)]
    after: AfterPass,
}

/// The levels of one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The step's number, from 1.
    pub(crate) step: u64,
    /// Key whose tick ended the step.
    pub(crate) key: usize,
    /// Loop of the program that the step is in.
    pub(crate) lap: u32,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// Levels by device: of its pool, and of its driver allocations.
    pub(crate) devices: Vec<(Option<i32>, Option<StepLevels>, Option<StepLevels>)>,
}

/// A step of an optimizer that has begun and not ended. What ends is the outermost of its thread: some optimizers call others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Update {
    tid: u32,
    called: Arc<str>,
    stack: StackIndex,
    /// Name of its tick, which is what was picked at the attach if that fits the optimizer's.
    name: Arc<str>,
    /// Number of `record_function`s that have begun inside of it and have not ended.
    inside: u64,
    /// Number of the backward pass before it.
    #[serde(default)]
    pass: Option<u64>,
}

impl Row {
    /// Adds what came after it. The number and the line are those of the later row.
    pub(crate) fn join(mut self, later: Row) -> Row {
        for (ordinal, pool, driver) in later.devices {
            let known = self.devices.iter_mut();
            let Some((_, old_pool, old_driver)) = known.into_iter().find(|(o, _, _)| *o == ordinal)
            else {
                self.devices.push((ordinal, pool, driver));
                continue;
            };
            for (old, new) in [(old_pool, pool), (old_driver, driver)] {
                match (old.as_mut(), new) {
                    (Some(old), Some(new)) => old.join(&new),
                    (None, Some(new)) => *old = Some(new),
                    _ => {}
                }
            }
        }
        Row {
            devices: self.devices,
            from_ns: self.from_ns,
            ..later
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Steps {
    pub(crate) source: StepSource,
    pub(crate) keys: Vec<Key>,
    /// Number of ticks so far. Where steps are ranges, the number of ranges that have begun.
    pub(crate) ticks: u64,
    /// Number of ticks when this source was found: cycles of a pattern that came before it was recognised.
    #[serde(default)]
    pub(crate) began: u64,
    /// Steps are ranges: each has its own beginning and end.
    pub(crate) ranges: bool,
    /// The open range: its number (0 where it has none) and its thread.
    open: Option<(u64, u32)>,
    /// Who made the open range; `None` if a checkpoint does not say so.
    #[serde(default)]
    open_source: Option<MarkSource>,
    /// Number of ranges without a number of their own that have begun inside the open range, and have not ended.
    #[serde(default)]
    inside: u64,
    /// Steps of optimizers that are under way, at most one of each thread.
    #[serde(default)]
    updates: Vec<Update>,
    /// What is known of the ends of optimizers' steps.
    #[serde(default)]
    update_ends: Ends,
    /// The last step of an optimizer has ended one where it began.
    #[serde(default)]
    at_begin: bool,
    pub(crate) rows: VecDeque<Row>,
    /// When the last of the steps ended that had rows which are no longer kept, boot-time nanoseconds.
    #[serde(default)]
    pub(crate) forgotten_to_ns: Option<u64>,
    /// What the first step has had so far by the ticks of a source that was used before.
    #[serde(default)]
    so_far: Option<Row>,
    /// When the current step began.
    from_ns: u64,
    pub(crate) last_ns: u64,
    /// Number of allocations that had been seen when the first of these steps ended, and when the last one did.
    #[serde(default)]
    pub(crate) allocs: Option<[u64; 2]>,
    pub(crate) survivors: Survivors,
    pub(crate) launches: Option<u64>,
    pub(crate) pattern: Pattern,
    /// Key of the last tick.
    last_key: usize,
    /// Finds out which lines' ticks are steps.
    pub(crate) told: StepLines,
    #[serde(default)]
    backward: Passes,
    /// The last backward passes, also where optimizers are the source of ticks.
    #[serde(default)]
    passed: LastPasses,
    /// Records were lost since these steps began to be counted, and ticks may be among them.
    #[serde(default)]
    lost: bool,
    /// How often the source of ticks has changed.
    pub(crate) generation: u32,
    /// The levels since the end of the last row are of several steps: of all until a pattern was recognised in them. They make no row.
    #[serde(default)]
    is_mixed: bool,
    /// What [`Steps::coming`] was before the last tick. It is used within the event of that tick only.
    #[serde(skip)]
    came_as: u64,
}

/// Whether the ends of optimizers' steps are seen. That they are probed does not say it: another compiler may have built PyTorch such
/// that it ends a `record_function` without the function that has the probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Ends {
    /// No step of an optimizer has shown it yet.
    #[default]
    Unknown,
    /// They are seen.
    Seen,
    /// They are not: a step ends where its optimizer's begins.
    Unseen,
}

/// What a mark means for steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The mark means nothing for steps.
    None,
    /// A step ends here, and the next one begins.
    Both,
    /// A step begins.
    Begin,
    /// A step ends.
    End,
    /// The step that has ended goes on until here.
    More,
}

impl Steps {
    /// No steps yet, watched from `from_ns`.
    pub(crate) fn new(from_ns: u64) -> Steps {
        Steps {
            from_ns,
            ..Steps::default()
        }
    }

    /// Number of the current step, as msMemScope counts: 0 before the first step.
    pub(crate) fn current(&self) -> u64 {
        if self.ranges || self.source == StepSource::Unknown {
            self.ticks
        } else {
            self.ticks + 1
        }
    }

    /// Number by which [`Survivors`] knows the current step; 0 before the first one. Where lines of the program make several ticks in a
    /// step, as two optimizers do, it is the step's. Of backward passes it is the pass's: how many of them make a step is known later.
    pub(crate) fn coming(&self) -> u64 {
        if self.has_lines() && !self.ranges {
            self.told.count() + 1
        } else {
            self.current()
        }
    }

    /// What has come before the step with this number ([`Steps::coming`]) has outlived its step, now that a tick has ended a step. Where
    /// it has ended none, nothing new is below the number.
    pub(crate) fn outlived(&self) -> Option<u64> {
        if self.has_lines() && !self.ranges {
            // The number of steps may lag and then jump, where other lines of the program make the ticks. What came since the last tick
            // has a number of before the jump, and has outlived nothing.
            return Some(self.windows().min(self.came_as));
        }
        if self.source != StepSource::Backward {
            return Some(self.windows());
        }
        let passes = self.passes();
        let ends = self.ticks.is_multiple_of(passes);
        // Where another thread takes over, its passes are counted at once, and what came since the last tick has outlived none of them.
        let outlived = (self.ticks + 1).saturating_sub(passes).min(self.came_as);
        ends.then_some(outlived)
    }

    /// Takes a mark and returns what it means. The caller then calls [`Steps::end`], [`Steps::begin`] or [`Steps::go_on`]. `ends` says that
    /// the ends of `record_function`s are probed.
    pub(crate) fn mark(
        &mut self,
        mark: &Mark,
        wanted: Option<&str>,
        ends: bool,
        stacks: &Stacks,
        stack: StackIndex,
        tid: u32,
    ) -> Turn {
        let name = mark.name.trim_matches('"');
        let range = name == STEP_RANGE
            && matches!(
                mark.source,
                MarkSource::Mstx | MarkSource::Memscope | MarkSource::Nvtx
            );
        if mark.kind == MarkKind::Begin && !range && self.is_of_open(mark, tid) {
            self.inside += 1;
        }
        let is_function = mark.source == MarkSource::RecordFunction;
        let is_update = is_function && is_optimizer_step(name);
        let place = place_of(stacks, stacks::place(stack));
        let is_inside = is_function
            && mark.kind == MarkKind::Begin
            && self.begins_inside(name, stacks, place, tid);
        let source = match (mark.kind, mark.source) {
            (MarkKind::End, _) => {
                if self.ranges && self.closes(mark, tid) {
                    self.open = None;
                    return Turn::End;
                }
                return match is_function {
                    true => self.function_ends(stacks, tid),
                    false => Turn::None,
                };
            }
            _ if wanted.is_some_and(|wanted| memscope_units::fits(wanted, name)) => {
                StepSource::Named
            }
            (MarkKind::Step, _) => StepSource::Mark,
            (MarkKind::Begin, _) if range => StepSource::Mark,
            (MarkKind::Begin, MarkSource::RecordFunction) if name.starts_with("ProfilerStep#") => {
                StepSource::Profiler
            }
            (MarkKind::Begin, MarkSource::RecordFunction) if is_update => StepSource::Optimizer,
            (_, MarkSource::Backward) => {
                self.passed.passed(tid);
                StepSource::Backward
            }
            _ => return Turn::None,
        };
        match source.rank().cmp(&self.source.rank()) {
            Ordering::Less => return Turn::None,
            // An optimizer that is called by another one is part of its step.
            Ordering::Equal if is_update && is_inside => return Turn::None,
            Ordering::Equal => {}
            Ordering::Greater => self.restart(source),
        }
        let mut at_once = 1;
        if source == StepSource::Backward {
            if let Some(first) = self.keys.first() {
                self.backward.follow(first.tid);
            }
            at_once = self.backward.take(tid);
            if at_once == 0 {
                return Turn::None;
            }
        }
        let is_range = range && mark.kind == MarkKind::Begin && source == StepSource::Mark;
        self.ranges = is_range;
        let called = name;
        // The names differ by a number, or by what `*` stands for: all of them count as one.
        let name = match (source, wanted) {
            (StepSource::Profiler, _) => "ProfilerStep#*",
            (StepSource::Named, Some(wanted)) => wanted,
            // Whatever it is called: "epoch 1", "epoch 2".
            (StepSource::Mark, _) if mark.kind == MarkKind::Step => "",
            _ => name,
        };
        if is_update {
            let update = Update {
                tid,
                called: called.into(),
                stack: place,
                name: name.into(),
                inside: 0,
                pass: self.passed.before(tid),
            };
            return self.update_begins(update, ends, stacks);
        }
        self.tell(name, stacks, place, tid, None);
        if at_once > 1 {
            self.ticks += at_once - 1;
            self.is_mixed = true;
        }
        if is_range {
            self.open = Some((mark.range, tid));
            self.open_source = Some(mark.source);
            self.inside = 0;
            return Turn::Begin;
        }
        Turn::Both
    }

    /// A `record_function` begins. Returns whether it does so inside of an optimizer's step. A step of the same name that begins at the
    /// same place of the program cannot be inside of the one before it, of which then nobody has seen the end.
    fn begins_inside(&mut self, name: &str, stacks: &Stacks, stack: StackIndex, tid: u32) -> bool {
        let Some(update) = self.updates.iter_mut().find(|one| one.tid == tid) else {
            return false;
        };
        let same = [update.stack, stack]
            .iter()
            .any(|one| stacks.is_missing(*one))
            || update.stack == stack
            || stacks.is_same_python(update.stack, stack);
        if same && *update.called == *name {
            return false;
        }
        update.inside += 1;
        true
    }

    /// A step of an optimizer begins. Returns what that means for steps: one ends where the optimizer's ends, and it ends here only if
    /// that end is not seen.
    fn update_begins(&mut self, update: Update, ends: bool, stacks: &Stacks) -> Turn {
        let before = self.updates.iter().position(|one| one.tid == update.tid);
        let missed = before.map(|before| self.updates.remove(before));
        let mut ended = Turn::None;
        if let Some(missed) = &missed {
            ended = self.tell_update(missed, stacks);
            if self.update_ends == Ends::Unknown {
                self.update_ends = Ends::Unseen;
            }
        }
        if !ends || self.update_ends == Ends::Unseen {
            self.at_begin = true;
            let ends = self.tell_update(&update, stacks);
            // Two steps end here, and no row has the levels of each.
            self.is_mixed |= ended == Turn::Both && ends == Turn::Both;
            return if ended == Turn::Both { ended } else { ends };
        }
        if self.updates.len() >= UPDATES {
            self.updates.remove(0);
        }
        self.updates.push(update);
        ended
    }

    /// A `record_function` ends. Returns what that means for steps.
    fn function_ends(&mut self, stacks: &Stacks, tid: u32) -> Turn {
        let Some(at) = self.updates.iter().position(|one| one.tid == tid) else {
            return Turn::None;
        };
        if let Some(update) = self.updates.get_mut(at)
            && let Some(inside) = update.inside.checked_sub(1)
        {
            update.inside = inside;
            return Turn::None;
        }
        let update = self.updates.remove(at);
        self.update_ends = Ends::Seen;
        self.at_begin = false;
        self.tell_update(&update, stacks)
    }

    /// Records were lost. Before the first tick, and before the first allocation of a pattern yet to be recognised, there is no count of
    /// which one could be missing.
    pub(crate) fn records_lost(&mut self) {
        self.lost |= self.source != StepSource::Unknown || self.pattern.has_begun();
        self.passed.records_lost();
    }

    /// Whether there are steps, and some may be missing in their count because records were lost.
    pub(crate) fn may_lack_some(&self) -> bool {
        self.lost && self.source != StepSource::Unknown
    }

    /// Records were lost, and the ends of optimizers' steps that are under way may be among them. Ends one of these steps, if there is one.
    pub(crate) fn end_was_lost(&mut self, stacks: &Stacks) -> Option<Turn> {
        let update = self.updates.pop()?;
        Some(self.tell_update(&update, stacks))
    }

    /// Whether steps of optimizers end where they begin, because their ends are not seen.
    pub(crate) fn end_before_updates(&self) -> bool {
        self.at_begin
    }

    /// Whether a mark could be the beginning or the end of a range inside the open one, or the end of the open one itself: who made it
    /// made the open range, on the same thread, and numbers do not tell the two apart.
    fn is_of_open(&self, mark: &Mark, tid: u32) -> bool {
        let same_source = self.open_source.is_none_or(|source| source == mark.source);
        self.open.is_some_and(|(number, by)| {
            same_source && (number == 0 || mark.range == 0) && by == tid
        })
    }

    /// Whether the end of a range is that of the open one. The functions of mstx and NVTX give a range its number when they return, where
    /// no probe is, so ends are counted against beginnings.
    fn closes(&mut self, mark: &Mark, tid: u32) -> bool {
        if self.is_of_open(mark, tid) {
            let inner = self.inside.checked_sub(1);
            self.inside = inner.unwrap_or(0);
            return inner.is_none();
        }
        let same_source = self.open_source.is_none_or(|source| source == mark.source);
        same_source
            && self
                .open
                .is_some_and(|(number, _)| number != 0 && number == mark.range)
    }

    /// Takes a new block. Returns whether, by the pattern of allocations, a step ends before it.
    pub(crate) fn block_comes(&mut self, device: i32, size: u64, stack: StackIndex) -> bool {
        if !matches!(self.source, StepSource::Unknown | StepSource::Pattern) {
            return false;
        }
        let before = self.pattern.anchor();
        let begins = self.pattern.take(token(device, size, stack));
        let anchor = self.pattern.anchor();
        if anchor == before {
            return begins;
        }
        match self.pattern.cycles() {
            // Cycles of the same length, which are told by another allocation from now on: the one in which that changes is no whole one.
            Some((_, period)) if before.is_some_and(|before| before.period == period) => {
                self.is_mixed = true;
            }
            Some((count, _)) => {
                self.restart(StepSource::Pattern);
                // Cycles from before the pattern was recognised count as well. The current cycle has not ended, and one
                // that ends here is counted by `end`.
                self.ticks = count.saturating_sub(1 + u64::from(begins));
                self.began = self.ticks;
            }
            None => self.restart(StepSource::Unknown),
        }
        begins
    }

    /// Takes the tick of an optimizer's step.
    fn tell_update(&mut self, update: &Update, stacks: &Stacks) -> Turn {
        let pass = match self.source {
            StepSource::Optimizer => update.pass,
            _ => None,
        };
        self.tell(&update.name, stacks, update.stack, update.tid, pass)
    }

    /// Takes a tick, which ends a step, unless its line has ended one after the same backward pass.
    fn tell(
        &mut self,
        name: &str,
        stacks: &Stacks,
        stack: StackIndex,
        tid: u32,
        pass: Option<u64>,
    ) -> Turn {
        self.came_as = self.coming();
        let known = self.keys.iter().position(|key| {
            let same = key.stack == stack || stacks.is_same_python(key.stack, stack);
            same && *key.name == *name
        });
        let place = match known {
            Some(place) => place,
            None if self.keys.len() <= KEYS => {
                let is_last = self.keys.len() == KEYS;
                self.keys.push(Key {
                    name: if is_last { "" } else { name }.into(),
                    stack: if is_last { NOT_TAKEN } else { stack },
                    tid,
                    count: 0,
                    line: self.keys.len(),
                    settled: is_last || stacks.is_missing(stack),
                    after: AfterPass::default(),
                });
                self.keys.len() - 1
            }
            None => KEYS,
        };
        let Some(key) = self.keys.get_mut(place) else {
            return Turn::Both;
        };
        key.count += 1;
        // The names in a stack come a little later than its first tick, or never.
        if !key.settled && (key.count <= 16 || key.count.is_power_of_two()) {
            self.settle(place, stacks);
        }
        if pass.is_some_and(|pass| self.goes_on(place, stacks, pass)) {
            return Turn::More;
        }
        self.last_key = place;
        let keys = &self.keys;
        let seen = |line: usize| {
            let key = keys.get(line);
            Seen {
                name: key
                    .and_then(|key| keys.iter().position(|other| other.name == key.name))
                    .unwrap_or(line),
                has_stack: key.is_some_and(|key| !stacks.is_missing(key.stack)),
            }
        };
        let line = keys.get(place).map_or(place, |key| key.line);
        let moved = self.told.tell(line, seen);
        // The row of this tick is not there yet.
        for row in self.rows.iter_mut().rev().take(moved.saturating_sub(1)) {
            row.lap = self.told.lap();
        }
        Turn::Both
    }

    /// Whether the step of an optimizer belongs to the step of the program that the same line has ended. One whose stack is missing, as where
    /// it could not be taken, is taken for one of a line whose stack is known. Where none is, several lines look like one.
    fn goes_on(&mut self, place: usize, stacks: &Stacks, pass: u64) -> bool {
        let Some(key) = self.keys.get(place).filter(|_| place < KEYS) else {
            return false;
        };
        if stacks.is_missing(key.stack) {
            let name = &key.name;
            let mut lines = self.keys.iter().filter(|other| other.name == *name);
            return lines
                .any(|other| !stacks.is_missing(other.stack) && other.after.is_after(pass));
        }
        let line = key.line;
        let line = self.keys.get_mut(line);
        line.is_some_and(|line| line.after.goes_on(pass))
    }

    /// Once the names in a key's stack are known, finds out whether it is the same line as another key.
    fn settle(&mut self, place: usize, stacks: &Stacks) {
        let Some(key) = self.keys.get(place) else {
            return;
        };
        let frames = stacks.python_frames_of(key.stack);
        if frames.is_empty() || frames.iter().any(|frame| frame.line == 0) {
            return;
        }
        let mut others = self.keys.iter().enumerate();
        let same = others.find(|(at, other)| {
            *at != place && other.name == key.name && stacks.python_frames_of(other.stack) == frames
        });
        let line = same.map(|(_, same)| same.line);
        let Some(key) = self.keys.get_mut(place) else {
            return;
        };
        key.settled = true;
        let own = key.after;
        let Some(line) = line.filter(|line| *line != key.line) else {
            return;
        };
        let before = key.line;
        for key in self.keys.iter_mut().filter(|key| key.line == before) {
            key.line = line;
        }
        self.told.join(before, line);
        if let Some(one) = self.keys.get_mut(line) {
            one.after.join(own);
        }
    }

    /// Begins to count anew, by a source that tells more. The levels of the devices go on, so the first step goes back to where they began:
    /// to the last tick, or before all ticks that turn out to be part of that step, as backward passes before the first optimizer's step.
    fn restart(&mut self, source: StepSource) {
        let passes = self.source == StepSource::Backward && source == StepSource::Optimizer;
        let is_first = !self.ranges && (passes || self.windows() <= 1);
        let rows = self.so_far.take().into_iter().chain(self.rows.drain(..));
        let so_far = rows.reduce(Row::join).filter(|_| is_first);
        *self = Steps {
            source,
            so_far,
            forgotten_to_ns: self.forgotten_to_ns,
            from_ns: self.from_ns,
            is_mixed: source == StepSource::Pattern,
            launches: self.launches,
            update_ends: self.update_ends,
            passed: std::mem::take(&mut self.passed),
            generation: self.generation + 1,
            pattern: match source {
                StepSource::Unknown | StepSource::Pattern => std::mem::take(&mut self.pattern),
                _ => Pattern::default(),
            },
            // The pattern goes on counting, other sources begin anew.
            lost: self.lost && matches!(source, StepSource::Unknown | StepSource::Pattern),
            ..Steps::default()
        };
    }

    /// Estimate of the bytes of what is kept of single steps, and of the blocks that outlive them.
    pub(crate) fn bytes(&self) -> u64 {
        // A process uses the same devices all the time, so the last row tells what each of them has.
        let levels = self
            .rows
            .back()
            .map_or(0, |row| size_of_val(&row.devices[..]));
        let rows = self.rows.capacity() * size_of::<Row>() + self.rows.len() * levels;
        rows as u64 + self.survivors.bytes() + self.pattern.bytes()
    }

    /// A step ends: keeps its levels as a row.
    pub(crate) fn end(&mut self, devices: &mut Devices, time_ns: u64) {
        let step = self.current();
        if !self.ranges {
            self.ticks += 1;
        }
        let levels = close(devices);
        if !std::mem::take(&mut self.is_mixed) {
            if self.rows.len() >= ROWS
                && let Some(oldest) = self.rows.pop_front()
            {
                self.forgotten_to_ns = Some(oldest.to_ns);
            }
            let row = Row {
                step,
                key: self.last_key,
                lap: self.told.lap(),
                from_ns: self.from_ns,
                to_ns: time_ns,
                devices: levels,
            };
            self.rows.push_back(match self.so_far.take() {
                Some(so_far) => so_far.join(row),
                None => row,
            });
        }
        self.look_at_passes();
        self.from_ns = time_ns;
        self.last_ns = time_ns;
        let [came, _] = devices.came_and_went();
        let [first, _] = self.allocs.unwrap_or([came; 2]);
        self.allocs = Some([first, came]);
    }

    /// The step that has ended goes on until now: its row has these levels as well.
    pub(crate) fn go_on(&mut self, devices: &mut Devices, time_ns: u64) {
        let levels = close(devices);
        let step = self.ticks;
        if let Some(row) = self.rows.pop_back_if(|row| row.step == step) {
            let more = Row {
                step,
                key: row.key,
                lap: row.lap,
                from_ns: self.from_ns,
                to_ns: time_ns,
                devices: levels,
            };
            self.rows.push_back(row.join(more));
        }
        self.from_ns = time_ns;
        self.last_ns = time_ns;
        let [came, _] = devices.came_and_went();
        if let Some([_, last]) = &mut self.allocs {
            *last = came;
        }
    }

    /// A range begins. (Other steps begin where the step before them ends.)
    pub(crate) fn begin(&mut self, devices: &mut Devices, time_ns: u64) {
        self.ticks += 1;
        self.from_ns = time_ns;
        self.so_far = None;
        // What happened between two ranges belongs to no step.
        close(devices);
    }

    /// For each key, the number of the first key with the same name and line. One line can have several stacks, because
    /// the interpreter specialises its code.
    pub(crate) fn lines(&self, stacks: &Stacks) -> Vec<usize> {
        let frames: Vec<_> = self
            .keys
            .iter()
            .map(|key| stacks.python_frames_of(key.stack))
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

    /// For each row, whether it ends a step: the ticks of the line that leads its loop do.
    pub(crate) fn ends(&self) -> Vec<bool> {
        if self.ranges || !self.has_lines() {
            let passes = self.passes();
            return self.rows.iter().map(|row| row.step % passes == 0).collect();
        }
        let leds: FastMap<u32, Led> = self.told.loops().map(|led| (led.lap, led)).collect();
        let mut moments: FastMap<u32, u64> = FastMap::default();
        self.rows
            .iter()
            .map(|row| {
                let line = self.keys.get(row.key).map(|key| key.line);
                let Some(led) = leds.get(&row.lap).filter(|led| Some(led.line) == line) else {
                    return false;
                };
                let moment = moments.entry(row.lap).or_default();
                *moment += 1;
                (*moment).is_multiple_of(led.each)
            })
            .collect()
    }

    /// Whether the ticks come from lines of the program.
    pub(crate) fn has_lines(&self) -> bool {
        matches!(
            self.source,
            StepSource::Optimizer | StepSource::Profiler | StepSource::Mark | StepSource::Named
        )
    }

    /// The count by which windows of steps advance: steps where the ticks come from lines of the program, else ticks.
    pub(crate) fn windows(&self) -> u64 {
        if self.ranges || !self.has_lines() {
            self.ticks
        } else {
            self.told.count()
        }
    }

    /// Number of steps, and how many windows (see [`Steps::windows`]) one step has. `None` without a source of ticks.
    pub(crate) fn count(&self) -> Option<(u64, f64)> {
        match self.source {
            StepSource::Unknown => None,
            // Only the beginning of a cycle is seen, so cycles that have begun are counted.
            StepSource::Pattern => Some((self.ticks + 1, 1.0)),
            StepSource::Backward => {
                let passes = self.passes();
                Some((self.ticks / passes, passes as f64))
            }
            _ if self.ranges => Some((self.ticks - u64::from(self.open.is_some()), 1.0)),
            _ => Some((self.told.count(), 1.0)),
        }
    }

    /// What a state that an older memscope wrote does not have is found in its rows.
    pub(crate) fn restored(&mut self) {
        if !self.backward.has_found() {
            self.look_at_passes();
        }
        let now = self.coming();
        self.survivors.not_after(now);
    }

    /// Looks for the number of backward passes in a step, where steps are counted by them.
    fn look_at_passes(&mut self) {
        if self.source != StepSource::Backward {
            return;
        }
        let recent = self.rows.len().saturating_sub(passes::LOOKED_AT);
        let recent = self.rows.iter().skip(recent).map(|row| {
            let devices = row.devices.iter();
            let allocated = devices.map(|(_, pool, driver)| {
                let levels = pool.or(*driver).unwrap_or_default();
                (levels.allocs, levels.allocated_bytes)
            });
            allocated.collect()
        });
        let recent: Vec<Vec<(u64, u64)>> = recent.collect();
        self.backward.look(&recent);
    }

    /// Backward passes per step; 1 where steps are not counted by them.
    pub(crate) fn passes(&self) -> u64 {
        self.backward.in_step()
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

/// The stack as a place of the program. Lines of the program are lines of Python code. The compiled code of the same call differs from
/// one call to the next.
fn place_of(stacks: &Stacks, stack: StackIndex) -> StackIndex {
    let has_place = stacks.is_missing(stack) || stacks.has_python(stack);
    if has_place { stack } else { NOT_TAKEN }
}

/// Whether a mark is a step of an optimizer; its name is then like `Optimizer.step#AdamW.step`.
fn is_optimizer_step(name: &str) -> bool {
    name.starts_with("Optimizer.step#")
}
