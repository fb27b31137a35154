//! Reads snapshots as JSON: `memscope-ctl snapshot --format json`, and PyTorch's dictionary or list of segments,
//! which memscope's triggers (`--snapshot-format memory-viz-json`) and `json.dump` write.

use super::error::FileError;
use super::kept::{Births, Block, Segment, SnapshotFile, line_of, not_judged};
use memscope_pickle::{Stacks, State};
use memscope_proto::{Image, v1};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The keys of all kinds of files. No key has different meanings in two of them.
#[derive(Deserialize)]
struct Document {
    header: Option<Header>,
    memscope: Option<Origin>,
    segments: Vec<JsonSegment>,
    #[serde(default)]
    device_traces: Vec<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Header {
    as_of: Option<u64>,
    as_of_boot_ns: Option<u64>,
    process: Option<ProcessHeader>,
    #[serde(default)]
    coverage: Vec<Note>,
}

#[derive(Deserialize)]
struct ProcessHeader {
    pid: u32,
    start_ticks: u64,
    generation: u64,
    image: Option<u64>,
    attached_boot_ns: Option<u64>,
    attached_unix_ns: Option<u64>,
}

impl ProcessHeader {
    fn image(&self) -> Image {
        Image {
            pid: self.pid,
            start_ticks: self.start_ticks,
            generation: self.generation,
            number: self.image,
        }
    }

    /// When the process was attached, in nanoseconds since 1970. `offset` lies between that and boot time.
    fn attached_ns(&self, offset: Option<u64>) -> Option<u64> {
        let boot = self.attached_boot_ns.zip(offset);
        let attached = boot.map(|(boot, offset)| boot.saturating_add(offset));
        attached.or(self.attached_unix_ns)
    }
}

/// What memscope adds to PyTorch's dictionary.
#[derive(Deserialize)]
struct Origin {
    #[serde(flatten)]
    process: Option<ProcessHeader>,
    as_of_unix_ns: Option<u64>,
    trace_dropped: Option<u64>,
    #[serde(default)]
    coverage: Vec<Note>,
}

#[derive(Deserialize)]
struct Note {
    code: String,
    text: String,
    affects: Option<Vec<String>>,
    #[serde(default)]
    lower_bound: bool,
}

#[derive(Deserialize)]
struct Entry {
    action: Action,
    addr: Option<u64>,
    time_us: Option<u64>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Action {
    Alloc,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct JsonSegment {
    #[serde(default)]
    device: i32,
    address: u64,
    #[serde(alias = "total_size")]
    size_bytes: u64,
    #[serde(default)]
    stream: u64,
    blocks: Vec<JsonBlock>,
}

#[derive(Deserialize)]
struct JsonBlock {
    address: Option<u64>,
    #[serde(alias = "size")]
    size_bytes: u64,
    #[serde(alias = "requested_size")]
    requested_bytes: Option<u64>,
    state: String,
    since_boot_ns: Option<u64>,
    #[serde(default)]
    frames: Vec<Frame>,
}

#[derive(Deserialize)]
struct Frame {
    #[serde(default)]
    name: String,
    #[serde(default)]
    filename: String,
    line: Option<u64>,
}

/// Reads a list of segments, as `torch.cuda.memory_snapshot()` returns it.
pub(super) fn list(path: &Path, from: impl Read) -> Result<SnapshotFile, FileError> {
    let list: Vec<JsonSegment> = serde_json::from_reader(from)?;
    let mut stacks = Stacks::default();
    Ok(SnapshotFile {
        path: path.to_owned(),
        image: None,
        attached_ns: None,
        as_of_ns: None,
        traced_from_ns: None,
        has_births: false,
        segments: segments(list, &Births::default(), None, &mut stacks)?,
        stacks: stacks.all,
        coverage: Vec::new(),
    })
}

/// Reads a dictionary: PyTorch's, with or without what memscope adds, or that of `snapshot --format json`.
pub(super) fn document(path: &Path, from: impl Read) -> Result<SnapshotFile, FileError> {
    let document: Document = serde_json::from_reader(from)?;
    let mut births = Births::default();
    for (device, trace) in (0i32..).zip(&document.device_traces) {
        for entry in trace {
            let came = entry.action == Action::Alloc;
            births.entry(device, came, entry.addr, entry.time_us);
        }
    }
    let header = document.header;
    let times = header.as_ref().and_then(|h| h.as_of.zip(h.as_of_boot_ns));
    let offset = times.map(|(unix, boot)| unix.saturating_sub(boot));
    let mut stacks = Stacks::default();
    let mut kept = SnapshotFile {
        path: path.to_owned(),
        image: None,
        attached_ns: None,
        as_of_ns: births.newest_ns,
        traced_from_ns: births.reach_back_to_ns(),
        has_births: false,
        segments: segments(document.segments, &births, offset, &mut stacks)?,
        stacks: stacks.all,
        coverage: Vec::new(),
    };
    let origin = document.memscope;
    let dropped = origin.as_ref().and_then(|from| from.trace_dropped);
    kept.has_births = offset.is_some() || dropped == Some(0);
    let origin = origin.map(|from| (from.as_of_unix_ns, from.process, from.coverage));
    let header = header.map(|from| (from.as_of, from.process, from.coverage));
    if let Some((as_of, process, coverage)) = header.or(origin) {
        kept.as_of_ns = as_of.or(kept.as_of_ns);
        let process = process.as_ref();
        kept.image = process.map(ProcessHeader::image);
        kept.attached_ns = process.and_then(|process| process.attached_ns(offset));
        let notes = coverage.into_iter();
        let note = |note: Note| v1::CoverageNote {
            code: note.code,
            text: note.text,
            affects: note.affects.unwrap_or_else(not_judged),
            lower_bound: note.lower_bound,
        };
        kept.coverage.extend(notes.map(note));
    }
    Ok(kept)
}

fn segments(
    list: Vec<JsonSegment>,
    births: &Births,
    offset: Option<u64>,
    stacks: &mut Stacks<Arc<str>>,
) -> Result<Vec<Segment>, FileError> {
    let mut segments = Vec::with_capacity(list.len());
    for (number, segment) in list.into_iter().enumerate() {
        let mut next = segment.address;
        let mut blocks = Vec::with_capacity(segment.blocks.len());
        for (place, block) in segment.blocks.into_iter().enumerate() {
            let address = block.address.unwrap_or(next);
            next = address.saturating_add(block.size_bytes);
            let state = State::named(&block.state).ok_or_else(|| {
                let what = format!("segment {number} block {place} has a state that is not known");
                FileError::Shape(what)
            })?;
            let since = block.since_boot_ns.zip(offset);
            let since = since.map(|(boot, offset)| boot.saturating_add(offset));
            let traced = births.of.get(&(segment.device, address)).copied();
            blocks.push(Block {
                address,
                size: block.size_bytes,
                requested: block.requested_bytes,
                state,
                born_ns: since.or(traced),
                stack: stacks.add(
                    block
                        .frames
                        .iter()
                        .map(|frame| line_of(&frame.name, &frame.filename, frame.line)),
                ),
            });
        }
        segments.push(Segment {
            device: segment.device,
            stream: segment.stream,
            size: segment.size_bytes,
            blocks,
        });
    }
    Ok(segments)
}
