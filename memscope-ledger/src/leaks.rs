//! The answer to `leaks`.
//!
//! Owns: which groups of live blocks are shown, and how. A group is judged by its exact size and stack; a size
//! class is shown only for growth that its exact sizes and stacks do not explain, as when every leaked block
//! has another size. Where steps are known, it is judged from step to step (`trend`), else by time (`verdict`). Sums are those of
//! all groups, however many are shown. Refuses: to keep anything; see `group` and `floor`.

use crate::coverage;
use crate::distribution::class_bound;
use crate::fast_hash::FastMap;
use crate::group::{Group, OfStack, StackKey, UNIT};
use crate::leak_items::{Item, Tally, items};
use crate::leak_judge::{Amount, Judge, Judgement, What, Young, step_axis};
use crate::leak_lines;
use crate::leak_returned;
use crate::process::Process;
use crate::report::{AsOf, Frame, LeakGroup, LeakQuery, LeakReport, Space, Verdict, YoungGrowth};
use crate::stacks::{BEFORE_ATTACH, StackIndex};
use crate::step_report;

/// Everything that the groups are shown by.
pub(crate) struct View<'a> {
    pub(crate) judge: Judge<'a>,
    pub(crate) items: Vec<Item>,
}

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf, q: &LeakQuery) -> LeakReport {
    let now = process.moment(as_of);
    let mut items = items(process);
    items.retain(|item| now.saturating_sub(item.born_ns) >= q.min_age_ns);
    let steps = step_report::summary(process);
    let view = View {
        judge: Judge::new(process, now, step_axis(process, now, q, steps.median_ns)),
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
    let growing_groups = groups.iter().filter(|shown| growing(&shown.group)).count() as u64;
    let young = young(&view, &groups);
    let given_back = leak_returned::given_back(&view);
    let seconds_to_full = seconds_to_full(process, &groups, now);
    groups.retain(|shown| match shown.group.verdict {
        Verdict::Growing => true,
        Verdict::Undecided => q.include_steady || shown.group.growth_bytes > 0,
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
    let mut lines = leak_lines::lines(&groups, |stack| view.frames(stack));
    let (all, all_lines) = (groups.len(), lines.len());
    let growing_lines = lines
        .iter()
        .filter(|line| line.verdict == Verdict::Growing)
        .count() as u64;
    if q.limit > 0 {
        groups.truncate(q.limit);
        lines.truncate(q.limit);
    }
    let omitted_lines = (all_lines - lines.len()) as u64;
    let omitted_groups = (all - groups.len()) as u64;
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
        lines,
        omitted_lines,
        growing_lines,
        groups,
        omitted_groups,
        growing_groups,
        growing_bytes,
        young,
        given_back,
        watched_ns: now.saturating_sub(view.judge.clock.start_ns()),
        seconds_to_full,
        coverage: coverage::notes(process),
    }
}

/// A group, and its number if it is one of an exact size.
pub(crate) struct Shown {
    pub(crate) group: LeakGroup,
    pub(crate) exact: Option<usize>,
    pub(crate) class: usize,
    pub(crate) stack: Option<StackIndex>,
    pub(crate) young: Option<Young>,
}

impl View<'_> {
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
            let rest = {
                let mut row = self.judge.row(&all.floor, &all.steps);
                for group in parts.iter().filter_map(|part| by_number.get(part)) {
                    let units = u32::try_from(group.key.size.div_ceil(UNIT)).unwrap_or(u32::MAX);
                    row.without(&self.judge.row(&group.floor, &group.steps), units);
                }
                row
            };
            let what = What {
                device: all.key.device,
                bytes: UNIT as f64,
                amount: Amount::Units,
            };
            let recorded = self
                .judge
                .is_reduced()
                .then(|| self.judge.judge_recorded(&what, &rest))
                .flatten();
            let is_cut = recorded.is_some();
            let mut judged = recorded.unwrap_or_else(|| self.judge.judge(&what, &rest));
            if judged.verdict != Verdict::Growing {
                continue;
            }
            // What took its blocks' place may be of those without a stack, and the other way round.
            let mut sum = rest;
            let mut others = self.beside_stack(&all.key).peekable();
            if others.peek().is_some() {
                for other in others {
                    sum.add(&self.judge.row(&other.floor, &other.steps));
                }
                let together = self.judge.judge(&what, &sum);
                if together.verdict != Verdict::Growing || !is_cut {
                    judged = together;
                }
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
            let growth_bytes = u64::from(judged.growth)
                .saturating_mul(UNIT)
                .min(tally.bytes);
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
                young: None,
            });
        }
        found
    }

    /// What was there before the attach, and where less than all stacks was recorded for a time, all whose stack was not.
    fn beside_stack(&self, key: &StackKey) -> impl Iterator<Item = &OfStack> {
        let process = self.judge.process;
        let (key, reduced) = (*key, self.judge.is_reduced());
        process
            .groups
            .of_stacks()
            .map(|(_, of)| of)
            .filter(move |of| {
                let stack = of.key.stack;
                (of.key.device, of.key.space) == (key.device, key.space)
                    && stack != key.stack
                    && (stack == BEFORE_ATTACH || reduced && process.stacks.is_missing(stack))
            })
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
            let mut rest = self.judge.row(&class.floor, &class.steps);
            for group in parts.iter().filter_map(|part| by_number.get(part)) {
                rest.without(&self.judge.row(&group.floor, &group.steps), 1);
            }
            let what = What {
                device: class.key.device,
                bytes: bound as f64,
                amount: Amount::Blocks,
            };
            let judged = self.judge.judge(&what, &rest);
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
            let growth_bytes = ((mean * f64::from(judged.growth)) as u64).min(tally.bytes);
            let mut group = LeakGroup {
                device: class.key.device,
                space: class.key.space,
                stream: None,
                size_bytes: bound,
                ..self.group(&tally, &judged, growth_bytes, mean)
            };

            group.reason = format!(
                "blocks of many sizes up to {} (more than half of that): {}",
                memscope_units::bytes(bound),
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
                young: None,
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

    pub(crate) fn frames(&self, stack: StackIndex) -> (Vec<Frame>, Option<Frame>) {
        let frames = self.judge.process.stacks.frames_of(stack);
        let line = step_report::own_line(&frames).cloned();
        (frames, line)
    }

    pub(crate) fn group(
        &self,
        tally: &Tally,
        judged: &Judgement,
        growth_bytes: u64,
        bytes: f64,
    ) -> LeakGroup {
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
            growth_count: u64::from(judged.growth).min(tally.count),
            growth_bytes,
            growth_bytes_per_s,
            oldest_age_ns: self.judge.now.saturating_sub(tally.oldest_ns),
            newest_age_ns: self.judge.now.saturating_sub(tally.newest_ns),
            verdict: judged.verdict,
            confidence: judged.confidence,
            growth_bytes_per_step: per_step,
            first_step: judged.first_step,
            freed: (0, 0),
            beside: false,
            frames: Vec::new(),
            line: None,
            reason: judged.reason.clone(),
            examples: tally.examples.iter().map(|(_, addr)| *addr).collect(),
        }
    }
}

/// What rises and is too young to be judged, if anything.
fn young(view: &View<'_>, groups: &[Shown]) -> Option<YoungGrowth> {
    let mut found: Option<YoungGrowth> = None;
    let needed = view.judge.steps.as_ref().map(|axis| axis.sure_after);
    for young in groups.iter().filter_map(|shown| shown.young) {
        let all = found.get_or_insert(YoungGrowth {
            groups: 0,
            in_every_step: true,
            steps: needed.map(|_| 0),
            needed_steps: needed,
        });
        all.groups += 1;
        all.in_every_step &= young.in_every_step;
        all.steps = all.steps.map(|steps| steps.max(young.steps));
    }
    found
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
