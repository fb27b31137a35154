//! Groups of live blocks: blocks of the same device, stream, size and stack; all blocks of one stack; and blocks of one
//! class of sizes.
//!
//! Owns: which groups a block belongs to, and each group's floor. Refuses: the blocks themselves.
//! The configuration bounds the number of groups, and that of stacks. When one is reached, those empty groups or stacks are
//! dropped that were not changed for longest. A class has all sizes between two powers of two, so there are few classes.

use crate::config::table_bytes;
use crate::fast_hash::{FastMap, FastSet};
use crate::growth::floor::{Floor, Row, WindowClock};
use crate::report::Space;
use crate::state::distribution::power_class;
use crate::state::membership::{GroupKey, Membership, NONE, NUMBERS, Named};
use crate::state::stacks::{self, StackIndex};
use serde::{Deserialize, Serialize};

/// About how many entries are asked what they take.
const SAMPLE: usize = 256;

/// What the blocks of a class share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ClassKey {
    pub(crate) device: Option<i32>,
    pub(crate) space: Space,
    /// Sizes in (2^(power-1), 2^power].
    pub(crate) power: u32,
}

/// What the blocks of a stack share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct StackKey {
    pub(crate) device: Option<i32>,
    pub(crate) space: Space,
    pub(crate) stack: StackIndex,
}

impl StackKey {
    pub(crate) fn of(key: &GroupKey) -> StackKey {
        StackKey {
            device: key.device,
            space: key.space,
            stack: key.stack,
        }
    }
}

/// Unit in which the floors of stacks are counted, in bytes.
pub(crate) const UNIT: u64 = 512;

/// All live blocks of one stack, whatever their sizes, counted in units of bytes. A buffer that is reallocated a little
/// larger each time never makes a group of one size grow; only its stack's bytes grow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OfStack {
    pub(crate) key: StackKey,
    pub(crate) floor: Floor,
    /// The floor over steps.
    pub(crate) steps: Floor,
    pub(crate) left: Option<Left>,
}

/// When a block of a group was last freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) time_ns: u64,
    pub(crate) tick: u64,
    /// How many blocks of its kind of memory had come until then, modulo 2^32.
    #[serde(default)]
    came: u32,
    /// How many of the group's blocks (or of its units) were freed since the last of those came, and their bytes.
    #[serde(default)]
    since: (u32, u64),
}

impl Left {
    /// `count` more of the group's blocks (or of its units), with so many bytes, are freed `now`.
    fn more(now: Left, before: Option<Left>, count: u32, bytes: u64) -> Option<Left> {
        let before = before.filter(|before| before.came == now.came);
        let (known, known_bytes) = before.map_or((0, 0), |before| before.since);
        Some(Left {
            since: (
                known.saturating_add(count),
                known_bytes.saturating_add(bytes),
            ),
            ..now
        })
    }
}

/// The last blocks of one kind of memory that came and went.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Run {
    /// How many have come, modulo 2^32.
    came: u32,
    /// When the first one was freed after so many had come; `None` where none ever was.
    freed: Option<(u32, u64)>,
}

/// The last blocks that came and went, by the kind of memory: what a thread does that loads data into memory of the host says nothing
/// of the device.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Runs {
    pool: Run,
    driver: Run,
    host: Run,
}

impl Runs {
    fn of(&self, space: Space) -> &Run {
        match space {
            Space::Pool => &self.pool,
            Space::Driver => &self.driver,
            Space::Host => &self.host,
        }
    }

    fn of_mut(&mut self, space: Space) -> &mut Run {
        match space {
            Space::Pool => &mut self.pool,
            Space::Driver => &mut self.driver,
            Space::Host => &mut self.host,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) key: GroupKey,
    pub(crate) class: u32,
    /// Number of the group of its stack; `NO_ROOM` if there was no room for one, and `NONE` in checkpoints of older versions.
    #[serde(default = "none")]
    of_stack: u32,
    pub(crate) floor: Floor,
    /// The floor over steps.
    pub(crate) steps: Floor,
    /// Number of its blocks that were freed since the source of steps changed, and the most ticks of it that one of them has lived.
    pub(crate) freed: (u64, u32),
    pub(crate) left: Option<Left>,
    touched_ns: u64,
}

impl Group {
    /// Whether its blocks are in the group of stacks with this number.
    pub(crate) fn is_of_stack(&self, number: usize) -> bool {
        self.of_stack as usize == number
    }

