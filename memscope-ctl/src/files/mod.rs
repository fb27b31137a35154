//! Snapshots in files: PyTorch's pickles and ours, JSON, and recordings, each as what it holds.
//!
//! Owns: telling the kinds apart, and reading them without trust. Refuses: to believe that two files are
//! of one process unless they say so.

mod compare;
mod json;
mod pickle;
#[cfg(test)]
mod tests;

pub(crate) use compare::{Compared, MatchedBy, StackDiff, compare};

use crate::client::Client;
use crate::failure::Failure;
use crate::recording::Replayer;
use memscope_proto::v1;
use pickle::{Pickle, PickleError, Value};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// The first bytes of a recording's files.
const RECORDING: &[u8] = b"memscope";

/// Of notes on coverage, and bytes of one.
const MOST_NOTES: usize = 1000;
const LONGEST_NOTE: usize = 10_000;

/// Why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error("it is no snapshot as JSON")]
    Json(#[from] serde_json::Error),
    #[error("it holds no snapshot: {0}")]
    Shape(String),
    #[error("it is empty")]
    Empty,
    #[error("it begins neither as a pickle of protocol 2 to 5 nor as JSON nor as a recording")]
    Kind,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Active,
    Pending,
    Inactive,
}

impl State {
    fn named(name: &str) -> Option<State> {
        match name {
            "active_allocated" | "active" => Some(State::Active),
            "active_pending_free" | "active_awaiting_free" | "pending_free" => Some(State::Pending),
            "inactive" => Some(State::Inactive),
            _ => None,
        }
    }
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: Option<u64>,
    pub(crate) state: State,
    /// When it came, nanoseconds since 1970, where the file tells.
    pub(crate) born_ns: Option<u64>,
    /// Place of its stack in [`Kept::stacks`], where the file has one.
    pub(crate) stack: Option<u32>,
}

/// One segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) device: i32,
    pub(crate) stream: u64,
    pub(crate) size: u64,
    pub(crate) blocks: Vec<Block>,
}

/// The memory image that a file is of: process id, start, and how often it has executed another image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) generation: u64,
}

/// A snapshot from a file.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) path: PathBuf,
    pub(crate) image: Option<Image>,
    /// The moment that it describes, nanoseconds since 1970.
    pub(crate) as_of_ns: Option<u64>,
    pub(crate) segments: Vec<Segment>,
    /// Stacks, each once: a line for each frame, innermost first.
    pub(crate) stacks: Vec<Stack>,
    pub(crate) coverage: Vec<v1::CoverageNote>,
}

/// Frames as they are shown.
pub(crate) type Stack = std::sync::Arc<[String]>;

/// Most frames of a stack that are looked at.
const MOST_FRAMES: usize = 1024;

/// Stacks of a file, each once.
#[derive(Default)]
struct Stacks {
    all: Vec<Stack>,
    by_frames: HashMap<Stack, u32>,
    /// Lists that were looked at: many blocks may refer to one.
    by_list: HashMap<u32, Option<u32>>,
}

impl Stacks {
    fn add(&mut self, frames: impl Iterator<Item = String>) -> Option<u32> {
        let frames: Stack = frames.take(MOST_FRAMES).collect();
        if frames.is_empty() {
            return None;
        }
        if let Some(known) = self.by_frames.get(&frames) {
            return Some(*known);
        }
        let place = u32::try_from(self.all.len()).ok()?;
        self.all.push(Stack::clone(&frames));
        self.by_frames.insert(frames, place);
        Some(place)
    }

    /// The frames of a block, as PyTorch writes them.
    fn of(&mut self, pickle: &Pickle, frames: Option<Value>) -> Option<u32> {
        let frames = frames?;
        let Value::Node(list) = frames else {
            return None;
        };
        if let Some(known) = self.by_list.get(&list) {
            return *known;
        }
        let text = |frame, key| {
            let text = pickle.get(frame, key).and_then(|text| pickle.text(text));
            text.unwrap_or_default()
        };
        let lines = pickle.list(frames).unwrap_or(&[]).iter().map(|frame| {
            let line = pickle.get(*frame, "line").and_then(Value::unsigned);
            line_of(text(*frame, "name"), text(*frame, "filename"), line)
        });
        let place = self.add(lines);
        self.by_list.insert(list, place);
        place
    }
}

