//! The answer to `stacks`. Each name and frame is sent only once, and rows refer to it by index.

use crate::Refusal;
use crate::refusal::invalid;
use memscope_export::stacks::{Group, GroupBy, Metric, Tallies, Unit, View, groups};
use memscope_export::{Names, missing};
use memscope_ledger::report::{Frame, StackReport, StackRow, Tally};
use memscope_ledger::{Affects, effect};
use memscope_proto::v1;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Largest number of bytes that rows and their names may take, so that an answer stays below gRPC's limit of 4 MiB.
const MOST_BYTES: usize = 3 << 20;
/// Largest number of bytes of a row without its frames: four amounts, twice, ordinals and lengths.
const ROW_BYTES: usize = 240;
/// Largest number of bytes of a frame without its strings, and of the index of a frame in a row.
const FRAME_BYTES: usize = 24;
const INDEX_BYTES: usize = 5;

/// Reads by what stacks are grouped and summed; `None`: every stack is a row of its own.
pub(crate) fn grouping(number: i32) -> Result<Option<GroupBy>, Refusal> {
    use v1::StackGrouping::{File, Function, Line, OwnLine, Stack, Unspecified};
    match v1::StackGrouping::try_from(number) {
        Ok(Stack | Unspecified) => Ok(None),
        Ok(Function) => Ok(Some(GroupBy::Function)),
        Ok(File) => Ok(Some(GroupBy::File)),
        Ok(Line) => Ok(Some(GroupBy::Line)),
        Ok(OwnLine) => Ok(Some(GroupBy::OwnLine)),
        Err(_) => Err(invalid(
            format!("{number} is nothing to sum up by"),
            "stack, function, file, line and own line are",
        )),
    }
}

pub(crate) fn stacks(
    report: &StackReport,
    view: View,
    by: Option<GroupBy>,
    cumulative: bool,
    limit: usize,
) -> v1::StacksResponse {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut answer = v1::StacksResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: Some(report.as_of.event.into()),
        lost_records: report.process.lost_records,
        from_unix_ns: report.from.map(|from| from.unix_ns),
        metric: metric(view.metric).into(),
        unit: unit(view.unit).into(),
        by: by.map_or(v1::StackGrouping::Stack, grouping_word).into(),
        devices: devices(report),
        process: Some(report.process.clone().into()),
        coverage: report.coverage.clone(),
        ..v1::StacksResponse::default()
    };
    let mut names = Named::default();
    let mut others = Tallies::default();
    match by {
        // Rows of what is not known, and their shares, would be numbers that are not right.
        _ if is_over_time(view.metric) && is_doubtful(report) => {}
        None => {
            let mut rows: Vec<&StackRow> = report.rows.iter().collect();
            // The sort is stable: rows that are equal here stay in the order of their live bytes.
            rows.sort_by_key(|row| Reverse(view.of(&Tallies::of(row))));
            for row in rows {
                let tallies = Tallies::of(row);
                let matters = view.of(&tallies) != 0;
                if matters && answer.rows.len() < limit && names.take(&row.stack.frames) {
                    answer.rows.push(names.row(row));
                } else {
                    names.full |= matters;
                    others.add(&tallies);
                    answer.omitted += u64::from(matters);
                }
            }
        }
        Some(by) => {
            for group in groups(report, by, view, cumulative) {
                let matters = view.of(&group.total) != 0 || view.of(&group.own) != 0;
                if matters && answer.groups.len() < limit && names.take(group.frame.as_slice()) {
                    answer.groups.push(names.group(&group));
                } else {
                    names.full |= matters;
                    others.add(&group.own);
                    answer.omitted += u64::from(matters);
                }
            }
        }
    }
    answer.others = Some(amounts(&others));
    (answer.strings, answer.frames) = names.names.take();
    answer
}

/// The strings and frames of an answer, each stored once, and the room that is left for more.
#[derive(Default)]
struct Named {
    names: Names,
    bytes: usize,
    /// Set once a row did not fit. From then on nothing is added, so that no smaller row takes its place.
    full: bool,
}

