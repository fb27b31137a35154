//! The answer to `leaks`.
//!
//! Owns: which groups of live blocks are shown, and how. A group is judged by its exact size and stack; a size
//! class is shown only for growth that its exact sizes and stacks do not explain, as when every leaked block
//! has another size. Where steps are known, it is judged from step to step (`trend`), else by time (`verdict`). Refuses: to
//! keep anything; see `group` and `floor`.

use crate::allocation::Allocation;
use crate::coverage;
use crate::distribution::class_bound;
use crate::fast_hash::FastMap;
use crate::floor::WindowClock;
use crate::group::{Group, GroupKey, Membership};
use crate::process::Process;
use crate::report::{
    AsOf, Frame, LeakGroup, LeakQuery, LeakReport, Source, Space, StepSource, Verdict,
};
use crate::stacks::{BEFORE_ATTACH, StackIndex};
use crate::step_report;
use crate::trend::{self, Scale};
use crate::verdict;
use crate::words;

/// Addresses shown of a group.
const EXAMPLES: usize = 5;
/// Steps that a growth must have lasted, unless asked otherwise.
const SURE_AFTER: u64 = 100;
/// Without a step for this long, and for so many times the usual, time is what is judged by.
const STALE_NS: u64 = 30_000_000_000;
const STALE_STEPS: u64 = 20;
/// Ends of steps needed to judge by them.
const ENOUGH_TICKS: u64 = 4;

/// One live block or allocation.
struct Item {
    addr: Option<u64>,
    size: u64,
    born_ns: u64,
    place: Membership,
    stack: Option<StackIndex>,
}

/// Live blocks of one group, counted.
#[derive(Default)]
struct Tally {
    count: u64,
    bytes: u64,
    oldest_ns: u64,
    newest_ns: u64,
    /// (birth, address), oldest first.
    examples: Vec<(u64, u64)>,
}

impl Tally {
    fn add(&mut self, item: &Item) {
        if self.count == 0 {
            self.oldest_ns = item.born_ns;
            self.newest_ns = item.born_ns;
        }
        self.count += 1;
        self.bytes = self.bytes.saturating_add(item.size);
        self.oldest_ns = self.oldest_ns.min(item.born_ns);
        self.newest_ns = self.newest_ns.max(item.born_ns);
        if let Some(addr) = item.addr {
            let place = self
                .examples
                .partition_point(|e| *e <= (item.born_ns, addr));
            if place < EXAMPLES {
                self.examples.insert(place, (item.born_ns, addr));
                self.examples.truncate(EXAMPLES);
            }
        }
    }
}

/// Everything that the groups are shown by.
struct View<'a> {
    process: &'a Process,
    now: u64,
    clock: WindowClock,
    items: Vec<Item>,
    steps: Option<StepAxis>,
}

/// Steps to judge by.
struct StepAxis {
    clock: WindowClock,
    ticks_per_step: f64,
    sure_after: u64,
    step_ns: Option<u64>,
}

/// What a row of floors says.
struct Judgement {
    verdict: Verdict,
    growth: u32,
    reason: String,
    /// When the growth began, as far as that is told by time.
    since_ns: u64,
    confidence: Option<f64>,
    /// Blocks per step.
    per_step: Option<[f64; 3]>,
    first_step: Option<u64>,
}

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf, q: &LeakQuery) -> LeakReport {
    let now = process.moment(as_of);
    let clock = process.groups.clock_at(now);
    let mut items = items(process);
    items.retain(|item| now.saturating_sub(item.born_ns) >= q.min_age_ns);
    let steps = step_report::summary(process);
    let view = View {
        process,
        now,
        clock,
        items,
        steps: step_axis(process, now, q, steps.median_ns),
    };
    let mut groups = view.exact_groups();
    groups.extend(view.classes(&groups));
    let growing = |group: &LeakGroup| group.verdict == Verdict::Growing;
    let growing_bytes = groups
        .iter()
        .filter(|shown| growing(&shown.group))
        .fold(0u64, |sum, shown| {
            sum.saturating_add(shown.group.growth_bytes)
        });
    let seconds_to_full = seconds_to_full(process, &groups);
    groups.retain(|shown| match shown.group.verdict {
        Verdict::Growing => true,
        Verdict::Undecided => q.include_steady || shown.group.growth_count > 0,
        Verdict::Steady => q.include_steady,
    });
    groups.sort_by_key(|shown| {
        let group = &shown.group;
        let weight = if growing(group) {
            group.growth_bytes
        } else {
            group.live_bytes
        };
        (
            !growing(group),
            std::cmp::Reverse(weight),
            group.device,
            group.stream,
            group.size_bytes,
        )
    });
    if q.limit > 0 {
        groups.truncate(q.limit);
    }
    let groups = groups
        .into_iter()
        .map(|mut shown| {
            if let Some(stack) = shown.stack {
                (shown.group.frames, shown.group.line) = view.frames(stack);
            }
            shown.group
        })
        .collect();
    LeakReport {
        process: process.summary(),
        as_of,
        steps,
        groups,
        growing_bytes,
        watched_ns: now.saturating_sub(clock.start_ns()),
        seconds_to_full,
        coverage: coverage::notes(process),
    }
}

