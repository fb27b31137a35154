//! The segments and blocks of a process in columns, for a page that draws hundreds of thousands of them.
//!
//! Owns: the memory that this takes. Blocks are held once, as numbers; their text is made while it is sent.

use super::ask::written;
use super::source::Source;
use crate::client::{Client, Rpc};
use crate::failure::{Exit, Failure};
use crate::ui::exact::{exact, integer};
use crate::ui::reply::{Reply, reply};
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use memscope_proto::v1::{self, snapshot_part::Part};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::codegen::{Bytes, http};

/// Most blocks in one answer. Those of higher addresses are left out, and the answer says how many there are and what they hold.
const MOST_BLOCKS: usize = 1_000_000;
/// Most segments in one answer. With more, it is an error.
const MOST_SEGMENTS: usize = 1_000_000;
/// Most bytes of the stacks of one answer. With more, it is an error.
const MOST_STACK_BYTES: usize = 256 << 20;
/// Bytes that a name, a frame or a stack takes beside what is in it.
const ITEM_BYTES: usize = 24;
/// Answers that are made and sent at a time, for all tabs.
const MOST_AT_A_TIME: usize = 2;
/// Bytes of text after which a piece is sent.
const PIECE: usize = 64 << 10;

/// Answers what a process holds, block by block.
pub(super) struct Memory(Arc<Semaphore>);

impl Memory {
    pub(super) fn new() -> Memory {
        Memory(Arc::new(Semaphore::new(MOST_AT_A_TIME)))
    }

    /// Asks for the blocks of a process, and begins to send them.
    pub(super) async fn answer(
        &self,
        source: &Source<'_>,
        question: v1::SnapshotRequest,
        node: Option<&str>,
    ) -> Result<Reply, Failure> {
        let turn = Arc::clone(&self.0)
            .try_acquire_owned()
            .map_err(|_| busy())?;
        let held = match node {
            None => {
                source
                    .ask(async |client| held(client, question.clone()).await)
                    .await?
            }
            Some(node) => {
                let ask = async |asking: &crate::fleet::Asking<'_>| {
                    held(&asking.client, question.clone()).await
                };
                source.ask_node(node, ask).await?
            }
        };
        let pieces = stream::unfold((sending(held)?, turn), async |(mut sending, turn)| {
            let piece = sending.piece()?;
            Some((Ok::<_, Infallible>(Frame::data(piece)), (sending, turn)))
        });
        let never = |never: Infallible| match never {};
        let content = StreamBody::new(pieces).map_err(never).boxed_unsync();
        Ok(reply(StatusCode::OK, "application/json", content))
    }
}

fn busy() -> Failure {
    Failure::Refused {
        exit: Exit::Failed,
        code: "busy".to_owned(),
        what: format!("{MOST_AT_A_TIME} of these answers are on their way already"),
        hint: Some("ask again when they have come".to_owned()),
    }
}

/// One segment. Its number is that of its row.
struct Segment {
    address: u64,
    size_bytes: u64,
    device: i32,
    stream: u64,
    pool: (u64, u64),
    large: bool,
    expandable: bool,
    seen: bool,
}

/// One block.
struct Block {
    address: u64,
    size_bytes: u64,
    requested_bytes: Option<u64>,
    state: v1::BlockState,
    segment: u32,
    stack: Option<u32>,
    since_boot_ns: Option<u64>,
}

/// What a process holds.
#[derive(Default)]
struct Held {
    header: v1::SnapshotHeader,
    segments: Vec<Segment>,
    blocks: Vec<Block>,
    strings: Vec<String>,
    frames: Vec<v1::StackFrame>,
    stacks: Vec<v1::BlockStack>,
    /// Bytes that names, frames and stacks take.
    stack_bytes: usize,
    omitted: v1::Amount,
}

impl Held {
    fn add(&mut self, chunk: v1::SegmentChunk) -> Result<(), Failure> {
        for segment in chunk.segments {
            let (blocks, continued) = (segment.blocks, segment.continued);
            if !continued || self.segments.is_empty() {
                if self.segments.len() >= MOST_SEGMENTS {
                    return Err(too_many(segments()));
                }
                let pool = segment.pool.unwrap_or_default();
                self.segments.push(Segment {
                    address: segment.address,
                    size_bytes: segment.size_bytes,
                    device: segment.device,
                    stream: segment.stream,
                    pool: (pool.first, pool.second),
                    large: segment.large,
                    expandable: segment.expandable,
                    seen: segment.seen,
                });
            }
            let place = u32::try_from(self.segments.len() - 1).map_err(|_| too_many(segments()))?;
            for block in blocks {
                if self.blocks.len() >= MOST_BLOCKS {
                    self.omitted.count += 1;
                    self.omitted.bytes = self.omitted.bytes.saturating_add(block.size_bytes);
                    continue;
                }
                self.blocks.push(Block {
                    address: block.address,
                    size_bytes: block.size_bytes,
                    requested_bytes: block.requested_bytes,
                    state: block.state(),
                    segment: place,
                    stack: block.stack,
                    since_boot_ns: block.since_boot_ns,
                });
            }
        }
        Ok(())
    }

