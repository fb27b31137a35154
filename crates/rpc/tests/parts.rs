//! A snapshot is sent in parts, which together contain all of it.
#![allow(clippy::unwrap_used)]

use memscope_export::SnapshotParts;
use memscope_ledger::report::SnapshotReport;
use memscope_proto::v1::{self, snapshot_part::Part};
use memscope_rpc::fake;
use std::sync::Arc;

/// Largest number of blocks in a part, and of trace entries in a part.
const BLOCKS: usize = 4096;
const ENTRIES: usize = 4096;

/// Puts the parts together again. Returns segments, trace entries and the number of parts.
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
