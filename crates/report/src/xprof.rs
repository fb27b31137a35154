//! What XProf makes of the same memory: its memory profile, and the events from which XProf computes it itself.
//!
//! The heap is what the pool has handed out, rounded up; what is free is what it has reserved and not handed out, as gaps between
//! blocks. An operation is the program's own line, a region's kind the category. The whole trace is one step.

use crate::course::{Course, Levels, Life, Walked};
use crate::decided::Decided;
use crate::picture::{Action, Picture};
use crate::rules::RuleSets;
use prost::Message;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

#[allow(missing_docs, clippy::all)]
mod memory {
    include!("generated/memscope.xprof.memory.rs");
}
#[allow(missing_docs, clippy::all)]
mod plane {
    include!("generated/memscope.xprof.plane.rs");
}

use memory::{
    ActiveAllocation, MemoryActivity, MemoryActivityMetadata, MemoryAggregationStats,
    MemoryProfile, MemoryProfileSnapshot, MemoryProfileSummary, PerAllocatorMemoryProfile,
};
use plane::{XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_stat};

/// Most events of a device that are written for XProf to compute from; beyond it only a share of the blocks has events.
pub const MOST_EVENTS: usize = 500_000;
/// How XProf calls what no allocation of the step tells of.
const PREALLOCATED: &str = "unused preallocated device memory";
const STEP: i64 = 1;
const PS_IN_US: u64 = 1_000_000;

/// The profile of one allocator, and how many events it is made of.
#[derive(Clone, Debug)]
pub struct Profile {
    inner: PerAllocatorMemoryProfile,
    /// Allocations in the trace.
    pub allocations: u64,
    /// Deallocations in it.
    pub deallocations: u64,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn fragmentation(levels: &Levels) -> f64 {
    match levels.free {
        0 => 0.0,
        free => 1.0 - levels.largest_free as f64 / free as f64,
    }
}

fn free(levels: &Levels) -> u64 {
    levels.reserved.saturating_sub(levels.in_use)
}

fn stats(levels: &Levels, peak: u64) -> MemoryAggregationStats {
    MemoryAggregationStats {
        stack_reserved_bytes: 0,
        heap_allocated_bytes: signed(levels.in_use),
        free_memory_bytes: signed(free(levels)),
        fragmentation: fragmentation(levels),
        peak_bytes_in_use: signed(peak),
    }
}

/// Picoseconds of an entry since the first; without times each entry is a microsecond.
fn offset_ps(course: &Course<'_>, at: Option<usize>) -> u64 {
    let Some(at) = at else {
        return 0;
    };
    let time = |at: usize| course.entries.get(at).and_then(|entry| entry.time_us);
    let us = match (time(0), time(at)) {
        (Some(first), Some(now)) => now.saturating_sub(first),
        _ => at as u64,
    };
    us.saturating_mul(PS_IN_US)
}

fn metadata(
    life: &Life,
    activity: MemoryActivity,
    decided: &mut Decided<'_>,
) -> MemoryActivityMetadata {
    MemoryActivityMetadata {
        memory_activity: activity.into(),
        requested_bytes: signed(life.requested),
        allocation_bytes: signed(life.size),
        address: life.address,
        tf_op_name: decided.line(life.stack),
        step_id: STEP,
        region_type: decided.titan(life.stack),
        data_type: String::new(),
        tensor_shape: String::new(),
    }
}

/// The profile of one device. `sampled` are moments of its course.
pub(crate) fn profile(
    walked: &Walked<'_>,
    sampled: &[(Option<usize>, Levels)],
    decided: &mut Decided<'_>,
) -> Profile {
    let course = &walked.course;
    let peak = &walked.rounded_peak;
    let mut inner = PerAllocatorMemoryProfile::default();
    let mut alike: HashMap<(u64, u64, String, String), (usize, i64)> = HashMap::new();
    let at_peak = course.lives.iter().enumerate();
    let at_peak = at_peak.filter(|(_, life)| life.is_at(walked.rounded_peak_at));
    let mut known = 0u64;
    for (place, life) in at_peak.filter(|(_, life)| life.born.is_some()) {
        known = known.saturating_add(life.size);
        let (line, category) = (decided.line(life.stack), decided.titan(life.stack));
        let row = alike.entry((life.size, life.requested, line, category));
        row.or_insert((place, 0)).1 += 1;
    }
    let mut rows: Vec<_> = alike.into_iter().collect();
    rows.sort_by(|(a, _), (b, _)| {
        let size = Reverse((a.0, a.1)).cmp(&Reverse((b.0, b.1)));
        size.then_with(|| (&a.2, &a.3).cmp(&(&b.2, &b.3)))
    });
    let unnamed = peak.in_use.saturating_sub(known);
    if unnamed > 0 {
        inner.special_allocations.push(MemoryActivityMetadata {
            memory_activity: MemoryActivity::Allocation.into(),
            requested_bytes: signed(unnamed),
            allocation_bytes: signed(unnamed),
            tf_op_name: PREALLOCATED.to_owned(),
            step_id: STEP,
            region_type: "persist/dynamic".to_owned(),
            ..MemoryActivityMetadata::default()
        });
        inner.active_allocations.push(ActiveAllocation {
            snapshot_index: -1,
            special_index: 0,
            num_occurrences: 1,
        });
    }
    for (_, (place, count)) in rows {
        let Some(life) = course.lives.get(place) else {
            continue;
        };
        inner.active_allocations.push(ActiveAllocation {
            snapshot_index: signed(inner.memory_profile_snapshots.len() as u64),
            special_index: -1,
            num_occurrences: count,
        });
        inner.memory_profile_snapshots.push(MemoryProfileSnapshot {
            time_offset_ps: signed(offset_ps(course, life.born)),
            aggregation_stats: Some(stats(peak, peak.in_use)),
            activity_metadata: Some(metadata(life, MemoryActivity::Allocation, decided)),
        });
    }
    let mut highest = 0;
    for (at, levels) in sampled {
        highest = highest.max(levels.in_use);
        inner
            .sampled_timeline_snapshots
            .push(MemoryProfileSnapshot {
                time_offset_ps: signed(offset_ps(course, *at)),
                aggregation_stats: Some(stats(levels, highest)),
                activity_metadata: at.and_then(|at| course.life_of(at)).map(|life| {
                    let activity = match life.born == *at {
                        true => MemoryActivity::Allocation,
                        false => MemoryActivity::Deallocation,
                    };
                    metadata(life, activity, decided)
                }),
            });
    }
    inner.profile_summary = Some(MemoryProfileSummary {
        peak_bytes_usage_lifetime: signed(peak.in_use),
        peak_stats: Some(stats(peak, peak.in_use)),
        peak_stats_time_ps: signed(offset_ps(course, walked.rounded_peak_at)),
        memory_capacity: signed(peak.in_use.saturating_add(free(peak))),
    });
    let count = |action| course.entries.iter().filter(|e| e.action == action).count() as u64;
    Profile {
        allocations: count(Action::Alloc),
        deallocations: count(Action::Free),
        inner,
    }
}

/// The name of an allocator: that of one device of one rank.
fn name(rank: u64, device: i32) -> String {
    format!("rank{rank}_gpu{device}")
}

/// Writes the profiles of all ranks as XProf's message.
pub(crate) fn profile_pb<'f>(profiles: impl Iterator<Item = (u64, i32, &'f Profile)>) -> Vec<u8> {
    let mut whole = MemoryProfile {
        num_hosts: 1,
        version: 1,
        ..MemoryProfile::default()
    };
    for (rank, device, profile) in profiles {
        let name = name(rank, device);
        whole.memory_ids.push(name.clone());
        whole
            .memory_profile_per_allocator
            .insert(name, profile.inner.clone());
    }
    whole.encode_to_vec()
}

