//! Groups of one size and one stack, as the answer to `leaks` has them.
//!
//! Owns: their judgement, also where not all stacks were recorded for a time. Blocks that were allocated in that time
//! are counted in other groups (of blocks without a stack, or with fewer frames), so that a stack's row stands still
//! there or rises too slowly, whatever the program does. A stack is then said to grow if its row grows together with
//! those groups and rises wherever it was recorded; its growth is what is known to be its own. The other groups are
//! shown beside it. Refuses: groups of several sizes; see `several`.

use super::items::Tally;
use super::judge::{Amount, Chances, Judgement, What};
use super::replaced;
use super::view::{Shown, View};
use crate::fast_hash::FastMap;
use crate::growth::floor::Row;
use crate::growth::group::{Group, StackKey};
use crate::growth::trend;
use crate::report::{Space, Verdict};
use crate::state::membership::GroupKey;
use crate::state::stacks::{BEFORE_ATTACH, StackIndex};
use memscope_proto::v1;
use memscope_proto::v1::LeakGroup;

/// All groups of one size and stack.
pub(super) struct Exact {
    pub(super) shown: Vec<Shown>,
    /// For each device and kind of memory, the row of the blocks from before the attach that no blocks of the same size
    /// replaced, counted in units of bytes (`growth::group::UNIT`).
    pub(super) before: FastMap<(Option<i32>, Space), Row>,
    pub(super) chances: Chances,
}

/// The sums of the live blocks of each group, by the group's number.
struct Tallies(Vec<Tally>);

impl Tallies {
    /// The sums of a group that has live blocks.
    fn get(&self, place: usize) -> Option<&Tally> {
        self.0.get(place).filter(|tally| tally.count > 0)
    }
}

/// Blocks of one device, kind of memory, stream and size, whatever stack allocated them.
type Family = GroupKey;

fn family(key: &GroupKey) -> Family {
    GroupKey {
        stack: StackIndex::MAX,
        ..*key
    }
}

/// One group of a family.
struct Member<'a> {
    place: usize,
    group: &'a Group,
    what: What,
    row: Row,
    /// The row of the blocks from before the attach that this group replaced.
    share: Option<Row>,
    /// Its blocks were allocated while not all stacks were recorded, so they may belong to any stack.
    unrecorded: bool,
}

impl Member<'_> {
    fn is_before(&self) -> bool {
        self.group.key.stack == BEFORE_ATTACH
    }

    /// Its row plus the row of the blocks that it replaced.
    fn net(&self) -> Row {
        let mut net = self.row.clone();
        if let Some(share) = &self.share {
            net.add(share);
        }
        net
    }
}

