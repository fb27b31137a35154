//! What is asked of the processes of a node that are ranks of jobs.

use crate::client::Rpc;
use crate::failure::{Exit, Failure};
use crate::fleet::{Asking, list, pid_of};
use crate::render::frames::{Frame, why_missing};
use crate::render::{Known, totals_from, totals_of};
use memscope_proto::v1;
use memscope_ranks::{Growth, Line, Rank};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Steps of which the lowest level is the floor.
const FLOOR_STEPS: usize = 20;
/// Devices of which a process's steps have rows, where that is not known.
const DEVICES: usize = 8;
/// Kinds of notes by which numbers of the past are not whole, and peaks are all the same.
const NOT_OF_PEAKS: [&str; 2] = ["trace_shed", "import_no_trace"];
/// Lines of a rank that are compared: those that hold most.
const LINES: u32 = 50;
/// Lines whose growth is added up.
const GROWING: u32 = 50;
/// Ranks of one node that are asked.
pub(super) const RANKS_MOST: usize = 256;

/// To which job a process belongs, and which part of it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// What the ranks of one job have in common; none if that is not known.
    pub(super) job: Option<String>,
    pub(super) rank: Option<u64>,
    pub(super) world_size: Option<u64>,
}

impl Place {
    /// What the daemon says of it.
    pub(super) fn of(process: &v1::Process) -> Place {
        let workload = process.workload.clone().unwrap_or_default();
        Place {
            job: workload.job,
            rank: workload.rank.map(u64::from),
            world_size: workload.world_size.map(u64::from),
        }
    }
}

/// One rank, and what is known of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) pid: u32,
    /// When it was attached, and when it ended if it has, in nanoseconds since its machine was booted.
    pub(super) lived: (u64, Option<u64>),
    pub(super) place: Place,
    pub(super) allocated_bytes: Option<u64>,
    /// Whether the growth is per step; else it is per second.
    pub(super) is_per_step: bool,
    /// What its growing lines keep in a second, bytes.
    pub(super) growth_bytes_per_s: f64,
    pub(super) of: Rank,
}

/// The ranks of a node.
pub(super) struct Members {
    pub(super) asked: Vec<Member>,
    /// Ranks of which something was refused, by their pids, and why. What else is known of them is among those that were asked.
    pub(super) refused: Vec<(u32, Failure)>,
    /// Ranks that were not asked about, since the node has more than are asked about of one.
    pub(super) not_asked: usize,
    /// Processes that could be the rank as well as the one that was asked, which has the same number.
    pub(super) left_out: Vec<LeftOut>,
}

/// A process that has the number of a rank, and is not the one that is told for it.
#[derive(Clone, Debug)]
pub(super) struct LeftOut {
    pub(super) pid: u32,
    pub(super) place: Place,
}

