//! One HTML file with a viewer of our own and the data in it.
//!
//! Owns: which data of a snapshot goes into the file, and the bounds on its amount. Refuses: to fetch anything. The
//! file works alone, from a disk, and its content security policy forbids every request.
//!
//! # Bounds
//!
//! The largest [`MOST_BLOCKS`] blocks are drawn over time. The others are drawn as one band, which is the difference to
//! the allocated bytes. Levels keep every change if there are at most [`MOST_POINTS`]; otherwise they keep of each
//! interval the lowest and the highest allocated bytes and the highest reserved bytes, so that peaks are exact. Segments are written, the largest first, up to
//! [`MOST_MAPPED`] blocks in all. The page says how many of how many are drawn. Totals have no bound: they are computed
//! here over every segment and every block, whether it is drawn or not.

use crate::history::{End, History, Life};
use crate::json::Json;
use crate::levels::Levels;
use crate::pool::devices;
use crate::sink::Sink;
use memscope_ledger::report::{BlockState, SnapshotReport, SnapshotSegment};
use memscope_proto::v1::DevicePool;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

const MOST_BLOCKS: usize = 50_000;
const MOST_POINTS: usize = 20_000;
const MOST_MAPPED: usize = 50_000;
/// Most rows of the table of live blocks, per device.
const MOST_GROUPS: usize = 1000;

const PAGE: &str = include_str!("viewer/page.html");
const STYLE: &str = include_str!("viewer/viewer.css");
const SCRIPTS: [&str; 4] = [
    include_str!("viewer/words.js"),
    include_str!("viewer/numbers.js"),
    include_str!("viewer/draw.js"),
    include_str!("viewer/viewer.js"),
];