impl View<'_> {
    /// All groups of one size and stack that have live blocks.
    pub(super) fn exact_groups(&self) -> Exact {
        let mut tallies = Vec::new();
        tallies.resize_with(self.judge.process.groups.numbers(), Tally::default);
        self.each(|item| {
            let place = item.place.exact();
            if let Some(tally) = place.and_then(|place| tallies.get_mut(place)) {
                tally.add(item);
            }
        });
        let tallies = Tallies(tallies);
        let mut families: FastMap<Family, Vec<Member<'_>>> = FastMap::default();
        let mut chances = Chances::default();
        for (place, group) in self.judge.process.groups.groups() {
            let row = self
                .judge
                .row(group.key.space, &group.floor, &group.steps, group.left);
            chances.count(group, &row);
            families
                .entry(family(&group.key))
                .or_default()
                .push(Member {
                    place,
                    group,
                    what: what(group),
                    row,
                    share: None,
                    unrecorded: false,
                });
        }
        let mut found = Exact {
            shown: Vec::new(),
            before: FastMap::default(),
            chances,
        };
        for (key, mut members) in families {
            for member in &mut members {
                let stack = StackKey::of(&member.group.key);
                member.what.chances = found.chances.of_stack(&stack);
            }
            members.sort_unstable_by_key(|member| member.place);
            self.mark_unrecorded(&mut members);
            self.share_out(&key, &mut members, &mut found.before);
            let shown = if self.judge.is_reduced() {
                self.reduced_groups(&members, &tallies)
            } else {
                self.recorded_groups(&members, &tallies)
            };
            found.shown.extend(shown);
        }
        found
    }

    /// The groups of a family where all stacks were recorded. Blocks from before the attach have no stack: a group that
    /// replaces them one by one does not grow.
    fn recorded_groups(&self, members: &[Member<'_>], tallies: &Tallies) -> Vec<Shown> {
        let with_tally = members
            .iter()
            .filter_map(|member| Some((member, tallies.get(member.place)?)));
        with_tally
            .map(|(member, tally)| {
                let mut judged = self.judge.judge(&member.what, &member.row);
                if judged.verdict != Verdict::Steady && member.share.is_some() {
                    let together = self.judge.judge(&member.what, &member.net());
                    if together.verdict != Verdict::Growing {
                        judged = together;
                    }
                }
                self.exact(member, tally, &judged)
            })
            .collect()
    }

    /// The groups of a family where not all stacks were recorded for a time.
    fn reduced_groups(&self, members: &[Member<'_>], tallies: &Tallies) -> Vec<Shown> {
        let mut found = Vec::new();
        let mut grows_since: Option<usize> = None;
        for member in members.iter().filter(|member| !member.unrecorded) {
            let judged = self.recorded(member, members);
            if judged.verdict == Verdict::Growing {
                let first = judged.first_window;
                grows_since = Some(grows_since.map_or(first, |known| known.min(first)));
            }
            if let Some(tally) = tallies.get(member.place) {
                found.push(self.exact(member, tally, &judged));
            }
        }
        for member in members.iter().filter(|member| member.unrecorded) {
            if let Some(tally) = tallies.get(member.place) {
                found.push(self.unrecorded(member, members, tally, grows_since));
            }
        }
        found
    }

    /// Finds out which groups of a family replaced blocks from before the attach. For blocks that were freed while not
    /// all stacks were recorded, only groups whose blocks were allocated in that time count. Blocks that no group
    /// replaced are left in `before` for stacks whose blocks differ in size.
    fn share_out(
        &self,
        key: &Family,
        members: &mut [Member<'_>],
        before: &mut FastMap<(Option<i32>, Space), Row>,
    ) {
        let Some(old) = members.iter().find(|member| member.is_before()) else {
            return;
        };
        let units = old.group.units();
        let fallen = old.row.split_falls(&self.judge.recorded);
        for (fallen, unrecorded) in fallen.into_iter().zip([false, true]) {
            let mut others: Vec<&mut Member<'_>> = members
                .iter_mut()
                .filter(|member| !member.is_before() && member.unrecorded == unrecorded)
                .collect();
            let rows: Vec<&Row> = others.iter().map(|member| &member.row).collect();
            let shared = replaced::shares(&fallen, &rows);
            for (member, share) in others.iter_mut().zip(shared.of) {
                member.share = share;
            }
            let rest = before.entry((key.device, key.space)).or_default();
            rest.over.resize(shared.rest.over.len(), 0);
            rest.add(&shared.rest.times(units));
        }
    }

    /// Marks the groups whose stack is not the one that would usually be recorded: no stack was taken, or only a part of
    /// it. The latter is assumed of groups that rose mainly while not all stacks were recorded, if another group of the
    /// family rose while all were.
    fn mark_unrecorded(&self, members: &mut [Member<'_>]) {
        if !self.judge.is_reduced() {
            return;
        }
        let rises: Vec<[u64; 2]> = members.iter().map(|m| self.rises(&m.row)).collect();
        let is_known = |[recorded, _]: &[u64; 2]| *recorded >= u64::from(trend::ENOUGH_BLOCKS);
        let some_known = rises.iter().any(is_known);
        for (member, rises) in members.iter_mut().zip(&rises) {
            let stack = member.group.key.stack;
            let [recorded, unrecorded] = rises;
            let less_of_it = some_known && !is_known(rises) && unrecorded > recorded;
            member.unrecorded = stack != BEFORE_ATTACH
                && (less_of_it || self.judge.process.stacks.is_left_out(stack));
        }
    }

    /// By how much a row rose while all stacks were recorded, and while they were not. A new block raises the floor of
    /// the window after the one in which it was allocated.
    fn rises(&self, row: &Row) -> [u64; 2] {
        let lasting = row.lasting();
        let mut sums = [0, 0];
        for (pair, recorded) in lasting.windows(2).zip(&self.judge.recorded.over) {
            let &[before, after] = pair else { continue };
            let rise = u64::from(after.saturating_sub(before));
            sums[usize::from(*recorded == 0)] += rise;
        }
        sums
    }

    /// The judgement of a group whose blocks were allocated while all stacks were recorded.
    fn recorded(&self, member: &Member<'_>, members: &[Member<'_>]) -> Judgement {
        let what = &member.what;
        let mut sum = member.net();
        let others = members
            .iter()
            .filter(|other| other.place != member.place && other.unrecorded);
        for other in others {
            sum.add(&other.net());
        }
        let mut together = self.judge.judge(what, &sum);
        together.reason = format!(
            "with blocks of this size whose stack was not recorded: {}",
            together.reason
        );
        let own = self.judge.judge_recorded(what, &member.row);
        let grows = |judged: &Judgement| judged.verdict == Verdict::Growing;
        let since = together.first_window;
        let grown = member.row.risen_since(since);
        let still = grows(&together) && self.judge.still_rises(&member.row, since);
        match own {
            // The rate is taken from the time in which all stacks were recorded.
            Some(own) if grows(&own) && still && since < own.first_window => Judgement {
                growth: grown,
                per_step: own.per_step,
                per_second: own.per_second,
                confidence: own.confidence,
                ..together
            },
            Some(own) if grows(&own) && grows(&together) => own,
            _ if still => Judgement {
                growth: grown,
                per_step: None,
                per_second: None,
                ..together
            },
            Some(own) if !grows(&own) => own,
            own => {
                // Only the sum of all groups can decide.
                let own = own.unwrap_or_else(|| self.judge.judge(what, &member.row));
                match own.growth {
                    0 => own,
                    growth => Judgement {
                        growth: growth.max(grown).min(together.growth),
                        per_step: None,
                        per_second: None,
                        ..together
                    },
                }
            }
        }
    }

    /// A group whose blocks were allocated while not all stacks were recorded. If other groups of its size grow, it
    /// grows too, by its rise since their growth began; else the sum of all groups of that size decides.
    fn unrecorded(
        &self,
        member: &Member<'_>,
        members: &[Member<'_>],
        tally: &Tally,
        grows_since: Option<usize>,
    ) -> Shown {
        let own = self.judge.judge(&member.what, &member.row);
        let mut whole = member.row.clone();
        for other in members.iter().filter(|other| other.place != member.place) {
            whole.add(&other.row);
        }
        let whole = self.judge.judge(&member.what, &whole);
        let whole_since = (whole.verdict == Verdict::Growing).then_some(whole.first_window);
        let Some(since) = grows_since.or(whole_since) else {
            let judged = if own.verdict == Verdict::Growing {
                whole
            } else {
                own
            };
            return self.exact(member, tally, &judged);
        };
        let judged = Judgement {
            verdict: Verdict::Growing,
            growth: member.row.risen_since(since),
            reason: "they came while less than all stacks was recorded, and blocks of this size keep growing; whose \
                     they are is not known"
                .to_owned(),
            confidence: None,
            per_step: None,
            per_second: None,
            young: None,
            ..own
        };
        let mut shown = self.exact(member, tally, &judged);
        if grows_since.is_some() {
            // The groups that it stands beside have the rate already.
            shown.group.growth_bytes_per_s = 0.0;
            shown.group.beside = true;
        }
        shown
    }

    fn exact(&self, member: &Member<'_>, tally: &Tally, judged: &Judgement) -> Shown {
        let group = member.group;
        let mean = tally.bytes as f64 / tally.count.max(1) as f64;
        let growth_bytes = (f64::from(judged.growth) * mean) as u64;
        let mut shown = LeakGroup {
            device: group.key.device,
            source: v1::Source::from(group.key.space).into(),
            stream: group.key.stream,
            size_bytes: group.key.size,
            ..self.group(tally, judged, growth_bytes.min(tally.bytes), mean)
        };
        if let Some(axis) = &self.judge.steps {
            let lived = f64::from(group.freed.1) / axis.ticks_per_step;
            shown.freed_count = group.freed.0;
            shown.freed_longest_steps = lived.ceil() as u64;
        }
        Shown {
            group: shown,
            space: group.key.space,
            verdict: judged.verdict,
            sizes: [group.key.size; 2],
            exact: Some(member.place),
            class: Some(group.class as usize),
            stack: Some(group.key.stack),
            young: judged.young,
            net: member.net(),
            share: member
                .share
                .as_ref()
                .map(|share| share.times(group.units())),
        }
    }
}

fn what(group: &Group) -> What {
    What {
        device: group.key.device,
        space: group.key.space,
        bytes: group.key.size as f64,
        amount: Amount::Blocks,
        chances: 0,
    }
}
