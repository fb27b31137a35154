//! How a row of floors is judged: from step to step where steps are known, else by time.
//!
//! Owns: the choice between the two, and the numbers and words of the judgement in either case. Refuses: groups;
//! `leaks` has them.

use super::super::steps;
use crate::event::Level;
use crate::fast_hash::FastMap;
use crate::growth::floor::{Floor, Row, WindowClock, largest_fall};
use crate::growth::group::{Group, Groups, Left, StackKey, UNIT};
use crate::growth::trend::{self, Scale};
use crate::growth::verdict;
use crate::report::{ProcessState, Space, StepSource, Verdict};
use crate::state::process::Process;
use memscope_proto::v1;

/// Number of steps that a growth must have lasted, unless the question gives another one.
const SURE_AFTER: u64 = 100;
/// The steps are quiet if there was none for this long, and for [`STALE_STEPS`] times the usual duration of a step.
const STALE_NS: u64 = 30_000_000_000;
/// See [`STALE_NS`].
const STALE_STEPS: u64 = 20;
/// Fewest allocations in a repeating pattern whose repetitions count as steps.
const ENOUGH_IN_A_PATTERN: usize = 4;
/// Number of ends of steps that are needed to judge by steps.
const ENOUGH_TICKS: u64 = 4;
/// Where at least one of this many blocks stays that were allocated since the attach, a program may still be building what
/// it works on.
const STAYS_OF: u64 = 4;
/// How long a program may build, in nanoseconds: large models load for minutes.
const BUILDS_NS: u64 = 600_000_000_000;

/// Rises that a growth needs where nothing else is likely to rise by chance.
const ENOUGH_RISES: usize = 4;
/// Rises that a growth needs where several sizes come and go: so many do not come by chance in a row.
const MANY_RISES: usize = 12;

/// The windows of steps, for judging rows from step to step.
pub(super) struct StepAxis {
    pub(super) clock: WindowClock,
    pub(super) ticks_per_step: f64,
    pub(super) sure_after: u64,
    /// When the steps that are kept ended, oldest first: boot times in nanoseconds.
    ends: Vec<u64>,
    /// The steps are repetitions of allocations: nobody said that they are steps.
    is_guessed: bool,
    /// Boot time up to which the steps tell, nanoseconds: now, or the end of the last one if they are quiet since then.
    until_ns: u64,
}

impl StepAxis {
    /// How long the last `steps` steps took together, nanoseconds. Where fewer are kept, the others count as much as the mean of those.
    /// `None` where the ends of two steps are not known.
    fn took_ns(&self, steps: f64) -> Option<f64> {
        let (last, before) = self.ends.split_last()?;
        let kept = before.len().min(steps.round().max(1.0) as usize);
        let first = before.get(before.len() - kept)?;
        Some(last.saturating_sub(*first) as f64 / kept as f64 * steps)
    }
}

/// What a row of floors counts.
#[derive(Clone, Copy)]
pub(super) enum Amount {
    Blocks,
    /// Units of [`UNIT`] bytes.
    Units,
}

/// What a row of floors is about.
pub(super) struct What {
    pub(super) device: Option<i32>,
    /// Kind of memory.
    pub(super) space: Space,
    /// Bytes of each of its blocks or units.
    pub(super) bytes: f64,
    pub(super) amount: Amount,
    /// Number of sizes of which blocks come and go where these come from, see [`Chances`].
    pub(super) chances: usize,
}

impl What {
    /// Rises that a growth needs. Of a cache that is full and holds blocks of many sizes, the number of one size or another always
    /// rises for a time, while that of others falls. Each rise without a fall is about as likely as the toss of a coin, so
    /// twice as many sizes need one more of them.
    fn enough_rises(&self, by_steps: bool) -> usize {
        match (self.chances, self.amount) {
            (2.., _) => MANY_RISES + self.chances.next_power_of_two().ilog2() as usize,
            // A block that is now and then replaced by a larger one may be a batch that grows on purpose.
            (_, Amount::Units) if by_steps => MANY_RISES,
            _ => ENOUGH_RISES,
        }
    }
}

