//! The answer to `leaks`: which groups of live blocks grow.
//!
//! Owns: which groups are shown, and how. A group has blocks of one exact size and one stack; a size
//! class is shown only for growth that its exact sizes and stacks do not explain, as when every leaked block
//! has another size. Where steps are known, groups are judged from step to step (`growth::trend`), else by time
//! (`growth::verdict`). Sums are those of all groups, however many are shown. Refuses: to keep anything; see
//! `growth::group` and `growth::floor`.

mod exact;
mod items;
mod judge;
mod lines;
mod replaced;
mod returned;
mod several;
mod view;

use super::affects::Answer;
use super::question::{OfOne, One, answer};
use super::steps;
use crate::fast_hash::{FastMap, FastSet};
use crate::report::{Space, Verdict};
use crate::state::process::Process;
use judge::{Chances, Judge, quiet_ns, step_axis};
use memscope_proto::v1;
use memscope_proto::v1::YoungGrowth;
use view::{Shown, View};

/// Most groups, and most lines, in one answer, whose message must stay below gRPC's limit of 4 MiB.
const MOST: usize = 5_000;

impl OfOne for v1::LeaksRequest {
    type Reply = v1::LeaksResponse;
    const KIND: Option<Answer> = Some(Answer::Leaks);

    fn pid(&self) -> u32 {
        self.pid
    }

    fn answer(&self, one: &One<'_>) -> v1::LeaksResponse {
        let process = one.process;
        let now = process.moment(one.as_of);
        let mut summary = steps::summary(process);
        summary.quiet_ns = quiet_ns(process, now, summary.median_ns);
        let view = View {
            judge: Judge::new(
                process,
                now,
                step_axis(process, now, self, summary.quiet_ns),
            ),
            min_age_ns: self.min_age_ns,
        };
        let (mut groups, chances) = view.all();
        let growing = |shown: &Shown| shown.verdict == Verdict::Growing;
        let growing_bytes = groups
            .iter()
            .filter(|shown| growing(shown))
            .fold(0u64, |sum, shown| {
                sum.saturating_add(shown.group.growth_bytes)
            });
        let growing_groups = groups.iter().filter(|shown| growing(shown)).count() as u64;
        let young = young(&view, &groups);
        // While the steps by which it was judged are quiet, nothing is filled.
        let waits = summary.quiet_ns.is_some() && view.judge.steps.is_some();
        let seconds_to_full = seconds_to_full(process, &groups, now).filter(|_| !waits);
        groups.sort_by_key(|shown| {
            let group = &shown.group;
            let weight = if growing(shown) {
                group.growth_bytes
            } else {
                group.live_bytes
            };
            (
                !growing(shown),
                std::cmp::Reverse(weight),
                group.device,
                group.stream,
                group.size_bytes,
            )
        });
        let is_told = |shown: &Shown| match shown.verdict {
            Verdict::Growing => true,
            Verdict::Undecided => self.include_steady || shown.group.growth_bytes > 0,
            Verdict::Steady => self.include_steady,
        };
        let (mut groups, others): (Vec<Shown>, Vec<Shown>) = groups.into_iter().partition(is_told);
        let (mut lines, together) = lines::lines(&groups, &others, |stack| view.frames(stack));
        let (all, all_lines) = (groups.len(), lines.len());
        let growing_lines = lines
            .iter()
            .filter(|line| line.verdict() == v1::Verdict::Growing)
            .count() as u64;
        let most = match self.limit as usize {
            0 => MOST,
            limit => limit.min(MOST),
        };
        groups.truncate(most);
        lines.truncate(most);
        answer!(LeaksResponse of one, {
            steps: Some(summary),
            // Whoever can read the process adds them.
            holders: Vec::new(),
            looked_at: None,
            unheld: None,
            omitted_lines: (all_lines - lines.len()) as u64,
            lines,
            growing_lines,
            together,
            omitted_groups: (all - groups.len()) as u64,
            groups: groups.into_iter().map(|shown| view.with_frames(shown)).collect(),
            growing_groups,
            growing_bytes,
            young,
            given_back: returned::given_back(&view, &chances),
            watched_ns: now.saturating_sub(view.judge.clock.start_ns()),
            seconds_to_full,
            until_boot_ns: view.until_ns(),
        })
    }
}

impl View<'_> {
    /// All groups: those of an exact size and stack, and those of several sizes. Also by how many chances they were judged.
    fn all(&self) -> (Vec<Shown>, Chances) {
        let mut exact = self.exact_groups();
        let stacks = self.stacks(&exact);
        let classes = self.classes(&exact, &stacks);
        // Each block is reported once: a group whose blocks are in a group of several sizes is left out.
        let told: FastSet<usize> = stacks
            .iter()
            .chain(&classes)
            .flat_map(|(_, covers)| covers.iter().copied())
            .collect();
        exact
            .shown
            .retain(|shown| !shown.exact.is_some_and(|place| told.contains(&place)));
        let mut groups = exact.shown;
        groups.extend(stacks.into_iter().chain(classes).map(|(shown, _)| shown));
        (groups, exact.chances)
    }
}

/// Sums over the groups that rise and were not watched for long enough to be judged; `None` if there are none.
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

/// Seconds until the first device is full at this growth. `None` for a process that is no longer traced, since whether
/// it still grows is not known.
fn seconds_to_full(process: &Process, groups: &[Shown], now: u64) -> Option<f64> {
    if process.ended_ns.is_some() {
        return None;
    }
    // Of the pool, and of what is beside it.
    let mut rates: FastMap<Option<i32>, [f64; 2]> = FastMap::default();
    for shown in groups {
        let group = &shown.group;
        // Memory of the host fills no device.
        if shown.verdict != Verdict::Growing || shown.space == Space::Host {
            continue;
        }
        let [of_pool, beside] = rates.entry(group.device).or_default();
        *(match shown.space {
            Space::Pool => of_pool,
            Space::Driver | Space::Host => beside,
        }) += group.growth_bytes_per_s;
    }
    process
        .devices
        .iter()
        .filter_map(|row| {
            let [of_pool, beside] = rates.get(&row.ordinal).copied()?;
            // Where the pool says nothing of what it has, what is free is all that is known.
            let spare = process.spare_bytes(row).unwrap_or(0);
            memscope_proto::seconds_to_full(row.free_at(now)?, spare, of_pool, beside)
        })
        .min_by(f64::total_cmp)
}
