//! The answer to `leaks`.
//!
//! Owns: which groups of live blocks are shown, and how. A group is judged by its exact size and stack; a size
//! class is shown only for growth that its exact sizes and stacks do not explain, as when every leaked block
//! has another size. Where steps are known, it is judged from step to step (`trend`), else by time (`verdict`). Sums are those of
//! all groups, however many are shown. Refuses: to keep anything; see `group` and `floor`.

use crate::coverage;
use crate::distribution::class_bound;
use crate::fast_hash::FastMap;
use crate::floor::Row;
use crate::group::{Group, OfStack, StackKey, UNIT};
use crate::leak_exact::Exact;
use crate::leak_items::{Item, Tally, items};
use crate::leak_judge::{Amount, Judge, Judgement, What, Young, step_axis};
use crate::leak_lines;
use crate::leak_returned;
use crate::process::Process;
use crate::replaced;
use crate::report::{AsOf, Frame, LeakGroup, LeakQuery, LeakReport, Space, Verdict, YoungGrowth};
use crate::stacks::{BEFORE_ATTACH, StackIndex};
use crate::step_report;
use crate::trend;

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
    let mut exact = view.exact_groups();
    let stacks = view.stacks(&exact);
    let classes = view.classes(&exact.shown, &stacks);
    // A block is told of once: what is told of as one of several sizes is not told of by its own.
    let told: Vec<usize> = stacks
        .iter()
        .chain(&classes)
        .flat_map(|(_, covers)| covers.iter().copied())
        .collect();
    exact
        .shown
        .retain(|shown| !shown.exact.is_some_and(|place| told.contains(&place)));
    let mut groups = exact.shown;
    groups.extend(stacks.into_iter().chain(classes).map(|(shown, _)| shown));
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
    let (mut lines, together) = leak_lines::lines(&groups, |stack| view.frames(stack));
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
        together,
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