/// How many sizes have blocks that come and go, at each stack and in each class: so many chances there are that the number of
/// one of them rises although nothing is leaked.
#[derive(Default)]
pub(super) struct Chances {
    of_stacks: FastMap<StackKey, usize>,
    of_classes: FastMap<usize, usize>,
}

impl Chances {
    /// Counts a group of blocks of one size. One that never fell is no cache: what is only kept does not rise by chance.
    pub(super) fn count(&mut self, group: &Group, row: &Row) {
        if largest_fall(&row.over, row.now) > 0 {
            *self.of_stacks.entry(StackKey::of(&group.key)).or_default() += 1;
            *self.of_classes.entry(group.class as usize).or_default() += 1;
        }
    }

    pub(super) fn of_stack(&self, key: &StackKey) -> usize {
        self.of_stacks.get(key).copied().unwrap_or(0)
    }

    pub(super) fn of_class(&self, number: usize) -> usize {
        self.of_classes.get(&number).copied().unwrap_or(0)
    }
}

/// The verdict on a row of floors, with its numbers.
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    pub(super) growth: u32,
    pub(super) reason: String,
    /// Boot time at which the growth began, nanoseconds, as far as the windows show it.
    pub(super) since_ns: u64,
    pub(super) confidence: Option<f64>,
    /// Growth in blocks or units per step: lower end of the interval, median, upper end.
    pub(super) per_step: Option<[f64; 3]>,
    /// Growth in blocks or units per second; where it is not known, only the growth and its beginning tell.
    pub(super) per_second: Option<f64>,
    pub(super) first_step: Option<u64>,
    /// The window in which the growth began.
    pub(super) first_window: usize,
    pub(super) young: Option<Young>,
}

/// How long a row that rises was watched, where that was too short for a verdict.
#[derive(Clone, Copy)]
pub(super) struct Young {
    /// Number of steps of the rise; 0 where steps are not known.
    pub(super) steps: u64,
    /// The row rose in each of these steps.
    pub(super) in_every_step: bool,
}

/// How long there has been no step, nanoseconds, if that is unusually long. `median_ns`: how long a step takes.
pub(super) fn quiet_ns(process: &Process, now: u64, median_ns: Option<u64>) -> Option<u64> {
    process.steps.count()?;
    // Where the steps have just begun anew, none has ended.
    if process.steps.last_ns == 0 {
        return None;
    }
    let stale = STALE_NS.max(median_ns.unwrap_or(0).saturating_mul(STALE_STEPS));
    let quiet = now.saturating_sub(process.steps.last_ns);
    (quiet > stale).then_some(quiet)
}

/// Whether steps that are quiet still tell what the process does. One that waits, or that uploads or validates for a while, gives
/// nothing back and shows nothing new, so what its steps have shown stands. One that has allocated more often since then than
/// in its steps, or that keeps more and more without a step, is judged by time.
fn tell_still(process: &Process, now: u64) -> bool {
    let steps = &process.steps;
    let [first, last] = steps.allocs.unwrap_or_default();
    let [came, _] = process.devices.came_and_went();
    if came.saturating_sub(last) > last.saturating_sub(first) {
        return false;
    }
    let groups = &process.groups;
    // A block raises the floor of the window after the one in which it was allocated.
    let clock = groups.clock_at(now);
    let first = steps.last_ns.saturating_sub(clock.start_ns()) / clock.width_ns() + 2;
    let keeps = |floor: &Floor| {
        let lasting = floor.row(&clock).lasting();
        let since = lasting.get(first as usize - 1..).unwrap_or_default();
        let rises = since.windows(2).filter(|pair| pair[1] > pair[0]);
        rises.count() >= ENOUGH_RISES
    };
    let mut floors = (groups.classes().map(|(_, one)| &one.floor))
        .chain(groups.of_stacks().map(|(_, one)| &one.floor))
        .chain(groups.groups().map(|(_, one)| &one.floor));
    !floors.any(keeps)
}