pub(crate) fn write(report: &SnapshotReport, out: &mut impl Write) -> io::Result<()> {
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("<!--memscope:") {
        out.write_all(before.as_bytes())?;
        let (what, after) = after.split_once("-->").unwrap_or((after, ""));
        match what {
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => {
                for script in SCRIPTS {
                    out.write_all(script.as_bytes())?;
                }
            }
            _ => data(report, &mut Json::new(Tagless(&mut *out)))?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Writes JSON so that nothing in it can end the HTML element around it. In JSON, `<` occurs only in strings, where it
/// can be written as `\u003c`.
struct Tagless<W>(W);

impl<W: Write> Write for Tagless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (at, part) in bytes.split(|byte| *byte == b'<').enumerate() {
            if at > 0 {
                self.0.write_all(b"\\u003c")?;
            }
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn data(report: &SnapshotReport, out: &mut impl Sink) -> io::Result<()> {
    let history = History::of(report);
    let levels = levels(&history);
    let mut order: Vec<usize> = (0..history.lives.len()).collect();
    let life = |index: &usize| history.lives.get(*index);
    // Of blocks of one size we take those that lived longest, so that the same blocks are drawn for as much of the
    // time as possible.
    let rank = |life: &Life| Reverse((life.size, life.gone_ns - life.born_ns));
    order.sort_unstable_by_key(|index| (life(index).map(rank), *index));
    order.truncate(MOST_BLOCKS);
    order.sort_unstable_by_key(|index| (life(index).map(|life| life.born_ns), *index));
    let mut mapped: Vec<&SnapshotSegment> = report.segments.iter().collect();
    mapped.sort_by_key(|segment| Reverse(segment.size));
    let mut room = MOST_MAPPED;
    // A segment with more blocks than there is room for is left out; smaller ones after it may still fit.
    mapped.retain(|segment| {
        let left = room.checked_sub(segment.blocks.len());
        room = left.unwrap_or(room);
        left.is_some()
    });
    let totals: HashMap<i32, DevicePool> = devices(report, None)
        .into_iter()
        .map(|one| (one.device, one))
        .collect();

    let zero = history.from_ns.values().min().copied().unwrap_or(0);
    let births = history.lives.iter().map(|life| life.born_ns);
    let zero = births.fold(zero.min(report.as_of.boot_ns), u64::min);
    out.begin_dict()?;
    text(out, "version", env!("CARGO_PKG_VERSION"))?;
    number(out, "pid", u64::from(report.process.facts.pid))?;
    text(out, "comm", &report.process.facts.comm)?;
    text(out, "cmdline", &report.process.facts.cmdline.join(" "))?;
    // JavaScript's numbers are exact up to 2^53, and nanoseconds since 1970 are larger than that.
    number(out, "as_of_unix_ms", report.as_of.unix_ns / 1_000_000)?;
    number(out, "as_of", report.as_of.boot_ns - zero)?;
    number(out, "lost_records", report.process.lost_records)?;
    number(out, "trace_entries", report.trace.len() as u64)?;
    number(out, "trace_dropped", report.trace_dropped)?;
    out.key("notes")?;
    out.begin_list()?;
    for note in &report.coverage {
        out.item()?;
        out.text(&note.text)?;
    }
    out.end_list()?;
    out.key("devices")?;
    out.begin_list()?;
    for (device, from_ns) in &history.from_ns {
        out.item()?;
        out.begin_dict()?;
        out.key("device")?;
        out.signed(i64::from(*device))?;
        number(out, "from", from_ns - zero)?;
        let of_device = levels.get(device).map_or(&[][..], Vec::as_slice);
        let points = thinned(of_device);
        number(out, "levels_seen", of_device.len() as u64)?;
        out.key("reserved_at_end")?;
        out.flag(history.reserved_at_end.contains(device))?;
        out.key("levels")?;
        columns(out, &points, |point| [point.0 - zero, point.1, point.2])?;
        let here = order
            .iter()
            .filter_map(life)
            .filter(|l| l.device == *device);
        let here: Vec<_> = here.collect();
        let all = history.lives.iter().filter(|l| l.device == *device);
        number(out, "blocks_seen", all.count() as u64)?;
        out.key("blocks")?;
        columns(out, &here, |life| {
            // Flags: 1 the block is live, 2 its free was lost, 4 the time of its allocation is not known, 8 its size
            // is rounded.
            let end = match life.end {
                End::Seen => 0,
                End::Live => 1,
                End::Lost => 2,
            };
            let flags = end | u64::from(!life.born_known) << 2 | u64::from(!life.requested) << 3;
            [life.born_ns - zero, life.gone_ns - zero, life.size, flags]
        })?;
        out.key("addresses")?;
        addresses(out, here.iter().map(|life| life.addr))?;
        out.key("streams")?;
        addresses(out, here.iter().map(|life| life.stream))?;
        out.key("totals")?;
        sums(out, totals.get(device).unwrap_or(&DevicePool::default()))?;
        segments(out, &mapped, *device, zero)?;
        groups(out, report, *device, zero)?;
        out.end_dict()?;
    }
    out.end_list()?;
    out.end_dict()
}

type Point = (u64, u64, u64);

/// Allocated and reserved bytes of each device as a whole, at every change.
fn levels(history: &History) -> HashMap<i32, Vec<Point>> {
    let levels = Levels::of(history);
    let mut points: HashMap<i32, Vec<Point>> = HashMap::new();
    let told = levels.walk(|told| {
        let holder = levels.holders.get(told.holder).filter(|h| h.pool.is_none());
        if let Some(holder) = holder {
            let of_device = points.entry(holder.device).or_default();
            let (_, allocated, reserved) = of_device.last().copied().unwrap_or_default();
            of_device.push((
                told.time_ns,
                told.allocated.unwrap_or(allocated),
                told.reserved.unwrap_or(reserved),
            ));
        }
        Ok::<(), std::convert::Infallible>(())
    });
    match told {
        Ok(()) => points,
        Err(never) => match never {},
    }
}

/// Reduces points to at most [`MOST_POINTS`]: cuts them into stretches and keeps of each the first, the last, those with
/// the lowest and the highest allocated bytes, and the one with the highest reserved bytes.
fn thinned(points: &[Point]) -> Vec<Point> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(MOST_POINTS);
    for stretch in points.chunks(points.len().div_ceil(MOST_POINTS / 5)) {
        let by_level = |at: &usize| stretch.get(*at).map(|point| point.1);
        let mut at = [
            Some(0),
            (0..stretch.len()).min_by_key(by_level),
            (0..stretch.len()).max_by_key(by_level),
            (0..stretch.len()).max_by_key(|at| stretch.get(*at).map(|point| point.2)),
            Some(stretch.len() - 1),
        ];
        at.sort_unstable();
        let mut last = None;
        for at in at.into_iter().flatten() {
            if last.replace(at) != Some(at) {
                kept.extend(stretch.get(at));
            }
        }
    }
    kept
}

/// Writes the totals of a device, over all of its segments.
fn sums(out: &mut impl Sink, of: &DevicePool) -> io::Result<()> {
    let segments = of
        .pools
        .iter()
        .filter_map(|share| Some(share.segments?.count))
        .sum();
    let [allocated, pending, free, idle] =
        [of.allocated, of.pending, of.free, of.idle_segments].map(Option::unwrap_or_default);
    let blocks = allocated.count + pending.count + free.count;
    out.begin_dict()?;
    for (key, value) in [
        ("reserved", of.reserved_bytes),
        ("allocated", allocated.bytes),
        ("pending", pending.bytes),
        ("free", free.bytes),
        ("idle", idle.bytes),
        ("largest_free", of.largest_free_bytes),
        ("segments", segments),
        ("blocks", blocks),
    ] {
        number(out, key, value)?;
    }
    out.end_dict()
}

/// Writes the segments of a device that are drawn, in order of address.
fn segments(
    out: &mut impl Sink,
    mapped: &[&SnapshotSegment],
    device: i32,
    zero: u64,
) -> io::Result<()> {
    let mut here: Vec<_> = mapped.iter().filter(|s| s.device == device).collect();
    here.sort_by_key(|segment| segment.addr);
    out.key("segments")?;
    out.begin_list()?;
    for segment in here {
        out.item()?;
        out.begin_dict()?;
        text(out, "addr", &format!("{:x}", segment.addr))?;
        number(out, "size", segment.size)?;
        text(out, "stream", &format!("{:x}", segment.stream))?;
        out.key("pool")?;
        out.text(&format!("({}, {})", segment.pool.0, segment.pool.1))?;
        text(out, "kind", if segment.large { "large" } else { "small" })?;
        for (name, set) in [("expandable", segment.expandable), ("seen", segment.seen)] {
            out.key(name)?;
            out.flag(set)?;
        }
        out.key("blocks")?;
        columns(out, &segment.blocks, |block| {
            let state = match block.state {
                BlockState::Inactive => 0,
                BlockState::Active => 1,
                BlockState::PendingFree => 2,
            };
            // One nanosecond is added to the time, so that 0 can mean that it is not known.
            let since = block
                .since_ns
                .checked_sub(zero)
                .map_or(0, |since| since + 1);
            let since = if block.since_ns == 0 { 0 } else { since };
            let requested = block.requested.unwrap_or(0);
            [
                block.addr.saturating_sub(segment.addr),
                block.size,
                state,
                requested,
                since,
            ]
        })?;
        out.end_dict()?;
    }
    out.end_list()
}

/// Writes a device's live blocks grouped by size and stream, the group with the most bytes first.
fn groups(out: &mut impl Sink, report: &SnapshotReport, device: i32, zero: u64) -> io::Result<()> {
    /// Number of blocks, their bytes, and when the oldest came (`None`: not known of every block).
    type Row = (u64, u64, Option<u64>);
    let mut rows: HashMap<(u64, u64, bool), Row> = HashMap::new();
    for segment in report.segments.iter().filter(|s| s.device == device) {
        let live = |state| matches!(state, BlockState::Active);
        for block in segment.blocks.iter().filter(|block| live(block.state)) {
            let size = block.requested.unwrap_or(block.size);
            let key = (size, segment.stream, block.requested.is_some());
            let row = rows.entry(key).or_insert((0, 0, Some(u64::MAX)));
            let since = Some(block.since_ns).filter(|since| *since != 0);
            *row = (
                row.0 + 1,
                row.1 + block.size,
                row.2.zip(since).map(|(a, b)| a.min(b)),
            );
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_unstable_by_key(|(key, row)| (Reverse(row.1), *key));
    let beyond = rows.split_off(rows.len().min(MOST_GROUPS));
    out.key("groups")?;
    columns(
        out,
        &rows,
        |((size, _, requested), (count, bytes, since))| {
            let since = since.map_or(0, |since| since.saturating_sub(zero) + 1);
            [*size, u64::from(*requested), *count, *bytes, since]
        },
    )?;
    out.key("group_streams")?;
    addresses(out, rows.iter().map(|((_, stream, _), _)| *stream))?;
    number(out, "groups_left_out", beyond.len() as u64)?;
    number(
        out,
        "group_bytes_left_out",
        beyond.iter().map(|row| row.1.1).sum(),
    )
}

fn text(out: &mut impl Sink, key: &'static str, value: &str) -> io::Result<()> {
    out.key(key)?;
    out.text(value)
}

fn number(out: &mut impl Sink, key: &'static str, value: u64) -> io::Result<()> {
    out.key(key)?;
    out.int(value)
}

/// Writes rows as a list of columns, which is shorter.
fn columns<T, const N: usize>(
    out: &mut impl Sink,
    rows: &[T],
    row: impl Fn(&T) -> [u64; N],
) -> io::Result<()> {
    out.begin_list()?;
    for column in 0..N {
        out.item()?;
        out.begin_list()?;
        for value in rows {
            out.item()?;
            out.int(row(value).get(column).copied().unwrap_or(0))?;
        }
        out.end_list()?;
    }
    out.end_list()
}

/// Writes numbers as hexadecimal texts, because JavaScript's numbers do not hold every address exactly.
fn addresses(out: &mut impl Sink, all: impl Iterator<Item = u64>) -> io::Result<()> {
    out.begin_list()?;
    for address in all {
        out.item()?;
        out.text(&format!("{address:x}"))?;
    }
    out.end_list()
}