    /// Number of units of bytes ([`UNIT`]) in one of its blocks, rounded up.
    pub(crate) fn units(&self) -> u32 {
        units_of(self.key.size)
    }

    /// Bytes of the device that one of its blocks takes.
    pub(crate) fn block_bytes(&self) -> u64 {
        match self.key.space {
            // A pool rounds up what it hands out.
            Space::Pool => u64::from(self.units()).saturating_mul(UNIT),
            Space::Driver | Space::Host => self.key.size,
        }
    }

    fn others(&self) -> Others {
        Others {
            class: self.class,
            of_stack: self.of_stack,
            units: units_of(self.key.size),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Class {
    pub(crate) key: ClassKey,
    pub(crate) floor: Floor,
    /// The floor over steps.
    pub(crate) steps: Floor,
    #[serde(default)]
    pub(crate) left: Option<Left>,
}

const fn none() -> u32 {
    NONE
}

/// Puts a new one at a vacant place, or else at the end. Returns its place.
fn put<T>(all: &mut Vec<T>, vacant: &mut Vec<u32>, new: T) -> u32 {
    let place = vacant.pop().unwrap_or(all.len() as u32);
    match all.get_mut(place as usize) {
        Some(slot) => *slot = new,
        None => all.push(new),
    }
    place
}

/// The number that stands for the group of a stack for which there was no room.
const NO_ROOM: u32 = NONE - 1;

/// The groups beside that of its exact size that a block belongs to, and its size in units ([`UNIT`]), rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Others {
    pub(crate) class: u32,
    pub(crate) of_stack: u32,
    units: u32,
}

/// The other groups of the blocks that have no group of their exact size, because there were too many. Each entry is for all
/// blocks that have the same ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Loose {
    /// The groups, and the number of live blocks in them.
    entries: Vec<(Others, u32)>,
    vacant: Vec<u32>,
    numbers: FastMap<Others, u32>,
}

impl Loose {
    /// One more block of these groups; returns the number of their entry.
    fn comes(&mut self, others: Others) -> Option<u32> {
        if let Some(number) = self.numbers.get(&others) {
            let (_, live) = self.entries.get_mut(*number as usize)?;
            *live += 1;
            return Some(*number);
        }
        let number = match self.vacant.pop() {
            Some(number) => number,
            None if self.entries.len() >= NUMBERS => return None,
            None => {
                self.entries.push((others, 0));
                (self.entries.len() - 1) as u32
            }
        };
        *self.entries.get_mut(number as usize)? = (others, 1);
        self.numbers.insert(others, number);
        Some(number)
    }

    fn get(&self, number: usize) -> Option<Others> {
        let (others, live) = self.entries.get(number)?;
        (*live > 0).then_some(*others)
    }