    fn add_stacks(&mut self, chunk: v1::StackChunk) -> Result<(), Failure> {
        let names = chunk.strings.iter().map(|name| ITEM_BYTES + name.len());
        let frames = chunk.frames.len() * ITEM_BYTES;
        let stacks = chunk.stacks.iter();
        let stacks = stacks.map(|stack| ITEM_BYTES + stack.frames.len() * size_of::<u32>());
        self.stack_bytes += names.sum::<usize>() + frames + stacks.sum::<usize>();
        if self.stack_bytes > MOST_STACK_BYTES {
            return Err(too_many(format!(
                "the stacks take more than {MOST_STACK_BYTES} bytes"
            )));
        }
        self.strings.extend(chunk.strings);
        self.frames.extend(chunk.frames);
        self.stacks.extend(chunk.stacks);
        Ok(())
    }

    /// The name or file at this place, as JSON; unknown is null.
    fn string(&self, place: u32, out: &mut Vec<u8>) {
        let string = self.strings.get(place as usize).map(String::as_str);
        word(string.filter(|string| !string.is_empty()), out);
    }

    /// One frame, as JSON.
    fn frame(&self, frame: &v1::StackFrame, out: &mut Vec<u8>) {
        text("{\"name\":", out);
        self.string(frame.name, out);
        text(",\"file\":", out);
        self.string(frame.file, out);
        text(",\"line\":", out);
        known((frame.line > 0).then_some(frame.line.into()), out);
        text(",\"kind\":\"", out);
        text(&frame.kind().to_string(), out);
        text("\"}", out);
    }

    /// The members that are no columns.
    fn head(&self) -> Result<Vec<u8>, Failure> {
        let header = &self.header;
        written(&serde_json::json!({
            "pid": header.pid,
            "as_of": header.as_of,
            "as_of_boot_ns": header.as_of_boot_ns,
            "as_of_event": header.as_of_event,
            "lost_records": header.lost_records,
            "coverage": header.coverage,
            "omitted_blocks": self.omitted.count,
            "omitted_bytes": self.omitted.bytes,
        }))
    }
}

fn segments() -> String {
    format!("the process has more than {MOST_SEGMENTS} segments")
}

fn too_many(what: String) -> Failure {
    Failure::Refused {
        exit: Exit::Failed,
        code: "too_large".to_owned(),
        what,
        hint: Some("write them to a file: memscope-ctl snapshot --format json".to_owned()),
    }
}

/// Asks for what a process holds.
async fn held(client: &Client, mut question: v1::SnapshotRequest) -> Result<Held, Failure> {
    question.stacks = true;
    let call = async |mut rpc: Rpc, request| rpc.snapshot(request).await;
    let mut parts = client.ask(question, call).await?;
    let mut held = Held::default();
    let (mut begun, mut whole) = (false, false);
    while let Some(part) = client.next(&mut parts).await? {
        match part.part {
            Some(Part::Header(header)) => (held.header, begun) = (header, true),
            Some(Part::Segments(chunk)) => held.add(chunk)?,
            Some(Part::Stacks(chunk)) => held.add_stacks(chunk)?,
            // The trace comes after all of these, and is not shown.
            Some(Part::Trace(_) | Part::End(_)) => {
                whole = true;
                break;
            }
            None => {}
        }
    }
    match begun && whole {
        true => Ok(held),
        false => Err(Failure::Incomplete {
            what: "the snapshot ended early".to_owned(),
        }),
    }
}

/// What of the answer has been sent.
struct Sending {
    held: Held,
    /// The beginning of the document, until it is sent.
    head: Vec<u8>,
    column: usize,
    row: usize,
}

/// Begins to send.
fn sending(held: Held) -> Result<Sending, Failure> {
    let mut head = exact(&held.head()?);
    // The columns follow within the same object.
    head.pop();
    Ok(Sending {
        held,
        head,
        column: 0,
        row: 0,
    })
}

