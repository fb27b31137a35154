//! The rows that follow from the daemon's answers.

use crate::table::{Cell, Record, Row, Time, VERSION};
use crate::tables::{
    EventRow, FindingRow, GapRow, OomRow, PeakRow, SnapshotRow, StackRow, StepRow, Whose,
};
use memscope_proto::{Word, v1};
use serde_json::Value as Json;

/// The name of the job of what belongs to none.
pub const NO_JOB: &str = "none";

/// The node that rows are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Host name.
    pub name: String,
    /// A hash of the machine id.
    pub machine: String,
    /// Boot id.
    pub boot: String,
}

/// What all rows of one batch have in common.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The node.
    pub node: &'a Node,
    /// Number of the batch.
    pub batch: u64,
    /// The daemon's journal: boot-time nanoseconds of its start.
    pub epoch: u64,
}

/// A number as a column has it. Numbers that do not fit are not known: those that the daemon gives as the largest one.
fn int(number: u64) -> Option<i64> {
    i64::try_from(number).ok()
}

/// A text that is not empty.
fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn word<W: Word>(value: W) -> Option<String> {
    value.word()
}

/// The job that a process belongs to, as it stands in paths: of Slurm, else the pod, else the container.
#[must_use]
pub fn job(process: Option<&v1::Process>) -> String {
    let Some(workload) = process.and_then(|process| process.workload.as_ref()) else {
        return NO_JOB.to_owned();
    };
    let container = workload
        .container
        .as_ref()
        .or(workload.container_id.as_ref());
    match (&workload.slurm_job, &workload.pod, container) {
        (Some(job), _, _) => format!("slurm-{job}"),
        (_, Some(pod), _) => match &workload.namespace {
            Some(namespace) => format!("pod-{namespace}-{pod}"),
            None => format!("pod-{pod}"),
        },
        (_, _, Some(container)) => format!("container-{container}"),
        _ => NO_JOB.to_owned(),
    }
}

/// The day of a moment in UTC, `YYYY-MM-DD`.
fn date(unix_ns: u64) -> String {
    memscope_units::in_utc(unix_ns, "%Y-%m-%d")
}

/// A row of a moment, nanoseconds since 1970.
fn row<R: Record>(
    origin: &Origin<'_>,
    unix_ns: u64,
    process: Option<&v1::Process>,
    record: R,
) -> Row {
    let mut cells = whose(origin, unix_ns, process).cells();
    cells.extend(record.cells());
    Row {
        table: R::TABLE.name,
        date: date(unix_ns),
        job: job(process),
        cells,
    }
}

fn whose(origin: &Origin<'_>, unix_ns: u64, process: Option<&v1::Process>) -> Whose {
    let facts = process.and_then(|process| process.facts.as_ref());
    let workload = process.and_then(|process| process.workload.as_ref());
    let of =
        |field: fn(&v1::Workload) -> &Option<String>| workload.and_then(|it| field(it).clone());
    let number = |field: fn(&v1::Workload) -> Option<u32>| workload.and_then(field).map(i64::from);
    Whose {
        schema_version: Some(VERSION),
        time: Time::of_unix_ns(unix_ns),
        node: text(&origin.node.name),
        machine: text(&origin.node.machine),
        boot: text(&origin.node.boot),
        batch: int(origin.batch),
        epoch: int(origin.epoch),
        // Handles begin at 1. Where it is not known which process it was, there is none.
        process: process
            .map(|process| process.handle.into())
            .filter(|handle| *handle > 0),
        pid: facts.map(|facts| facts.pid.into()),
        // Of a process of which nothing but its number is known, these are not known.
        start_ticks: facts
            .and_then(|facts| int(facts.start_ticks))
            .filter(|ticks| *ticks > 0),
        uid: facts
            .filter(|facts| facts.start_ticks > 0)
            .map(|facts| facts.uid.into()),
        comm: facts.and_then(|facts| text(&facts.comm)),
        job_id: of(|it| &it.job),
        job_name: of(|it| &it.job_name),
        slurm_job: of(|it| &it.slurm_job),
        slurm_step: of(|it| &it.slurm_step),
        namespace: of(|it| &it.namespace),
        pod: of(|it| &it.pod),
        container: of(|it| &it.container).or_else(|| of(|it| &it.container_id)),
        rank: number(|it| it.rank),
        local_rank: number(|it| it.local_rank),
        world_size: number(|it| it.world_size),
    }
}

