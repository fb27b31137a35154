//! A trace of track events that <https://ui.perfetto.dev> opens.
//!
//! There is one group of tracks for each device. It has counters of allocated and reserved bytes (and the same for
//! each private pool), a track of out-of-memory, segment and snapshot events, and slices for blocks that lived
//! long: those that are live at `as_of`, or lived for at least a hundredth of the time that their device's trace
//! covers. Times are `CLOCK_BOOTTIME`; a clock snapshot ties them to real time.
//!
//! The number of slices is bounded: the largest blocks are taken, and the event `snapshot` at the end says how many
//! were left out. The slice of a live block has no end, which is how Perfetto shows that it still lasts.

mod packets;

use crate::history::{End, History, Life};
use crate::levels::Levels;
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::SnapshotReport;
use packets::{Kind, Packets, TrackEvent};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};

/// Most blocks that become slices.
const MOST_SLICES: usize = 20_000;
/// A freed block becomes a slice only if it lived for at least 1/`LONG` of the time that its device's trace covers.
const LONG: u64 = 100;

/// Begin or end of a slice, or an instant: what is drawn at a moment besides levels.
#[derive(Clone, Copy, Debug)]
struct Mark {
    time_ns: u64,
    kind: Kind,
    track: u64,
    /// Index of the life (slices) or of the trace entry (instants).
    index: usize,
}

pub(crate) fn write(report: &SnapshotReport, out: &mut impl Write) -> io::Result<()> {
    let history = History::of(report);
    let levels = Levels::of(&history);
    let mut trace = Packets::new(report, out);
    trace.clocks()?;
    trace.process()?;
    // Each device has a group with a track of events; each holder has two counters in its device's group.
    let mut groups = BTreeMap::new();
    for device in history.from_ns.keys() {
        let group = trace.group(*device)?;
        let events = trace.track(group, "events")?;
        groups.insert(*device, (group, events));
    }
    let mut counters = Vec::new();
    for holder in &levels.holders {
        let group = groups.get(&holder.device).map_or(0, |(group, _)| *group);
        let allocated = trace.counter(group, holder, "allocated")?;
        let reserved = trace.counter(group, holder, "reserved")?;
        counters.push((allocated, reserved));
    }
    let (mut marks, left_out) = slices(&history, &groups, &mut trace)?;
    for (index, entry) in report.trace.iter().enumerate() {
        if instant(entry.action).is_some() {
            marks.push(Mark {
                time_ns: entry.time_ns,
                kind: Kind::Instant,
                track: groups.get(&entry.device).map_or(0, |(_, events)| *events),
                index,
            });
        }
    }
    marks.sort_by_key(|mark| (mark.time_ns, mark.kind));
    let mut marks = marks.into_iter().peekable();
    levels.walk(|told| {
        while let Some(mark) = marks.next_if(|mark| mark.time_ns <= told.time_ns) {
            draw(&mut trace, &history, mark)?;
        }
        let Some((allocated, reserved)) = counters.get(told.holder) else {
            return Ok(());
        };
        for (track, level) in [(allocated, told.allocated), (reserved, told.reserved)] {
            if let Some(level) = level {
                trace.level(told.time_ns, *track, level)?;
            }
        }
        Ok::<(), io::Error>(())
    })?;
    for mark in marks {
        draw(&mut trace, &history, mark)?;
    }
    said(&mut trace, &left_out)
}

/// Writes the begin or the end of a block's slice, or an instant.
fn draw<W: Write>(trace: &mut Packets<'_, W>, history: &History, mark: Mark) -> io::Result<()> {
    let report = trace.report;
    match mark.kind {
        Kind::Begin => {
            let Some(life) = history.lives.get(mark.index) else {
                return Ok(());
            };
            let mut event = TrackEvent::named("block", &memscope_units::bytes(life.size));
            event.pointer("address", life.addr);
            event.number("bytes", life.size);
            event.pointer("stream", life.stream);
            event.pool(life.pool);
            if !life.requested {
                event.note("size", "rounded: what was asked for is not known");
            }
            if !life.born_known {
                event.note("began", "not known: here at the latest");
            }
            match life.end {
                End::Live => event.note("ended", "no: live at the time of the snapshot"),
                End::Lost => event.note("ended", "unseen: here at the latest"),
                End::Seen => {}
            }
            trace.event(mark.time_ns, Kind::Begin, mark.track, event)
        }
        Kind::End => trace.event(mark.time_ns, Kind::End, mark.track, TrackEvent::default()),
        Kind::Instant => {
            let entry = report.trace.get(mark.index);
            let Some((entry, name)) = entry.and_then(|e| Some((e, instant(e.action)?))) else {
                return Ok(());
            };
            let mut event = TrackEvent::named("allocator", name);
            match entry.action {
                TraceAction::Oom => event.number("device_free_bytes", entry.addr),
                _ => event.pointer("address", entry.addr),
            }
            event.number("bytes", entry.size);
            event.pointer("stream", entry.stream);
            if let Some(pool) = entry.pool {
                event.pool(pool);
            }
            event.number("tid", u64::from(entry.tid));
            trace.event(mark.time_ns, Kind::Instant, mark.track, event)
        }
    }
}

