//! `leaks` and `fluctuation`.

use super::table::{Column, table};
use super::{coverage, device, heading};
use crate::units::{self, bytes, grouped, nanoseconds, plain, rate};
use memscope_proto::v1;
use std::time::Duration;

pub(crate) fn leaks(answer: &v1::LeaksResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(steps) = &answer.steps
        && steps.count.is_some()
    {
        text.push_str(&super::steps::summary(steps));
    }
    text.push_str(&headline(answer));
    if let Some(left) = answer.seconds_to_full
        && let Ok(left) = Duration::try_from_secs_f64(left)
    {
        let left = units::duration(left);
        text.push_str(&format!("At this pace the device is full in {left}.\n"));
    }
    if !answer.groups.is_empty() {
        text.push('\n');
        text.push_str(&groups(&answer.groups));
    }
    if answer.omitted_groups > 0 {
        let omitted = grouped(answer.omitted_groups);
        text.push_str(&format!(" and {omitted} smaller groups left out\n"));
    }
    text.push_str(&given_back(answer));
    let mut reasons = answer
        .groups
        .iter()
        .filter(|g| !g.reason.is_empty())
        .peekable();
    if reasons.peek().is_some() {
        text.push_str("\nWhy\n");
        for group in reasons {
            let (size, reason) = (bytes(group.size_bytes), plain(&group.reason));
            text.push_str(&format!(
                "  {size}, {}: {reason}{}\n",
                group.verdict(),
                beside(group)
            ));
            if let Some(line) = &group.line {
                text.push_str(&format!("    {}\n", super::steps::line(line)));
            }
        }
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

/// What steps tell beside the reason.
fn beside(group: &v1::LeakGroup) -> String {
    let mut parts = Vec::new();
    if let (Some(low), Some(high)) = (
        group.growth_bytes_per_step_low,
        group.growth_bytes_per_step_high,
    ) {
        parts.push(format!(
            "{} to {} a step",
            units::signed_bytes(low.round() as i64),
            units::signed_bytes(high.round() as i64)
        ));
    }
    if let Some(first) = group.first_step {
        parts.push(format!("since step {}", grouped(first)));
    }
    if group.freed_count > 0 {
        parts.push(format!(
            "{} others went, the longest after {} steps",
            grouped(group.freed_count),
            grouped(group.freed_longest_steps)
        ));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("; {}", parts.join(", "))
}

/// Whether nothing is known that could grow: at level read, before the first reading.
pub(crate) fn never_read(answer: &v1::LeaksResponse) -> bool {
    let said = |code: &str| answer.coverage.iter().any(|note| note.code == code);
    said("level_read") && said("totals_unknown")
}

/// What all groups together say, in a sentence or two.
fn headline(answer: &v1::LeaksResponse) -> String {
    let watched = nanoseconds(answer.watched_ns);
    let mut text = match (answer.growing_groups, &answer.young) {
        (0, _) if never_read(answer) => {
            return "Cannot tell: nothing has been read of this process yet.\n".to_owned();
        }
        (0, None) => format!("Nothing grows, watched for {watched}.\n"),
        (0, Some(young)) => return format!("Too early to tell: {}.\n", rising(young, &watched)),
        (1, _) => format!(
            "1 group grows: {} in {watched}.\n",
            bytes(answer.growing_bytes)
        ),
        (count, _) => format!(
            "{} groups grow: {} in {watched}.\n",
            grouped(count),
            bytes(answer.growing_bytes)
        ),
    };
    if let Some(young) = &answer.young {
        text.push_str(&format!(
            "Too early to tell of others: {}.\n",
            rising(young, &watched)
        ));
    }
    text
}

/// `20 groups rose in every step, 89 of 100 steps seen`.
fn rising(young: &v1::YoungGrowth, watched: &str) -> String {
    let groups = match young.groups {
        1 => "1 group".to_owned(),
        count => format!("{} groups", grouped(count)),
    };
    match (young.steps, young.needed_steps) {
        (Some(steps), Some(needed)) => {
            let rose = if young.in_every_step {
                "rose in every step"
            } else {
                "rose"
            };
            let (steps, needed) = (grouped(steps), grouped(needed));
            format!("{groups} {rose}, {steps} of {needed} steps seen")
        }
        _ => format!("{groups} rose, watched for {watched}"),
    }
}

/// What grew and does no longer hold what it held.
fn given_back(answer: &v1::LeaksResponse) -> String {
    if answer.given_back.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nGiven back\n");
    for back in &answer.given_back {
        let of = back.size_bytes.map_or_else(
            || " of one stack".to_owned(),
            |size| format!(" in blocks of {}", bytes(size)),
        );
        let ago = nanoseconds(answer.as_of_boot_ns.saturating_sub(back.last_boot_ns));
        let grew = back
            .first_step
            .map(|step| format!(", had grown since step {}", grouped(step)))
            .unwrap_or_default();
        let step = back
            .step
            .map(|step| format!(" in step {}", grouped(step)))
            .unwrap_or_default();
        let reserved = match back.reserved_unused_bytes {
            Some(0) => "; the pool has returned it".to_owned(),
            Some(unused) => format!(
                "; the pool still reserves {} that nothing uses",
                bytes(unused)
            ),
            None => String::new(),
        };
        text.push_str(&format!(
            "  {}{of}{grew}: the last went {ago} ago{step}{reserved}\n",
            bytes(back.bytes)
        ));
        if let Some(line) = &back.line {
            text.push_str(&format!("    {}\n", super::steps::line(line)));
        }
    }
    text
}

fn groups(groups: &[v1::LeakGroup]) -> String {
    let head = [
        Column::Left("VERDICT"),
        Column::Right("SURE"),
        Column::Right("DEVICE"),
        Column::Right("SIZE"),
        Column::Right("LIVE"),
        Column::Right("HELD"),
        Column::Right("GREW BY"),
        Column::Right("PER STEP"),
        Column::Right("RATE"),
        Column::Right("OLDEST"),
        Column::Right("STREAM"),
        Column::Left("FROM"),
    ];
    let rows = groups.iter().map(|group| {
        vec![
            group.verdict().to_string(),
            group
                .confidence
                .map_or_else(units::unknown, |sure| format!("{:.0} %", sure * 100.0)),
            device(group.device),
            bytes(group.size_bytes),
            grouped(group.live_count),
            bytes(group.live_bytes),
            bytes(group.growth_bytes),
            group
                .growth_bytes_per_step
                .map_or_else(units::unknown, |step| {
                    units::signed_bytes(step.round() as i64)
                }),
            rate(group.growth_bytes_per_s),
            nanoseconds(group.oldest_age_ns),
            group
                .stream
                .map_or_else(units::unknown, |stream| format!("{stream:#x}")),
            group.source().to_string(),
        ]
    });
    table(&head, rows.collect())
}

pub(crate) fn fluctuation(answer: &v1::FluctuationResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if answer.devices.is_empty() {
        text.push_str("Nothing was seen on any device yet.\n");
    }
    for one in &answer.devices {
        let overall = one.overall.unwrap_or_default();
        text.push_str(&format!(
            "\nDevice {} ({}): allocated {} to {}, swing {:.1} %, floor {}\n",
            device(one.device),
            one.source(),
            bytes(overall.min_allocated_bytes),
            bytes(overall.max_allocated_bytes),
            one.swing * 100.0,
            rate(one.floor_slope_bytes_per_s),
        ));
        text.push_str(&intervals(&one.intervals, answer.as_of_boot_ns));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn intervals(intervals: &[v1::Interval], now: u64) -> String {
    let head = [
        Column::Right("FROM"),
        Column::Right("MIN ALLOCATED"),
        Column::Right("MAX ALLOCATED"),
        Column::Right("MIN RESERVED"),
        Column::Right("MAX RESERVED"),
        Column::Right("ALLOCS"),
        Column::Right("FREES"),
    ];
    let rows = intervals.iter().map(|interval| {
        vec![
            format!(
                "-{}",
                nanoseconds(now.saturating_sub(interval.from_boot_ns))
            ),
            bytes(interval.min_allocated_bytes),
            bytes(interval.max_allocated_bytes),
            bytes(interval.min_reserved_bytes),
            bytes(interval.max_reserved_bytes),
            grouped(interval.allocs),
            grouped(interval.frees),
        ]
    });
    table(&head, rows.collect())
}