/// The windows of steps, if there are steps by which rows can be judged. `quiet_ns`: what the function of that name says.
pub(super) fn step_axis(
    process: &Process,
    now: u64,
    asked: &v1::LeaksRequest,
    quiet_ns: Option<u64>,
) -> Option<StepAxis> {
    let steps = &process.steps;
    let (_, ticks_per_step) = steps.count()?;
    let sure_after = match u64::from(asked.sure_after_steps) {
        0 => SURE_AFTER,
        steps => steps,
    };
    // A pattern of an allocation or two does not show how long something was watched, and a long pattern may contain
    // several steps. Until a long enough pattern has come often enough, time is the measure. What was there in the cycles before the
    // pattern was recognised is not known by cycles.
    let short = steps.source == StepSource::Pattern
        && (steps.windows().saturating_sub(steps.began) < sure_after
            || steps
                .pattern
                .cycles()
                .is_none_or(|(_, period)| period < ENOUGH_IN_A_PATTERN));
    if short || steps.last_ns == 0 || steps.windows() < ENOUGH_TICKS {
        return None;
    }
    // Steps that nobody told of are no steps any more when their pattern does not come.
    let is_guessed = steps.source == StepSource::Pattern;
    if quiet_ns.is_some() && (is_guessed || !tell_still(process, now)) {
        return None;
    }
    Some(StepAxis {
        until_ns: quiet_ns.map_or(now, |_| steps.last_ns),
        is_guessed,
        clock: process.groups.ticks(),
        ticks_per_step: ticks_per_step.max(1e-9),
        sure_after,
        ends: steps::ended(&process.steps),
    })
}

/// A process that has ended, and what it freed as it ended: all that went after the last block of that kind of memory had come. A program that ends
/// gives back what its names lead to, also what it leaked, so this is taken to be still there.
pub(super) struct Ending {
    /// For each kind of memory of which something was freed, when that began.
    began: Vec<(Space, Began)>,
    /// How many blocks of a device and a kind of memory were freed.
    freed: FastMap<(Option<i32>, Space), u64>,
    /// Devices of which a request failed shortly before the end.
    ran_out: Vec<Option<i32>>,
}

#[derive(Clone, Copy)]
struct Began {
    boot_ns: u64,
    /// Number of windows of time that had ended then; `None` where rows are judged by steps.
    windows: Option<usize>,
}

impl Ending {
    /// `None` for a process that was not followed to its end, that freed nothing as it ended, or that went on for long after that or
    /// after its last step: what it freed then, it freed while it worked.
    fn of(
        process: &Process,
        now: u64,
        clock: &WindowClock,
        steps: Option<&StepAxis>,
    ) -> Option<Ending> {
        let is_quiet = steps.is_some_and(|axis| axis.until_ns != now);
        if process.state != ProcessState::Exited || is_quiet {
            return None;
        }
        let groups = &process.groups;
        let began = |space: Space| {
            let boot_ns = groups.frees_since_ns(space)?;
            let before = boot_ns.saturating_sub(clock.start_ns()) / clock.width_ns();
            let windows = steps.is_none().then_some(before as usize);
            let is_near = now.saturating_sub(boot_ns) <= STALE_NS;
            is_near.then_some((space, Began { boot_ns, windows }))
        };
        let spaces = [Space::Pool, Space::Driver, Space::Host];
        let began: Vec<(Space, Began)> = spaces.into_iter().filter_map(began).collect();
        if began.is_empty() {
            return None;
        }
        let mut freed = FastMap::default();
        for (_, class) in groups.classes() {
            let (space, device) = (class.key.space, class.key.device);
            let (count, _) = groups.freed_since(space, class.left);
            *freed.entry((device, space)).or_default() += u64::from(count);
        }
        let ran_out = process.devices.iter();
        let ran_out = ran_out
            .filter(|row| row.pool.oom_ns > 0 && now.saturating_sub(row.pool.oom_ns) <= STALE_NS);
        Some(Ending {
            began,
            freed,
            ran_out: ran_out.map(|row| row.ordinal).collect(),
        })
    }

    fn began(&self, space: Space) -> Option<Began> {
        let mut all = self.began.iter();
        all.find(|(of, _)| *of == space).map(|(_, began)| *began)
    }

    /// When it began to free what it held, boot-time nanoseconds.
    pub(super) fn boot_ns(&self) -> Option<u64> {
        self.began.iter().map(|(_, began)| began.boot_ns).min()
    }