/// Asks about all ranks that a node traces, or those of one job.
pub(super) async fn of_node(asking: &Asking<'_>, job: Option<&str>) -> Result<Members, Failure> {
    let list = list(asking).await?;
    let ranks = of_ranks(&list.processes, job);
    let not_asked = ranks.len().saturating_sub(RANKS_MOST);
    let mut members = Vec::new();
    let mut refused = Vec::new();
    let mut left_out = Vec::new();
    for (process, beside) in ranks.into_iter().take(RANKS_MOST) {
        left_out.extend(beside.into_iter().map(|process| LeftOut {
            pid: pid_of(process).unwrap_or_default(),
            place: Place::of(process),
        }));
        match member(asking, process).await {
            Ok((member, why)) => {
                refused.extend(why.map(|why| (member.pid, why)));
                members.push(member);
            }
            Err(failure) if failure.exit() == Exit::NoProcess => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(Members {
        asked: members,
        refused,
        not_asked,
        left_out,
    })
}

/// The process of each rank, of all jobs or of one, and those that could be it as well.
fn of_ranks<'a>(
    processes: &'a [v1::Process],
    job: Option<&str>,
) -> Vec<(&'a v1::Process, Vec<&'a v1::Process>)> {
    let mut by_rank: BTreeMap<(Option<String>, u64), Vec<&v1::Process>> = BTreeMap::new();
    for process in processes {
        let place = Place::of(process);
        let Some(rank) = place.rank else { continue };
        // The shell that started a rank has its environment, and no memory.
        if process.waits_for_device {
            continue;
        }
        if job.is_some() && place.job.as_deref() != job {
            continue;
        }
        by_rank.entry((place.job, rank)).or_default().push(process);
    }
    by_rank.into_values().filter_map(the_rank).collect()
}

/// Which of the processes that have one number is the rank. What started it and what it forked, such as a worker of a DataLoader, have its
/// environment, too: the rank is the one that is there and holds memory, and not a child of another one that does. Of several that had the
/// number one after the other, the last one counts; of several that have it at a time, the others are told as well, since they are probably
/// ranks of another job.
fn the_rank(mut all: Vec<&v1::Process>) -> Option<(&v1::Process, Vec<&v1::Process>)> {
    let weight = |process: &v1::Process| {
        (
            is_attached(process),
            process.allocated_bytes.is_some_and(|bytes| bytes > 0),
        )
    };
    let most = all.iter().map(|process| weight(process)).max()?;
    all.retain(|process| weight(process) == most);
    let pids: HashSet<u32> = all.iter().filter_map(|process| pid_of(process)).collect();
    let is_child = |process: &v1::Process| {
        let facts = process.facts.as_ref();
        facts.is_some_and(|facts| pids.contains(&facts.parent_pid))
    };
    let rank = all
        .iter()
        .copied()
        .max_by_key(|process| (!is_child(process), process.handle))?;
    let at_a_time = |process: &v1::Process| most == (true, true) && !is_child(process);
    all.retain(|process| process.handle != rank.handle && at_a_time(process));
    Some((rank, all))
}

fn is_attached(process: &v1::Process) -> bool {
    process.state() == v1::ProcessState::Attached
}

/// When a process ended; none if it runs, traced or not.
fn end(process: &v1::Process) -> Option<u64> {
    let has_ended = matches!(
        process.state(),
        v1::ProcessState::Exited | v1::ProcessState::Replaced
    );
    has_ended.then(|| process.ended_boot_ns.unwrap_or(process.attached_boot_ns))
}

/// What is known of a rank, and why something is not, if the daemon refused to say it.
async fn member(
    asking: &Asking<'_>,
    process: &v1::Process,
) -> Result<(Member, Option<Failure>), Failure> {
    let pid = process.facts.as_ref().map_or(0, |facts| facts.pid);
    let mut refused = None;
    let place = Place::of(process);
    let stats = async |mut rpc: Rpc, request| rpc.stats(request).await;
    let stats = known(
        asking.ask(v1::StatsRequest { pid }, stats).await,
        &mut refused,
    )?;
    // A step has a row for each device.
    let devices = stats.as_ref().map_or(DEVICES, |stats| stats.devices.len());
    // A daemon tells no more than 256 devices of a process apart.
    let devices = devices.clamp(1, 256);
    let question = v1::StepsRequest {
        pid,
        limit: u32::try_from(devices * FLOOR_STEPS).unwrap_or(u32::MAX),
        survivors: 0,
        every: 1,
    };
    let steps = async |mut rpc: Rpc, request| rpc.steps(request).await;
    let steps = known(asking.ask(question, steps).await, &mut refused)?;
    let question = v1::LeaksRequest {
        pid,
        limit: GROWING,
        ..v1::LeaksRequest::default()
    };
    let leaks = async |mut rpc: Rpc, request| rpc.leaks(request).await;
    let leaks = known(asking.ask(question, leaks).await, &mut refused)?;
    // What held most at the peak may hold nothing now, and the other way round.
    let mut by_line = [None, None];
    let metrics = [v1::StackMetric::Live, v1::StackMetric::Peak];
    for (metric, answer) in metrics.into_iter().zip(&mut by_line) {
        let question = v1::StacksRequest {
            pid,
            view: Some(v1::StackView {
                metric: metric.into(),
                ..v1::StackView::default()
            }),
            by: v1::StackGrouping::OwnLine.into(),
            limit: LINES,
            ..v1::StacksRequest::default()
        };
        let stacks = async |mut rpc: Rpc, request| rpc.stacks(request).await;
        *answer = known(asking.ask(question, stacks).await, &mut refused)?;
    }
    let peak = |of| stats.as_ref().and_then(|stats| peak(stats, of));
    let pace = leaks.as_ref().and_then(Pace::of);
    let member = Member {
        pid,
        lived: (process.attached_boot_ns, end(process)),
        allocated_bytes: process.allocated_bytes,
        is_per_step: pace.is_some_and(|pace| pace.per_step.is_some()),
        growth_bytes_per_s: pace.map_or(0.0, |pace| pace.per_second),
        of: Rank {
            rank: place.rank.unwrap_or_default(),
            followed_ns: stats
                .as_ref()
                .map(|stats| stats.as_of_boot_ns.saturating_sub(process.attached_boot_ns)),
            peak_bytes: peak(|device| device.peak_allocated_bytes),
            reserved_bytes: peak(|device| device.peak_reserved_bytes),
            floor_bytes: stats
                .as_ref()
                .zip(steps.as_ref())
                .and_then(|(stats, steps)| floor(stats, steps)),
            step_ns: steps.and_then(|steps| steps.summary?.median_ns),
            growth: pace.map(Pace::growth),
            lines: match &by_line {
                [Some(live), Some(peak)] => lines(live, peak),
                _ => Vec::new(),
            },
        },
        place,
    };
    Ok((member, refused))
}

/// The sum of a peak over all devices, and `None` where a part of it is not known: without that part the rank would be unlike the others
/// for no other reason.
fn peak(stats: &v1::StatsResponse, of: fn(&v1::DeviceStats) -> Option<u64>) -> Option<u64> {
    let has_pool = stats
        .devices
        .iter()
        .any(|device| device.source() == v1::Source::Pool);
    // What is held on an unknown device may be the pool's, and would be counted twice.
    let mut counted = stats
        .devices
        .iter()
        .filter(|device| device.device.is_some() || !has_pool)
        .peekable();
    counted.peek()?;
    let notes = stats.coverage.iter();
    let of_peaks = notes.filter(|note| !NOT_OF_PEAKS.contains(&note.code.as_str()));
    if Known::of(of_peaks, &["history"]) != Known::Exactly {
        return None;
    }
    counted.try_fold(0u64, |sum, device| {
        let is_exact = totals_of(device, &stats.coverage) == Known::Exactly;
        let part = of(device).filter(|_| is_exact)?;
        Some(sum.saturating_add(part))
    })
}

/// An answer, or `None` where the daemon refuses one, or is too old to know the question. The first refusal is kept. Trouble of the node as a
/// whole stays an error.
fn known<A>(
    answer: Result<A, Failure>,
    refused: &mut Option<Failure>,
) -> Result<Option<A>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(failure) if failure.is_of_the_node() || failure.exit() == Exit::NoProcess => {
            Err(failure)
        }
        Err(failure) => {
            if failure.code() != "unimplemented" {
                refused.get_or_insert(failure);
            }
            Ok(None)
        }
    }
}

