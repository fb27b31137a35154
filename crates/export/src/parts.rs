//! A snapshot in the wire's messages: in parts, which are made one by one and are each far below gRPC's limit of 4 MiB
//! for a message; and as one JSON document.

use crate::error::ExportError;
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

/// Makes the parts of a snapshot in order: the header, then segments, then trace entries, then the end.
pub struct SnapshotParts {
    report: Arc<SnapshotReport>,
    next: Next,
}

enum Next {
    Header,
    /// Index of the segment and of its block with which the next part begins.
    Segments(usize, usize),
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
            next: Next::Header,
        }
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
            segments.push(segment(source, blocks, block > 0));
            room = room.saturating_sub(blocks.len().max(1));
            if end < source.blocks.len() {
                block = end;
            } else {
                (index, block) = (index + 1, 0);
            }
        }
        (v1::SegmentChunk { segments }, Next::Trace(0))
    }
}

impl Iterator for SnapshotParts {
    type Item = v1::SnapshotPart;

    fn next(&mut self) -> Option<Self::Item> {
        let (part, next) = match self.next {
            Next::Header => {
                let next = if !self.report.segments.is_empty() {
                    Next::Segments(0, 0)
                } else if !self.report.trace.is_empty() {
                    Next::Trace(0)
                } else {
                    Next::End
                };
                (Part::Header(header(&self.report)), next)
            }
            Next::Segments(index, block) => {
                let (chunk, next) = self.segments(index, block);
                let next = match next {
                    Next::Trace(_) if self.report.trace.is_empty() => Next::End,
                    next => next,
                };
                (Part::Segments(chunk), next)
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

/// A segment with some of its blocks. `continued`: an earlier part has the blocks before these.
fn segment(segment: &SnapshotSegment, blocks: &[SnapshotBlock], continued: bool) -> v1::Segment {
    v1::Segment {
        device: segment.device,
        address: segment.addr,
        size_bytes: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: Some(pool(segment.pool)),
        expandable: segment.expandable,
        seen: segment.seen,
        blocks: blocks.iter().map(block).collect(),
        continued,
    }
}

fn block(block: &SnapshotBlock) -> v1::Block {
    v1::Block {
        address: block.addr,
        size_bytes: block.size,
        requested_bytes: block.requested,
        state: block.state.into(),
        since_boot_ns: (block.since_ns != 0).then_some(block.since_ns),
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
        let line = segment(source, &source.blocks, false);
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
