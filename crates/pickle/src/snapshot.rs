//! What a snapshot of PyTorch's says, out of its dictionaries: the one reader for all that is made of snapshots.
//!
//! Owns: the shapes of all versions from PyTorch 2.1 on, and the proof that the blocks of a segment lie in it one behind the other.
//! Refuses: what does not fit together, with the place at which it does not.

use crate::once::Once;
use crate::reader::{Pickle, Value};

/// Most devices of a snapshot; the allocator has an array of them.
const MOST_DEVICES: usize = 256;
/// Most notes that are read, and limit for the bytes of one note's texts.
const MOST_NOTES: usize = 1000;
const LONGEST_NOTE: usize = 10_000;
/// Kinds that are read of one note, which is more than there are, and limit for the bytes of a kind's name.
const KINDS: usize = 16;
const LONGEST_KIND: usize = 64;

/// Why a pickle is no snapshot, in words.
#[derive(Debug, thiserror::Error)]
#[error("it holds no snapshot: {0}")]
pub struct NotASnapshot(pub(crate) String);

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is handed out to the program.
    Active,
    /// Freed by the program, and a stream may still use it.
    Pending,
    /// It is free, and the pool can hand it out again.
    Inactive,
}

impl State {
    /// The state that PyTorch calls so, in any of its versions.
    pub fn named(name: &str) -> Option<State> {
        match name {
            "active_allocated" | "active" => Some(State::Active),
            "active_pending_free" | "active_awaiting_free" | "pending_free" => Some(State::Pending),
            "inactive" => Some(State::Inactive),
            _ => None,
        }
    }
}

/// A block at the moment of the snapshot. Sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Address of its first byte.
    pub addr: u64,
    /// Its size, rounded up by the pool.
    pub size: u64,
    /// The size that was asked for, if the snapshot says it.
    pub requested: Option<u64>,
    /// Whether it is handed out, waits for a stream, or is free.
    pub state: State,
    /// The list of its frames, innermost first, if it has one.
    pub frames: Option<Value>,
}

/// A segment at the moment of the snapshot.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes that it reserves.
    pub size: u64,
    /// The stream that it belongs to.
    pub stream: u64,
    /// Whether it is one of the pool for large requests.
    pub large: bool,
    /// Number of its private pool, if the snapshot says it; (0, 0) is the common one.
    pub pool: Option<(u64, u64)>,
    /// Whether it can grow.
    pub expandable: bool,
    /// The blocks in it, by address.
    pub blocks: Vec<Block>,
}

/// What an entry of the trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // PyTorch's own words
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    Oom,
}

/// An entry of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What happened; `None` if the word is not known.
    pub action: Option<Action>,
    /// Where; at [`Action::Oom`] the bytes that the device had free.
    pub addr: u64,
    /// Bytes; of blocks those that were asked for.
    pub size: u64,
    /// Handle of the stream on which it happened; 0 for the default stream.
    pub stream: u64,
    /// When, microseconds since 1970, if the snapshot says it.
    pub time_us: Option<u64>,
    /// The list of the frames, innermost first, if there is one.
    pub frames: Option<Value>,
    /// Number of the private pool, if the snapshot says it.
    pub pool: Option<(u64, u64)>,
    /// Whether the program added words of its own.
    pub worded: bool,
}

/// What memscope wrote into a snapshot of its own. All of it is only what the file claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Process id of the process that memscope watched.
    pub pid: Option<u32>,
    /// Start time of the process, in clock ticks.
    pub start_ticks: Option<u64>,
    /// Number of execs that memscope saw before.
    pub generation: Option<u64>,
    /// Number of the memory image.
    pub image: Option<u64>,
    /// When memscope attached the process, nanoseconds since 1970.
    pub attached_unix_ns: Option<u64>,
    /// Moment that the snapshot describes, nanoseconds since 1970.
    pub as_of_unix_ns: Option<u64>,
    /// Number of older entries of the trace that were not kept any more.
    pub trace_dropped: Option<u64>,
}

/// A coverage note that memscope wrote into a snapshot of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The code by which programs tell kinds of notes apart, such as `baseline_read`.
    pub code: String,
    /// What it says.
    pub text: String,
    /// Kinds of numbers that it affects, if the file says it.
    pub affects: Option<Vec<String>>,
    /// Whether these numbers can only be too small.
    pub lower_bound: bool,
}

/// A pickle as a snapshot: a dictionary as `torch.cuda.memory._snapshot()` returns it, or a list of segments as
/// `torch.cuda.memory_snapshot()` does. Each part is read once.
#[derive(Debug)]
pub struct Snapshot<'p> {
    pickle: &'p Pickle,
    once: Once,
    segments: &'p [Value],
}