    /// How many blocks of a group (or of its units) it freed as it ended, and their bytes.
    pub(super) fn freed(&self, groups: &Groups, space: Space, left: Option<Left>) -> (u32, u64) {
        match self.began(space) {
            Some(_) => groups.freed_since(space, left),
            None => (0, 0),
        }
    }

    /// Takes back what a row has of the time after that. `were_live`: what was there then.
    fn cut(&self, row: &mut Row, space: Space, were_live: u32) {
        let Some(began) = self.began(space) else {
            return;
        };
        if let Some(windows) = began.windows {
            row.over.truncate(windows);
        }
        let last = row.over.last().copied().unwrap_or(0);
        row.now = row.now.max(last.min(were_live));
    }
}

/// Judges rows of floors.
pub(super) struct Judge<'a> {
    pub(super) process: &'a Process,
    pub(super) now: u64,
    /// Windows of time.
    pub(super) clock: WindowClock,
    pub(super) steps: Option<StepAxis>,
    /// 1 for each window in which all stacks were recorded, else 0.
    pub(super) recorded: Row,
    /// Why growth proves nothing yet, whatever the rows say.
    too_early: Option<&'static str>,
    /// For a process that has ended and freed memory as it ended.
    pub(super) ending: Option<Ending>,
}

/// Why growth proves nothing yet. A program that loads a model keeps more and more memory at the same lines, as one does that
/// leaks. Known steps tell the two apart; without them, that a working program frees most of what it allocates.
fn too_early(
    process: &Process,
    now: u64,
    watched_ns: u64,
    steps: Option<&StepAxis>,
    ending: Option<&Ending>,
) -> Option<&'static str> {
    if steps.is_some_and(|axis| !axis.is_guessed) {
        return None;
    }
    let source = process.steps.source;
    let is_told = !matches!(source, StepSource::Unknown | StepSource::Pattern);
    if steps.is_none() && is_told && now.saturating_sub(process.steps.last_ns) <= STALE_NS {
        return Some("its steps have just begun");
    }
    let [allocs, frees] = process.devices.came_and_went();
    let as_it_ended = |ending: &Ending| -> u64 {
        let rows = process.devices.iter();
        let freed = rows.map(|row| ending.freed.get(&(row.ordinal, row.counted_space())));
        freed.flatten().sum()
    };
    let frees = frees.saturating_sub(ending.map_or(0, as_it_ended));
    let stays = allocs.saturating_sub(frees);
    // Readings do not see what came and went between them. A program that is followed for the first time while it runs has mostly loaded what it
    // works on.
    let keeps_much = match process.facts.level {
        Some(Level::Read) => process.facts.from_start,
        _ => stays.saturating_mul(STAYS_OF) >= allocs,
    };
    let builds = keeps_much && watched_ns < BUILDS_NS;
    builds.then_some("much of what the program allocates stays, as when it loads what it works on")
}

