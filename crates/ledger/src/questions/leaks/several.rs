//! Groups of blocks of several sizes, as the answer to `leaks` has them.
//!
//! Owns: stacks and size classes that grow beyond what their exact sizes explain, as when every leaked block has
//! another size. Refuses: groups of one size; `exact` has them.

use super::exact::Exact;
use super::items::{Item, Tally};
use super::judge::{Amount, Judgement, What};
use super::replaced;
use super::view::{Shown, View};
use crate::fast_hash::{FastMap, FastSet};
use crate::growth::floor::Row;
use crate::growth::group::{Group, OfStack, StackKey, UNIT};
use crate::growth::trend;
use crate::report::Verdict;
use crate::state::distribution::class_bound;
use crate::state::stacks::{BEFORE_ATTACH, StackIndex};
use memscope_proto::v1;
use memscope_proto::v1::LeakGroup;
use std::collections::BTreeMap;

/// A group of several sizes, and the numbers of the groups of exact sizes whose blocks it counts.
pub(super) type Several = (Shown, Vec<usize>);

/// A stack that grows, and those of its live blocks that its exact sizes do not explain.
struct Growing {
    key: StackKey,
    judged: Judgement,
    tally: Tally,
    /// Numbers of the groups of exact sizes that the blocks are in.
    covers: Vec<usize>,
}