/// One column: what stands before it, how many rows it has, and how one is written.
struct Column {
    before: &'static str,
    rows: fn(&Held) -> usize,
    write: fn(&Held, usize, &mut Vec<u8>),
}

macro_rules! column {
    ($before:literal, $of:ident, $row:ident, $out:ident => $write:expr) => {
        Column {
            before: $before,
            rows: |held| held.$of.len(),
            write: |held, row, $out| {
                if let Some($row) = held.$of.get(row) {
                    $write;
                }
            },
        }
    };
}

/// All columns in their order.
const COLUMNS: &[Column] = &[
    column!(",\"segments\":{\"address\":[", segments, row, out => integer(row.address, out)),
    column!("],\"size_bytes\":[", segments, row, out => integer(row.size_bytes, out)),
    column!("],\"device\":[", segments, row, out => text(&row.device.to_string(), out)),
    column!("],\"stream\":[", segments, row, out => integer(row.stream, out)),
    column!("],\"pool_first\":[", segments, row, out => integer(row.pool.0, out)),
    column!("],\"pool_second\":[", segments, row, out => integer(row.pool.1, out)),
    column!("],\"large\":[", segments, row, out => text(&row.large.to_string(), out)),
    column!("],\"expandable\":[", segments, row, out => text(&row.expandable.to_string(), out)),
    column!("],\"seen\":[", segments, row, out => text(&row.seen.to_string(), out)),
    column!("]},\"blocks\":{\"address\":[", blocks, row, out => integer(row.address, out)),
    column!("],\"size_bytes\":[", blocks, row, out => integer(row.size_bytes, out)),
    column!("],\"requested_bytes\":[", blocks, row, out => known(row.requested_bytes, out)),
    column!("],\"state\":[", blocks, row, out => text(state(row.state), out)),
    column!("],\"segment\":[", blocks, row, out => integer(row.segment.into(), out)),
    column!("],\"stack\":[", blocks, row, out => known(row.stack.map(u64::from), out)),
    column!("],\"since_boot_ns\":[", blocks, row, out => known(row.since_boot_ns, out)),
    Column {
        before: "]},\"frames\":[",
        rows: |held| held.frames.len(),
        write: |held, row, out| {
            if let Some(frame) = held.frames.get(row) {
                held.frame(frame, out);
            }
        },
    },
    column!("],\"stacks\":{\"frames\":[", stacks, row, out => indices(&row.frames, out)),
    column!("],\"truncated\":[", stacks, row, out => text(&row.truncated.to_string(), out)),
    column!("],\"missing\":[", stacks, row, out => word(row.missing.as_deref(), out)),
];

/// What ends the last column and the document.
const END: &str = "]}}\n";

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
}

fn known(value: Option<u64>, out: &mut Vec<u8>) {
    match value {
        Some(value) => integer(value, out),
        None => text("null", out),
    }
}

fn word(word: Option<&str>, out: &mut Vec<u8>) {
    match word {
        // Writing to memory does not fail.
        Some(word) => drop(serde_json::to_writer(out, word)),
        None => text("null", out),
    }
}

fn indices(indices: &[u32], out: &mut Vec<u8>) {
    out.push(b'[');
    for (number, index) in indices.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        integer((*index).into(), out);
    }
    out.push(b']');
}

/// The word of a state, as JSON.
fn state(state: v1::BlockState) -> &'static str {
    match state {
        v1::BlockState::Unspecified => "null",
        v1::BlockState::Active => "\"active\"",
        v1::BlockState::PendingFree => "\"pending_free\"",
        v1::BlockState::Inactive => "\"inactive\"",
    }
}

