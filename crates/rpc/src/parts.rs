//! A snapshot in parts, each far below gRPC's limit of 4 MiB a message, made one by one.

use memscope_ledger::report::{SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace};
use memscope_proto::v1::{self, snapshot_part::Part};
use std::sync::Arc;

/// Blocks and segments in a part.
const BLOCKS: usize = 4096;
/// Trace entries in a part.
const ENTRIES: usize = 4096;

/// The parts of a snapshot in order.
pub(crate) struct SnapshotParts {
    report: Arc<SnapshotReport>,
    next: Next,
}

enum Next {
    Header,
    /// From this block of this segment.
    Segments(usize, usize),
    Trace(usize),
    End,
    Nothing,
}

impl SnapshotParts {
    pub(crate) fn new(report: Arc<SnapshotReport>) -> Self {
        SnapshotParts {
            report,
            next: Next::Header,
        }
    }

    fn header(&self) -> v1::SnapshotHeader {
        let report = &self.report;
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

    /// Some segments, and where the next part begins.
    fn segments(&self, mut index: usize, mut block: usize) -> (v1::SegmentChunk, Next) {
        let mut segments = Vec::new();
        let mut room = BLOCKS;
        while let Some(source) = self.report.segments.get(index) {
            if room == 0 {
                return (v1::SegmentChunk { segments }, Next::Segments(index, block));
            }
            let end = source.blocks.len().min(block + room);
            segments.push(segment(source, block, end));
            room = room.saturating_sub((end - block).max(1));
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
                (Part::Header(self.header()), next)
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
                let entries = self.report.trace[from..to].iter().map(entry).collect();
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

fn segment(segment: &SnapshotSegment, from: usize, to: usize) -> v1::Segment {
    v1::Segment {
        device: segment.device,
        address: segment.addr,
        size_bytes: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: Some(pool(segment.pool)),
        expandable: segment.expandable,
        seen: segment.seen,
        blocks: segment.blocks[from..to].iter().map(block).collect(),
        continued: from > 0,
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

fn pool((first, second): (u64, u64)) -> v1::PoolId {
    v1::PoolId { first, second }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;

    /// Puts the parts together again.
    fn collect(report: &Arc<SnapshotReport>) -> (Vec<v1::Segment>, Vec<v1::TraceEntry>, usize) {
        let mut segments: Vec<v1::Segment> = Vec::new();
        let mut trace = Vec::new();
        let mut parts = 0;
        let all: Vec<_> = SnapshotParts::new(Arc::clone(report)).collect();
        assert!(matches!(all[0].part, Some(Part::Header(_))));
        assert!(matches!(all.last().unwrap().part, Some(Part::End(_))));
        for part in all {
            parts += 1;
            match part.part.unwrap() {
                Part::Segments(chunk) => {
                    let blocks: usize = chunk.segments.iter().map(|s| s.blocks.len()).sum();
                    assert!(blocks <= BLOCKS && !chunk.segments.is_empty());
                    for segment in chunk.segments {
                        if segment.continued {
                            segments.last_mut().unwrap().blocks.extend(segment.blocks);
                        } else {
                            segments.push(segment);
                        }
                    }
                }
                Part::Trace(chunk) => {
                    assert!(!chunk.entries.is_empty() && chunk.entries.len() <= ENTRIES);
                    trace.extend(chunk.entries);
                }
                Part::Header(_) | Part::End(_) => {}
            }
        }
        (segments, trace, parts)
    }

    #[test]
    fn nothing_is_lost_between_parts() {
        for (segments, blocks, entries) in [
            (0, 0, 0),
            (1, 0, 1),
            (3, BLOCKS, ENTRIES),
            (2, BLOCKS * 2 + 1, ENTRIES + 1),
            (BLOCKS + 5, 1, 0),
            (10, 1000, 0),
            (9000, 0, 0),
        ] {
            let report = Arc::new(fake::snapshot(7, segments, blocks, entries));
            let (got, trace, _) = collect(&report);
            assert_eq!(got.len(), segments);
            for (got, want) in got.iter().zip(&report.segments) {
                assert_eq!(got.address, want.addr);
                let addresses = got.blocks.iter().map(|b| b.address);
                assert!(addresses.eq(want.blocks.iter().map(|b| b.addr)));
            }
            assert_eq!(trace.len(), entries);
        }
    }
}