#[derive(Serialize)]
struct Summary {
    memory_capacity_gib: f64,
    peak_memory_usage_gib: f64,
    peak_usage_details: Details,
}

#[derive(Serialize)]
struct Details {
    stack_reservation_gib: f64,
    heap_allocation_gib: f64,
    free_memory_gib: f64,
    fragmentation_percent: f64,
    utilization_percent: f64,
}

/// Writes the summaries of the profiles as XProf's command line does: of one allocator an object, of several one by name.
///
/// # Errors
/// Where it cannot be written as JSON.
pub(crate) fn profile_json<'f>(
    profiles: impl Iterator<Item = (u64, i32, &'f Profile)>,
) -> serde_json::Result<Vec<u8>> {
    let two = |number: f64| (number * 100.0).round() / 100.0;
    let gib = |bytes: i64| two(bytes as f64 / f64::from(1 << 30));
    let summaries: BTreeMap<String, Summary> = profiles
        .filter_map(|(rank, device, profile)| {
            let summary = profile.inner.profile_summary.as_ref()?;
            let peak = summary.peak_stats.as_ref()?;
            let capacity = summary.memory_capacity;
            let used = peak.stack_reserved_bytes + peak.heap_allocated_bytes;
            let share = |part: f64, is_known| if is_known { two(100.0 * part) } else { -1.0 };
            let summary = Summary {
                memory_capacity_gib: gib(capacity),
                peak_memory_usage_gib: gib(used),
                peak_usage_details: Details {
                    stack_reservation_gib: gib(peak.stack_reserved_bytes),
                    heap_allocation_gib: gib(peak.heap_allocated_bytes),
                    free_memory_gib: gib(peak.free_memory_bytes),
                    fragmentation_percent: share(peak.fragmentation, true),
                    utilization_percent: share(used as f64 / capacity as f64, capacity > 0),
                },
            };
            Some((name(rank, device), summary))
        })
        .collect();
    match summaries.len() {
        1 => serde_json::to_vec_pretty(&summaries.into_values().next()),
        _ => serde_json::to_vec_pretty(&summaries),
    }
}