    /// A block of an entry's groups goes; returns the groups.
    fn goes(&mut self, number: usize) -> Option<Others> {
        let (others, live) = self.entries.get_mut(number)?;
        let others = *others;
        *live = live.checked_sub(1)?;
        if *live == 0 {
            self.numbers.remove(&others);
            self.vacant.push(number as u32);
        }
        Some(others)
    }
}

/// A block's size in units, rounded up.
fn units_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// Bytes of the entries of a vector, of which some are asked what they have beside themselves.
fn sampled<T>(all: &Vec<T>, beside: impl Fn(&T) -> u64) -> u64 {
    // An odd step, so that a pattern that repeats is not met at the same place each time.
    let every = (all.len() / SAMPLE) | 1;
    let some = all.iter().step_by(every);
    let count = some.len().max(1) as u64;
    let bytes: u64 = some.map(beside).sum();
    (all.capacity() * size_of::<T>()) as u64 + bytes * all.len() as u64 / count
}

/// All groups, classes and stacks of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Groups {
    clock: WindowClock,
    /// Windows over steps, as `clock` has them over time.
    ticks: WindowClock,
    tick: u64,
    /// Number of ticks of all earlier sources of steps. A block that has a smaller one came while another source was counted.
    #[serde(default)]
    earlier: u32,
    limit: usize,
    groups: Vec<Group>,
    vacant: Vec<u32>,
    by_key: FastMap<GroupKey, u32>,
    classes: Vec<Class>,
    by_class: FastMap<ClassKey, u32>,
    of_stacks: Vec<OfStack>,
    #[serde(default)]
    vacant_stacks: Vec<u32>,
    by_stack: FastMap<StackKey, u32>,
    /// 1 while every stack is recorded, 0 while stacks are recorded only in part (`stacks_reduced`). Its floors say in
    /// which windows that was so.
    recorded: Floor,
    recorded_steps: Floor,
    #[serde(default)]
    loose: Loose,
    /// Number of blocks for which no group of their exact size could be made, or that are not in the group of their stack.
    refused: u64,
    /// Number of blocks to refuse before empty groups are searched for again.
    patience: usize,
    /// Number of stacks to refuse before empty ones are searched for again.
    #[serde(default)]
    patience_of_stacks: usize,
    /// They were given up because memory was short: no block is in any group from then on.
    #[serde(default)]
    given_up: bool,
    #[serde(default)]
    runs: Runs,
}

impl Groups {
    /// Creates an empty set of at most `limit` groups, watched from `start_ns` in windows that are `window_ns` wide at
    /// first.
    pub(crate) fn new(start_ns: u64, window_ns: u64, limit: usize) -> Groups {
        let (clock, ticks) = (
            WindowClock::new(start_ns, window_ns),
            WindowClock::of_steps(0, 0),
        );
        let recorded = |clock: &WindowClock| {
            let mut floor = Floor::new(clock);
            floor.was_there(clock, 1);
            floor
        };
        Groups {
            clock,
            ticks,
            recorded: recorded(&clock),
            recorded_steps: recorded(&ticks),
            tick: 0,
            earlier: 0,
            limit: limit.min(NUMBERS),
            groups: Vec::new(),
            vacant: Vec::new(),
            by_key: FastMap::default(),
            classes: Vec::new(),
            by_class: FastMap::default(),
            of_stacks: Vec::new(),
            vacant_stacks: Vec::new(),
            by_stack: FastMap::default(),
            loose: Loose::default(),
            refused: 0,
            patience: 0,
            patience_of_stacks: 0,
            given_up: false,
            runs: Runs::default(),
        }
    }

    /// A step has ended. `ticks` is the number of windows of steps so far. A new `generation` means that steps come
    /// from another source: then the windows of steps begin again, with the number that it `began` with.
    pub(crate) fn tick(&mut self, ticks: u64, began: u64, generation: u32) {
        if !self.ticks.is_of(generation) {
            self.ticks = WindowClock::of_steps(generation, began);
            // Lifetimes by the ticks of two sources cannot be compared. Before the first tick there are none.
            if self.tick > 0 {
                self.earlier = self.number_of_tick().saturating_add(1);
                for group in &mut self.groups {
                    group.freed = (0, 0);
                }
            }
        }
        self.tick = ticks;
        self.ticks.advance(ticks);
    }

    /// Number of the present tick among those of all sources.
    fn number_of_tick(&self) -> u32 {
        self.earlier.saturating_add(self.tick as u32)
    }

    /// From now on stacks are recorded only in part (`reduced`), or all of them again.
    pub(crate) fn reduce(&mut self, time_ns: u64, reduced: bool) {
        self.clock.advance(time_ns);
        let was = self.recorded.live() == 0;
        if was == reduced {
            return;
        }
        let change = if reduced { Floor::went } else { Floor::came };
        change(&mut self.recorded, &self.clock, 1);
        change(&mut self.recorded_steps, &self.ticks, 1);
    }

    /// For each window, 1 if every stack was recorded throughout it, else 0. The windows are those of steps if `ticks`
    /// is given, else those of time.
    pub(crate) fn recorded(&self, ticks: Option<&WindowClock>, time: &WindowClock) -> Row {
        match ticks {
            Some(ticks) => self.recorded_steps.row(ticks),
            None => self.recorded.row(time),
        }
    }

    /// The windows of steps.
    pub(crate) fn ticks(&self) -> WindowClock {
        self.ticks
    }

    /// Enters a new block; returns its place in the groups.
    pub(crate) fn join(&mut self, time_ns: u64, key: GroupKey) -> Membership {
        self.enter(time_ns, key, Floor::came)
    }