/// Units of one of a group's blocks.
fn units(group: &Group) -> u32 {
    u32::try_from(group.key.size.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// A group, and its number if it is one of an exact size.
pub(crate) struct Shown {
    pub(crate) group: LeakGroup,
    pub(crate) exact: Option<usize>,
    pub(crate) class: usize,
    pub(crate) stack: Option<StackIndex>,
    pub(crate) young: Option<Young>,
    /// What it was judged by, where it is one of an exact size and all stacks were recorded.
    pub(crate) row: Row,
}

/// A row over several sizes, and the numbers of the groups whose blocks it counts.
type Several = (Shown, Vec<usize>);

impl View<'_> {
    /// Stacks whose bytes grow beyond what their exact sizes explain.
    fn stacks(&self, exact: &Exact) -> Vec<Several> {
        let mut explained: FastMap<StackIndex, Vec<usize>> = FastMap::default();
        let mut others: FastMap<StackIndex, Vec<&Shown>> = FastMap::default();
        for shown in &exact.shown {
            let (Some(place), Some(stack)) = (shown.exact, shown.stack) else {
                continue;
            };
            match shown.group.verdict {
                Verdict::Growing => explained.entry(stack).or_default().push(place),
                _ => others.entry(stack).or_default().push(shown),
            }
        }
        let by_number: FastMap<usize, &Group> = self.judge.process.groups.groups().collect();
        let candidates: Vec<(usize, &OfStack)> = self
            .judge
            .process
            .groups
            .of_stacks()
            .filter(|(_, all)| !self.judge.process.stacks.is_missing(all.key.stack))
            .collect();
        let parts_of = |stack: StackIndex| explained.get(&stack).map_or(&[][..], Vec::as_slice);
        let rests: Vec<Row> = candidates
            .iter()
            .map(|(_, all)| {
                let mut row = self.judge.row(&all.floor, &all.steps);
                let parts = parts_of(all.key.stack).iter();
                for group in parts.filter_map(|part| by_number.get(part)) {
                    row.without(&self.judge.row(&group.floor, &group.steps), units(group));
                }
                // What took the place of as many blocks of its own size does not count.
                for shown in others.get(&all.key.stack).into_iter().flatten() {
                    let group = shown.exact.and_then(|place| by_number.get(&place));
                    let Some(group) = group.filter(|group| {
                        shown.row.over.len() == row.over.len()
                            && (group.key.device, group.key.space)
                                == (all.key.device, all.key.space)
                    }) else {
                        continue;
                    };
                    let mut share = shown.row.clone();
                    share.without(&self.judge.row(&group.floor, &group.steps), 1);
                    row.add(&share.times(units(group)));
                }
                row
            })
            .collect();
        let shares = self.shares(exact, &candidates, &rests);
        let mut found = Vec::new();
        for (((number, all), rest), share) in candidates.into_iter().zip(rests).zip(shares) {
            let parts = parts_of(all.key.stack);
            let what = What {
                device: all.key.device,
                bytes: UNIT as f64,
                amount: Amount::Units,
            };
            let reduced = self.judge.is_reduced();
            let recorded = reduced
                .then(|| self.judge.judge_recorded(&what, &rest))
                .flatten();
            let is_cut = recorded.is_some();
            let mut judged = recorded.unwrap_or_else(|| self.judge.judge(&what, &rest));
            if judged.verdict != Verdict::Growing {
                continue;
            }
            // What took its blocks' place may be of those without a stack, and the other way round.
            let mut sum = rest;
            let mut is_alone = true;
            if reduced {
                for other in self.beside_stack(&all.key) {
                    is_alone = false;
                    sum.add(&self.judge.row(&other.floor, &other.steps));
                }
            } else if let Some(share) = share {
                is_alone = false;
                sum.add(&share);
            }
            if !is_alone {
                let together = self.judge.judge(&what, &sum);
                if together.verdict != Verdict::Growing || !is_cut {
                    judged = together;
                }
            }
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let mut tally = Tally::default();
            let mut covers = Vec::new();
            for item in &self.items {
                if item.place.of_stack() == Some(number)
                    && !item.place.exact().is_some_and(|e| parts.contains(&e))
                {
                    tally.add(item);
                    covers.extend(item.place.exact());
                }
            }
            if tally.count == 0 {
                continue;
            }
            covers.sort_unstable();
            covers.dedup();
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
            let shown = Shown {
                group,
                exact: None,
                class: usize::MAX,
                stack: Some(all.key.stack),
                young: None,
                row: Row::default(),
            };
            found.push((shown, covers));
        }
        found
    }

    /// Of each stack, what fell for it of the blocks from before the attach, where sizes differ.
    fn shares(
        &self,
        exact: &Exact,
        candidates: &[(usize, &OfStack)],
        rests: &[Row],
    ) -> Vec<Option<Row>> {
        let mut shares = vec![None; candidates.len()];
        for (place, before) in &exact.before {
            let (of, rows): (Vec<usize>, Vec<&Row>) = candidates
                .iter()
                .zip(rests)
                .enumerate()
                .filter(|(_, ((_, all), _))| (all.key.device, all.key.space) == *place)
                .map(|(at, (_, rest))| (at, rest))
                .unzip();
            for (at, share) in of.into_iter().zip(replaced::shares(before, &rows).of) {
                if let Some(slot) = shares.get_mut(at) {
                    *slot = share;
                }
            }
        }
        shares
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

    /// Size classes that grow beyond what their exact sizes and their stacks explain.
    fn classes(&self, exact: &[Shown], stacks: &[Several]) -> Vec<Several> {
        // Of each class: what is explained, and what rises and is not judged by its own.
        let mut explained: FastMap<usize, Vec<usize>> = FastMap::default();
        let mut rising: FastMap<usize, FastMap<usize, &Shown>> = FastMap::default();
        for shown in exact {
            let Some(place) = shown.exact else { continue };
            let enough = shown.group.growth_count >= u64::from(trend::ENOUGH_BLOCKS);
            match shown.group.verdict {
                Verdict::Growing => explained.entry(shown.class).or_default().push(place),
                Verdict::Undecided if enough => {
                    explained.entry(shown.class).or_default().push(place);
                }
                _ => {
                    rising.entry(shown.class).or_default().insert(place, shown);
                }
            }
        }
        let grown: Vec<StackIndex> = exact
            .iter()
            .chain(stacks.iter().map(|(shown, _)| shown))
            .filter(|shown| shown.group.verdict == Verdict::Growing)
            .filter_map(|shown| shown.stack)
            .collect();
        let by_number: FastMap<usize, &Group> = self.judge.process.groups.groups().collect();
        let nothing = FastMap::default();
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
            let members = rising.get(&number).unwrap_or(&nothing);
            let several = self.of_class(number, &judged, members, &parts);
            let Some((stack, tally, covers, share)) = several else {
                continue;
            };
            if stack.is_some_and(|stack| grown.contains(&stack)) {
                continue;
            }
            let mean = tally.bytes as f64 / tally.count.max(1) as f64;
            let growth = f64::from(judged.growth) * share;
            let growth_bytes = ((mean * growth) as u64).min(tally.bytes);
            let mut group = LeakGroup {
                device: class.key.device,
                space: class.key.space,
                stream: None,
                size_bytes: bound,
                ..self.group(&tally, &judged, growth_bytes, mean * share)
            };
            group.growth_count = (growth.round() as u64).min(tally.count);
            group.reason = format!(
                "blocks of many sizes up to {} (more than half of that): {}",
                memscope_units::bytes(bound),
                group.reason
            );
            let shown = Shown {
                group,
                exact: None,
                class: number,
                stack,
                young: None,
                row: Row::default(),
            };
            found.push((shown, covers));
        }
        found
    }

    /// Whose blocks a class grows by, beside those that are told of by their own size: the stack that more than half of them are of, what is
    /// held of them, the numbers of their groups, and the stack's share of the growth.
    fn of_class(
        &self,
        class: usize,
        judged: &Judgement,
        rising: &FastMap<usize, &Shown>,
        parts: &[usize],
    ) -> Option<(Option<StackIndex>, Tally, Vec<usize>, f64)> {
        // What each group rose by; of blocks that are in no group, those that came since.
        let rise = |shown: &Shown| match shown.row.over.is_empty() {
            true => u64::from(judged.growth),
            false => u64::from(shown.row.risen_since(judged.first_window)),
        };
        // What rose before that is held as well.
        let stays =
            |shown: &Shown| shown.stack != Some(BEFORE_ATTACH) && shown.row.risen_since(1) > 0;
        let risen: FastMap<usize, &Shown> = rising
            .iter()
            .filter(|(_, shown)| rise(shown) > 0 || stays(shown))
            .map(|(place, shown)| (*place, *shown))
            .collect();
        let counts = |item: &Item| {
            item.place.class() == Some(class)
                && match item.place.exact() {
                    Some(place) => !parts.contains(&place) && risen.contains_key(&place),
                    None => item.born_ns >= judged.since_ns,
                }
        };
        let mut by_stack: FastMap<Option<StackIndex>, u64> = FastMap::default();
        for shown in risen.values() {
            *by_stack.entry(shown.stack).or_default() += rise(shown);
        }
        for item in self.items.iter().filter(|item| counts(item)) {
            if item.place.exact().is_none() {
                *by_stack.entry(item.stack).or_default() += 1;
            }
        }
        let all: u64 = by_stack.values().sum();
        let (foremost, most) = by_stack
            .into_iter()
            .max_by_key(|(stack, rise)| (*rise, std::cmp::Reverse(*stack)))?;
        let stack = foremost.filter(|_| most * 2 > all);
        let mut tally = Tally::default();
        let mut covers = Vec::new();
        for item in self.items.iter().filter(|item| counts(item)) {
            if stack.is_none() || item.stack == stack {
                tally.add(item);
                covers.extend(item.place.exact());
            }
        }
        covers.sort_unstable();
        covers.dedup();
        let share = match stack {
            Some(_) => most as f64 / all.max(1) as f64,
            None => 1.0,
        };
        (tally.count > 0).then_some((stack, tally, covers, share))
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