impl Sending {
    /// The next piece of text; `None` at the end.
    fn piece(&mut self) -> Option<Bytes> {
        let mut out = std::mem::take(&mut self.head);
        while out.len() < PIECE {
            let Some(column) = COLUMNS.get(self.column) else {
                if self.column == COLUMNS.len() {
                    self.column += 1;
                    text(END, &mut out);
                }
                break;
            };
            if self.row == 0 {
                text(column.before, &mut out);
            }
            let rows = (column.rows)(&self.held);
            while self.row < rows && out.len() < PIECE {
                if self.row > 0 {
                    out.push(b',');
                }
                (column.write)(&self.held, self.row, &mut out);
                self.row += 1;
            }
            if self.row == rows {
                (self.column, self.row) = (self.column + 1, 0);
            }
        }
        (!out.is_empty()).then(|| out.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};
    use serde_json::Value;

    fn sent(held: Held) -> Value {
        let mut sending = sending(held).unwrap();
        let mut all = Vec::new();
        while let Some(piece) = sending.piece() {
            assert!(piece.len() < PIECE + 200, "{}", piece.len());
            all.extend_from_slice(&piece);
        }
        serde_json::from_slice(&all).unwrap()
    }

    fn chunk(address: u64, blocks: u64, continued: bool) -> v1::SegmentChunk {
        let block = |number| v1::Block {
            address: address + number * 512,
            size_bytes: 512,
            state: v1::BlockState::Active.into(),
            ..v1::Block::default()
        };
        v1::SegmentChunk {
            segments: vec![v1::Segment {
                address,
                size_bytes: u64::MAX,
                blocks: (0..blocks).map(block).collect(),
                continued,
                ..v1::Segment::default()
            }],
        }
    }

    #[test]
    fn columns_have_all_rows() {
        assert_eq!(
            sent(Held::default())["blocks"]["address"],
            Value::from(Vec::<u64>::new())
        );
        let mut held = Held::default();
        held.add(chunk(1 << 60, 20_000, false)).unwrap();
        held.add(chunk(1 << 60, 20_000, true)).unwrap();
        held.add(chunk(4096, 1, false)).unwrap();
        let document = sent(held);
        let blocks = &document["blocks"];
        for (name, column) in blocks.as_object().unwrap() {
            assert_eq!(column.as_array().unwrap().len(), 40_001, "{name}");
        }
        assert_eq!(document["segments"]["size_bytes"][1], u64::MAX.to_string());
        assert_eq!(blocks["address"][0], (1_u64 << 60).to_string());
        assert_eq!(blocks["address"][40_000], 4096);
        assert_eq!(blocks["segment"][39_999], 0);
        assert_eq!(blocks["segment"][40_000], 1);
        assert_eq!(blocks["state"][7], "active");
        assert!(blocks["requested_bytes"][7].is_null());
        assert_eq!(document["omitted_blocks"], 0);
    }

    #[test]
    fn frames_are_sent_once() {
        let mut held = Held::default();
        held.add_stacks(v1::StackChunk {
            strings: ["", "f\"", "a.py"].map(str::to_owned).to_vec(),
            frames: vec![
                v1::StackFrame {
                    kind: v1::FrameKind::Python.into(),
                    name: 1,
                    file: 2,
                    line: 7,
                },
                v1::StackFrame::default(),
            ],
            stacks: vec![
                v1::BlockStack {
                    frames: vec![0, 1],
                    ..v1::BlockStack::default()
                },
                v1::BlockStack {
                    missing: Some("no_python".to_owned()),
                    ..v1::BlockStack::default()
                },
            ],
        })
        .unwrap();
        let document = sent(held);
        let frame = serde_json::json!({"name": "f\"", "file": "a.py", "line": 7, "kind": "python"});
        assert_eq!(document["frames"][0], frame);
        assert!(document["frames"][1]["name"].is_null());
        let stacks = serde_json::json!({"frames": [[0, 1], []], "truncated": [false, false],
            "missing": [null, "no_python"]});
        assert_eq!(document["stacks"], stacks);
        let many = v1::StackChunk {
            strings: vec!["x".repeat(MOST_STACK_BYTES)],
            ..v1::StackChunk::default()
        };
        let refused = Held::default().add_stacks(many).unwrap_err();
        assert_eq!(refused.code(), "too_large");
        Met {
            what: "bytes of the stacks in one answer of the page's server about blocks",
            most: constant("memscope-ctl/src/commands/ui/memory.rs", "MOST_STACK_BYTES"),
            beyond: "there is no answer",
            told: "error `too_large` with the number",
            test: "frames_are_sent_once",
        }
        .is_told();
    }

    #[test]
    fn blocks_that_are_too_many_are_counted() {
        let mut held = Held::default();
        for _ in 0..10 {
            held.add(chunk(0, MOST_BLOCKS as u64 / 8, true)).unwrap();
        }
        let document = sent(held);
        let blocks = document["blocks"]["address"].as_array().unwrap();
        assert_eq!(blocks.len(), MOST_BLOCKS);
        assert_eq!(document["omitted_blocks"], MOST_BLOCKS / 4);
        assert_eq!(document["omitted_bytes"], MOST_BLOCKS / 4 * 512);
        Met {
            what: "blocks in one answer of the page's server",
            most: constant("memscope-ctl/src/commands/ui/memory.rs", "MOST_BLOCKS"),
            beyond: "those of higher addresses are left out",
            told: "`omitted_blocks` and `omitted_bytes` of the answer",
            test: "blocks_that_are_too_many_are_counted",
        }
        .is_told();
    }
}