/// Whether steps are there to judge by.
fn step_axis(process: &Process, now: u64, q: &LeakQuery, step_ns: Option<u64>) -> Option<StepAxis> {
    let steps = &process.steps;
    let (_, ticks_per_step) = steps.count(&process.stacks)?;
    let stale = STALE_NS.max(step_ns.unwrap_or(0).saturating_mul(STALE_STEPS));
    // A pattern may be one allocation long: that is no measure for how long something was watched.
    if steps.source <= StepSource::Pattern
        || steps.ticks < ENOUGH_TICKS
        || now.saturating_sub(steps.last_ns) > stale
    {
        return None;
    }
    Some(StepAxis {
        clock: process.groups.ticks(),
        ticks_per_step: ticks_per_step.max(1e-9),
        sure_after: match q.sure_after_steps {
            0 => SURE_AFTER,
            steps => steps,
        },
        step_ns,
    })
}

/// Every live block that belongs to a group.
fn items(process: &Process) -> Vec<Item> {
    let mut items = Vec::new();
    if process.source() == Source::Pool {
        for (addr, block) in process.pool.blocks().filter(|(_, b)| !b.pending) {
            items.push(Item {
                addr: Some(addr),
                size: block.requested.unwrap_or(block.rounded),
                born_ns: block.born_ns,
                place: block.place,
                stack: Some(block.stack),
            });
        }
    }
    for (addr, pinned) in process.driver.host.allocated() {
        items.push(Item {
            addr: Some(addr),
            size: pinned.size,
            born_ns: pinned.born_ns,
            place: pinned.place,
            stack: None,
        });
    }
    let mut direct = |addr: Option<u64>, allocation: &Allocation| {
        if !allocation.pooled {
            items.push(Item {
                addr,
                size: allocation.size,
                born_ns: allocation.born_ns,
                place: allocation.place,
                stack: Some(allocation.stack),
            });
        }
    };
    for (addr, allocation) in process.driver.live() {
        direct(Some(addr), allocation);
    }
    for allocation in process.driver.vmm.allocations() {
        direct(None, allocation);
    }
    items
}

/// A group, and its number if it is one of an exact size.
struct Shown {
    group: LeakGroup,
    exact: Option<usize>,
    class: usize,
    stack: Option<StackIndex>,
}