fn line_of(name: &str, file: &str, line: Option<u64>) -> String {
    match line {
        Some(line) if line > 0 => format!("{name} ({file}:{line})"),
        _ => format!("{name} ({file})"),
    }
}

/// Reads a file, whatever it is. `pid` chooses a process of a recording.
pub(crate) async fn read(
    path: &Path,
    pid: Option<u32>,
    timeout: Duration,
) -> Result<Kept, Failure> {
    if path.is_dir() {
        return read_recording(path, pid, timeout).await;
    }
    // In a thread of its own, so that a signal ends us while it reads. Nobody waits for it then.
    let (tell, told) = oneshot::channel();
    let owned = path.to_owned();
    let work = move || {
        // Whoever asked may be gone.
        let _ = tell.send(
            File::open(&owned)
                .map_err(FileError::from)
                .and_then(|file| read_file(&owned, BufReader::with_capacity(1 << 20, file))),
        );
    };
    let started = std::thread::Builder::new()
        .name("reader".into())
        .spawn(work);
    let read = match started {
        Ok(_) => told.await.unwrap_or_else(|_| Err(ended())),
        Err(error) => Err(error.into()),
    };
    match read {
        Ok(Some(kept)) => Ok(kept),
        Ok(None) => read_recording(path, pid, timeout).await,
        Err(source) => Err(Failure::NoSnapshot {
            path: path.to_owned(),
            source,
        }),
    }
}

fn ended() -> FileError {
    io::Error::other("the thread that read it has ended").into()
}

/// What a file holds; nothing, if it is a recording.
fn read_file(path: &Path, mut from: impl BufRead) -> Result<Option<Kept>, FileError> {
    let begin = from.fill_buf()?;
    if begin.starts_with(RECORDING) {
        return Ok(None);
    }
    let first = begin.iter().find(|byte| !byte.is_ascii_whitespace());
    match (begin.first(), first) {
        (Some(0x80), _) => of_pickle(path, &Pickle::read(from)?).map(Some),
        (_, Some(b'{')) => json::document(path, from).map(Some),
        (_, Some(b'[')) => json::list(path, from).map(Some),
        (None, _) => Err(FileError::Empty),
        _ => Err(FileError::Kind),
    }
}

async fn read_recording(path: &Path, pid: Option<u32>, timeout: Duration) -> Result<Kept, Failure> {
    let (replayer, client) = Replayer::start(path, None, timeout).await?;
    let kept = ask(&client, path, pid).await;
    drop(client);
    replayer.stop().await;
    kept
}

/// The last moment of a recording.
async fn ask(client: &Client, path: &Path, pid: Option<u32>) -> Result<Kept, Failure> {
    use v1::snapshot_part::Part;
    let pid = client.choose(pid).await?;
    let question = v1::SnapshotRequest { pid, at: None };
    let mut parts = client
        .ask(question, async |mut rpc, request| {
            rpc.snapshot(request).await
        })
        .await?;
    let mut kept = Kept {
        path: path.to_owned(),
        image: None,
        as_of_ns: None,
        segments: Vec::new(),
        stacks: Vec::new(),
        coverage: Vec::new(),
    };
    let mut offset = 0;
    while let Some(part) = client.next(&mut parts).await? {
        match part.part {
            Some(Part::Header(header)) => {
                offset = header.as_of.saturating_sub(header.as_of_boot_ns);
                kept.as_of_ns = Some(header.as_of);
                kept.image = header.process.and_then(|process| image(&process));
                kept.coverage = header.coverage;
            }
            Some(Part::Segments(chunk)) => {
                for segment in chunk.segments {
                    let continued = segment.continued;
                    let segment = of_wire(segment, offset);
                    match kept.segments.last_mut() {
                        Some(last) if continued => last.blocks.extend(segment.blocks),
                        _ => kept.segments.push(segment),
                    }
                }
            }
            Some(Part::End(_)) => return Ok(kept),
            Some(Part::Trace(_)) | None => {}
        }
    }
    Err(Failure::Incomplete {
        what: "the snapshot ended early".into(),
    })
}

