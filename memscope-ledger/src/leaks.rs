//! The answer to `leaks`.
//!
//! Owns: which groups of live blocks are shown, and how. A group is judged by its exact size; a size
//! class is shown only for growth that its exact sizes do not explain, as when every leaked block
//! has another size. Refuses: to keep anything; see `group`, `floor` and `verdict`.

use crate::allocation::Allocation;
use crate::coverage;
use crate::distribution::class_bound;
use crate::fast_hash::FastMap;
use crate::floor::WindowClock;
use crate::group::{Group, Membership};
use crate::process::Process;
use crate::report::{AsOf, LeakGroup, LeakQuery, LeakReport, Source, Verdict};
use crate::verdict::{Judgement, judge};
use crate::words;

/// Addresses shown of a group.
const EXAMPLES: usize = 5;

/// One live block or allocation.
struct Item {
    addr: Option<u64>,
    size: u64,
    born_ns: u64,
    place: Membership,
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
}

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf, q: &LeakQuery) -> LeakReport {
    let now = process.moment(as_of);
    let clock = process.groups.clock_at(now);
    let mut items = items(process);
    items.retain(|item| now.saturating_sub(item.born_ns) >= q.min_age_ns);
    let view = View {
        process,
        now,
        clock,
        items,
    };
    let mut groups = view.exact_groups();
    groups.extend(view.classes(&groups));
    let mut groups: Vec<LeakGroup> = groups.into_iter().map(|shown| shown.group).collect();
    let growing = |group: &LeakGroup| group.verdict == Verdict::Growing;
    let growing_bytes = groups
        .iter()
        .filter(|g| growing(g))
        .fold(0u64, |sum, group| sum.saturating_add(group.growth_bytes));
    let seconds_to_full = seconds_to_full(process, &groups);
    groups.retain(|group| match group.verdict {
        Verdict::Growing => true,
        Verdict::Undecided => q.include_steady || group.growth_count > 0,
        Verdict::Steady => q.include_steady,
    });
    groups.sort_by_key(|group| {
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
    LeakReport {
        process: process.summary(),
        as_of,
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
            });
        }
    }
    let mut direct = |addr: Option<u64>, allocation: &Allocation| {
        if !allocation.pooled {
            items.push(Item {
                addr,
                size: allocation.size,
                born_ns: allocation.born_ns,
                place: allocation.place,
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
                let judged = judge(&group.floor.floors(&self.clock));
                let growth_bytes = u64::from(judged.growth).saturating_mul(group.key.size);
                let shown = LeakGroup {
                    device: group.key.device,
                    source: group.key.source(),
                    stream: group.key.stream,
                    size_bytes: group.key.size,
                    ..self.group(tally, &judged, growth_bytes)
                };
                Some(Shown {
                    group: shown,
                    exact: Some(place),
                    class: group.class as usize,
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
            let mut floors = class.floor.floors(&self.clock);
            for part in &parts {
                let Some(group) = by_number.get(part) else {
                    continue;
                };
                for (rest, part) in floors.iter_mut().zip(group.floor.floors(&self.clock)) {
                    *rest = rest.saturating_sub(part);
                }
            }
            let judged = judge(&floors);
            if judged.verdict != Verdict::Growing {
                continue;
            }
            let since = self.judged_from_ns(&judged);
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
            let bound = class_bound(class.key.power);
            let mut group = LeakGroup {
                device: class.key.device,
                source: if class.key.pooled {
                    Source::Pool
                } else {
                    Source::Driver
                },
                stream: None,
                size_bytes: bound,
                ..self.group(&tally, &judged, growth_bytes)
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
            });
        }
        found
    }

    fn judged_from_ns(&self, judged: &Judgement) -> u64 {
        let windows = self
            .clock
            .width_ns()
            .saturating_mul(judged.from_window as u64);
        self.clock.start_ns().saturating_add(windows)
    }

    fn group(&self, tally: &Tally, judged: &Judgement, growth_bytes: u64) -> LeakGroup {
        let seconds = self.now.saturating_sub(self.judged_from_ns(judged)) as f64 / 1e9;
        LeakGroup {
            device: None,
            source: Source::Pool,
            stream: None,
            size_bytes: 0,
            live_count: tally.count,
            live_bytes: tally.bytes,
            growth_count: u64::from(judged.growth),
            growth_bytes,
            growth_bytes_per_s: if seconds > 0.0 {
                growth_bytes as f64 / seconds
            } else {
                0.0
            },
            oldest_age_ns: self.now.saturating_sub(tally.oldest_ns),
            newest_age_ns: self.now.saturating_sub(tally.newest_ns),
            verdict: judged.verdict,
            reason: format!(
                "{} (watched {})",
                judged.reason,
                words::duration(self.now.saturating_sub(self.clock.start_ns()))
            ),
            examples: tally.examples.iter().map(|(_, addr)| *addr).collect(),
        }
    }
}

/// The device that is full first at this growth.
fn seconds_to_full(process: &Process, groups: &[LeakGroup]) -> Option<f64> {
    let mut rates: FastMap<Option<i32>, f64> = FastMap::default();
    for group in groups.iter().filter(|g| g.verdict == Verdict::Growing) {
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
