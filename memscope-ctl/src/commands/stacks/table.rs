//! Formats stacks, or sums over them, as text.

use crate::render::frames::{Frame, stack, why_missing};
use crate::render::table::{Column, table};
use crate::render::{Known, coverage, device, heading};
use crate::units::{self, bytes, grouped, moment};
use memscope_proto::v1;
use std::time::Duration;

/// The answer as text. `lines` is the largest number of lines of one stack; 0 shows all its frames.
pub(super) fn text(answer: &v1::StacksResponse, lines: usize) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(from) = answer.from_unix_ns {
        let passed = Duration::from_nanos(answer.as_of.saturating_sub(from));
        let (from, passed) = (moment(from), units::duration(passed));
        text.push_str(&format!("Compared with {from}, {passed} before\n"));
    }
    if answer.devices.is_empty() {
        text.push_str("Nothing was allocated on any device since the attach.\n");
    }
    for one in &answer.devices {
        text.push_str(&summary(answer, one));
    }
    let shown = Shown::of(answer);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in &answer.rows {
        let frames = row.frames.iter();
        let frames = frames.filter_map(|place| answer.frames.get(*place as usize));
        let frames: Vec<Frame<'_>> = frames.map(|frame| Frame::of(answer, frame)).collect();
        let amounts = row.amounts.unwrap_or_default();
        let mut cells = vec![device(row.device)];
        cells.extend(shown.cells(&amounts));
        cells.push(stack(&frames, row, lines));
        rows.push(cells);
    }
    // An empty line separates stacks if one of them takes several lines.
    let several_lines = rows.iter().any(|cells| is_long(cells));
    let count = rows.len();
    for (index, cells) in rows.iter_mut().enumerate() {
        if let Some(last) = cells.last_mut()
            && several_lines
            && index + 1 < count
        {
            last.push('\n');
        }
    }
    for group in &answer.groups {
        rows.push(shown.group(answer, group));
    }
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(&shown.columns(answer), rows));
    } else if shown.is_over_time() && over_time(answer) == Known::Not {
        text.push_str("Which stacks had it is not known: the notes below say why.\n");
    } else if !answer.devices.is_empty() {
        text.push_str(&format!("No stack has any {}.\n", shown.what()));
    }
    if answer.omitted > 0 {
        let others = answer.others.unwrap_or_default();
        text.push_str(&format!(
            " and {} more with {} in {} blocks\n",
            grouped(answer.omitted),
            shown.bytes(&others),
            shown.count(&others),
        ));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn is_long(cells: &[String]) -> bool {
    cells.last().is_some_and(|cell| cell.contains('\n'))
}

/// How exactly it is known what was at the peak and what came since the attach.
fn over_time(answer: &v1::StacksResponse) -> Known {
    Known::of(&answer.coverage, &["blocks", "history"])
}

/// `Device 0: live 1.00 GiB, at the peak …, allocated since the attach …; 37 stacks`.
fn summary(answer: &v1::StacksResponse, one: &v1::StackDevice) -> String {
    let amounts = one.amounts.unwrap_or_default();
    let of = |amount: Option<v1::Amount>| bytes(amount.unwrap_or_default().bytes);
    let blocks = Known::of(&answer.coverage, &["blocks"]);
    let history = over_time(answer);
    let mut text = format!(
        "Device {}: live {}, at the peak {}, allocated since the attach {}; {} stack{}\n",
        device(one.device),
        blocks.say(of(amounts.live)),
        history.say(of(amounts.peak)),
        history.say(of(amounts.allocated)),
        grouped(one.stacks),
        if one.stacks == 1 { "" } else { "s" },
    );
    let shown = Shown::of(answer);
    let mut remarks = Vec::new();
    for (what, amounts) in [
        ("in stacks that were cut off", one.truncated),
        ("without a stack", one.missing),
    ] {
        let amounts = amounts.unwrap_or_default();
        if shown.value(&amounts) != 0 {
            remarks.push(format!("{} {what}", shown.bytes(&amounts)));
        }
    }
    if !remarks.is_empty() {
        let of = shown.what();
        text.push_str(&format!("  of {of}: {}\n", remarks.join(", ")));
    }
    let without = shown.value(&one.missing.unwrap_or_default());
    if shown.is_growth() && without < 0 {
        text.push_str(
            "  What has no stack became less. If other blocks took its place (a buffer that was full at the attach),\n  \
             they are shown as growth of their stacks: read both together.\n",
        );
    }
    text
}

/// What the numbers of the table count.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    metric: v1::StackMetric,
    unit: v1::StackUnit,
    compared: bool,
    /// Sum of all devices, for the shares. `None` for growth: its sum also contains what shrank.
    whole: Option<i128>,
}

