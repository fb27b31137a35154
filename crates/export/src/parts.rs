//! A snapshot in the wire's messages: in parts, which are made one by one and are each far below gRPC's limit of 4 MiB
//! for a message; and as one JSON document.

use crate::error::ExportError;
use crate::names::{Names, missing};
use crate::progress::Progress;
use memscope_ledger::report::{SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace};
use memscope_proto::v1::{self, snapshot_part::Part};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

/// Most blocks in a part. A segment without blocks counts as one.
const BLOCKS: usize = 4096;
/// Most trace entries in a part.
const ENTRIES: usize = 4096;

/// Bytes of names and stacks after which a part ends. One stack more than that still fits into a message.
const STACK_BYTES: usize = 1 << 20;
/// Bytes of a stack or frame without its names, at most.
const ITEM_BYTES: usize = 24;

/// Makes the parts of a snapshot in order: the header, then segments, then stacks if they are wanted, then trace entries, then the end.
pub struct SnapshotParts {
    report: Arc<SnapshotReport>,
    stacks: Option<Stacks>,
    next: Next,
}

/// What of the stacks has been sent.
struct Stacks {
    names: Names,
    /// For each stack of the report: whether a block comes from it.
    used: Vec<bool>,
}

enum Next {
    Header,
    /// Index of the segment and of its block with which the next part begins.
    Segments(usize, usize),
    /// Index of the stack with which the next part begins.
    Stacks(usize),
    Trace(usize),
    End,
    Nothing,
}

impl SnapshotParts {
    /// Begins with the header of this snapshot.
    #[must_use]
    pub fn new(report: Arc<SnapshotReport>) -> Self {
        SnapshotParts {
            report,
            stacks: None,
            next: Next::Header,
        }
    }

    /// The same, with the stacks that blocks come from.
    #[must_use]
    pub fn with_stacks(self) -> Self {
        let mut used = vec![false; self.report.stacks.len()];
        let blocks = self.report.segments.iter().flat_map(|of| &of.blocks);
        for block in blocks {
            if let Some(used) = used.get_mut(block.stack as usize) {
                *used = true;
            }
        }
        let stacks = Some(Stacks {
            names: Names::default(),
            used,
        });
        SnapshotParts { stacks, ..self }
    }

    /// What follows the segments.
    fn behind_segments(&self) -> Next {
        match &self.stacks {
            Some(stacks) if !stacks.used.is_empty() => Next::Stacks(0),
            _ => self.behind_stacks(),
        }
    }

    fn behind_stacks(&self) -> Next {
        match self.report.trace.is_empty() {
            true => Next::End,
            false => Next::Trace(0),
        }
    }

    /// Makes a part of stacks from this one on. Also returns where the next part begins.
    fn some_stacks(&mut self, from: usize) -> (v1::StackChunk, Next) {
        let mut chunk = v1::StackChunk::default();
        let Some(sent) = &mut self.stacks else {
            return (chunk, self.behind_stacks());
        };
        let mut bytes = 0;
        let all = self.report.stacks.iter().zip(&sent.used).skip(from);
        for (stack, used) in all {
            if bytes >= STACK_BYTES {
                break;
            }
            bytes += ITEM_BYTES;
            if !used {
                chunk.stacks.push(v1::BlockStack::default());
                continue;
            }
            let new = stack.frames.iter().filter(|frame| !sent.names.knows(frame));
            bytes += new
                .map(|frame| ITEM_BYTES + frame.name.len() + frame.file.len())
                .sum::<usize>();
            bytes += stack.frames.len() * std::mem::size_of::<u32>();
            chunk.stacks.push(v1::BlockStack {
                frames: sent.names.frames(stack),
                truncated: stack.truncated,
                missing: missing(stack.frames.is_empty(), stack.missing),
            });
        }
        (chunk.strings, chunk.frames) = sent.names.take();
        let to = from + chunk.stacks.len();
        let next = match to < self.report.stacks.len() {
            true => Next::Stacks(to),
            false => self.behind_stacks(),
        };
        (chunk, next)
    }

    /// Makes a part of segments from this segment and block on. Also returns where the next part begins.
    fn segments(&self, mut index: usize, mut block: usize) -> (v1::SegmentChunk, Next) {
        let mut segments = Vec::new();
        let mut room = BLOCKS;
        while let Some(source) = self.report.segments.get(index) {
            if room == 0 {
                return (v1::SegmentChunk { segments }, Next::Segments(index, block));
            }
            let end = source.blocks.len().min(block + room);
            let blocks = source.blocks.get(block..end).unwrap_or_default();
            segments.push(segment(source, blocks, block > 0, self.stacks.is_some()));
            room = room.saturating_sub(blocks.len().max(1));
            if end < source.blocks.len() {
                block = end;
            } else {
                (index, block) = (index + 1, 0);
            }
        }
        (v1::SegmentChunk { segments }, self.behind_segments())
    }
}