    /// Enters a block that has been there since before the watch began; returns its place in the groups.
    pub(crate) fn was_there(&mut self, time_ns: u64, key: GroupKey) -> Membership {
        self.enter(time_ns, key, Floor::was_there)
    }

    fn enter(
        &mut self,
        time_ns: u64,
        mut key: GroupKey,
        count: impl Fn(&mut Floor, &WindowClock, u32),
    ) -> Membership {
        if self.given_up {
            return Membership::NOWHERE;
        }
        self.clock.advance(time_ns);
        let run = self.runs.of_mut(key.space);
        run.came = run.came.wrapping_add(1);
        key.stack = stacks::place(key.stack);
        let exact = match self.by_key.get(&key) {
            Some(&found) => found,
            None => self.open(time_ns, key),
        };
        let tick = self.number_of_tick();
        let (others, place) = match self.groups.get_mut(exact as usize) {
            Some(group) => {
                count(&mut group.floor, &self.clock, 1);
                count(&mut group.steps, &self.ticks, 1);
                group.touched_ns = time_ns;
                (group.others(), Membership::of_group(exact, tick))
            }
            None => {
                let others = Others {
                    class: self.class_of(&key),
                    of_stack: self.stack_of(&key),
                    units: units_of(key.size),
                };
                let Some(loose) = self.loose.comes(others) else {
                    return Membership::NOWHERE;
                };
                (others, Membership::loose(loose, tick))
            }
        };
        if let Some(class) = self.classes.get_mut(others.class as usize) {
            count(&mut class.floor, &self.clock, 1);
            count(&mut class.steps, &self.ticks, 1);
        }
        if let Some(all) = self.of_stacks.get_mut(others.of_stack as usize) {
            count(&mut all.floor, &self.clock, others.units);
            count(&mut all.steps, &self.ticks, others.units);
        } else if place.exact().is_some() {
            // A block without a group of its exact size is counted already.
            self.refused += 1;
        }
        place
    }

    /// The other groups that a block with this place is in; `None` if it is in no group.
    pub(crate) fn others(&self, place: Membership) -> Option<Others> {
        match place.named() {
            Named::Group(number) => self.groups.get(number).map(Group::others),
            Named::Loose(number) => self.loose.get(number),
            Named::Nothing => None,
        }
    }

    /// When the first block of this kind of memory was freed after which none came any more, boot-time nanoseconds; `None` where one has come since.
    pub(crate) fn frees_since_ns(&self, space: Space) -> Option<u64> {
        let run = self.runs.of(space);
        let freed = run.freed.filter(|(came, _)| *came == run.came);
        freed.map(|(_, time_ns)| time_ns)
    }

    /// How many of the blocks of a group (or of its units) of this kind of memory were freed since the last one of that kind came, and their bytes.
    pub(crate) fn freed_since(&self, space: Space, left: Option<Left>) -> (u32, u64) {
        let run = self.runs.of(space);
        let left = left.filter(|left| left.came == run.came);
        left.map_or((0, 0), |left| left.since)
    }

    /// Largest number of a group of an exact size, plus one.
    pub(crate) fn numbers(&self) -> usize {
        self.groups.len()
    }

    /// Completes what an older checkpoint did not have.
    pub(crate) fn restored(&mut self) {
        for group in self
            .groups
            .iter_mut()
            .filter(|group| group.of_stack == NONE)
        {
            let known = self.by_stack.get(&StackKey::of(&group.key));
            group.of_stack = known.copied().unwrap_or(NO_ROOM);
        }
    }

    /// Takes a freed block out of its groups. `bytes`: what it took of its memory.
    pub(crate) fn leave(&mut self, time_ns: u64, place: Membership, bytes: u64) {
        self.go(time_ns, place, Some(bytes));
    }

    /// Takes a block out of its groups that is still there, and is counted elsewhere from now on.
    pub(crate) fn moves(&mut self, time_ns: u64, place: Membership) {
        self.go(time_ns, place, None);
    }

