//! Reads a pickle with all that a report needs: blocks with their stacks, and the traces.

use super::error::FileError;
use memscope_pickle::{Once, Pickle, Value};
use memscope_report::{Action, Block, Entry, Frame, Picture, Segment, State, Trace};
use std::collections::HashMap;
use std::sync::Arc;

/// Most frames that are read of a stack.
const MOST_FRAMES: usize = 1024;
/// Most frames of all different stacks together.
const MOST_IN_ALL: usize = 1 << 24;

struct Reader<'p> {
    pickle: &'p Pickle,
    once: Once,
    stacks: Vec<Vec<Frame>>,
    by_list: HashMap<u32, Option<u32>>,
    by_frames: HashMap<Vec<Frame>, u32>,
    frames: HashMap<u32, Frame>,
    texts: HashMap<u32, Arc<str>>,
    room: usize,
}

/// Reads a dictionary as `torch.cuda.memory._snapshot()` returns it.
pub(super) fn of_pickle(pickle: &Pickle) -> Result<Picture, FileError> {
    let root = pickle.root();
    let segments = pickle.list(root).or_else(|| {
        let segments = pickle.get(root, "segments")?;
        pickle.list(segments)
    });
    let segments =
        segments.ok_or_else(|| FileError::Shape("there is no list \"segments\"".to_owned()))?;
    let mut reader = Reader {
        pickle,
        once: Once::new(pickle),
        stacks: Vec::new(),
        by_list: HashMap::new(),
        by_frames: HashMap::new(),
        frames: HashMap::new(),
        texts: HashMap::new(),
        room: MOST_IN_ALL,
    };
    let mut picture = Picture::default();
    for (number, segment) in segments.iter().enumerate() {
        let segment = reader.segment(*segment);
        let wrong = |what| FileError::Shape(format!("segment {number} {what}"));
        picture.segments.push(segment.map_err(wrong)?);
    }
    let traces = pickle.get(root, "device_traces");
    let traces = traces.and_then(|traces| pickle.list(traces)).unwrap_or(&[]);
    for (device, trace) in (0i32..).zip(traces) {
        let mut entries = Vec::new();
        for (place, entry) in pickle.list(*trace).unwrap_or(&[]).iter().enumerate() {
            let entry = reader.entry(*entry).map_err(|what| {
                FileError::Shape(format!(
                    "entry {place} of the trace of device {device} {what}"
                ))
            })?;
            entries.push(entry);
        }
        picture.traces.push(Trace { device, entries });
    }
    picture.stacks = reader.stacks;
    if let Some(origin) = pickle.get(root, "memscope") {
        picture.notes = super::viz::notes(pickle, origin)
            .into_iter()
            .map(|note| note.text)
            .collect();
    }
    Ok(picture)
}

impl Reader<'_> {
    fn number(&self, of: Value, key: &str) -> Option<u64> {
        self.pickle.get(of, key).and_then(Value::unsigned)
    }

    fn need(&self, of: Value, key: &str) -> Result<u64, String> {
        let number = self.number(of, key);
        number.ok_or_else(|| format!("has no number {key:?}"))
    }

    fn segment(&mut self, segment: Value) -> Result<Segment, String> {
        self.once.check(segment)?;
        let device = match self.pickle.get(segment, "device") {
            None => 0,
            Some(device) => device
                .unsigned()
                .and_then(|device| i32::try_from(device).ok())
                .ok_or("has a device that is no number of one")?,
        };
        let pickle = self.pickle;
        let list = pickle.get(segment, "blocks");
        let list = list.and_then(|list| pickle.list(list));
        let list = list.ok_or("has no list \"blocks\"")?;
        let address = self.need(segment, "address")?;
        let size = self.need(segment, "total_size")?;
        // Older versions give a block no address: it follows the one before.
        let mut next = address;
        let mut blocks = Vec::with_capacity(list.len());
        for (place, block) in list.iter().enumerate() {
            let block = self.block(*block, next);
            let block = block.map_err(|what| format!("block {place} {what}"))?;
            next = block.address.saturating_add(block.size);
            blocks.push(block);
        }
        Ok(Segment {
            device,
            address,
            size,
            blocks,
        })
    }

    fn block(&mut self, block: Value, next: u64) -> Result<Block, String> {
        self.once.check(block)?;
        let state = self.pickle.get(block, "state");
        let state = match state.and_then(|state| self.pickle.text(state)) {
            Some("active_allocated" | "active") => State::Active,
            Some("active_pending_free" | "active_awaiting_free" | "pending_free") => State::Pending,
            Some("inactive") => State::Inactive,
            _ => return Err("has a state that is not known".to_owned()),
        };
        Ok(Block {
            address: self.number(block, "address").unwrap_or(next),
            size: self.need(block, "size")?,
            requested: self.number(block, "requested_size"),
            state,
            stack: self.stack(block),
        })
    }

    fn entry(&mut self, entry: Value) -> Result<Entry, String> {
        self.once.check(entry)?;
        let action = self.pickle.get(entry, "action");
        let action = match action.and_then(|action| self.pickle.text(action)) {
            Some("alloc") => Action::Alloc,
            Some("free_completed" | "free") => Action::Free,
            Some("segment_alloc" | "segment_map") => Action::Grow,
            Some("segment_free" | "segment_unmap") => Action::Shrink,
            _ => Action::Other,
        };
        let is_known = action != Action::Other;
        let number = |key| match is_known {
            true => self.need(entry, key),
            false => Ok(0),
        };
        Ok(Entry {
            action,
            address: number("addr")?,
            size: number("size")?,
            time_us: self.number(entry, "time_us"),
            stack: self.stack(entry),
        })
    }

    /// Index of the stack of a block or an entry.
    fn stack(&mut self, of: Value) -> Option<u32> {
        let frames = self.pickle.get(of, "frames")?;
        let Value::Node(list) = frames else {
            return None;
        };
        if let Some(known) = self.by_list.get(&list) {
            return *known;
        }
        let pickle = self.pickle;
        let list_of = pickle.list(frames).unwrap_or(&[]);
        let most = MOST_FRAMES.min(self.room);
        let read: Vec<Frame> = list_of.iter().take(most).map(|f| self.frame(*f)).collect();
        let place = match (read.is_empty(), self.by_frames.get(&read)) {
            (true, _) => None,
            (false, Some(known)) => Some(*known),
            (false, None) => {
                self.room -= read.len();
                let place = u32::try_from(self.stacks.len()).ok();
                self.stacks.push(read.clone());
                if let Some(place) = place {
                    self.by_frames.insert(read, place);
                }
                place
            }
        };
        self.by_list.insert(list, place);
        place
    }

    fn frame(&mut self, frame: Value) -> Frame {
        if let Value::Node(node) = frame
            && let Some(known) = self.frames.get(&node)
        {
            return known.clone();
        }
        let line = self.number(frame, "line").unwrap_or(0);
        let read = Frame {
            function: self.text(frame, "name"),
            file: self.text(frame, "filename"),
            line,
        };
        if let Value::Node(node) = frame {
            self.frames.insert(node, read.clone());
        }
        read
    }

    fn text(&mut self, frame: Value, key: &str) -> Arc<str> {
        let Some(Value::Text(place)) = self.pickle.get(frame, key) else {
            return Arc::from("");
        };
        let text = || Arc::from(self.pickle.text(Value::Text(place)).unwrap_or_default());
        Arc::clone(self.texts.entry(place).or_insert_with(text))
    }
}