impl<'a> Judge<'a> {
    /// Makes a judge that goes by steps if `steps` has them, else by time.
    pub(super) fn new(process: &'a Process, now: u64, steps: Option<StepAxis>) -> Judge<'a> {
        let clock = process.groups.clock_at(now);
        let ending = Ending::of(process, now, &clock, steps.as_ref());
        let recorded = process
            .groups
            .recorded(steps.as_ref().map(|axis| &axis.clock), &clock);
        let watched_ns = now.saturating_sub(clock.start_ns());
        Judge {
            too_early: too_early(process, now, watched_ns, steps.as_ref(), ending.as_ref()),
            process,
            now,
            clock,
            steps,
            recorded,
            ending,
        }
    }

    /// The row of a group of this kind of memory by which it is judged: of its floors over steps, or of those over time.
    pub(super) fn row(&self, space: Space, time: &Floor, steps: &Floor, left: Option<Left>) -> Row {
        let mut row = match &self.steps {
            Some(axis) => steps.row(&axis.clock),
            None => time.row(&self.clock),
        };
        if let Some(ending) = &self.ending {
            let (freed, _) = ending.freed(&self.process.groups, space, left);
            ending.cut(&mut row, space, time.live().saturating_add(freed));
        }
        row
    }

    /// Whether not all stacks were recorded for a part of the time. In those windows a stack's row stands still,
    /// whatever the program does.
    pub(super) fn is_reduced(&self) -> bool {
        self.recorded.now == 0 || self.recorded.over.contains(&0)
    }

    /// Judges a stack's row only by the windows in which all stacks were recorded; `None` if there are too few of them.
    pub(super) fn judge_recorded(&self, what: &What, row: &Row) -> Option<Judgement> {
        let windows: Vec<usize> = (0..row.over.len())
            .filter(|place| self.recorded.over.get(*place) == Some(&1))
            .collect();
        let cut = Row {
            over: windows
                .iter()
                .filter_map(|place| row.over.get(*place).copied())
                .collect(),
            now: row.now,
        };
        if windows.len() < trend::ENOUGH_WINDOWS {
            return None;
        }
        let place = |place: usize| windows.get(place).copied().unwrap_or(place);
        let judged = self.judge_windows(what, &cut, row.over.len(), &place);
        // The growth is all that is known to be the row's own, also what was allocated in the other windows.
        let grown = row.risen_since(judged.first_window);
        Some(Judgement {
            growth: match judged.growth {
                0 => 0,
                growth => growth.max(grown),
            },
            ..judged
        })
    }

    /// Whether a stack's row still rises, by all that is seen of it since a window: in windows in which not all stacks
    /// were recorded, a rise counts, but a pause proves nothing.
    pub(super) fn still_rises(&self, row: &Row, since: usize) -> bool {
        let lasting = row.lasting();
        let (mut rises, mut seen, mut quiet) = (0usize, 0usize, 0usize);
        for (place, pair) in lasting.windows(2).enumerate().skip(since.max(1) - 1) {
            let &[before, after] = pair else { continue };
            if after > before {
                (rises, seen, quiet) = (rises + 1, seen + 1, 0);
            } else if self.recorded.over.get(place) == Some(&1) {
                (seen, quiet) = (seen + 1, quiet + 1);
            }
        }
        let gap = (seen - quiet) as f64 / rises.max(1) as f64;
        let enough = row.risen_since(since) >= trend::ENOUGH_BLOCKS;
        enough && seen >= trend::ENOUGH_WINDOWS && !trend::is_over(quiet, gap)
    }

    /// Judges a row by all its windows.
    pub(super) fn judge(&self, what: &What, row: &Row) -> Judgement {
        self.judge_windows(what, row, row.over.len(), &|place| place)
    }

    /// Judges a row that has some of `all` windows; `place` gives the number of a row's window among all windows.
    fn judge_windows(
        &self,
        what: &What,
        row: &Row,
        all: usize,
        place: &dyn Fn(usize) -> usize,
    ) -> Judgement {
        let mut judged = self.judge_rises(what, row, all, place);
        if let Some(why) = self.too_early
            && judged.verdict == Verdict::Growing
        {
            judged.verdict = Verdict::Undecided;
            judged.reason = format!("{}, but it is too early to tell: {why}", judged.reason);
            judged.young = judged.young.or(Some(Young {
                steps: 0,
                in_every_step: false,
            }));
        }
        judged
    }

    /// The same by the rises of the row alone.
    fn judge_rises(
        &self,
        what: &What,
        row: &Row,
        all: usize,
        place: &dyn Fn(usize) -> usize,
    ) -> Judgement {
        let amount = match what.amount {
            Amount::Blocks => trend::blocks,
            Amount::Units => |units| memscope_units::bytes(u64::from(units) * UNIT),
        };
        let follows = |window: usize| {
            let before = window.checked_sub(1).map(place);
            before.is_some_and(|before| place(window) == before + 1)
        };
        let Some(axis) = &self.steps else {
            let judged = verdict::judge(row, &follows, what.enough_rises(false), amount);
            let first_window = place(judged.first_window);
            let width_ns = self.clock.width_ns();
            // A block raises the floor of the window after the one in which it was allocated.
            let began = first_window.saturating_sub(1);
            let windows = width_ns.saturating_mul(began as u64);
            return Judgement {
                verdict: judged.verdict,
                growth: judged.growth,
                reason: format!(
                    "{} (watched {})",
                    judged.reason,
                    memscope_units::nanoseconds(self.now.saturating_sub(self.clock.start_ns()))
                ),
                since_ns: self.clock.start_ns().saturating_add(windows),
                confidence: None,
                per_step: None,
                per_second: Some(judged.slope / (width_ns as f64 / 1e9)).filter(|rate| *rate > 0.0),
                first_step: None,
                first_window,
                young: judged.young.then_some(Young {
                    steps: 0,
                    in_every_step: false,
                }),
            };
        };
        let steps = axis.clock.width_ns() as f64 / axis.ticks_per_step;
        let scale = Scale {
            steps,
            sure_after: axis.sure_after,
            urgent: false,
            amount,
            above_falls: match what.amount {
                Amount::Blocks => 2,
                // Sums of random sizes go up and down by chance.
                Amount::Units => 4,
            },
            rises: what.enough_rises(true),
        };
        let mut judged = trend::judge(row, &follows, scale);
        let per_step = judged.slope.map(|slope| slope / steps);
        let [_, middle, _] = per_step;
        if judged.verdict == Verdict::Undecided
            && self.is_full_within(what, middle * what.bytes, axis.sure_after)
        {
            judged = trend::judge(
                row,
                &follows,
                Scale {
                    urgent: true,
                    ..scale
                },
            );
        }
        let first_window = place(judged.first_window);
        // A block raises the floor of the window after the one in which it was allocated.
        let first_step = Self::step_of(axis, place(judged.first_window.saturating_sub(1)));
        let grown = judged.growth > 0;
        let lasted = all.saturating_sub(first_window) as f64 * steps;
        let took_ns = axis.took_ns(lasted);
        let tells_rate = grown && judged.verdict != Verdict::Steady;
        // How long a step took in the mean since the growth began. The median says too little: of a program that validates after each
        // tenth step most of the time is in those.
        let step_s = took_ns
            .filter(|_| lasted > 0.0)
            .map(|took| took / lasted / 1e9);
        let step_s = step_s.filter(|step_s| tells_rate && *step_s > 0.0);
        Judgement {
            verdict: judged.verdict,
            growth: judged.growth,
            reason: judged.reason,
            since_ns: axis.until_ns.saturating_sub(took_ns.unwrap_or(0.0) as u64),
            confidence: judged.confidence.filter(|_| grown),
            per_step: tells_rate.then_some(per_step),
            // While no step comes, nothing grows: then the growth counts over the time that has gone by since it began.
            per_second: step_s
                .filter(|_| axis.until_ns == self.now)
                .map(|step_s| middle / step_s),
            first_step: grown.then_some(first_step),
            first_window,
            young: judged.young.then_some(Young {
                steps: (judged.windows as f64 * steps) as u64,
                in_every_step: judged.in_every_window,
            }),
        }
    }

    /// Number of the step with which a window begins.
    fn step_of(axis: &StepAxis, window: usize) -> u64 {
        let tick = (window as u64).saturating_mul(axis.clock.width_ns());
        let tick = axis.clock.start_ns().saturating_add(tick);
        (tick as f64 / axis.ticks_per_step).floor() as u64 + 1
    }

    /// Number of the step that is going on after `tick` ticks.
    pub(super) fn step_after(&self, tick: u64) -> Option<u64> {
        let axis = self.steps.as_ref()?;
        Some((tick as f64 / axis.ticks_per_step).floor() as u64 + 1)
    }

    /// Whether a growth of this rate fills the device within `steps` steps, before it would be called a leak.
    fn is_full_within(&self, what: &What, bytes_per_step: f64, steps: u64) -> bool {
        if what.space == Space::Host {
            return false;
        }
        let mut rows = self.process.devices.iter();
        let Some(row) = rows.find(|row| row.ordinal == what.device) else {
            return false;
        };
        // What there was room for before it freed all is not known, unless it ran out of it.
        if let Some(ending) = &self.ending {
            return bytes_per_step > 0.0 && ending.ran_out.contains(&what.device);
        }
        // A pool hands out first what it has.
        let spare = match what.space {
            Space::Pool => self.process.spare_bytes(row),
            Space::Driver | Space::Host => Some(0),
        };
        let room = row.free_at(self.now).zip(spare);
        let room = room.map(|(free, spare)| free.saturating_add(spare));
        let growth = bytes_per_step * steps as f64;
        growth > 0.0 && room.is_some_and(|room| (room as f64) < growth)
    }
}
