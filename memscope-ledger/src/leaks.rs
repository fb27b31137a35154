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
use crate::group::{Group, GroupKey, Membership, OfStack, StackKey, UNIT};
use crate::leak_judge::{Amount, Judge, Judgement, step_axis};
use crate::process::Process;
use crate::report::{AsOf, Frame, LeakGroup, LeakQuery, LeakReport, Source, Space, Verdict};
use crate::stacks::{BEFORE_ATTACH, StackIndex};
use crate::step_report;
use crate::words;

/// Addresses shown of a group.
const EXAMPLES: usize = 5;
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
    judge: Judge<'a>,
    items: Vec<Item>,
}

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf, q: &LeakQuery) -> LeakReport {
    let now = process.moment(as_of);
    let clock = process.groups.clock_at(now);
    let mut items = items(process);
    items.retain(|item| now.saturating_sub(item.born_ns) >= q.min_age_ns);
    let steps = step_report::summary(process);
    let view = View {
        judge: Judge {
            process,
            now,
            clock,
            steps: step_axis(process, now, q, steps.median_ns),
        },
        items,
    };
    let mut groups = view.exact_groups();
    groups.extend(view.stacks(&groups));
    groups.extend(view.classes(&groups));
    let growing = |group: &LeakGroup| group.verdict == Verdict::Growing;
    let growing_bytes = groups
        .iter()
        .filter(|shown| growing(&shown.group))
        .fold(0u64, |sum, shown| {
            sum.saturating_add(shown.group.growth_bytes)
        });
    let seconds_to_full = seconds_to_full(process, &groups, now);
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
        self.judge
            .process
            .groups
            .groups()
            .filter_map(|(place, group)| {
                let tally = tallies.get(&place)?;
                let size = group.key.size as f64;
                let row = |group: &Group, clock: Option<&WindowClock>| match clock {
                    None => group.floor.floors(&self.judge.clock),
                    Some(clock) => group.steps.floors(clock),
                };
                let mut judged =
                    self.judge
                        .judge(group.key.device, size, Amount::Blocks, |clock| {
                            row(group, clock)
                        });
                // Blocks from before the attach have no stack: who replaces them one by one does not grow.
                let before = GroupKey {
                    stack: BEFORE_ATTACH,
                    ..group.key
                };
                if judged.verdict != Verdict::Steady
                    && group.key.stack != BEFORE_ATTACH
                    && let Some(before) = self.judge.process.groups.find(&before)
                {
                    let together =
                        self.judge
                            .judge(group.key.device, size, Amount::Blocks, |clock| {
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
                if let Some(axis) = &self.judge.steps {
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

    /// Stacks whose bytes grow beyond what their exact sizes explain.
    fn stacks(&self, exact: &[Shown]) -> Vec<Shown> {
        let mut explained: FastMap<StackIndex, Vec<usize>> = FastMap::default();
        for shown in exact {
            if let (Some(place), Some(stack)) = (shown.exact, shown.stack)
                && shown.group.verdict == Verdict::Growing
            {
                explained.entry(stack).or_default().push(place);
            }
        }
        let by_number: FastMap<usize, &Group> = self.judge.process.groups.groups().collect();
        let mut found = Vec::new();
        for (number, all) in self.judge.process.groups.of_stacks() {
            if self.judge.process.stacks.is_missing(all.key.stack) {
                continue;
            }
            let parts = explained.get(&all.key.stack).map_or(&[][..], Vec::as_slice);
            let row = |all: &OfStack, clock: Option<&WindowClock>| match clock {
                None => all.floor.floors(&self.judge.clock),
                Some(clock) => all.steps.floors(clock),
            };
            let rest = |clock: Option<&WindowClock>| {
                let mut floors = row(all, clock);
                for group in parts.iter().filter_map(|part| by_number.get(part)) {
                    let units = u32::try_from(group.key.size.div_ceil(UNIT)).unwrap_or(u32::MAX);
                    let part = match clock {
                        None => group.floor.floors(&self.judge.clock),
                        Some(clock) => group.steps.floors(clock),
                    };
                    for (rest, part) in floors.iter_mut().zip(part) {
                        *rest = rest.saturating_sub(part.saturating_mul(units));
                    }
                }
                floors
            };
            let mut judged = self
                .judge
                .judge(all.key.device, UNIT as f64, Amount::Units, rest);
            let before = StackKey {
                stack: BEFORE_ATTACH,
                ..all.key
            };
            if judged.verdict == Verdict::Growing
                && let Some(before) = self.judge.process.groups.find_stack(&before)
            {
                judged = self
                    .judge
                    .judge(all.key.device, UNIT as f64, Amount::Units, |clock| {
                        let mut sum = rest(clock);
                        for (sum, part) in sum.iter_mut().zip(row(before, clock)) {
                            *sum = sum.saturating_add(part);
                        }
                        sum
                    });
            }
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let mut tally = Tally::default();
            for item in &self.items {
                if item.place.of_stack() == Some(number)
                    && !item.place.exact().is_some_and(|e| parts.contains(&e))
                {
                    tally.add(item);
                }
            }
            if tally.count == 0 {
                continue;
            }
            let growth_bytes = u64::from(judged.growth).saturating_mul(UNIT);
            let mut group = LeakGroup {
                device: all.key.device,
                space: all.key.space,
                size_bytes: tally.bytes / tally.count,
                growth_count: 0,
                ..self.group(&tally, &judged, growth_bytes, UNIT as f64)
            };
            group.reason = format!("blocks of several sizes of one stack: {}", group.reason);
            found.push(Shown {
                group,
                exact: None,
                class: usize::MAX,
                stack: Some(all.key.stack),
            });
        }
        found
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
        let by_number: FastMap<usize, &Group> = self.judge.process.groups.groups().collect();
        let mut found = Vec::new();
        for (number, class) in self.judge.process.groups.classes() {
            let parts = explained.remove(&number).unwrap_or_default();
            let bound = class_bound(class.key.power);
            let judged =
                self.judge
                    .judge(class.key.device, bound as f64, Amount::Blocks, |clock| {
                        let mut floors = match clock {
                            None => class.floor.floors(&self.judge.clock),
                            Some(clock) => class.steps.floors(clock),
                        };
                        for group in parts.iter().filter_map(|part| by_number.get(part)) {
                            let part = match clock {
                                None => group.floor.floors(&self.judge.clock),
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
            let grown: Vec<StackIndex> = exact
                .iter()
                .filter(|shown| shown.group.verdict == Verdict::Growing)
                .filter_map(|shown| shown.stack)
                .collect();
            if self.is_of(number, since, &grown) {
                continue;
            }
            let stack = self.foremost(number, &parts, since);
            found.push(Shown {
                group,
                exact: None,
                class: number,
                stack,
            });
        }
        found
    }

    /// Whether half of what came in a class since then is of stacks that are told of anyway.
    fn is_of(&self, class: usize, since: u64, stacks: &[StackIndex]) -> bool {
        let (mut theirs, mut all) = (0u64, 0u64);
        for item in &self.items {
            if item.place.class() == Some(class) && item.born_ns >= since {
                all += item.size;
                if item.stack.is_some_and(|stack| stacks.contains(&stack)) {
                    theirs += item.size;
                }
            }
        }
        theirs * 2 >= all && all > 0
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
        let frames = self.judge.process.stacks.frames_of(stack);
        let line = step_report::own_line(&frames).cloned();
        (frames, line)
    }

    fn group(&self, tally: &Tally, judged: &Judgement, growth_bytes: u64, bytes: f64) -> LeakGroup {
        let per_step = judged.per_step.map(|slopes| slopes.map(|s| s * bytes));
        let step_ns = self.judge.steps.as_ref().and_then(|axis| axis.step_ns);
        let seconds = self.judge.now.saturating_sub(judged.since_ns) as f64 / 1e9;
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
            oldest_age_ns: self.judge.now.saturating_sub(tally.oldest_ns),
            newest_age_ns: self.judge.now.saturating_sub(tally.newest_ns),
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

/// The device that is full first at this growth. Of a process that is no longer traced nothing is known of its growth.
fn seconds_to_full(process: &Process, groups: &[Shown], now: u64) -> Option<f64> {
    if process.ended_ns.is_some() {
        return None;
    }
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
            Some(row.free_at(now)? as f64 / rate)
        })
        .min_by(f64::total_cmp)
}