    fn go(&mut self, time_ns: u64, place: Membership, freed: Option<u64>) {
        self.clock.advance(time_ns);
        let others = match place.named() {
            Named::Loose(number) => self.loose.goes(number),
            _ => self.others(place),
        };
        let Some(others) = others else {
            return;
        };
        let class = self.classes.get_mut(others.class as usize);
        let run = class
            .as_ref()
            .map(|class| self.runs.of_mut(class.key.space));
        let came = run.map_or(0, |run| {
            if freed.is_some() && run.freed.is_none_or(|(came, _)| came != run.came) {
                run.freed = Some((run.came, time_ns));
            }
            run.came
        });
        let left = |before: &mut Option<Left>, count: u32| {
            let Some(bytes) = freed else { return };
            let now = Left {
                time_ns,
                tick: self.tick,
                came,
                since: (0, 0),
            };
            *before = Left::more(now, *before, count, bytes);
        };
        if let Some(class) = class {
            class.floor.went(&self.clock, 1);
            class.steps.went(&self.ticks, 1);
            left(&mut class.left, 1);
        }
        let group = place.exact().and_then(|number| self.groups.get_mut(number));
        if let Some(group) = group {
            group.floor.went(&self.clock, 1);
            group.steps.went(&self.ticks, 1);
            group.freed.0 += 1;
            // What came before the first step of this source has lived all of its steps, and is not known to have lived longer.
            let born = place.tick.saturating_sub(self.earlier);
            let lived = (self.tick as u32).saturating_sub(born);
            group.freed.1 = group.freed.1.max(lived);
            group.touched_ns = time_ns;
            left(&mut group.left, 1);
        }
        if let Some(all) = self.of_stacks.get_mut(others.of_stack as usize) {
            all.floor.went(&self.clock, others.units);
            all.steps.went(&self.ticks, others.units);
            left(&mut all.left, others.units);
        }
    }

    fn stack_of(&mut self, key: &GroupKey) -> u32 {
        let key = StackKey::of(key);
        if let Some(place) = self.by_stack.get(&key) {
            return *place;
        }
        if self.by_stack.len() >= self.limit {
            if self.patience_of_stacks == 0 && self.make_room_for_stacks() <= self.limit / 64 {
                self.patience_of_stacks = self.limit / 8;
            }
            if self.by_stack.len() >= self.limit {
                self.patience_of_stacks = self.patience_of_stacks.saturating_sub(1);
                return NO_ROOM;
            }
        }
        let new = OfStack {
            key,
            floor: Floor::new(&self.clock),
            steps: Floor::new(&self.ticks),
            left: None,
        };
        let place = put(&mut self.of_stacks, &mut self.vacant_stacks, new);
        self.by_stack.insert(key, place);
        place
    }

    /// Drops the half of the stacks without live blocks whose last block went longest ago, and the groups of their exact sizes, which are
    /// empty as well. Returns how many stacks it dropped.
    fn make_room_for_stacks(&mut self) -> usize {
        let mut empty: Vec<(u64, u32)> = self
            .by_stack
            .values()
            .filter_map(|&place| {
                let all = self.of_stacks.get(place as usize)?;
                let left_ns = all.left.map_or(0, |left| left.time_ns);
                (all.floor.live() == 0).then_some((left_ns, place))
            })
            .collect();
        empty.sort_unstable();
        empty.truncate(empty.len().div_ceil(2));
        let gone: FastSet<u32> = empty.iter().map(|(_, place)| *place).collect();
        let mut groups: Vec<u32> = Vec::new();
        for &place in self.by_key.values() {
            let group = self.groups.get_mut(place as usize);
            let Some(group) = group.filter(|group| gone.contains(&group.of_stack)) else {
                continue;
            };
            if group.floor.live() == 0 {
                groups.push(place);
            } else {
                // Blocks of no bytes live in it.
                group.of_stack = NO_ROOM;
            }
        }
        // The order in which numbers are given again follows from the events alone.
        groups.sort_unstable();
        for place in groups {
            if let Some(group) = self.groups.get(place as usize) {
                self.by_key.remove(&group.key);
                self.vacant.push(place);
            }
        }
        for &(_, place) in &empty {
            if let Some(all) = self.of_stacks.get(place as usize) {
                self.by_stack.remove(&all.key);
                self.vacant_stacks.push(place);
            }
        }
        empty.len()
    }

    /// All stacks that have allocated anything, with their numbers.
    pub(crate) fn of_stacks(&self) -> impl Iterator<Item = (usize, &OfStack)> {
        let all = self.of_stacks.iter().enumerate();
        all.filter(|(place, all)| self.by_stack.get(&all.key) == Some(&(*place as u32)))
    }