impl View<'_> {
    /// Stacks whose bytes grow beyond what their exact sizes explain.
    pub(super) fn stacks(&self, exact: &Exact) -> Vec<Several> {
        let mut explained: FastMap<StackKey, Vec<usize>> = FastMap::default();
        let mut replaced: FastMap<StackKey, Vec<&Row>> = FastMap::default();
        for shown in &exact.shown {
            let (Some(place), Some(stack)) = (shown.exact, shown.stack) else {
                continue;
            };
            let key = StackKey {
                device: shown.group.device,
                space: shown.space,
                stack,
            };
            if shown.verdict == Verdict::Growing {
                explained.entry(key).or_default().push(place);
            } else if let Some(share) = &shown.share {
                replaced.entry(key).or_default().push(share);
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
        let parts_of = |key: &StackKey| explained.get(key).map_or(&[][..], Vec::as_slice);
        let rests: Vec<Row> = candidates
            .iter()
            .map(|(number, all)| {
                let mut row = self
                    .judge
                    .row(all.key.space, &all.floor, &all.steps, all.left);
                let parts = parts_of(&all.key).iter();
                // A group that began when there was no room for its stack is not in the stack's row.
                let parts = parts.filter_map(|part| by_number.get(part));
                for group in parts.filter(|group| group.is_of_stack(*number)) {
                    row.without(
                        &self
                            .judge
                            .row(group.key.space, &group.floor, &group.steps, group.left),
                        group.units(),
                    );
                }
                // Blocks that replaced blocks of the same size from before the attach are no growth.
                for share in replaced.get(&all.key).into_iter().flatten() {
                    row.add(share);
                }
                row
            })
            .collect();
        let shares = self.shares(exact, &candidates, &rests);
        let mut growing: BTreeMap<usize, Growing> = BTreeMap::new();
        for (((number, all), rest), share) in candidates.into_iter().zip(rests).zip(shares) {
            let what = What {
                device: all.key.device,
                space: all.key.space,
                bytes: UNIT as f64,
                amount: Amount::Units,
                chances: exact.chances.of_stack(&all.key),
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
            // Blocks of this stack may have been replaced by blocks without a recorded stack, and the other way round.
            let mut sum = rest;
            let unrecorded = self.unrecorded_stacks(&all.key);
            let others: Vec<Row> = unrecorded.into_iter().chain(share).collect();
            others.iter().for_each(|other| sum.add(other));
            if !others.is_empty() {
                let together = self.judge.judge(&what, &sum);
                if together.verdict != Verdict::Growing || !is_cut {
                    judged = together;
                }
            }
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let stack = Growing {
                key: all.key,
                judged,
                tally: Tally::default(),
                covers: Vec::new(),
            };
            growing.insert(number, stack);
        }
        if growing.is_empty() {
            return Vec::new();
        }
        // One walk for all of them: there may be very many blocks.
        let told: FastSet<usize> = explained.values().flatten().copied().collect();
        self.each(|item| {
            let exact = item.place.exact();
            if exact.is_some_and(|exact| told.contains(&exact)) {
                return;
            }
            let others = self.judge.process.groups.others(item.place);
            let of_stack = others.map(|of| of.of_stack as usize);
            let Some(stack) = of_stack.and_then(|number| growing.get_mut(&number)) else {
                return;
            };
            stack.tally.add(item);
            if stack.covers.last() != exact.as_ref() {
                stack.covers.extend(exact);
            }
        });
        growing
            .into_values()
            .filter_map(|stack| self.of_stack(stack))
            .collect()
    }

    /// The group of a stack; `None` if no block is left for it.
    fn of_stack(&self, stack: Growing) -> Option<Several> {
        let Growing {
            key,
            judged,
            tally,
            mut covers,
        } = stack;
        let mean = tally.bytes.checked_div(tally.count)?;
        covers.sort_unstable();
        covers.dedup();
        let growth_bytes = u64::from(judged.growth)
            .saturating_mul(UNIT)
            .min(tally.bytes);
        let mut group = LeakGroup {
            device: key.device,
            source: v1::Source::from(key.space).into(),
            size_bytes: mean,
            stack: Some(key.stack),
            growth_count: 0,
            ..self.group(&tally, &judged, growth_bytes, UNIT as f64)
        };
        group.reason = format!("blocks of several sizes of one stack: {}", group.reason);
        let shown = Shown {
            group,
            space: key.space,
            verdict: judged.verdict,
            sizes: tally.sizes,
            exact: None,
            class: None,
            stack: Some(key.stack),
            young: None,
            net: Row::default(),
            share: None,
        };
        Some((shown, covers))
    }

    /// For each stack, the floors of the blocks from before the attach that its blocks replaced with other sizes.
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

    /// Where not all stacks were recorded for a time: the rows of blocks without a recorded stack, of the same device
    /// and kind of memory as this stack.
    fn unrecorded_stacks(&self, key: &StackKey) -> Vec<Row> {
        if !self.judge.is_reduced() {
            return Vec::new();
        }
        let process = self.judge.process;
        let of_stacks = process.groups.of_stacks().map(|(_, of)| of);
        of_stacks
            .filter(|of| {
                let stack = of.key.stack;
                (of.key.device, of.key.space) == (key.device, key.space)
                    && stack != BEFORE_ATTACH
                    && process.stacks.is_missing(stack)
            })
            .map(|of| self.judge.row(of.key.space, &of.floor, &of.steps, of.left))
            .collect()
    }

    /// Size classes that grow beyond what their exact sizes and their stacks explain.
    pub(super) fn classes(&self, exact: &Exact, stacks: &[Several]) -> Vec<Several> {
        // For each class, the groups whose growth is judged by itself, and the other groups.
        let mut explained: FastMap<usize, Vec<usize>> = FastMap::default();
        let mut rising: FastMap<usize, FastMap<usize, &Shown>> = FastMap::default();
        for shown in &exact.shown {
            let (Some(place), Some(class)) = (shown.exact, shown.class) else {
                continue;
            };
            let enough = shown.group.growth_count >= u64::from(trend::ENOUGH_BLOCKS);
            match shown.verdict {
                Verdict::Growing => explained.entry(class).or_default().push(place),
                Verdict::Undecided if enough => {
                    explained.entry(class).or_default().push(place);
                }
                _ => {
                    rising.entry(class).or_default().insert(place, shown);
                }
            }
        }
        let grown: Vec<StackIndex> = exact
            .shown
            .iter()
            .chain(stacks.iter().map(|(shown, _)| shown))
            .filter(|shown| shown.verdict == Verdict::Growing)
            .filter_map(|shown| shown.stack)
            .collect();
        let by_number: FastMap<usize, &Group> = self.judge.process.groups.groups().collect();
        let nothing = FastMap::default();
        let mut found = Vec::new();
        for (number, class) in self.judge.process.groups.classes() {
            let parts = explained.remove(&number).unwrap_or_default();
            let bound = class_bound(class.key.power);
            let mut rest = self
                .judge
                .row(class.key.space, &class.floor, &class.steps, class.left);
            for group in parts.iter().filter_map(|part| by_number.get(part)) {
                rest.without(
                    &self
                        .judge
                        .row(group.key.space, &group.floor, &group.steps, group.left),
                    1,
                );
            }
            let what = What {
                device: class.key.device,
                space: class.key.space,
                bytes: bound as f64,
                amount: Amount::Blocks,
                chances: exact.chances.of_class(number),
            };
            let judged = self.judge.judge(&what, &rest);
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let members = rising.get(&number).unwrap_or(&nothing);
            let several = self.of_class(number, &judged, members, &parts, &grown);
            let Some((stack, tally, covers, share)) = several else {
                continue;
            };
            let mean = tally.bytes as f64 / tally.count.max(1) as f64;
            let growth = f64::from(judged.growth) * share;
            let growth_bytes = ((mean * growth) as u64).min(tally.bytes);
            let mut group = LeakGroup {
                device: class.key.device,
                source: v1::Source::from(class.key.space).into(),
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
                space: class.key.space,
                verdict: judged.verdict,
                sizes: tally.sizes,
                exact: None,
                class: Some(number),
                stack,
                young: None,
                net: Row::default(),
                share: None,
            };
            found.push((shown, covers));
        }
        found
    }

    /// Which blocks a class grows by, apart from those that are reported by their own size (`parts`) or their stack
    /// (`told`): the stack of more than half of them, if there is one; their live blocks; the numbers of their groups;
    /// and their share of the growth. `None` where at least half of the growth is reported by its stacks anyway.
    fn of_class(
        &self,
        class: usize,
        judged: &Judgement,
        rising: &FastMap<usize, &Shown>,
        parts: &[usize],
        told: &[StackIndex],
    ) -> Option<(Option<StackIndex>, Tally, Vec<usize>, f64)> {
        // The growth of each group. Blocks in no group of an exact size count if they were allocated since the growth
        // began.
        let rise = |shown: &Shown| u64::from(shown.net.risen_since(judged.first_window));
        // Blocks by which a group rose before the growth began are held as well.
        let stays =
            |shown: &Shown| shown.stack != Some(BEFORE_ATTACH) && shown.net.risen_since(1) > 0;
        let risen: FastMap<usize, &Shown> = rising
            .iter()
            .filter(|(_, shown)| rise(shown) > 0 || stays(shown))
            .map(|(place, shown)| (*place, *shown))
            .collect();
        let counts = |item: &Item| {
            let others = self.judge.process.groups.others(item.place);
            others.is_some_and(|of| of.class as usize == class)
                && match item.place.exact() {
                    Some(place) => !parts.contains(&place) && risen.contains_key(&place),
                    None => item.born_ns.is_some_and(|born| born >= judged.since_ns),
                }
        };
        let mut by_stack: FastMap<Option<StackIndex>, u64> = FastMap::default();
        for shown in risen.values() {
            *by_stack.entry(shown.stack).or_default() += rise(shown);
        }
        self.each(|item| {
            if item.place.exact().is_none() && counts(item) {
                *by_stack.entry(item.stack).or_default() += 1;
            }
        });
        let all: u64 = by_stack.values().sum();
        let is_told = |stack: &Option<StackIndex>| stack.is_some_and(|stack| told.contains(&stack));
        by_stack.retain(|stack, _| !is_told(stack));
        let rest: u64 = by_stack.values().sum();
        if rest * 2 <= all {
            return None;
        }
        let (foremost, most) = by_stack
            .into_iter()
            .max_by_key(|(stack, rise)| (*rise, std::cmp::Reverse(*stack)))?;
        let stack = foremost.filter(|_| most * 2 > rest);
        let mut tally = Tally::default();
        let mut covers = Vec::new();
        self.each(|item| {
            if counts(item) && !is_told(&item.stack) && (stack.is_none() || item.stack == stack) {
                tally.add(item);
                let exact = item.place.exact();
                if covers.last() != exact.as_ref() {
                    covers.extend(exact);
                }
            }
        });
        covers.sort_unstable();
        covers.dedup();
        let theirs = if stack.is_some() { most } else { rest };
        let share = theirs as f64 / all.max(1) as f64;
        (tally.count > 0).then_some((stack, tally, covers, share))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::view::WALKS;
    use crate::event::*;
    use crate::report::AsOf;
    use crate::{Ledger, LedgerConfig};
    use memscope_proto::v1::LeaksRequest;

    const P: ProcessHandle = ProcessHandle(1);
    const STEPS: u64 = 200;

    /// A process in which so many stacks leak a block in each step, each block of another size.
    fn leaking(stacks: u64) -> (Ledger, AsOf) {
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut time_ns = 1_000_000_000;
        let mut apply = |stack, body| {
            time_ns += 50_000;
            ledger.apply(&Event {
                id: EventId::default(),
                time_ns,
                process: P,
                tid: 100,
                lost_before: 0,
                stack,
                sampling: 0,
                body,
            });
        };
        let facts = ProcessFacts {
            pid: 42,
            start_ticks: 77,
            level: Some(Level::Segments),
            from_start: true,
            ..ProcessFacts::default()
        };
        apply(StackRef::NotTaken, Body::Attached(Box::new(facts)));
        for id in 1..=stacks {
            let seen = StackSeen {
                id,
                natives: vec![0x55_0000_0000 + id * 16, 0x55_0000_0000],
                ..StackSeen::default()
            };
            apply(StackRef::NotTaken, Body::Stack(Box::new(seen)));
        }
        for step in 0..STEPS {
            for id in 1..=stacks {
                let number = step * stacks + id;
                let call = Call {
                    function: "cudaMalloc".into(),
                    layer: Layer::Runtime,
                    vendor: Vendor::Cuda,
                    op: CallOp::Alloc,
                    status: 0,
                    device: Some(0),
                    ptr: 0x7f00_0000_0000 + number * (1 << 20),
                    // All sizes are of one class.
                    size: (64 << 10) + number,
                    stream: None,
                    handle: 0,
                    context: 0,
                    of_host: false,
                    hal: None,
                    extra: 0,
                    nested: 0,
                    duration_ns: 1000,
                };
                apply(StackRef::Id(id), Body::Call(call));
            }
            let mark = Mark {
                kind: MarkKind::Begin,
                source: MarkSource::RecordFunction,
                name: "Optimizer.step#SGD.step".into(),
                ..Mark::default()
            };
            apply(StackRef::NotTaken, Body::Mark(Box::new(mark)));
        }
        let as_of = AsOf {
            boot_ns: time_ns,
            ..AsOf::default()
        };
        (ledger, as_of)
    }

    #[test]
    fn many_stacks_cost_no_more_walks_than_one() {
        let walks = |stacks| {
            let (ledger, as_of) = leaking(stacks);
            WALKS.with(|walks| walks.set(0));
            let report = ledger.ask(&[P], as_of, &LeaksRequest::default()).unwrap();
            let told = report.groups.iter().map(|group| group.live_count);
            assert_eq!(told.collect::<Vec<u64>>(), vec![STEPS; stacks as usize]);
            assert_eq!(report.growing_lines, stacks);
            WALKS.with(std::cell::Cell::get)
        };
        assert_eq!(walks(100), walks(1));
    }
}