/// Writes the last event, `snapshot`, which says what limits the trace.
fn said<W: Write>(trace: &mut Packets<'_, W>, left_out: &LeftOut) -> io::Result<()> {
    let report = trace.report;
    let last = report.trace.iter().map(|entry| entry.time_ns).max();
    let time_ns = report.as_of.boot_ns.max(last.unwrap_or(0));
    let track = trace.process_track();
    let mut event = TrackEvent::named("memscope", "snapshot");
    event.note("memscope", env!("CARGO_PKG_VERSION"));
    if crate::history::only_blocks(report) {
        event.note("allocated", "in rounded bytes, from the trace");
        event.note(
            "reserved",
            "known at the end only: at the level blocks, calls for segments are not seen",
        );
    } else {
        event.note("allocated", "in requested bytes, from the trace");
    }
    event.number("lost_records", report.process.lost_records);
    event.number("trace_entries_no_longer_kept", report.trace_dropped);
    let unseen = report.segments.iter().filter(|segment| !segment.seen);
    event.number("segments_from_before_the_attach", unseen.count() as u64);
    event.number("long_lived_blocks_not_drawn", left_out.long_lived.0);
    event.number("long_lived_bytes_not_drawn", left_out.long_lived.1);
    event.number("short_lived_blocks_not_drawn", left_out.short_lived.0);
    for note in &report.coverage {
        event.note(&note.code, &note.text);
    }
    trace.event(time_ns, Kind::Instant, track, event)
}

/// Blocks that were not drawn: their number and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct LeftOut {
    long_lived: (u64, u64),
    short_lived: (u64, u64),
}

/// Chooses the blocks to draw and lays them on tracks on which they do not overlap.
fn slices<W: Write>(
    history: &History,
    groups: &BTreeMap<i32, (u64, u64)>,
    trace: &mut Packets<'_, W>,
) -> io::Result<(Vec<Mark>, LeftOut)> {
    let mut left_out = LeftOut::default();
    let mut chosen = Vec::new();
    let as_of = trace.report.as_of.boot_ns;
    let add = |to: &mut (u64, u64), life: &Life| {
        to.0 += 1;
        to.1 = to.1.saturating_add(life.size);
    };
    for (index, life) in history.lives.iter().enumerate() {
        let covered = as_of.saturating_sub(history.from(life.device));
        // At least 1 ns: marks of one moment are sorted with the ends first, so the slice of a block without a
        // duration would end before it begins.
        let least = (covered / LONG).max(1);
        match life.end == End::Live || life.gone_ns - life.born_ns >= least {
            true => chosen.push((Reverse(life.size), index, life)),
            false => add(&mut left_out.short_lived, life),
        }
    }
    chosen.sort_unstable_by_key(|(size, index, _)| (*size, *index));
    for (_, _, life) in chosen.iter().skip(MOST_SLICES) {
        add(&mut left_out.long_lived, life);
    }
    chosen.truncate(MOST_SLICES);
    chosen.sort_unstable_by_key(|(_, index, life)| (life.device, life.born_ns, *index));

    let mut marks = Vec::new();
    // Tracks of the current device, with the moment from which on each is free, the earliest first.
    let mut lanes = BinaryHeap::new();
    let mut at = None;
    for (_, index, life) in chosen {
        if at != Some(life.device) {
            at = Some(life.device);
            lanes.clear();
        }
        let free = lanes
            .peek()
            .is_some_and(|Reverse((free, _))| *free <= life.born_ns);
        let track = match if free { lanes.pop() } else { None } {
            Some(Reverse((_, track))) => track,
            None => {
                let group = groups.get(&life.device).map_or(0, |(group, _)| *group);
                trace.track(group, "long-lived blocks")?
            }
        };
        let mark = |time_ns, kind| Mark {
            time_ns,
            kind,
            track,
            index,
        };
        marks.push(mark(life.born_ns, Kind::Begin));
        if life.end == End::Live {
            lanes.push(Reverse((u64::MAX, track)));
        } else {
            lanes.push(Reverse((life.gone_ns, track)));
            marks.push(mark(life.gone_ns, Kind::End));
        }
    }
    Ok((marks, left_out))
}

fn instant(action: TraceAction) -> Option<&'static str> {
    match action {
        TraceAction::SegmentAlloc => Some("segment_alloc"),
        TraceAction::SegmentFree => Some("segment_free"),
        TraceAction::SegmentMap => Some("segment_map"),
        TraceAction::SegmentUnmap => Some("segment_unmap"),
        TraceAction::Oom => Some("oom"),
        TraceAction::Snapshot => Some("snapshot"),
        TraceAction::Alloc | TraceAction::FreeRequested | TraceAction::FreeCompleted => None,
    }
}