impl Named {
    /// Reserves room for a row with these frames. Returns false if there is not enough room.
    fn take(&mut self, frames: &[Frame]) -> bool {
        let mut bytes = ROW_BYTES + frames.len() * INDEX_BYTES;
        for frame in frames {
            if !self.names.knows(frame) {
                // The frame's strings may be stored already. Then this counts too much, which does no harm.
                bytes += FRAME_BYTES + frame.name.len() + frame.file.len();
            }
        }
        if self.full || self.bytes + bytes > MOST_BYTES {
            self.full = true;
            return false;
        }
        self.bytes += bytes;
        true
    }

    fn row(&mut self, row: &StackRow) -> v1::StackRow {
        let stack = &row.stack;
        v1::StackRow {
            device: row.device,
            frames: self.names.frames(stack),
            truncated: stack.truncated,
            missing: missing(stack.frames.is_empty(), stack.missing),
            amounts: Some(amounts(&Tallies::of(row))),
        }
    }

    fn group(&mut self, group: &Group) -> v1::StackGroup {
        v1::StackGroup {
            device: group.device,
            frame: group.frame.as_ref().map(|frame| self.names.frame(frame)),
            missing: missing(group.frame.is_none(), group.missing),
            own: Some(amounts(&group.own)),
            total: Some(amounts(&group.total)),
            stacks: group.stacks,
        }
    }
}

fn is_over_time(metric: Metric) -> bool {
    matches!(metric, Metric::Peak | Metric::Allocated)
}

/// Whether what happened over time may be too much as well as too little. Then it counts as unknown, as in `stats`.
fn is_doubtful(report: &StackReport) -> bool {
    report.coverage.iter().any(|note| {
        let effect = effect(&note.code);
        !effect.lower_bound && effect.affects.contains(&Affects::History)
    })
}

fn devices(report: &StackReport) -> Vec<v1::StackDevice> {
    // The key sorts the unknown device last.
    let mut devices: BTreeMap<(bool, Option<i32>), (u64, [Tallies; 3])> = BTreeMap::new();
    for row in &report.rows {
        let key = (row.device.is_none(), row.device);
        let (stacks, [all, truncated, missing]) = devices.entry(key).or_default();
        let tallies = Tallies::of(row);
        *stacks += 1;
        all.add(&tallies);
        if row.stack.truncated {
            truncated.add(&tallies);
        }
        if row.stack.frames.is_empty() {
            missing.add(&tallies);
        }
    }
    let devices = devices.into_iter();
    devices
        .map(
            |((_, device), (stacks, [all, truncated, missing]))| v1::StackDevice {
                device,
                amounts: Some(amounts(&all)),
                stacks,
                truncated: Some(amounts(&truncated)),
                missing: Some(amounts(&missing)),
            },
        )
        .collect()
}

fn amounts(tallies: &Tallies) -> v1::StackAmounts {
    let amount = |tally: Tally| v1::Amount {
        count: tally.count,
        bytes: tally.bytes,
    };
    v1::StackAmounts {
        live: Some(amount(tallies.live)),
        peak: Some(amount(tallies.peak)),
        allocated: Some(amount(tallies.allocated)),
        before: tallies.before.map(amount),
    }
}

fn metric(metric: Metric) -> v1::StackMetric {
    match metric {
        Metric::Live => v1::StackMetric::Live,
        Metric::Peak => v1::StackMetric::Peak,
        Metric::Allocated => v1::StackMetric::Allocated,
        Metric::Growth => v1::StackMetric::Growth,
    }
}

fn unit(unit: Unit) -> v1::StackUnit {
    match unit {
        Unit::Bytes => v1::StackUnit::Bytes,
        Unit::Count => v1::StackUnit::Count,
    }
}

fn grouping_word(by: GroupBy) -> v1::StackGrouping {
    match by {
        GroupBy::Function => v1::StackGrouping::Function,
        GroupBy::File => v1::StackGrouping::File,
        GroupBy::Line => v1::StackGrouping::Line,
        GroupBy::OwnLine => v1::StackGrouping::OwnLine,
    }
}
