//! PyTorch's own snapshots, pickles of `torch.cuda.memory._snapshot()`, as files of any kind are kept.

use super::error::FileError;
use super::kept::{Births, Block, Image, Segment, SnapshotFile, line_of, not_judged};
use memscope_pickle::{Action, Note, Pickle, Snapshot, Stacks, Value};
use memscope_proto::v1;
use std::path::Path;

pub(super) fn of_pickle(path: &Path, pickle: &Pickle) -> Result<SnapshotFile, FileError> {
    let mut snapshot = Snapshot::of(pickle)?;
    let mut births = Births::default();
    snapshot.entries(|device, entry| {
        let came = entry.action == Some(Action::Alloc);
        births.entry(device, came, Some(entry.addr), entry.time_us);
    })?;
    let mut stacks = Stacks::default();
    let mut segments = Vec::new();
    for segment in snapshot.segments()? {
        let blocks = segment.blocks.iter().map(|block| Block {
            address: block.addr,
            size: block.size,
            requested: block.requested,
            state: block.state,
            born_ns: births.of.get(&(segment.device, block.addr)).copied(),
            stack: stacks.of(pickle, block.frames, |frame| line(pickle, frame)),
        });
        segments.push(Segment {
            device: segment.device,
            stream: segment.stream,
            size: segment.size,
            blocks: blocks.collect(),
        });
    }
    let origin = snapshot.origin();
    let image = origin.pid.zip(origin.start_ticks).zip(origin.generation);
    Ok(SnapshotFile {
        path: path.to_owned(),
        image: image.map(|((pid, start), generation)| Image {
            pid,
            start,
            generation,
        }),
        as_of_ns: origin.as_of_unix_ns.or(births.newest_ns),
        segments,
        stacks: stacks.all,
        coverage: snapshot.notes().into_iter().map(note).collect(),
    })
}

fn line(pickle: &Pickle, frame: Value) -> std::sync::Arc<str> {
    let text = |key| {
        let text = pickle.get(frame, key).and_then(|text| pickle.text(text));
        text.unwrap_or_default()
    };
    let line = pickle.get(frame, "line").and_then(Value::unsigned);
    line_of(text("name"), text("filename"), line)
}

fn note(note: Note) -> v1::CoverageNote {
    v1::CoverageNote {
        code: note.code,
        text: note.text,
        affects: note.affects.unwrap_or_else(not_judged),
        lower_bound: note.lower_bound,
    }
}