fn image(process: &v1::Process) -> Option<Image> {
    let facts = process.facts.as_ref()?;
    Some(Image {
        pid: facts.pid,
        start: facts.start_ticks,
        generation: facts.generation.into(),
    })
}

fn of_wire(segment: v1::Segment, offset: u64) -> Segment {
    let block = |block: v1::Block| {
        let state = match block.state() {
            v1::BlockState::Active => State::Active,
            v1::BlockState::PendingFree => State::Pending,
            v1::BlockState::Inactive | v1::BlockState::Unspecified => State::Inactive,
        };
        Block {
            address: block.address,
            size: block.size_bytes,
            requested: block.requested_bytes,
            state,
            born_ns: block.since_boot_ns.map(|ns| ns.saturating_add(offset)),
            stack: None,
        }
    };
    Segment {
        device: segment.device,
        stream: segment.stream,
        size: segment.size_bytes,
        blocks: segment.blocks.into_iter().map(block).collect(),
    }
}

/// A dictionary as `torch.cuda.memory._snapshot()` gives, or a list of segments as
/// `torch.cuda.memory_snapshot()` does.
fn of_pickle(path: &Path, pickle: &Pickle) -> Result<Kept, FileError> {
    let root = pickle.root();
    let shape = |what: &str| FileError::Shape(what.to_owned());
    let segments = match pickle.list(root) {
        Some(list) => list,
        None => pickle
            .get(root, "segments")
            .and_then(|segments| pickle.list(segments))
            .ok_or_else(|| shape("there is no list \"segments\""))?,
    };
    let mut once = Once::new(pickle);
    let mut stacks = Stacks::default();
    let births = births(pickle, root, &mut once)?;
    let mut kept = Kept {
        path: path.to_owned(),
        image: None,
        as_of_ns: births.newest_ns,
        segments: Vec::with_capacity(segments.len()),
        stacks: Vec::new(),
        coverage: Vec::new(),
    };
    for (number, segment) in segments.iter().enumerate() {
        let segment = of_segment(pickle, *segment, &births.of, &mut once, &mut stacks)
            .map_err(|what| FileError::Shape(format!("segment {number} {what}")))?;
        kept.segments.push(segment);
    }
    kept.stacks = stacks.all;
    if let Some(origin) = pickle.get(root, "memscope") {
        let number = |key| pickle.get(origin, key).and_then(Value::unsigned);
        kept.as_of_ns = number("as_of_unix_ns").or(kept.as_of_ns);
        let pid = number("pid").and_then(|pid| u32::try_from(pid).ok());
        kept.image = pid
            .zip(number("start_ticks"))
            .zip(number("generation"))
            .map(|((pid, start), generation)| Image {
                pid,
                start,
                generation,
            });
        let notes = pickle.get(origin, "coverage");
        let notes = notes.and_then(|notes| pickle.list(notes)).unwrap_or(&[]);
        let text = |note, key| pickle.get(note, key).and_then(|text| pickle.text(text));
        for note in notes.iter().take(MOST_NOTES) {
            if let (Some(code), Some(said)) = (text(*note, "code"), text(*note, "text"))
                && code.len().max(said.len()) < LONGEST_NOTE
            {
                kept.coverage.push(v1::CoverageNote {
                    code: code.to_owned(),
                    text: said.to_owned(),
                    affects: affects(pickle, *note).unwrap_or_else(not_judged),
                    lower_bound: false,
                });
            }
        }
    }
    Ok(kept)
}

/// What a note in a file affects; `None` where the file does not say.
fn affects(pickle: &Pickle, note: pickle::Value) -> Option<Vec<String>> {
    let kinds = pickle.list(pickle.get(note, "affects")?)?;
    let words = kinds
        .iter()
        .take(MOST_NOTES)
        .filter_map(|kind| pickle.text(*kind));
    Some(words.map(str::to_owned).collect())
}

/// What a note of an older version's file affects, which does not say it: whatever a file tells of.
fn not_judged() -> Vec<String> {
    ["totals", "blocks"].map(str::to_owned).to_vec()
}