/// A finding, as an event told it. `now_ns` is the moment where the event has none, nanoseconds since 1970.
#[must_use]
pub fn finding(
    origin: &Origin<'_>,
    event: &v1::Event,
    finding: &v1::Finding,
    process: Option<&v1::Process>,
    now_ns: u64,
) -> Row {
    let state = match finding.withdrawn {
        true => "withdrawn",
        false => "standing",
    };
    let sequence = event.id.as_ref().and_then(|id| int(id.sequence));
    let record = FindingRow {
        number: int(finding.number),
        state: text(state),
        sequence,
        device: finding.device.map(Into::into),
        space: text(&finding.space),
        live_bytes: int(finding.live_bytes),
        growth_bytes_per_s: Some(finding.growth_bytes_per_s),
        growth_bytes_per_step: finding.growth_bytes_per_step,
        first_step: finding.first_step.and_then(int),
        confidence: finding.confidence,
        file: text(&finding.file),
        line: Some(finding.line.into()).filter(|line| *line > 0),
        function: text(&finding.name),
        reason: text(&finding.reason),
    };
    row(
        origin,
        event.time_unix_ns.unwrap_or(now_ns),
        process,
        record,
    )
}

/// A finding that does not stand any more, of which nobody said that it was withdrawn.
#[must_use]
pub fn finding_over(
    origin: &Origin<'_>,
    number: u64,
    process: Option<&v1::Process>,
    now_ns: u64,
) -> Row {
    let record = FindingRow {
        number: int(number),
        state: text("over"),
        ..FindingRow::default()
    };
    row(origin, now_ns, process, record)
}

/// A step of a process. `unix_ns` is its end.
#[must_use]
pub fn step(
    origin: &Origin<'_>,
    step: &v1::StepRow,
    source: v1::StepSource,
    process: Option<&v1::Process>,
    unix_ns: u64,
) -> Row {
    let record = StepRow {
        step: int(step.step),
        step_source: word(source),
        from_boot_ns: int(step.from_boot_ns),
        to_boot_ns: int(step.to_boot_ns),
        device: step.device.map(Into::into),
        source: word(step.source()),
        min_allocated_bytes: int(step.min_allocated_bytes),
        max_allocated_bytes: int(step.max_allocated_bytes),
        end_allocated_bytes: int(step.end_allocated_bytes),
        max_reserved_bytes: int(step.max_reserved_bytes),
        end_reserved_bytes: int(step.end_reserved_bytes),
        allocs: int(step.allocs),
        frees: int(step.frees),
        allocated_bytes: int(step.allocated_bytes),
        freed_bytes: int(step.freed_bytes),
    };
    row(origin, unix_ns, process, record)
}

/// What a process holds on its devices.
#[must_use]
pub fn peaks(
    origin: &Origin<'_>,
    stats: &v1::StatsResponse,
    process: &v1::Process,
    ended: bool,
) -> Vec<Row> {
    let devices = stats.devices.iter();
    let is_read = stats.is_only_read();
    let rows = devices.map(|device| {
        let is_hidden = is_read || stats.hides_pool();
        let seen = |count: u64| int(count).filter(|_| !is_hidden);
        // What was there between two readings is seen by nobody.
        let peak = |bytes: Option<u64>| bytes.filter(|_| !is_read);
        let record = PeakRow {
            ended: Some(ended),
            state: word(process.state()),
            device: device.device.map(Into::into),
            source: word(device.source()),
            allocated_bytes: device.allocated_bytes.and_then(int),
            reserved_bytes: device.reserved_bytes.and_then(int),
            peak_allocated_bytes: peak(device.peak_allocated_bytes).and_then(int),
            peak_reserved_bytes: peak(device.peak_reserved_bytes).and_then(int),
            peak_time: peak(device.peak_unix_ns).and_then(Time::of_unix_ns),
            baseline_bytes: device.baseline_bytes.and_then(int),
            alloc_count: seen(device.alloc_count),
            free_count: seen(device.free_count),
            oom_count: seen(device.oom_count).filter(|_| !stats.hides_ooms()),
            total_bytes: device.total_bytes.and_then(int),
            lost_records: int(stats.lost_records),
        };
        row(origin, stats.as_of, Some(process), record)
    });
    rows.collect()
}

