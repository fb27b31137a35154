//! A pickle with all that a report needs: blocks with their stacks, and the traces.

use super::error::FileError;
use super::kept::MOST_IN_ALL;
use super::viz::note;
use crate::units::grouped;
use memscope_pickle::{Doubt, Pickle, Snapshot, Stacks, Value, doubts};
use memscope_proto::v1::CoverageNote;
use memscope_report::{Action, Block, Entry, Frame, Known, Picture, Segment, State, Trace};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn of_pickle(pickle: &Pickle) -> Result<(Picture, Vec<CoverageNote>), FileError> {
    let (devices, doubts): (Vec<_>, Vec<_>) = doubts(pickle)?.into_iter().unzip();
    let mut snapshot = Snapshot::of(pickle)?;
    let mut stacks = Stacks::within(MOST_IN_ALL);
    let mut texts = HashMap::new();
    let mut stack = |frames| stacks.of(pickle, frames, |frame| read(pickle, frame, &mut texts));
    let mut picture = Picture::default();
    for segment in snapshot.segments()? {
        let blocks = segment.blocks.iter().map(|block| Block {
            address: block.addr,
            size: block.size,
            requested: block.requested,
            state: state(block.state),
            stack: stack(block.frames),
        });
        picture.segments.push(Segment {
            device: segment.device,
            address: segment.addr,
            size: segment.size,
            expandable: segment.expandable,
            blocks: blocks.collect(),
        });
    }
    let traces = &mut picture.traces;
    snapshot.entries(|device, entry| {
        let entry = Entry {
            action: action(entry.action),
            address: entry.addr,
            size: entry.size,
            time_us: entry.time_us,
            stack: stack(entry.frames),
        };
        match traces.last_mut().filter(|trace| trace.device == device) {
            Some(trace) => trace.entries.push(entry),
            None => traces.push(Trace {
                device,
                entries: vec![entry],
                known: Known::All,
            }),
        }
    })?;
    picture.stacks = stacks.all;
    let mut notes: Vec<CoverageNote> = snapshot.notes().into_iter().map(note).collect();
    let without_segments = notes.iter().any(|note| note.code == "level_blocks");
    for trace in &mut picture.traces {
        let judged = devices.iter().zip(&doubts);
        let judged = judged.filter(|(device, _)| **device == trace.device);
        for (_, doubts) in judged {
            trace.known = match doubts.is_course_known() {
                false => Known::Nothing,
                true if without_segments || !doubts.is_reserved_known() => Known::Blocks,
                true => Known::All,
            };
        }
    }
    notes.extend(memscope_pickle::notes(&doubts).map(doubt));
    if let Some(dropped @ 1..) = snapshot.origin().trace_dropped {
        notes.push(CoverageNote {
            code: "trace_dropped".to_owned(),
            text: format!(
                "{} older entries of the trace are no longer kept: course and peak begin after them",
                grouped(dropped)
            ),
            affects: vec!["history".to_owned()],
            lower_bound: true,
        });
    }
    picture.notes = notes.iter().map(|note| note.text.clone()).collect();
    Ok((picture, notes))
}

fn doubt(doubt: Doubt) -> CoverageNote {
    CoverageNote {
        code: doubt.code.to_owned(),
        text: doubt.text,
        affects: doubt.affects.iter().copied().map(str::to_owned).collect(),
        lower_bound: false,
    }
}

const fn state(state: memscope_pickle::State) -> State {
    match state {
        memscope_pickle::State::Active => State::Active,
        memscope_pickle::State::Pending => State::Pending,
        memscope_pickle::State::Inactive => State::Inactive,
    }
}

const fn action(action: Option<memscope_pickle::Action>) -> Action {
    use memscope_pickle::Action as Told;
    match action {
        Some(Told::Alloc) => Action::Alloc,
        Some(Told::FreeCompleted) => Action::Free,
        Some(Told::SegmentAlloc) => Action::Grow,
        Some(Told::SegmentFree) => Action::Shrink,
        Some(Told::SegmentMap) => Action::Map,
        Some(Told::SegmentUnmap) => Action::Unmap,
        Some(Told::FreeRequested | Told::Snapshot | Told::Oom) | None => Action::Other,
    }
}

/// Reads a frame. Many frames share a text, which may be long.
fn read(pickle: &Pickle, frame: Value, texts: &mut HashMap<u32, Arc<str>>) -> Frame {
    let mut text = |key| match pickle.get(frame, key) {
        Some(text @ Value::Text(place)) => {
            let new = || Arc::from(pickle.text(text).unwrap_or_default());
            Arc::clone(texts.entry(place).or_insert_with(new))
        }
        _ => Arc::from(""),
    };
    Frame {
        function: text("name"),
        file: text("filename"),
        line: pickle
            .get(frame, "line")
            .and_then(Value::unsigned)
            .unwrap_or(0),
    }
}
