//! PyTorch's own snapshots, pickles of `torch.cuda.memory._snapshot()`, as files of any kind are kept.

use super::error::FileError;
use super::kept::{Births, Block, MOST_IN_ALL, Segment, SnapshotFile, Stack, line_of, not_judged};
use memscope_pickle::{Action, Note, Pickle, Snapshot, Stacks, Value};
use memscope_proto::{Image, v1};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of the lines of all frames. Those of a program have a few MiB.
const MOST_LINES: usize = 1 << 30;

pub(super) fn of_pickle(path: &Path, pickle: &Pickle) -> Result<SnapshotFile, FileError> {
    of_pickle_within(path, pickle, MOST_LINES)
}

/// The same, with room for so many bytes of lines.
pub(super) fn of_pickle_within(
    path: &Path,
    pickle: &Pickle,
    room: usize,
) -> Result<SnapshotFile, FileError> {
    let mut snapshot = Snapshot::of(pickle)?;
    let mut births = Births::default();
    snapshot.entries(|device, entry| {
        let came = entry.action == Some(Action::Alloc);
        births.entry(device, came, Some(entry.addr), entry.time_us);
    })?;
    let mut stacks = Stacks::within(MOST_IN_ALL);
    let mut lines = Lines::within(room);
    let mut segments = Vec::new();
    for segment in snapshot.segments()? {
        let blocks = segment.blocks.iter().map(|block| Block {
            address: block.addr,
            size: block.size,
            requested: block.requested,
            state: block.state,
            born_ns: births.of.get(&(segment.device, block.addr)).copied(),
            stack: stacks.of(pickle, block.frames, |frame| lines.of(pickle, frame)),
        });
        segments.push(Segment {
            device: segment.device,
            stream: segment.stream,
            size: segment.size,
            blocks: blocks.collect(),
        });
    }
    if lines.is_full {
        let what = format!("the names of its frames have more than {room} bytes");
        return Err(FileError::Shape(what));
    }
    let origin = snapshot.origin();
    let image = origin.pid.zip(origin.start_ticks).zip(origin.generation);
    Ok(SnapshotFile {
        path: path.to_owned(),
        image: image.map(|((pid, start_ticks), generation)| Image {
            pid,
            start_ticks,
            generation,
            number: origin.image,
        }),
        attached_ns: origin.attached_unix_ns,
        as_of_ns: origin.as_of_unix_ns.or(births.newest_ns),
        traced_from_ns: births.reach_back_to_ns(),
        has_births: origin.trace_dropped == Some(0),
        segments,
        stacks: stacks.all.iter().map(|stack| lines.told(stack)).collect(),
        coverage: snapshot.notes().into_iter().map(note).collect(),
    })
}

/// A frame: name and file as the pickle's texts, and the line.
type Frame = (Option<u32>, Option<u32>, Option<u64>);

/// The lines of all frames. Many frames have one name, which may be long: each text is made once, and has room in all.
#[derive(Default)]
struct Lines {
    all: Vec<Arc<str>>,
    by_frame: HashMap<Frame, usize>,
    by_text: HashMap<Arc<str>, usize>,
    room: usize,
    /// A line found no room: nothing is to be made of the others either.
    is_full: bool,
}

impl Lines {
    fn within(room: usize) -> Lines {
        Lines {
            room,
            ..Lines::default()
        }
    }

    /// The place of a frame's line in `all`. Frames that say the same have one place, as stacks are told apart by it.
    fn of(&mut self, pickle: &Pickle, frame: Value) -> usize {
        let text = |key| match pickle.get(frame, key) {
            Some(Value::Text(place)) => Some(place),
            _ => None,
        };
        let line = pickle.get(frame, "line").and_then(Value::unsigned);
        let key = (text("name"), text("filename"), line);
        if let Some(known) = self.by_frame.get(&key) {
            return *known;
        }
        if self.is_full {
            return 0;
        }
        let read = |place: Option<u32>| {
            let text = place.and_then(|place| pickle.text(Value::Text(place)));
            text.unwrap_or_default()
        };
        let text = line_of(read(key.0), read(key.1), line);
        let place = match self.by_text.get(&text) {
            Some(known) => *known,
            None => {
                let Some(room) = self.room.checked_sub(text.len()) else {
                    self.is_full = true;
                    return 0;
                };
                self.room = room;
                self.by_text.insert(Arc::clone(&text), self.all.len());
                self.all.push(text);
                self.all.len() - 1
            }
        };
        self.by_frame.insert(key, place);
        place
    }

    fn told(&self, stack: &[usize]) -> Stack {
        let lines = stack.iter().filter_map(|place| self.all.get(*place));
        lines.cloned().collect()
    }
}

pub(super) fn note(note: Note) -> v1::CoverageNote {
    v1::CoverageNote {
        code: note.code,
        text: note.text,
        affects: note.affects.unwrap_or_else(not_judged),
        lower_bound: note.lower_bound,
    }
}