/// The stacks of an answer, and what all others have.
#[must_use]
pub fn stacks(
    origin: &Origin<'_>,
    answer: &v1::StacksResponse,
    process: &v1::Process,
    ended: bool,
) -> Vec<Row> {
    let words = |index: u32| answer.strings.get(index as usize).map(String::as_str);
    let rows = answer.rows.iter().zip(1..).map(|(stack, place)| {
        let frames = stack.frames.iter();
        let frames = frames.filter_map(|index| answer.frames.get(*index as usize));
        let lines = frames.clone().map(|frame| {
            let (name, file) = (words(frame.name), words(frame.file));
            let (name, file) = (name.unwrap_or_default(), file.unwrap_or_default());
            format!("{name} {file}:{}", frame.line)
        });
        let inner = frames.clone().next();
        let record = StackRow {
            ended: Some(ended),
            place: Some(place),
            others: Some(false),
            device: stack.device.map(Into::into),
            frames: text(&lines.collect::<Vec<String>>().join("\n")),
            function: inner.and_then(|frame| text(words(frame.name)?)),
            file: inner.and_then(|frame| text(words(frame.file)?)),
            line: inner
                .map(|frame| i64::from(frame.line))
                .filter(|line| *line > 0),
            missing: stack.missing.clone(),
            truncated: Some(stack.truncated),
            ..of_amounts(stack.amounts.as_ref())
        };
        row(origin, answer.as_of, Some(process), record)
    });
    let others = answer.others.as_ref().map(|others| {
        let record = StackRow {
            ended: Some(ended),
            others: Some(true),
            ..of_amounts(Some(others))
        };
        row(origin, answer.as_of, Some(process), record)
    });
    rows.chain(others).collect()
}

fn of_amounts(amounts: Option<&v1::StackAmounts>) -> StackRow {
    let amounts = amounts.copied().unwrap_or_default();
    let bytes = |amount: Option<v1::Amount>| amount.and_then(|amount| int(amount.bytes));
    let blocks = |amount: Option<v1::Amount>| amount.and_then(|amount| int(amount.count));
    StackRow {
        live_bytes: bytes(amounts.live),
        live_blocks: blocks(amounts.live),
        peak_bytes: bytes(amounts.peak),
        peak_blocks: blocks(amounts.peak),
        allocated_bytes: bytes(amounts.allocated),
        allocated_blocks: blocks(amounts.allocated),
        ..StackRow::default()
    }
}

/// A snapshot that the daemon keeps; `content` is its file.
#[must_use]
pub fn snapshot(
    origin: &Origin<'_>,
    kept: &v1::KeptSnapshot,
    content: Option<Vec<u8>>,
    process: Option<&v1::Process>,
) -> Row {
    let record = SnapshotRow {
        snapshot: int(kept.snapshot),
        trigger: text(&kept.when),
        reason: text(&kept.reason),
        device: kept.device.map(Into::into),
        format: text(&kept.format),
        file_bytes: int(kept.bytes),
        content,
        without_baseline: Some(kept.without_baseline),
    };
    row(origin, kept.time_unix_ns, process, record)
}

/// An event as it was told.
#[must_use]
pub fn event(
    origin: &Origin<'_>,
    event: &v1::Event,
    process: Option<&v1::Process>,
    now_ns: u64,
) -> Row {
    let body = serde_json::to_value(event).unwrap_or_default();
    // What the kind has is a level deeper than what all events have.
    let own = body.get("body");
    let number = |name: &str| own.and_then(|own| own.get(name)).and_then(Json::as_i64);
    let is_oom = |trace: &v1::PoolTrace| trace.action() == v1::TraceAction::Oom;
    // When memory ran out, the device's free bytes stand in the place of the address.
    let has_address = !matches!(&event.body, Some(v1::event::Body::Trace(trace)) if is_oom(trace));
    let record = EventRow {
        sequence: event.id.as_ref().and_then(|id| int(id.sequence)),
        kind: body.get("kind").and_then(Json::as_str).map(str::to_owned),
        boot_ns: int(event.time_boot_ns),
        tid: Some(event.tid.into()).filter(|tid| *tid > 0),
        stack_id: event.stack_id.map(|id| format!("{id:016x}")),
        lost_before: int(event.lost_before),
        device: number("device"),
        address: number("address").filter(|_| has_address),
        size_bytes: number("size_bytes"),
        body: Some(body.to_string()),
    };
    row(
        origin,
        event.time_unix_ns.unwrap_or(now_ns),
        process,
        record,
    )
}