fn of_segment(
    pickle: &Pickle,
    segment: Value,
    births: &HashMap<(i32, u64), u64>,
    once: &mut Once,
    stacks: &mut Stacks,
) -> Result<Segment, String> {
    once.check(segment)?;
    let number = |of: Value, key: &str| pickle.get(of, key).and_then(Value::unsigned);
    let need =
        |of: Value, key: &str| number(of, key).ok_or_else(|| format!("has no number {key:?}"));
    let device = match pickle.get(segment, "device") {
        None => 0,
        Some(device) => device
            .unsigned()
            .and_then(|device| i32::try_from(device).ok())
            .ok_or("has a device that is no number of one")?,
    };
    let blocks = pickle.get(segment, "blocks");
    let list = blocks
        .and_then(|blocks| pickle.list(blocks))
        .ok_or("has no list \"blocks\"")?;
    // Older versions give a block no address: it follows the one before.
    let mut next = need(segment, "address")?;
    let mut blocks = Vec::with_capacity(list.len());
    for (place, block) in list.iter().enumerate() {
        let wrong = |what: &str| format!("block {place} {what}");
        once.check(*block).map_err(wrong)?;
        let address = number(*block, "address").unwrap_or(next);
        let size = need(*block, "size").map_err(|what| wrong(&what))?;
        next = address.saturating_add(size);
        let state = pickle.get(*block, "state");
        let state = state
            .and_then(|state| State::named(pickle.text(state)?))
            .ok_or_else(|| wrong("has a state that is not known"))?;
        blocks.push(Block {
            address,
            size,
            requested: number(*block, "requested_size"),
            state,
            born_ns: births.get(&(device, address)).copied(),
            stack: stacks.of(pickle, pickle.get(*block, "frames")),
        });
    }
    Ok(Segment {
        device,
        stream: number(segment, "stream").unwrap_or(0),
        size: need(segment, "total_size")?,
        blocks,
    })
}

/// What a trace tells of blocks.
#[derive(Default)]
struct Births {
    /// By device and address: when the last block came there, nanoseconds since 1970.
    of: HashMap<(i32, u64), u64>,
    newest_ns: Option<u64>,
}

impl Births {
    /// An entry of a trace; the next one is later.
    fn entry(&mut self, device: i32, came: bool, address: Option<u64>, time_us: Option<u64>) {
        let Some(time_ns) = time_us.map(|us| us.saturating_mul(1000)) else {
            return;
        };
        self.newest_ns = self.newest_ns.max(Some(time_ns));
        if came && let Some(address) = address {
            self.of.insert((device, address), time_ns);
        }
    }
}

/// What memory makes of one thing may not be many: a pickle of a few bytes can say a million times that the
/// next segment is the same as the first. In a snapshot each is another.
struct Once {
    seen: Vec<bool>,
}

impl Once {
    fn new(pickle: &Pickle) -> Once {
        Once {
            seen: vec![false; pickle.nodes()],
        }
    }

    fn check(&mut self, value: Value) -> Result<(), &'static str> {
        let Value::Node(number) = value else {
            return Err("is no dictionary");
        };
        match self.seen.get_mut(number as usize) {
            Some(seen) if !*seen => {
                *seen = true;
                Ok(())
            }
            _ => Err("is there more than once"),
        }
    }
}

fn births(pickle: &Pickle, root: Value, once: &mut Once) -> Result<Births, FileError> {
    let mut births = Births::default();
    let traces = pickle.get(root, "device_traces");
    let traces = traces.and_then(|traces| pickle.list(traces)).unwrap_or(&[]);
    for (device, trace) in (0i32..).zip(traces) {
        let wrong = |place: usize, what: &str| {
            FileError::Shape(format!(
                "entry {place} of the trace of device {device} {what}"
            ))
        };
        for (place, entry) in pickle.list(*trace).unwrap_or(&[]).iter().enumerate() {
            once.check(*entry).map_err(|what| wrong(place, what))?;
            let number = |key| pickle.get(*entry, key).and_then(Value::unsigned);
            let action = pickle.get(*entry, "action");
            let came = action.and_then(|action| pickle.text(action)) == Some("alloc");
            births.entry(device, came, number("addr"), number("time_us"));
        }
    }
    Ok(births)
}
