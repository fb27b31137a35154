//! A snapshot is sent in parts, which together contain all of it.
#![allow(clippy::unwrap_used)]

use memscope_export::SnapshotParts;
use memscope_ledger::report::{SnapshotReport, Stack};
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
            Part::Stacks(_) => panic!("nobody asked for stacks"),
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

#[test]
fn stacks_come_where_they_are_asked_for() {
    let mut report = fake::snapshot(7, 2, 3, 4);
    // Names that do not fit into one part, a stack of the trace alone, and one that was not taken.
    let named = |number: u32| Stack {
        frames: vec![
            fake::python(&format!("{number}{}", "f".repeat(60_000)), "a.py", number),
            fake::native("malloc", "libc.so", 0),
        ],
        truncated: number == 3,
        missing: None,
    };
    let untaken = Stack {
        missing: Some("not_taken"),
        ..Stack::default()
    };
    report.stacks.push(Arc::new(untaken));
    report
        .stacks
        .extend((1..=100).map(|number| Arc::new(named(number))));
    report.segments[0].blocks.truncate(1);
    report.segments[1].blocks = (1..=99)
        .map(|stack| memscope_ledger::report::SnapshotBlock {
            stack,
            ..report.segments[1].blocks[0]
        })
        .collect();
    let report = Arc::new(report);
    let (mut strings, mut frames, mut stacks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut blocks, mut parts, mut behind) = (Vec::new(), 0, false);
    for part in SnapshotParts::new(Arc::clone(&report)).with_stacks() {
        assert!(prost::Message::encoded_len(&part) < 4 << 20);
        match part.part.unwrap() {
            Part::Segments(chunk) => {
                blocks.extend(
                    chunk
                        .segments
                        .into_iter()
                        .flat_map(|segment| segment.blocks),
                );
            }
            Part::Stacks(chunk) => {
                assert!(!behind, "the trace comes after all stacks");
                strings.extend(chunk.strings);
                frames.extend(chunk.frames);
                stacks.extend(chunk.stacks);
                parts += 1;
            }
            Part::Trace(_) => behind = true,
            Part::Header(_) | Part::End(_) => {}
        }
    }
    assert!(behind && parts > 3, "{parts}");
    assert_eq!(stacks.len(), report.stacks.len());
    assert_eq!(strings[0], "");
    let places: Vec<_> = blocks.iter().map(|block| block.stack.unwrap()).collect();
    assert_eq!(places, (0..=99).collect::<Vec<_>>());
    for place in places {
        let (told, stack) = (&stacks[place as usize], &report.stacks[place as usize]);
        let told_frames = told.frames.iter().map(|frame| {
            let frame: &v1::StackFrame = &frames[*frame as usize];
            let string = |place: u32| strings[place as usize].as_str();
            (string(frame.name), string(frame.file), frame.line)
        });
        let all = stack
            .frames
            .iter()
            .map(|frame| (&*frame.name, &*frame.file, frame.line));
        assert!(told_frames.eq(all), "{place}");
        assert_eq!(told.truncated, stack.truncated);
        assert_eq!(told.missing.as_deref(), stack.missing);
    }
    // Only the trace has it.
    assert!(stacks[100].frames.is_empty());
    assert_eq!(frames.len(), 100, "99 of their own, and one that all have");
}