impl View<'_> {
    fn exact_groups(&self) -> Vec<Shown> {
        let mut tallies: FastMap<usize, Tally> = FastMap::default();
        for item in &self.items {
            if let Some(place) = item.place.exact() {
                tallies.entry(place).or_default().add(item);
            }
        }
        self.process
            .groups
            .groups()
            .filter_map(|(place, group)| {
                let tally = tallies.get(&place)?;
                let size = group.key.size as f64;
                let row = |group: &Group, clock: Option<&WindowClock>| match clock {
                    None => group.floor.floors(&self.clock),
                    Some(clock) => group.steps.floors(clock),
                };
                let mut judged = self.judge(group.key.device, size, |clock| row(group, clock));
                // Blocks from before the attach have no stack: who replaces them one by one does not grow.
                let before = GroupKey {
                    stack: BEFORE_ATTACH,
                    ..group.key
                };
                if judged.verdict != Verdict::Steady
                    && group.key.stack != BEFORE_ATTACH
                    && let Some(before) = self.process.groups.find(&before)
                {
                    let together = self.judge(group.key.device, size, |clock| {
                        let mut sum = row(group, clock);
                        for (sum, part) in sum.iter_mut().zip(row(before, clock)) {
                            *sum = sum.saturating_add(part);
                        }
                        sum
                    });
                    if together.verdict != Verdict::Growing {
                        judged = together;
                    }
                }
                let growth_bytes = u64::from(judged.growth).saturating_mul(group.key.size);
                let mut shown = LeakGroup {
                    device: group.key.device,
                    space: group.key.space,
                    stream: group.key.stream,
                    size_bytes: group.key.size,
                    ..self.group(tally, &judged, growth_bytes, group.key.size as f64)
                };
                if let Some(axis) = &self.steps {
                    let lived = f64::from(group.freed.1) / axis.ticks_per_step;
                    shown.freed = (group.freed.0, lived.ceil() as u64);
                }
                Some(Shown {
                    group: shown,
                    exact: Some(place),
                    class: group.class as usize,
                    stack: Some(group.key.stack),
                })
            })
            .collect()
    }

    /// Size classes that grow beyond what their exact sizes explain.
    fn classes(&self, exact: &[Shown]) -> Vec<Shown> {
        let mut explained: FastMap<usize, Vec<usize>> = FastMap::default();
        for shown in exact {
            if let Some(place) = shown.exact
                && shown.group.verdict == Verdict::Growing
            {
                explained.entry(shown.class).or_default().push(place);
            }
        }
        let by_number: FastMap<usize, &Group> = self.process.groups.groups().collect();
        let mut found = Vec::new();
        for (number, class) in self.process.groups.classes() {
            let parts = explained.remove(&number).unwrap_or_default();
            let bound = class_bound(class.key.power);
            let judged = self.judge(class.key.device, bound as f64, |clock| {
                let mut floors = match clock {
                    None => class.floor.floors(&self.clock),
                    Some(clock) => class.steps.floors(clock),
                };
                for group in parts.iter().filter_map(|part| by_number.get(part)) {
                    let part = match clock {
                        None => group.floor.floors(&self.clock),
                        Some(clock) => group.steps.floors(clock),
                    };
                    for (rest, part) in floors.iter_mut().zip(part) {
                        *rest = rest.saturating_sub(part);
                    }
                }
                floors
            });
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let since = judged.since_ns;
            let (mut tally, mut recent) = (Tally::default(), Tally::default());
            for item in &self.items {
                if item.place.class() == Some(number)
                    && !item.place.exact().is_some_and(|e| parts.contains(&e))
                {
                    tally.add(item);
                    if item.born_ns >= since {
                        recent.add(item);
                    }
                }
            }
            if tally.count == 0 {
                continue;
            }
            let sample = if recent.count > 0 { &recent } else { &tally };
            let mean = sample.bytes as f64 / sample.count as f64;
            let growth_bytes = (mean * f64::from(judged.growth)) as u64;
            let mut group = LeakGroup {
                device: class.key.device,
                space: class.key.space,
                stream: None,
                size_bytes: bound,
                ..self.group(&tally, &judged, growth_bytes, mean)
            };

            group.reason = format!(
                "blocks of many sizes up to {} (more than half of that): {}",
                words::bytes(bound),
                group.reason
            );
            found.push(Shown {
                group,
                exact: None,
                class: number,
                stack: self.foremost(number, &parts, since),
            });
        }
        found
    }

    /// The stack of which most bytes of a class came since then; none if it is not the most of all.
    fn foremost(&self, class: usize, without: &[usize], since: u64) -> Option<StackIndex> {
        let mut bytes: FastMap<StackIndex, u64> = FastMap::default();
        let mut all = 0u64;
        for item in &self.items {
            let counts = item.place.class() == Some(class)
                && item.born_ns >= since
                && !item.place.exact().is_some_and(|e| without.contains(&e));
            if let (true, Some(stack)) = (counts, item.stack) {
                *bytes.entry(stack).or_default() += item.size;
                all += item.size;
            }
        }
        let (stack, most) = bytes
            .into_iter()
            .max_by_key(|(stack, bytes)| (*bytes, std::cmp::Reverse(*stack)))?;
        (most * 2 > all).then_some(stack)
    }

    fn frames(&self, stack: StackIndex) -> (Vec<Frame>, Option<Frame>) {
        let frames = self.process.stacks.frames_of(stack);
        let line = step_report::own_line(&frames).cloned();
        (frames, line)
    }

    /// By steps where they are known, else by time. `floors` gives the row for a clock of steps, or for time.
    fn judge(
        &self,
        device: Option<i32>,
        bytes: f64,
        floors: impl Fn(Option<&WindowClock>) -> Vec<u32>,
    ) -> Judgement {
        let Some(axis) = &self.steps else {
            let judged = verdict::judge(&floors(None));
            let windows = self
                .clock
                .width_ns()
                .saturating_mul(judged.from_window as u64);
            return Judgement {
                verdict: judged.verdict,
                growth: judged.growth,
                reason: format!(
                    "{} (watched {})",
                    judged.reason,
                    words::duration(self.now.saturating_sub(self.clock.start_ns()))
                ),
                since_ns: self.clock.start_ns().saturating_add(windows),
                confidence: None,
                per_step: None,
                first_step: None,
            };
        };
        let row = floors(Some(&axis.clock));
        let steps = axis.clock.width_ns() as f64 / axis.ticks_per_step;
        let scale = Scale {
            steps,
            sure_after: axis.sure_after,
            urgent: false,
        };
        let mut judged = trend::judge(&row, scale);
        let per_step = judged.slope.map(|slope| slope / steps);
        let [_, middle, _] = per_step;
        if judged.verdict == Verdict::Undecided
            && self.is_full_within(device, middle * bytes, axis.sure_after)
        {
            judged = trend::judge(
                &row,
                Scale {
                    urgent: true,
                    ..scale
                },
            );
        }
        let first_tick = (judged.first_window as u64).saturating_mul(axis.clock.width_ns());
        let first_step = (first_tick as f64 / axis.ticks_per_step).floor() as u64 + 1;
        let grown = judged.growth > 0;
        let back = judged.windows as f64 * steps * axis.step_ns.unwrap_or(0) as f64;
        Judgement {
            verdict: judged.verdict,
            growth: judged.growth,
            reason: judged.reason,
            since_ns: self.now.saturating_sub(back as u64),
            confidence: judged.confidence.filter(|_| grown),
            per_step: grown.then_some(per_step),
            first_step: grown.then_some(first_step),
        }
    }

    /// Whether so much growth fills the device before it would be called one.
    fn is_full_within(&self, device: Option<i32>, bytes_per_step: f64, steps: u64) -> bool {
        let rows = self.process.devices.iter();
        let mut free = rows
            .filter(|row| row.ordinal == device)
            .filter_map(|row| row.free_bytes);
        let growth = bytes_per_step * steps as f64;
        growth > 0.0 && free.any(|(free, _)| (free as f64) < growth)
    }

    fn group(&self, tally: &Tally, judged: &Judgement, growth_bytes: u64, bytes: f64) -> LeakGroup {
        let per_step = judged.per_step.map(|slopes| slopes.map(|s| s * bytes));
        let step_ns = self.steps.as_ref().and_then(|axis| axis.step_ns);
        let seconds = self.now.saturating_sub(judged.since_ns) as f64 / 1e9;
        let growth_bytes_per_s = match (per_step, step_ns) {
            (Some([_, middle, _]), Some(step_ns)) if step_ns > 0 => middle / (step_ns as f64 / 1e9),
            _ if seconds > 0.0 => growth_bytes as f64 / seconds,
            _ => 0.0,
        };
        LeakGroup {
            device: None,
            space: Space::Pool,
            stream: None,
            size_bytes: 0,
            live_count: tally.count,
            live_bytes: tally.bytes,
            growth_count: u64::from(judged.growth),
            growth_bytes,
            growth_bytes_per_s,
            oldest_age_ns: self.now.saturating_sub(tally.oldest_ns),
            newest_age_ns: self.now.saturating_sub(tally.newest_ns),
            verdict: judged.verdict,
            confidence: judged.confidence,
            growth_bytes_per_step: per_step,
            first_step: judged.first_step,
            freed: (0, 0),
            frames: Vec::new(),
            line: None,
            reason: judged.reason.clone(),
            examples: tally.examples.iter().map(|(_, addr)| *addr).collect(),
        }
    }
}

/// The device that is full first at this growth.
fn seconds_to_full(process: &Process, groups: &[Shown]) -> Option<f64> {
    let mut rates: FastMap<Option<i32>, f64> = FastMap::default();
    for shown in groups {
        let group = &shown.group;
        if group.verdict != Verdict::Growing {
            continue;
        }
        *rates.entry(group.device).or_default() += group.growth_bytes_per_s;
    }
    process
        .devices
        .iter()
        .filter_map(|row| {
            let rate = rates
                .get(&row.ordinal)
                .copied()
                .filter(|rate| *rate > 0.0)?;
            let (free, _) = row.free_bytes?;
            Some(free as f64 / rate)
        })
        .min_by(f64::total_cmp)
}