/// Allocations that failed on a device: `count` of them since the look before, at `since_ns` (nanoseconds since 1970; 0: there was none).
#[must_use]
pub fn ooms(
    origin: &Origin<'_>,
    stats: &v1::StatsResponse,
    device: &v1::DeviceStats,
    process: &v1::Process,
    count: u64,
    since_ns: u64,
) -> Row {
    let record = OomRow {
        count: int(count),
        since: Time::of_unix_ns(since_ns),
        device: device.device.map(Into::into),
        oom_count: int(device.oom_count),
        allocated_bytes: device.allocated_bytes.and_then(int),
        reserved_bytes: device.reserved_bytes.and_then(int),
        peak_allocated_bytes: device.peak_allocated_bytes.and_then(int),
    };
    row(origin, stats.as_of, Some(process), record)
}

/// Something that is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Name of the table that lacks it.
    pub of_table: String,
    /// Why, in a word; see [`GapRow::reason`].
    pub reason: &'static str,
    /// How many rows. `None`: not known, or it may be none.
    pub missing: Option<u64>,
    /// Begin and end of the time, nanoseconds since 1970; 0: not known.
    pub time_ns: (u64, u64),
    /// The first and the last number that may be missing.
    pub numbers: (Option<u64>, Option<u64>),
    /// The file that was dropped.
    pub object: Option<String>,
}

/// The row about a gap.
#[must_use]
pub fn gap(origin: &Origin<'_>, gap: &Gap, process: Option<&v1::Process>, now_ns: u64) -> Row {
    let record = GapRow {
        of_table: text(&gap.of_table),
        reason: text(gap.reason),
        missing: gap.missing.and_then(int),
        from_time: Time::of_unix_ns(gap.time_ns.0),
        to_time: Time::of_unix_ns(gap.time_ns.1),
        from_number: gap.numbers.0.and_then(int),
        to_number: gap.numbers.1.and_then(int),
        object: gap.object.clone(),
    };
    row(origin, now_ns, process, record)
}

/// How many bytes of memory a row takes, about.
#[must_use]
pub fn size(row: &Row) -> usize {
    let more = |cell: &Cell| match cell {
        Cell::Text(Some(text)) => text.len(),
        Cell::Bytes(Some(bytes)) => bytes.len(),
        _ => 0,
    };
    let cells = row.cells.iter();
    cells.map(|cell| size_of::<Cell>() + more(cell)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cell;

    /// Readings show moments: what came and went between them, and how much it was at most, is not known.
    #[test]
    fn level_read_has_no_peaks_and_counts() {
        let node = Node::default();
        let origin = Origin {
            node: &node,
            batch: 1,
            epoch: 2,
        };
        let known = |code: &str| {
            let stats = v1::StatsResponse {
                devices: vec![v1::DeviceStats {
                    device: Some(0),
                    source: v1::Source::Pool.into(),
                    allocated_bytes: Some(1),
                    peak_allocated_bytes: Some(2),
                    peak_reserved_bytes: Some(3),
                    peak_unix_ns: Some(4),
                    ..v1::DeviceStats::default()
                }],
                coverage: vec![v1::CoverageNote {
                    code: code.to_owned(),
                    ..v1::CoverageNote::default()
                }],
                ..v1::StatsResponse::default()
            };
            let rows = peaks(&origin, &stats, &v1::Process::default(), true);
            let cells: Vec<Cell> = rows.into_iter().flat_map(|row| row.cells).collect();
            let own = PeakRow::TABLE.own.iter();
            let own = own.zip(cells.iter().rev().take(PeakRow::TABLE.own.len()).rev());
            let is_null = |cell: &Cell| matches!(cell, Cell::Int(None) | Cell::Time(None));
            let known = own.filter(|(_, cell)| !is_null(cell));
            known.map(|(column, _)| column.name).collect::<Vec<_>>()
        };
        let seen = known("late_attach");
        let read = known("level_read");
        let only = seen.iter().filter(|name| !read.contains(name));
        let expected = [
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "peak_time",
            "alloc_count",
            "free_count",
            "oom_count",
        ];
        assert_eq!(only.copied().collect::<Vec<_>>(), expected);
        assert!(read.contains(&"allocated_bytes"));
    }
}