    fn class_of(&mut self, key: &GroupKey) -> u32 {
        let key = ClassKey {
            device: key.device,
            space: key.space,
            power: power_class(key.size),
        };
        let classes = &mut self.classes;
        let (clock, ticks) = (&self.clock, &self.ticks);
        *self.by_class.entry(key).or_insert_with(|| {
            classes.push(Class {
                key,
                floor: Floor::new(clock),
                steps: Floor::new(ticks),
                left: None,
            });
            (classes.len() - 1) as u32
        })
    }

    fn open(&mut self, time_ns: u64, key: GroupKey) -> u32 {
        if self.by_key.len() >= self.limit {
            if self.patience == 0 && self.make_room() <= self.limit / 64 {
                // The search walks over all groups, so it is not repeated for every new size.
                self.patience = self.limit / 8;
            }
            if self.by_key.len() >= self.limit {
                self.patience = self.patience.saturating_sub(1);
                self.refused += 1;
                return NONE;
            }
        }
        let group = Group {
            key,
            class: self.class_of(&key),
            of_stack: self.stack_of(&key),
            floor: Floor::new(&self.clock),
            steps: Floor::new(&self.ticks),
            freed: (0, 0),
            left: None,
            touched_ns: time_ns,
        };
        let place = put(&mut self.groups, &mut self.vacant, group);
        self.by_key.insert(key, place);
        place
    }

    /// Drops the half of the empty groups that was not changed for longest. Returns how many it dropped.
    fn make_room(&mut self) -> usize {
        let mut empty: Vec<(u64, u32)> = self
            .by_key
            .values()
            .filter_map(|&place| {
                let group = self.groups.get(place as usize)?;
                (group.floor.live() == 0).then_some((group.touched_ns, place))
            })
            .collect();
        empty.sort_unstable();
        empty.truncate(empty.len().div_ceil(2));
        for &(_, place) in &empty {
            if let Some(group) = self.groups.get(place as usize) {
                self.by_key.remove(&group.key);
                self.vacant.push(place);
            }
        }
        empty.len()
    }

    /// Gives all groups up, because memory is short. No block is in any group from then on.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
        self.groups = Vec::new();
        self.vacant = Vec::new();
        self.by_key = FastMap::default();
        self.classes = Vec::new();
        self.by_class = FastMap::default();
        self.of_stacks = Vec::new();
        self.vacant_stacks = Vec::new();
        self.by_stack = FastMap::default();
        self.loose = Loose::default();
    }

    /// Estimate of the bytes that they take. How long the rows of their floors are, a sample of them tells.
    pub(crate) fn bytes(&self) -> u64 {
        let both = |floor: &Floor, steps: &Floor| floor.row_bytes() + steps.row_bytes();
        let groups = sampled(&self.groups, |group| both(&group.floor, &group.steps));
        let classes = sampled(&self.classes, |class| both(&class.floor, &class.steps));
        let of_stacks = sampled(&self.of_stacks, |stack| both(&stack.floor, &stack.steps));
        groups
            + classes
            + of_stacks
            + table_bytes::<(GroupKey, u32)>(self.by_key.capacity())
            + table_bytes::<(StackKey, u32)>(self.by_stack.capacity())
            + (self.loose.entries.capacity() * size_of::<(Others, u32)>()) as u64
            + table_bytes::<(Others, u32)>(self.loose.numbers.capacity())
    }

    /// The windows, as they stand at `time_ns`.
    pub(crate) fn clock_at(&self, time_ns: u64) -> WindowClock {
        let mut clock = self.clock;
        clock.advance(time_ns);
        clock
    }