/// The names of values, in the order of their numbers from 1.
const STATS: [&str; 13] = [
    "index_on_host",
    "allocator_name",
    "bytes_reserved",
    "bytes_allocated",
    "bytes_available",
    "fragmentation",
    "peak_bytes_in_use",
    "requested_bytes",
    "allocation_bytes",
    "addr",
    "tf_op",
    "group_id",
    "region_type",
];
const ALLOCATION: i64 = 1;
const DEALLOCATION: i64 = 2;

/// Writes the events of a rank, from which XProf computes a memory profile itself: the plane of the program's threads. Devices of
/// which the course, or what was reserved, is not known are left out; `None` if there is no other.
#[must_use]
pub fn space(rank: u64, picture: &Picture, rules: &RuleSets) -> Option<Vec<u8>> {
    let mut decided = Decided::new(picture, rules);
    let mut lines = Vec::new();
    for trace in picture.courses() {
        let walked = Course::of(picture, trace).walk(|_, _, _| {});
        if !walked.reserved_is_known {
            continue;
        }
        let peak = walked.rounded_peak_at;
        let events = trace.entries.len();
        let every = events.div_ceil(MOST_EVENTS).max(1);
        let mut line = XLine {
            id: i64::from(trace.device) + 1,
            name: format!("device {}", trace.device),
            timestamp_ns: 0,
            events: Vec::with_capacity(events.min(MOST_EVENTS)),
        };
        let allocator = name(rank, trace.device);
        let (mut highest, mut last_ps) = (0, 0u64);
        Course::of(picture, trace).walk(|course, at, levels| {
            highest = highest.max(levels.in_use);
            let Some((at, life)) = at.and_then(|at| Some((at, course.life_of(at)?))) else {
                return;
            };
            let is_birth = life.born == Some(at);
            // Both ends of a block are written, or none of them; the levels are absolute, whatever is left out.
            let number = life.born.or(life.gone).unwrap_or(0);
            if every > 1 && number % every != 0 && !life.is_at(peak) {
                return;
            }
            // Events at the same time must keep their order.
            last_ps = offset_ps(course, Some(at)).max(last_ps.saturating_add(1));
            line.events.push(XEvent {
                metadata_id: if is_birth { ALLOCATION } else { DEALLOCATION },
                offset_ps: signed(last_ps),
                duration_ps: 0,
                stats: event_stats(
                    trace.device,
                    &allocator,
                    levels,
                    highest,
                    life,
                    &mut decided,
                ),
            });
        });
        lines.push(line);
    }
    if lines.is_empty() {
        return None;
    }
    let event = |id, name: &str| {
        let name = name.to_owned();
        (id, XEventMetadata { id, name })
    };
    let stat = |(id, name): (i64, &&str)| {
        let name = (*name).to_owned();
        (id, XStatMetadata { id, name })
    };
    let plane = XPlane {
        id: 1,
        name: "/host:CPU".to_owned(),
        lines,
        event_metadata: BTreeMap::from([
            event(ALLOCATION, "MemoryAllocation"),
            event(DEALLOCATION, "MemoryDeallocation"),
        ]),
        stat_metadata: (1..).zip(&STATS).map(stat).collect(),
    };
    let space = XSpace {
        planes: vec![plane],
        hostnames: vec![format!("rank{rank}")],
    };
    Some(space.encode_to_vec())
}

fn event_stats(
    device: i32,
    allocator: &str,
    levels: &Levels,
    highest: u64,
    life: &Life,
    decided: &mut Decided<'_>,
) -> Vec<XStat> {
    use x_stat::Value::{DoubleValue, Int64Value, StrValue};
    let values = [
        Int64Value(device.into()),
        StrValue(allocator.to_owned()),
        Int64Value(0),
        Int64Value(signed(levels.in_use)),
        Int64Value(signed(free(levels))),
        DoubleValue(fragmentation(levels)),
        Int64Value(signed(highest)),
        Int64Value(signed(life.requested)),
        Int64Value(signed(life.size)),
        // XProf reads addresses as signed numbers only.
        Int64Value(life.address.cast_signed()),
        StrValue(decided.line(life.stack)),
        Int64Value(STEP),
        StrValue(decided.titan(life.stack)),
    ];
    let stat = |(metadata_id, value)| XStat {
        metadata_id,
        value: Some(value),
    };
    (1..).zip(values).map(stat).collect()
}
