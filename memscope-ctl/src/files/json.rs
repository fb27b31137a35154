//! Reads snapshots as JSON: ours, and PyTorch's dictionary written with `json.dump`.

use super::{Block, FileError, Image, Kept, Segment, State};
use memscope_proto::v1;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::Read;
use std::path::Path;

#[derive(Deserialize)]
struct Document {
    header: Option<Header>,
    segments: Vec<JsonSegment>,
    // Of any length, and of no use here.
    #[serde(rename = "trace")]
    _trace: Option<IgnoredAny>,
    #[serde(rename = "device_traces")]
    _device_traces: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Header {
    as_of: Option<u64>,
    as_of_boot_ns: Option<u64>,
    process: Option<Process>,
    #[serde(default)]
    coverage: Vec<Note>,
}

#[derive(Deserialize)]
struct Process {
    pid: u32,
    start_ticks: u64,
    generation: u64,
}

#[derive(Deserialize)]
struct Note {
    code: String,
    text: String,
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
}

pub(super) fn read(path: &Path, from: impl Read) -> Result<Kept, FileError> {
    let document: Document = serde_json::from_reader(from)?;
    let header = document.header;
    let times = header.as_ref().and_then(|h| h.as_of.zip(h.as_of_boot_ns));
    let offset = times.map(|(unix, boot)| unix.saturating_sub(boot));
    let mut segments = Vec::with_capacity(document.segments.len());
    for segment in document.segments {
        let mut next = segment.address;
        let mut blocks = Vec::with_capacity(segment.blocks.len());
        for block in segment.blocks {
            let address = block.address.unwrap_or(next);
            next = address.saturating_add(block.size_bytes);
            let state = State::named(&block.state).ok_or_else(|| {
                FileError::Shape(format!("a block is {:?}, which is not known", block.state))
            })?;
            blocks.push(Block {
                address,
                size: block.size_bytes,
                requested: block.requested_bytes,
                state,
                born_ns: block
                    .since_boot_ns
                    .zip(offset)
                    .map(|(boot, offset)| boot.saturating_add(offset)),
            });
        }
        segments.push(Segment {
            device: segment.device,
            stream: segment.stream,
            size: segment.size_bytes,
            blocks,
        });
    }
    let (mut image, mut as_of_ns, mut coverage) = (None, None, Vec::new());
    if let Some(header) = header {
        as_of_ns = header.as_of;
        image = header.process.map(|process| Image {
            pid: process.pid,
            start: process.start_ticks,
            generation: process.generation,
        });
        let notes = header.coverage.into_iter();
        coverage.extend(notes.map(|Note { code, text }| v1::CoverageNote { code, text }));
    }
    Ok(Kept {
        path: path.to_owned(),
        image,
        as_of_ns,
        segments,
        coverage,
    })
}