impl Shown {
    pub(super) fn of(answer: &v1::StacksResponse) -> Shown {
        let mut shown = Shown {
            metric: answer.metric(),
            unit: answer.unit(),
            compared: answer.from_unix_ns.is_some(),
            whole: None,
        };
        if !shown.is_growth() {
            let devices = answer.devices.iter();
            let whole = devices.map(|one| shown.value(&one.amounts.unwrap_or_default()));
            shown.whole = Some(whole.sum());
        }
        shown
    }

    pub(super) fn is_growth(self) -> bool {
        self.metric == v1::StackMetric::Growth
    }

    fn is_over_time(self) -> bool {
        matches!(
            self.metric,
            v1::StackMetric::Peak | v1::StackMetric::Allocated
        )
    }

    pub(super) fn what(self) -> &'static str {
        match self.metric {
            v1::StackMetric::Growth => "growth",
            v1::StackMetric::Peak => "peak memory",
            v1::StackMetric::Allocated => "allocated memory",
            v1::StackMetric::Live | v1::StackMetric::Unspecified => "live memory",
        }
    }

    /// The metric as a number of blocks and of bytes.
    pub(super) fn pair(self, amounts: &v1::StackAmounts) -> (i128, i128) {
        let pair = |amount: Option<v1::Amount>| {
            let amount = amount.unwrap_or_default();
            (i128::from(amount.count), i128::from(amount.bytes))
        };
        let (live, before) = (pair(amounts.live), pair(amounts.before));
        match self.metric {
            v1::StackMetric::Growth => (live.0 - before.0, live.1 - before.1),
            v1::StackMetric::Peak => pair(amounts.peak),
            v1::StackMetric::Allocated => pair(amounts.allocated),
            v1::StackMetric::Live | v1::StackMetric::Unspecified => live,
        }
    }

    pub(super) fn is_by_count(self) -> bool {
        self.unit == v1::StackUnit::Count
    }

    /// The metric in the unit by which the rows are ordered.
    fn value(self, amounts: &v1::StackAmounts) -> i128 {
        let (count, bytes) = self.pair(amounts);
        match self.unit {
            v1::StackUnit::Count => count,
            v1::StackUnit::Bytes | v1::StackUnit::Unspecified => bytes,
        }
    }

    fn bytes(self, amounts: &v1::StackAmounts) -> String {
        let (_, value) = self.pair(amounts);
        if self.is_growth() {
            signed(value)
        } else {
            bytes(magnitude(value))
        }
    }

    fn count(self, amounts: &v1::StackAmounts) -> String {
        signed_count(self.pair(amounts).0, self.is_growth())
    }

    fn share(self, amounts: &v1::StackAmounts) -> Option<String> {
        let whole = self.whole?;
        let part = self.value(amounts) as f64;
        Some(format!("{:.1} %", part / (whole as f64).max(1.0) * 100.0))
    }

    /// The bytes beside the metric: for growth, the live bytes; for other metrics, the change of the live bytes if two
    /// moments are compared.
    fn beside(self, amounts: &v1::StackAmounts) -> Option<String> {
        let live = amounts.live.unwrap_or_default().bytes;
        let before = amounts.before.unwrap_or_default().bytes;
        match (self.is_growth(), self.compared) {
            (true, _) => Some(bytes(live)),
            (false, true) => Some(signed(i128::from(live) - i128::from(before))),
            (false, false) => None,
        }
    }

    fn columns(self, answer: &v1::StacksResponse) -> Vec<Column> {
        let metric = match self.metric {
            v1::StackMetric::Growth => "GROWTH",
            v1::StackMetric::Peak => "PEAK",
            v1::StackMetric::Allocated => "ALLOCATED",
            v1::StackMetric::Live | v1::StackMetric::Unspecified => "LIVE",
        };
        let mut columns = vec![Column::Right("DEVICE")];
        let beside = |columns: &mut Vec<Column>| {
            if self.whole.is_some() {
                columns.push(Column::Right("SHARE"));
            }
            if self.is_growth() {
                columns.push(Column::Right("LIVE"));
            } else if self.compared {
                columns.push(Column::Right("CHANGE"));
            }
        };
        if answer.groups.is_empty() {
            columns.extend([Column::Right(metric), Column::Right("BLOCKS")]);
            beside(&mut columns);
        } else {
            for title in ["EXCLUSIVE", "INCLUSIVE"] {
                columns.push(Column::Right(title));
                beside(&mut columns);
            }
            columns.push(Column::Right("STACKS"));
        }
        columns.push(Column::Left(match answer.by() {
            v1::StackGrouping::Function => "FUNCTION",
            v1::StackGrouping::File => "FILE",
            v1::StackGrouping::Line | v1::StackGrouping::OwnLine => "LINE",
            v1::StackGrouping::Stack | v1::StackGrouping::Unspecified => "STACK",
        }));
        columns
    }

    fn cells(self, amounts: &v1::StackAmounts) -> Vec<String> {
        let mut cells = vec![self.bytes(amounts), self.count(amounts)];
        cells.extend(self.share(amounts));
        cells.extend(self.beside(amounts));
        cells
    }

    fn group(self, answer: &v1::StacksResponse, group: &v1::StackGroup) -> Vec<String> {
        let mut cells = vec![device(group.device)];
        let own = group.own.unwrap_or_default();
        let total = group.total.unwrap_or_default();
        for amounts in [&own, &total] {
            cells.push(match self.unit {
                v1::StackUnit::Count => self.count(amounts),
                v1::StackUnit::Bytes | v1::StackUnit::Unspecified => self.bytes(amounts),
            });
            cells.extend(self.share(amounts));
            cells.extend(self.beside(amounts));
        }
        cells.push(grouped(group.stacks));
        let frame = group
            .frame
            .and_then(|place| answer.frames.get(place as usize));
        cells.push(match frame {
            None => why_missing(group.missing.as_deref()),
            Some(frame) => self.group_name(answer, &Frame::of(answer, frame)),
        });
        cells
    }

    /// What stacks that are summed up have in common.
    pub(super) fn group_name(self, answer: &v1::StacksResponse, frame: &Frame<'_>) -> String {
        match answer.by() {
            v1::StackGrouping::File => frame.place(),
            _ => format!("{}  {}", frame.name(), frame.place()),
        }
    }
}

fn magnitude(value: i128) -> u64 {
    u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX)
}

/// A number of blocks, of a change with its sign.
pub(super) fn signed_count(count: i128, is_change: bool) -> String {
    let sign = match (is_change, count) {
        (false, _) | (true, 0) => "",
        (true, 1..) => "+",
        (true, _) => "-",
    };
    format!("{sign}{}", grouped(magnitude(count)))
}

/// `+1.00 MiB`, `-1.00 MiB`, `0 B`.
fn signed(value: i128) -> String {
    let sign = match value {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(magnitude(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs() {
        assert_eq!(signed(0), "0 B");
        assert_eq!(signed(-(1 << 20)), "-1.00 MiB");
        assert_eq!(signed(2048), "+2.00 KiB");
        assert_eq!(magnitude(i128::MIN), u64::MAX);
    }
}