/// The lowest level of the last steps, of all devices together, and `None` where a part of it is not known.
fn floor(stats: &v1::StatsResponse, steps: &v1::StepsResponse) -> Option<u64> {
    let has_pool = steps
        .rows
        .iter()
        .any(|row| row.source() == v1::Source::Pool);
    // What is held on an unknown device may be the pool's, and would be counted twice.
    let is_counted = |device: Option<i32>| device.is_some() || !has_pool;
    let numbers: BTreeSet<u64> = steps.rows.iter().map(|row| row.step).collect();
    let from = numbers.iter().nth_back(FLOOR_STEPS - 1);
    let from = from.or(numbers.first()).copied()?;
    let mut lowest: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    let rows = || {
        let rows = steps.rows.iter();
        rows.filter(|row| row.step >= from && is_counted(row.device))
    };
    // Of a loss in one of these steps nobody knows how low memory went.
    let begin = rows().map(|row| row.from_boot_ns).min()?;
    let is_inexact = stats.gaps.iter().any(|gap| gap.to_boot_ns >= begin)
        || rows().any(|row| totals_from(row.source(), &steps.coverage) != Known::Exactly);
    // A device on which nothing happened in these steps has no row, and may hold memory.
    let is_silent = |one: &&v1::DeviceStats| {
        one.allocated_bytes != Some(0) && !rows().any(|row| row.device == one.device)
    };
    let mut held = stats.devices.iter().filter(|one| is_counted(one.device));
    if is_inexact || held.any(|one| is_silent(&one)) {
        return None;
    }
    for row in rows() {
        let level = lowest.entry(row.device).or_insert(u64::MAX);
        *level = (*level).min(row.min_allocated_bytes);
    }
    lowest.into_values().reduce(u64::saturating_add)
}