impl Iterator for SnapshotParts {
    type Item = v1::SnapshotPart;

    fn next(&mut self) -> Option<Self::Item> {
        let (part, next) = match self.next {
            Next::Header => {
                let next = match self.report.segments.is_empty() {
                    true => self.behind_segments(),
                    false => Next::Segments(0, 0),
                };
                (Part::Header(header(&self.report)), next)
            }
            Next::Segments(index, block) => {
                let (chunk, next) = self.segments(index, block);
                (Part::Segments(chunk), next)
            }
            Next::Stacks(from) => {
                let (chunk, next) = self.some_stacks(from);
                (Part::Stacks(chunk), next)
            }
            Next::Trace(from) => {
                let to = self.report.trace.len().min(from + ENTRIES);
                let entries = self.report.trace.get(from..to).unwrap_or_default();
                let entries = entries.iter().map(entry).collect();
                let next = if to < self.report.trace.len() {
                    Next::Trace(to)
                } else {
                    Next::End
                };
                (Part::Trace(v1::TraceChunk { entries }), next)
            }
            Next::End => (Part::End(v1::SnapshotEnd {}), Next::Nothing),
            Next::Nothing => return None,
        };
        self.next = next;
        Some(v1::SnapshotPart { part: Some(part) })
    }
}

fn header(report: &SnapshotReport) -> v1::SnapshotHeader {
    v1::SnapshotHeader {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: Some(report.as_of.event.into()),
        lost_records: report.process.lost_records,
        process: Some(report.process.clone().into()),
        segments: report.segments.len() as u64,
        blocks: report
            .segments
            .iter()
            .map(|segment| segment.blocks.len() as u64)
            .sum(),
        trace_entries: report.trace.len() as u64,
        trace_dropped: report.trace_dropped,
        coverage: report.coverage.clone(),
    }
}

/// A segment with some of its blocks. `continued`: an earlier part has the blocks before these. `stacks`: blocks name their stacks.
fn segment(
    segment: &SnapshotSegment,
    blocks: &[SnapshotBlock],
    continued: bool,
    stacks: bool,
) -> v1::Segment {
    v1::Segment {
        device: segment.device,
        address: segment.addr,
        size_bytes: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: segment.pool_told.then(|| pool(segment.pool)),
        expandable: segment.expandable,
        seen: segment.seen,
        blocks: blocks.iter().map(|one| block(one, stacks)).collect(),
        continued,
    }
}

fn block(block: &SnapshotBlock, stacks: bool) -> v1::Block {
    v1::Block {
        address: block.addr,
        size_bytes: block.size,
        requested_bytes: block.requested,
        state: block.state.into(),
        since_boot_ns: (block.since_ns != 0).then_some(block.since_ns),
        stack: stacks.then_some(block.stack),
    }
}

fn entry(entry: &SnapshotTrace) -> v1::TraceEntry {
    v1::TraceEntry {
        action: entry.action.into(),
        device: entry.device,
        address: entry.addr,
        size_bytes: entry.size,
        stream: entry.stream,
        pool: entry.pool.map(pool),
        time_boot_ns: entry.time_ns,
        time_unix_ns: entry.unix_ns,
        tid: entry.tid,
    }
}

/// Writes `{"header": …, "segments": […], "trace": […]}`, with one line for each segment and each trace entry.
pub(crate) fn document(
    report: &SnapshotReport,
    out: &mut dyn Write,
    tell: Progress<'_>,
) -> Result<(), ExportError> {
    let head = header(report);
    let (mut done, of) = (0, head.blocks + head.trace_entries);
    out.write_all(b"{\"header\": ")?;
    serde_json::to_writer(&mut *out, &head).map_err(std::io::Error::from)?;
    out.write_all(b",\n\"segments\": [")?;
    for (index, source) in report.segments.iter().enumerate() {
        let line = segment(source, &source.blocks, false, false);
        write_line(&mut *out, index, &line)?;
        done += line.blocks.len() as u64;
        tell(done, of);
    }
    out.write_all(b"],\n\"trace\": [")?;
    for (index, source) in report.trace.iter().enumerate() {
        write_line(&mut *out, index, &entry(source))?;
        done += 1;
        tell(done, of);
    }
    Ok(out.write_all(b"]}\n")?)
}

fn write_line(out: &mut dyn Write, index: usize, line: &impl Serialize) -> std::io::Result<()> {
    out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
    Ok(serde_json::to_writer(out, line)?)
}

fn pool((first, second): (u64, u64)) -> v1::PoolId {
    v1::PoolId { first, second }
}
