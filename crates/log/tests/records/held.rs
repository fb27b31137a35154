//! Readings are split into parts, and the parts become records.

use crate::common::stamp;
use memscope_ledger::event::*;
use memscope_log::records::*;
use proptest::prelude::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..2000,
        Just(u64::MAX),
        Just(0x7f12_3456_7800)
    ]
}

fn segment(most: usize) -> impl Strategy<Value = HeldSegment> {
    (
        (number(), number(), number()),
        (number(), number()),
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec((number(), number(), number(), any::<bool>()), 0..most),
        number(),
        prop::collection::vec((number(), number()), 0..most / 4 + 1),
        prop::collection::vec((number(), number()), 0..most / 10 + 1),
    )
        .prop_map(
            |((addr, size, stream), pool, large, expandable, blocks, space, rooms, holes)| {
                HeldSegment {
                    addr,
                    size,
                    stream,
                    large,
                    pool,
                    expandable,
                    blocks,
                    space,
                    rooms,
                    holes,
                    ..HeldSegment::default()
                }
            },
        )
}

/// Joins the parts as the ledger does.
fn joined(parts: &[HeldPart]) -> Vec<HeldSegment> {
    let mut all: Vec<HeldSegment> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        for (place, segment) in part.segments.iter().enumerate() {
            match all.last_mut() {
                Some(last) if number > 0 && place == 0 && last.addr == segment.addr => {
                    last.blocks.extend_from_slice(&segment.blocks);
                    last.rooms.extend_from_slice(&segment.rooms);
                    last.holes.extend_from_slice(&segment.holes);
                }
                _ => all.push(segment.clone()),
            }
        }
    }
    all
}

fn check_reading(mut segments: Vec<HeldSegment>) -> usize {
    segments.dedup_by_key(|segment| segment.addr);
    let parts = held_parts(HeldPart {
        at_ns: u64::MAX,
        device: i32::MIN,
        allocator: u64::MAX,
        total_allocated: u64::MAX,
        total_reserved: 5,
        segments: segments.clone(),
        ..HeldPart::default()
    });
    assert_eq!(joined(&parts), segments);
    for (number, part) in parts.iter().enumerate() {
        assert_eq!(
            (part.part as usize, part.parts as usize),
            (number, parts.len())
        );
        assert_eq!(
            (
                part.at_ns,
                part.device,
                part.allocator,
                part.total_allocated,
                part.total_reserved
            ),
            (u64::MAX, i32::MIN, u64::MAX, u64::MAX, 5)
        );
        assert!(serde_json::to_vec(part).unwrap().len() <= 50_000);
        let record = DaemonRecord::Held(part.clone());
        assert_eq!(record.kind(), KIND_HELD);
        let bytes = record.encode(stamp(7)).unwrap();
        assert_eq!(DaemonRecord::decode(&bytes).unwrap(), Some(record));
        let Outcome::Decoded(event) = Decoder::new(1).decode(&bytes) else {
            panic!()
        };
        assert_eq!(event.body, Body::Held(Box::new(part.clone())));
    }
    parts.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn many_segments(segments in prop::collection::vec(segment(12), 0..600)) {
        check_reading(segments);
    }

    #[test]
    fn long_segments(segments in prop::collection::vec(segment(3000), 0..6)) {
        check_reading(segments);
    }
}

#[test]
fn nothing_held_is_a_reading_too() {
    assert_eq!(check_reading(Vec::new()), 1);
}

#[test]
fn parts_are_well_filled() {
    let blocks = (0..100_000)
        .map(|n| (0x7f12_0000_0000 + n * 512, 512, 400, false))
        .collect();
    let segment = HeldSegment {
        addr: 0x7f12_0000_0000,
        size: 512 * 100_000,
        stream: 0,
        large: false,
        pool: (0, 0),
        expandable: true,
        blocks,
        ..HeldSegment::default()
    };
    let parts = check_reading(vec![segment]);
    assert!(parts < 75, "{parts}");
}

#[test]
fn a_part_too_long_is_refused_and_not_cut() {
    let whole = HeldPart {
        at_ns: 1,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: 0,
        total_reserved: 0,
        allocator: 0,
        segments: vec![HeldSegment {
            addr: 1,
            size: 2,
            stream: 3,
            large: true,
            pool: (0, 0),
            expandable: false,
            blocks: vec![(u64::MAX, 512, 512, false); 4000],
            ..HeldSegment::default()
        }],
    };
    assert!(matches!(
        DaemonRecord::Held(whole).encode(stamp(1)),
        Err(EncodeError::TooLong {
            kind: KIND_HELD,
            ..
        })
    ));
}