/// What the growing lines of a rank keep.
#[derive(Clone, Copy, Debug)]
struct Pace {
    grows: bool,
    /// Bytes in a step, if that is known of all of them.
    per_step: Option<f64>,
    /// Bytes in a second.
    per_second: f64,
    confidence: Option<f64>,
}

impl Pace {
    /// `None` if it cannot be told yet what grows.
    fn of(leaks: &v1::LeaksResponse) -> Option<Pace> {
        let growing = || {
            let lines = leaks.lines.iter();
            lines.filter(|line| line.verdict() == v1::Verdict::Growing)
        };
        let is_none = growing().next().is_none();
        if is_none && (leaks.young.is_some() || leaks.is_unread()) {
            return None;
        }
        // A line that stands beside others is a part of their growth, and has none of its own.
        let counted = || growing().filter(|line| !line.beside);
        let per_step: Option<f64> = counted().map(|line| line.growth_bytes_per_step).sum();
        let is_none = counted().next().is_none();
        Some(Pace {
            grows: leaks.growing_groups > 0,
            per_step: per_step.filter(|_| !is_none),
            // The sum of none is a negative zero.
            per_second: counted().fold(0.0, |sum, line| sum + line.growth_bytes_per_s),
            confidence: leaks.confidence(),
        })
    }

    fn growth(self) -> Growth {
        Growth {
            grows: self.grows,
            pace: self.per_step.unwrap_or(self.per_second),
            confidence: self.confidence,
        }
    }
}

/// What the program's own lines hold: those that hold most now, and those that held most at the peak.
fn lines(live: &v1::StacksResponse, peak: &v1::StacksResponse) -> Vec<Line> {
    let mut lines: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for group in &live.groups {
        let (bytes, _) = lines.entry(line_name(live, group)).or_default();
        let amount = group.own.and_then(|own| own.live).unwrap_or_default();
        *bytes = bytes.saturating_add(amount.bytes);
    }
    for group in &peak.groups {
        let (_, bytes) = lines.entry(line_name(peak, group)).or_default();
        let amount = group.own.and_then(|own| own.peak).unwrap_or_default();
        *bytes = bytes.saturating_add(amount.bytes);
    }
    let line = |(name, (live_bytes, peak_bytes))| Line {
        name,
        live_bytes,
        peak_bytes,
    };
    lines.into_iter().map(line).collect()
}