impl<'p> Snapshot<'p> {
    /// Takes a pickle, of which nothing but the list of segments must be there.
    ///
    /// # Errors
    /// It has no such list.
    pub fn of(pickle: &'p Pickle) -> Result<Snapshot<'p>, NotASnapshot> {
        let root = pickle.root();
        let segments = pickle.list(root).or_else(|| {
            let segments = pickle.get(root, "segments")?;
            pickle.list(segments)
        });
        let missing = || NotASnapshot("there is no list \"segments\"".to_owned());
        Ok(Snapshot {
            pickle,
            once: Once::new(pickle),
            segments: segments.ok_or_else(missing)?,
        })
    }

    fn number(&self, of: Value, key: &str) -> Option<u64> {
        self.pickle.get(of, key).and_then(Value::unsigned)
    }

    fn text(&self, of: Value, key: &str) -> Option<&'p str> {
        self.pickle.text(self.pickle.get(of, key)?)
    }

    fn list(&self, of: Value, key: &str) -> Option<&'p [Value]> {
        self.pickle.list(self.pickle.get(of, key)?)
    }

    fn need(&self, of: Value, key: &str) -> Result<u64, String> {
        let number = self.number(of, key);
        number.ok_or_else(|| format!("has no number {key:?}"))
    }

    fn pool(&self, of: Value, key: &str) -> Option<(u64, u64)> {
        let [first, second] = self.list(of, key)? else {
            return None;
        };
        Some((first.unsigned()?, second.unsigned()?))
    }

    /// The segments, by device and address.
    ///
    /// # Errors
    /// One of them, or a block, is not as the allocator would have it.
    pub fn segments(&mut self) -> Result<Vec<Segment>, NotASnapshot> {
        let mut segments = Vec::with_capacity(self.segments.len());
        let list = self.segments;
        for (number, segment) in list.iter().enumerate() {
            let segment = self.segment(*segment);
            let wrong = |what| NotASnapshot(format!("segment {number} {what}"));
            segments.push(segment.map_err(wrong)?);
        }
        segments.sort_by_key(|segment| (segment.device, segment.addr));
        let is_over = |pair: &&[Segment]| match pair {
            [one, next] => one.device == next.device && one.addr + one.size > next.addr,
            _ => false,
        };
        match segments.windows(2).find(is_over).and_then(<[_]>::first) {
            Some(one) => Err(NotASnapshot(format!(
                "segments of device {} overlap",
                one.device
            ))),
            None => Ok(segments),
        }
    }

    fn segment(&mut self, segment: Value) -> Result<Segment, String> {
        self.once.check(segment)?;
        let device = match self.pickle.get(segment, "device") {
            None => 0,
            Some(device) => device
                .unsigned()
                .filter(|device| *device < MOST_DEVICES as u64)
                .and_then(|device| i32::try_from(device).ok())
                .ok_or("is on a device that no machine has")?,
        };
        let (addr, size) = (
            self.need(segment, "address")?,
            self.need(segment, "total_size")?,
        );
        let end = addr.checked_add(size);
        let end = end.ok_or("ends behind the last address")?;
        let list = self.list(segment, "blocks");
        let list = list.ok_or("has no list \"blocks\"")?;
        let mut blocks = Vec::with_capacity(list.len());
        // Older versions give a block no address: it follows the one before.
        let mut at = addr;
        for (place, block) in list.iter().enumerate() {
            let block = self.block(*block, at, end);
            let block = block.map_err(|what| format!("block {place} {what}"))?;
            at = block.addr + block.size;
            blocks.push(block);
        }
        Ok(Segment {
            device,
            addr,
            size,
            stream: self.number(segment, "stream").unwrap_or(0),
            large: self.text(segment, "segment_type") != Some("small"),
            pool: self.pool(segment, "segment_pool_id"),
            expandable: self.pickle.get(segment, "is_expandable") == Some(Value::Bool(true)),
            blocks,
        })
    }

    /// A block that lies between these two addresses.
    fn block(&mut self, block: Value, from: u64, end: u64) -> Result<Block, String> {
        self.once.check(block)?;
        let state = self.text(block, "state").and_then(State::named);
        let state = state.ok_or("has a state that is not known")?;
        let size = self.number(block, "size").filter(|size| *size > 0);
        let size = size.ok_or("has no size")?;
        let addr = self.number(block, "address").unwrap_or(from);
        if addr < from || size > end.saturating_sub(addr) {
            return Err("lies outside of the segment or over another block".to_owned());
        }
        Ok(Block {
            addr,
            size,
            requested: self.number(block, "requested_size"),
            state,
            frames: self.pickle.get(block, "frames"),
        })
    }

    /// Calls `take` with each entry of each device's trace, the oldest first.
    ///
    /// # Errors
    /// An entry that a block or a segment needs does not say which, or says one that no device has.
    pub fn entries(&mut self, mut take: impl FnMut(i32, Entry)) -> Result<(), NotASnapshot> {
        let traces = self.list(self.pickle.root(), "device_traces");
        for (device, trace) in (0i32..).zip(traces.unwrap_or(&[])) {
            let list = self.pickle.list(*trace).unwrap_or(&[]);
            for (place, entry) in list.iter().enumerate() {
                let entry = self.entry(device, *entry).map_err(|what| {
                    NotASnapshot(format!(
                        "entry {place} of the trace of device {device} {what}"
                    ))
                })?;
                take(device, entry);
            }
        }
        Ok(())
    }

    fn entry(&mut self, device: i32, entry: Value) -> Result<Entry, String> {
        if usize::try_from(device).is_ok_and(|device| device >= MOST_DEVICES) {
            return Err("is of a device that no machine has".to_owned());
        }
        self.once.check(entry)?;
        let action = self.text(entry, "action").and_then(action);
        let (addr, size) = match action {
            None | Some(Action::Snapshot) => (0, 0),
            Some(Action::Oom) => (
                self.number(entry, "device_free").unwrap_or(0),
                self.number(entry, "size").unwrap_or(0),
            ),
            Some(_) => (self.need(entry, "addr")?, self.need(entry, "size")?),
        };
        if action != Some(Action::Oom) && addr.checked_add(size).is_none() {
            return Err("ends behind the last address".to_owned());
        }
        let words = self.text(entry, "user_metadata");
        let pool = self.pool(entry, "segment_pool_id");
        Ok(Entry {
            action,
            addr,
            size,
            stream: self.number(entry, "stream").unwrap_or(0),
            time_us: self.number(entry, "time_us"),
            frames: self.pickle.get(entry, "frames"),
            pool: pool.or_else(|| self.pool(entry, "pool_id")),
            worded: words.is_some_and(|words| !words.is_empty()),
        })
    }

    /// What memscope wrote into it; all of it empty if it is PyTorch's.
    pub fn origin(&self) -> Origin {
        let origin = self.pickle.get(self.pickle.root(), "memscope");
        let number = |key| origin.and_then(|origin| self.number(origin, key));
        Origin {
            pid: number("pid").and_then(|pid| u32::try_from(pid).ok()),
            start_ticks: number("start_ticks"),
            generation: number("generation"),
            image: number("image"),
            attached_unix_ns: number("attached_unix_ns"),
            as_of_unix_ns: number("as_of_unix_ns"),
            trace_dropped: number("trace_dropped"),
        }
    }

    /// The coverage notes that memscope wrote into it; those with long texts are left out, and so are such kinds of numbers.
    pub fn notes(&self) -> Vec<Note> {
        let origin = self.pickle.get(self.pickle.root(), "memscope");
        let notes = origin.and_then(|origin| self.list(origin, "coverage"));
        let notes = notes.unwrap_or(&[]).iter().take(MOST_NOTES);
        let read = |note: &Value| {
            let (code, text) = (self.text(*note, "code")?, self.text(*note, "text")?);
            let kinds = self.list(*note, "affects").map(|kinds| {
                let kinds = kinds.iter().take(KINDS);
                let kinds = kinds.filter_map(|kind| self.pickle.text(*kind));
                // A file may recall one long text again and again, and each time it would be copied.
                let known = kinds.filter(|kind| kind.len() < LONGEST_KIND);
                known.map(str::to_owned)
            });
            (code.len().max(text.len()) < LONGEST_NOTE).then(|| Note {
                code: code.to_owned(),
                text: text.to_owned(),
                affects: kinds.map(Iterator::collect),
                lower_bound: self.pickle.get(*note, "lower_bound") == Some(Value::Bool(true)),
            })
        };
        notes.filter_map(read).collect()
    }
}

fn action(word: &str) -> Option<Action> {
    Some(match word {
        "alloc" => Action::Alloc,
        "free_requested" => Action::FreeRequested,
        "free_completed" | "free" => Action::FreeCompleted,
        "segment_alloc" => Action::SegmentAlloc,
        "segment_free" => Action::SegmentFree,
        "segment_map" => Action::SegmentMap,
        "segment_unmap" => Action::SegmentUnmap,
        "snapshot" => Action::Snapshot,
        "oom" => Action::Oom,
        _ => return None,
    })
}