    /// All groups in use with their numbers, in no order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (usize, &Group)> {
        self.by_key
            .values()
            .filter_map(|&place| Some((place as usize, self.groups.get(place as usize)?)))
    }

    /// All classes with their numbers.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (usize, &Class)> {
        self.classes.iter().enumerate()
    }

    /// Number of blocks that have no group of their exact size, or are not in the group of their stack, because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of groups in use.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LedgerConfig;
    use memscope_tests::limits::Met;

    fn key(size: u64) -> GroupKey {
        GroupKey {
            device: Some(0),
            space: Space::Pool,
            stream: None,
            size,
            stack: 0,
        }
    }

    #[test]
    fn bounded_and_empty_ones_make_room() {
        let mut groups = Groups::new(0, 10, 100);
        for size in 1..10_000 {
            let place = groups.join(size, key(size));
            groups.leave(size, place, 1);
            assert!(groups.len() <= 100);
        }
        assert_eq!(groups.refused(), 0);
        for size in 1..1000 {
            groups.join(20_000, key(size));
        }
        assert_eq!(groups.len(), 100);
        assert!(groups.refused() >= 899 - 100, "{}", groups.refused());
        assert!(groups.classes().count() <= 15);
    }

    /// How long blocks lived is told in steps of the present source.
    #[test]
    fn lifetimes_are_of_one_source_of_steps() {
        let mut groups = Groups::new(0, 10, 100);
        let freed = |groups: &Groups| groups.groups().map(|(_, group)| group.freed).next();
        // What came before the first step of a source is as old as its steps are many.
        let weights = groups.join(0, key(1));
        let kept = groups.join(0, key(1));
        groups.tick(100, 0, 1);
        groups.leave(1, weights, 1);
        assert_eq!(freed(&groups), Some((1, 100)));
        let early = groups.join(2, key(1));
        // Another source counts anew, also what has gone.
        groups.tick(1, 0, 2);
        assert_eq!(freed(&groups), Some((0, 0)));
        let late = groups.join(3, key(1));
        groups.tick(3, 0, 2);
        groups.leave(4, late, 1);
        assert_eq!(freed(&groups), Some((1, 2)));
        groups.leave(4, early, 1);
        assert_eq!(freed(&groups), Some((2, 3)));
        // A training loop: a backward pass is the first source, and the first step of its optimizer follows at once.
        groups.tick(200, 0, 2);
        groups.leave(5, kept, 1);
        assert_eq!(freed(&groups), Some((3, 200)));
    }

    fn of_stack(size: u64, stack: StackIndex) -> GroupKey {
        GroupKey { stack, ..key(size) }
    }

    #[test]
    fn stacks_without_blocks_make_room() {
        let mut groups = Groups::new(0, 10, 100);
        for stack in 1..10_000 {
            let place = groups.join(u64::from(stack), of_stack(512, stack));
            let found = groups.of_stacks().any(|(_, all)| all.key.stack == stack);
            assert!(found && groups.of_stacks().count() <= 100, "{stack}");
            groups.leave(u64::from(stack), place, 1);
        }
        assert_eq!(groups.refused(), 0);
        let mut groups = Groups::new(0, 10, 100);
        // A hundred groups of one stack leave no room for groups of exact sizes of others, but for their stacks.
        let first: Vec<Membership> = (1..=100)
            .map(|size| groups.join(20_000, of_stack(512 * size, 20_000)))
            .collect();
        let others: Vec<Membership> = (1..100)
            .map(|stack| groups.join(20_000, of_stack(512, 20_000 + stack)))
            .collect();
        assert_eq!(groups.refused(), 99);
        assert!(groups.of_stacks().all(|(_, all)| all.floor.live() > 0));
        // There is room for a group again, and none for its stack.
        first[1..]
            .iter()
            .for_each(|place| groups.leave(30_000, *place, 1));
        let more: Vec<Membership> = (0..100)
            .map(|nth| groups.join(40_000, of_stack(512, 30_000 + nth)))
            .collect();
        assert_eq!(groups.of_stacks().count(), 100);
        assert_eq!(groups.refused(), 99 + 100);
        let all = first[..1].iter().chain(&others).chain(&more);
        all.for_each(|place| groups.leave(50_000, *place, 1));
        assert!(groups.of_stacks().all(|(_, all)| all.floor.live() == 0));
        assert!(groups.groups().all(|(_, group)| group.floor.live() == 0));
        Met {
            what: "stacks of a process whose growth is watched",
            most: format!("`{}`", LedgerConfig::default().leak_groups),
            beyond: "the half of those without blocks whose last block went longest ago goes; where all have blocks, blocks of \
                     further ones are watched by exact size and by size class only",
            told: "`leak_groups_full` in coverage",
            test: "stacks_without_blocks_make_room",
        }
        .is_told();
    }
}