/// What tells a line from others, the same in all ranks.
fn line_name(stacks: &v1::StacksResponse, group: &v1::StackGroup) -> String {
    let frame = group
        .frame
        .and_then(|place| stacks.frames.get(place as usize));
    match frame.map(|frame| Frame::of(stacks, frame)) {
        Some(frame) => format!("{} {}", frame.place(), frame.name()),
        None => why_missing(group.missing.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: Option<i32>, source: v1::Source, peak: Option<u64>) -> v1::DeviceStats {
        v1::DeviceStats {
            device: ordinal,
            source: source.into(),
            peak_allocated_bytes: peak,
            ..v1::DeviceStats::default()
        }
    }

    #[test]
    fn a_peak_of_which_a_part_is_not_known_is_not_known() {
        use v1::Source::{Driver, Pool};
        let of = |devices: &[v1::DeviceStats], coverage: &[v1::CoverageNote]| {
            let stats = v1::StatsResponse {
                devices: devices.to_vec(),
                coverage: coverage.to_vec(),
                ..v1::StatsResponse::default()
            };
            peak(&stats, |device| device.peak_allocated_bytes)
        };
        assert_eq!(of(&[], &[]), None);
        let two = [
            device(Some(0), Pool, Some(10)),
            device(Some(1), Pool, Some(5)),
        ];
        assert_eq!(of(&two, &[]), Some(15));
        let half = [device(Some(0), Pool, Some(10)), device(Some(1), Pool, None)];
        assert_eq!(of(&half, &[]), None);
        let beside_a_pool = [
            device(Some(0), Pool, Some(10)),
            device(None, Driver, Some(5)),
        ];
        assert_eq!(of(&beside_a_pool, &[]), Some(10));
        let without_a_pool = [
            device(Some(0), Driver, Some(10)),
            device(None, Driver, Some(5)),
        ];
        assert_eq!(of(&without_a_pool, &[]), Some(15));
        let a_bound = v1::CoverageNote {
            affects: vec!["totals".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        };
        let of_history = v1::CoverageNote {
            affects: vec!["history".to_owned()],
            ..a_bound.clone()
        };
        assert_eq!(of(&two, &[a_bound]), None);
        assert_eq!(of(&two, std::slice::from_ref(&of_history)), None);
        let of_the_trace = v1::CoverageNote {
            code: "trace_shed".to_owned(),
            ..of_history
        };
        assert_eq!(of(&two, &[of_the_trace]), Some(15));
        let of_blocks = v1::CoverageNote {
            affects: vec!["blocks".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        };
        assert_eq!(of(&two, &[of_blocks]), Some(15));
    }

    #[test]
    fn of_what_was_never_read_nobody_knows_whether_it_grows() {
        let grows = |codes: &[&str]| {
            let note = |code: &&str| v1::CoverageNote {
                code: (*code).to_owned(),
                ..v1::CoverageNote::default()
            };
            let leaks = v1::LeaksResponse {
                coverage: codes.iter().map(note).collect(),
                ..v1::LeaksResponse::default()
            };
            Pace::of(&leaks).map(|pace| pace.grows)
        };
        assert_eq!(grows(&["level_read", "totals_unknown"]), None);
        assert_eq!(grows(&["level_read"]), Some(false));
        assert_eq!(grows(&["totals_unknown"]), Some(false));
    }

    #[test]
    fn paces_per_step_and_per_second_are_not_added() {
        let line = |per_step, growth_bytes_per_s| v1::LeakLine {
            verdict: v1::Verdict::Growing.into(),
            growth_bytes_per_step: per_step,
            growth_bytes_per_s,
            ..v1::LeakLine::default()
        };
        let pace = |lines: &[v1::LeakLine]| {
            let leaks = v1::LeaksResponse {
                growing_groups: lines.len() as u64,
                lines: lines.to_vec(),
                ..v1::LeaksResponse::default()
            };
            Pace::of(&leaks).map(|pace| (pace.per_step, pace.growth().pace))
        };
        let (known, unknown) = (line(Some(1.0), 50.0), line(None, 20.0));
        assert_eq!(
            pace(&[known.clone(), known.clone()]),
            Some((Some(2.0), 2.0))
        );
        assert_eq!(pace(&[known.clone(), unknown]), Some((None, 70.0)));
        // A line beside others has no growth of its own.
        let beside = v1::LeakLine {
            beside: true,
            ..line(None, 0.0)
        };
        assert_eq!(pace(&[known, beside.clone()]), Some((Some(1.0), 1.0)));
        assert_eq!(pace(&[beside]), Some((None, 0.0)));
        assert_eq!(pace(&[]), Some((None, 0.0)));
    }

    #[test]
    fn the_floor_is_of_the_last_20_steps_of_every_device() {
        let row = |step, device, min_allocated_bytes| v1::StepRow {
            step,
            device: Some(device),
            min_allocated_bytes,
            ..v1::StepRow::default()
        };
        let of = |steps: std::ops::RangeInclusive<u64>| {
            // The earlier the step, the lower its level.
            let rows = steps.flat_map(|step| [row(step, 0, step), row(step, 1, 100 * step)]);
            let steps = v1::StepsResponse {
                rows: rows.collect(),
                ..v1::StepsResponse::default()
            };
            floor(&v1::StatsResponse::default(), &steps)
        };
        assert_eq!(of(1..=20), Some(101));
        assert_eq!(of(1..=21), Some(202));
        assert_eq!(of(7..=7), Some(707));
        let nothing = (v1::StatsResponse::default(), v1::StepsResponse::default());
        assert_eq!(floor(&nothing.0, &nothing.1), None);
    }

    #[test]
    fn a_floor_of_which_a_part_is_not_known_is_not_known() {
        use v1::Source::{Driver, Pool};
        let row = |device, source: v1::Source, level| v1::StepRow {
            step: 1,
            device,
            source: source.into(),
            from_boot_ns: 100,
            min_allocated_bytes: level,
            ..v1::StepRow::default()
        };
        let note = |kind: &str| v1::CoverageNote {
            affects: vec![kind.to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        };
        let of = |rows: &[v1::StepRow], notes: &[v1::CoverageNote], stats: &v1::StatsResponse| {
            let steps = v1::StepsResponse {
                rows: rows.to_vec(),
                coverage: notes.to_vec(),
                ..v1::StepsResponse::default()
            };
            floor(stats, &steps)
        };
        let nothing = v1::StatsResponse::default();
        let pool = row(Some(0), Pool, 5);
        let beside = row(None, Driver, 3);
        // What is on an unknown device may be the pool's.
        assert_eq!(of(&[pool, beside], &[], &nothing), Some(5));
        assert_eq!(of(&[beside], &[], &nothing), Some(3));
        assert_eq!(of(&[pool], &[note("totals")], &nothing), None);
        assert_eq!(of(&[pool], &[note("driver")], &nothing), Some(5));
        let without_a_pool = row(Some(0), Driver, 5);
        assert_eq!(of(&[without_a_pool], &[note("driver")], &nothing), None);
        // A device that was idle in these steps has no row.
        let idle = |bytes| v1::StatsResponse {
            devices: vec![v1::DeviceStats {
                device: Some(1),
                allocated_bytes: bytes,
                ..v1::DeviceStats::default()
            }],
            ..v1::StatsResponse::default()
        };
        assert_eq!(of(&[pool], &[], &idle(Some(0))), Some(5));
        assert_eq!(of(&[pool], &[], &idle(Some(7))), None);
        assert_eq!(of(&[pool], &[], &idle(None)), None);
        let lost = |to_boot_ns| v1::StatsResponse {
            gaps: vec![v1::Gap {
                to_boot_ns,
                ..v1::Gap::default()
            }],
            ..v1::StatsResponse::default()
        };
        assert_eq!(of(&[pool], &[], &lost(99)), Some(5));
        assert_eq!(of(&[pool], &[], &lost(100)), None);
    }
}
