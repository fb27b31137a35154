//! The reader on synthetic memory: what it reads, what it refuses, and that it always ends.

#![allow(clippy::unwrap_used)]

mod synthetic;

use memscope_structure::{
    BlockState, DeviceReading, Layout, Reader, StructureError, find_in_device, find_layout, read,
};
use proptest::prelude::*;
use synthetic::{Kind, NEW, OLD, SLOT, Segment, Shape, Synthetic, expected, process, rows, sample};

/// Checks what every accepted reading guarantees.
fn check_sums(reading: &DeviceReading) {
    let (mut allocated, mut active, mut requested, mut reserved) = (0u64, 0u64, 0u64, 0u64);
    for segment in &reading.segments {
        let mut at = segment.addr;
        for block in &segment.blocks {
            assert_eq!(block.addr, at);
            at += block.size;
            if block.state == BlockState::Allocated {
                allocated += block.size;
            }
            if block.state != BlockState::Inactive {
                active += block.size;
                requested += block.requested;
            }
        }
        assert_eq!(at, segment.addr + segment.size);
        reserved += segment.size;
    }
    assert_eq!(
        (allocated, active, requested, reserved),
        (
            reading.allocated_bytes,
            reading.active_bytes,
            reading.requested_bytes,
            reading.reserved_bytes
        )
    );
}

fn one(shape: &Shape) -> (Synthetic, Layout) {
    let memory = process(shape, &[sample()]);
    let layout = find_layout(&memory, SLOT).unwrap();
    (memory, layout)
}

#[test]
fn every_kind_of_block_in_two_shapes() {
    for shape in [OLD, NEW] {
        let (memory, layout) = one(&shape);
        let reading = read(&memory, SLOT, &layout, 1).unwrap();
        assert_eq!(rows(&reading.devices[0]), expected(&sample()), "{shape:?}");
        assert_eq!((reading.devices.len(), reading.attempts), (1, 1));
        check_sums(&reading.devices[0]);
    }
}

/// A process that holds a few large tensors and has split nothing: no block has a neighbour, and perhaps
/// none is free.
#[test]
fn the_layout_is_found_where_no_block_has_a_neighbour() {
    let whole = |addr, kind| Segment {
        addr,
        stream: 0,
        small: false,
        pool: None,
        blocks: vec![(0x140_0000, 0x130_0001, kind)],
    };
    let base = 0x7f00_0000_0000;
    for shape in [OLD, NEW] {
        for last in [Kind::Inactive, Kind::Pending, Kind::Allocated] {
            let segments = [
                whole(base, Kind::Allocated),
                whole(base + 0x200_0000, Kind::Allocated),
                whole(base + 0x400_0000, last),
            ];
            let memory = process(&shape, &[segments.to_vec()]);
            let layout = find_layout(&memory, SLOT).unwrap();
            let reading = read(&memory, SLOT, &layout, 1).unwrap();
            assert_eq!(rows(&reading.devices[0]), expected(&segments), "{shape:?}");
            // The layout that was found without neighbours is right where there are some.
            let (memory, learned) = one(&shape);
            assert_eq!(layout.block, learned.block);
            let reading = read(&memory, SLOT, &layout, 1);
            match reading {
                Ok(reading) => assert_eq!(rows(&reading.devices[0]), expected(&sample())),
                // Statistics were equal by chance. The reading reports that, and the layout must be found again.
                Err(error) => assert!(matches!(error, StructureError::Contradicted { .. })),
            }
        }
    }
}

/// One tensor of 1 MiB: the free rest of its segment has as many bytes as were requested, and PyTorch's sum of such rests
/// stands before that of the requested bytes.
#[test]
fn the_free_rest_is_not_taken_for_the_requested_bytes() {
    const HALF: u64 = 1 << 20;
    let segment = Segment {
        addr: 0x7f00_0000_0000,
        stream: 0,
        small: true,
        pool: None,
        blocks: vec![(HALF, HALF, Kind::Allocated), (HALF, 0, Kind::Inactive)],
    };
    for shape in [OLD, NEW] {
        let memory = process(&shape, &[vec![segment.clone()]]);
        let layout = find_layout(&memory, SLOT).unwrap();
        let stats = layout.stats;
        assert_eq!(stats.requested_bytes, stats.active_bytes + 192, "{shape:?}");
        let (memory, _) = one(&shape);
        let reading = read(&memory, SLOT, &layout, 1).unwrap();
        assert_eq!(rows(&reading.devices[0]), expected(&sample()));
    }
}

/// A caller that allows one attempt at a time is told, too, that the layout is wrong.
#[test]
fn contradictions_are_counted_across_calls() {
    let (memory, layout) = one(&NEW);
    let mut wrong = layout.clone();
    wrong.stats.requested_bytes -= 96;
    let mut reader = Reader::new(wrong).unwrap();
    let object = reader.devices(&memory, SLOT).unwrap()[0];
    let refused: Vec<bool> = (0..4)
        .map(|_| reader.read_device(&memory, object, 0, 1).unwrap_err())
        .map(|error| matches!(error, StructureError::Contradicted { .. }))
        .collect();
    assert_eq!(refused, [false, false, false, true]);
}

/// A process that has given everything back, so that only its cache is left.
#[test]
fn the_layout_is_found_where_nothing_is_allocated() {
    let base = 0x7f00_0000_0000;
    let segment = |addr, small, size| Segment {
        addr,
        stream: 0,
        small,
        pool: None,
        blocks: vec![(size, 777, Kind::Inactive)],
    };
    let segments = [
        segment(base, true, 0x20_0000),
        segment(base + 0x100_0000, false, 0x140_0000),
        segment(base + 0x400_0000, false, 0x300_0000),
    ];
    for shape in [OLD, NEW] {
        let memory = process(&shape, &[segments.to_vec()]);
        let layout = find_layout(&memory, SLOT).unwrap();
        let reading = read(&memory, SLOT, &layout, 1).unwrap();
        assert_eq!(rows(&reading.devices[0]), expected(&segments), "{shape:?}");
        let (memory, learned) = one(&shape);
        assert_eq!(layout, learned, "{shape:?}");
        let reading = read(&memory, SLOT, &layout, 1).unwrap();
        assert_eq!(rows(&reading.devices[0]), expected(&sample()));
    }
}

/// Requested bytes that PyTorch leaves in address space without memory, and gives to the block that is mapped there
/// next.
#[test]
fn holes_of_expandable_segments() {
    use Kind::{Allocated, Inactive, Unmapped};
    const CHUNK: u64 = 0x140_0000;
    let base = 0x7f10_0000_0000;
    let expandable = |addr, kinds: &[(u64, Kind)]| Segment {
        addr,
        stream: 0,
        small: false,
        pool: None,
        blocks: kinds
            .iter()
            .map(|(requested, kind)| (CHUNK, *requested, *kind))
            .collect(),
    };
    let mut segments = sample();
    segments.retain(|segment| segment.addr < base);
    segments.push(expandable(
        base,
        &[
            (3, Unmapped),
            (4, Allocated),
            (5, Inactive),
            (0, Unmapped),
            (7, Allocated),
            (8, Unmapped),
        ],
    ));
    segments.push(expandable(
        base + (1 << 36),
        &[(9, Allocated), (10, Unmapped)],
    ));
    let memory = process(&NEW, &[segments]);
    let layout = find_layout(&memory, SLOT).unwrap();
    let reading = read(&memory, SLOT, &layout, 1).unwrap();
    let found: Vec<_> = reading.devices[0]
        .segments
        .iter()
        .filter(|segment| segment.expandable)
        .map(|segment| (segment.addr, segment.space, segment.holes.clone()))
        .collect();
    let other = base + (1 << 36);
    assert_eq!(
        found,
        [
            (base + CHUNK, base, vec![(base, 3)]),
            (base + 4 * CHUNK, base, vec![(base + 5 * CHUNK, 8)]),
            (other, other, vec![(other + CHUNK, 10)]),
        ]
    );
    let plain = reading.devices[0]
        .segments
        .iter()
        .filter(|segment| !segment.expandable);
    for segment in plain {
        assert_eq!((segment.space, segment.holes.len()), (segment.addr, 0));
    }
}

#[test]
fn the_layout_is_the_same_from_an_object_that_a_probe_saw() {
    let (memory, mut layout) = one(&NEW);
    let text = serde_json::to_string(&layout).unwrap();
    assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
    layout.devices = None;
    assert_eq!(find_in_device(&memory, memory.allocator).unwrap(), layout);
    assert!(matches!(
        read(&memory, SLOT, &layout, 1),
        Err(StructureError::LayoutNotFound { .. })
    ));
}

#[test]
fn several_devices_of_which_one_is_empty() {
    let memory = process(&OLD, &[Vec::new(), sample(), Vec::new()]);
    let layout = find_layout(&memory, SLOT).unwrap();
    let reading = read(&memory, SLOT, &layout, 1).unwrap();
    let counts: Vec<usize> = reading.devices.iter().map(|d| d.segments.len()).collect();
    assert_eq!(counts, [0, expected(&sample()).len(), 0]);
    assert_eq!(reading.devices[1].device, 1);
}

#[test]
fn nothing_to_find_yet() {
    let nothing = |memory: &Synthetic| {
        matches!(
            find_layout(memory, SLOT),
            Err(StructureError::NothingYet { .. })
        )
    };
    assert!(nothing(&process(&OLD, &[])));
    assert!(nothing(&process(&NEW, &[Vec::new(), Vec::new()])));
    let memory = process(&OLD, &[sample()]);
    memory.put(SLOT, 0);
    assert!(nothing(&memory));
    assert!(matches!(
        find_layout(&memory, 16),
        Err(StructureError::Unreadable { .. })
    ));
}

#[test]
fn what_does_not_add_up_is_refused() {
    for at in [40, 136, 232, 424, 520, 616, 808] {
        let (memory, layout) = one(&OLD);
        // Change the total and the part of large blocks, so that the arithmetic still holds.
        for word in [0, 8, 16, 64, 72, 80] {
            let word = memory.allocator + at + word;
            memory.put(word, memory.get(word) + 512);
        }
        let refused = read(&memory, SLOT, &layout, 50);
        assert!(
            matches!(refused, Err(StructureError::Contradicted { .. })),
            "{at}"
        );
    }
}

#[test]
fn circles_and_holes_are_refused() {
    let contradicted = |spoil: &dyn Fn(&Synthetic)| {
        let (memory, layout) = one(&OLD);
        spoil(&memory);
        let refused = read(&memory, SLOT, &layout, 50);
        assert!(
            matches!(refused, Err(StructureError::Contradicted { .. })),
            "{refused:?}"
        );
    };
    // A node that is its own child, one without memory, and a tree that claims to be huge.
    contradicted(&|memory| memory.put(memory.nodes[0] + 16, memory.nodes[0]));
    contradicted(&|memory| memory.put(memory.nodes[0] + 16, 0x1234_5678));
    contradicted(&|memory| memory.put(memory.nodes[0] + 32, 0x1234_5678));
    contradicted(&|memory| memory.put(memory.allocator + 1032 + 40, 1 << 21));
    contradicted(&|memory| memory.put(memory.allocator + 1032 + 40, u64::MAX));
    // Neighbours in a circle, and one that points elsewhere.
    contradicted(&|memory| memory.put(memory.blocks[3] + 96, memory.blocks[0]));
    contradicted(&|memory| memory.put(memory.blocks[0] + 96, memory.blocks[0]));
    contradicted(&|memory| memory.put(memory.blocks[1] + 88, memory.blocks[2]));
    // A block that begins elsewhere, and one in no pool.
    contradicted(&|memory| memory.put(memory.blocks[2] + 72, 0x7f00_0000_0000));
    contradicted(&|memory| memory.put(memory.blocks[2] + 64, memory.blocks[0]));
}

#[test]
fn a_race_is_noticed_and_tried_again() {
    let (memory, layout) = one(&OLD);
    // A counter that grows forever, with each read.
    let counter = memory.allocator + 40 + 16;
    memory.changing.set((counter, u64::MAX));
    let raced = read(&memory, SLOT, &layout, 7);
    assert!(matches!(
        raced,
        Err(StructureError::Raced { attempts: 7, .. })
    ));
    // An unused word of the object: the reading is exact as soon as it stops changing.
    let (memory, layout) = one(&OLD);
    memory
        .changing
        .set((memory.allocator + 2700, memory.reads.get() + 40));
    let reading = read(&memory, SLOT, &layout, 100).unwrap();
    assert!(reading.attempts > 1);
    assert_eq!(rows(&reading.devices[0]), expected(&sample()));
}

#[test]
fn a_locked_allocator_is_not_read() {
    let (memory, layout) = one(&NEW);
    assert!(layout.mutex);
    memory.put(memory.allocator, 1 << 32 | 1);
    memory.put(memory.allocator + 8, 1 << 32 | 4711);
    let refused = read(&memory, SLOT, &layout, 5);
    assert!(matches!(
        refused,
        Err(StructureError::Raced { attempts: 5, .. })
    ));
    memory.put(memory.allocator, 0);
    memory.put(memory.allocator + 8, 0);
    assert!(read(&memory, SLOT, &layout, 5).is_ok());
}

#[test]
fn another_versions_layout_is_refused() {
    let (_, old) = one(&OLD);
    let (memory, new) = one(&NEW);
    assert_ne!(old, new);
    let mixed = Layout {
        devices: new.devices,
        ..old
    };
    let refused = read(&memory, SLOT, &mixed, 20);
    assert!(matches!(refused, Err(StructureError::Contradicted { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is in memory, the reader ends and does not panic, and what it accepts adds up.
    #[test]
    fn corrupted_memory(
        spoilt in prop::collection::vec((0u64..0x6000, any::<u64>(), 0u8..4), 1..12),
        find in 0u8..12,
    ) {
        let (memory, layout) = one(&NEW);
        for (at, value, how) in spoilt {
            let at = synthetic::BASE + 0x10000 + at / 8 * 8;
            let value = match how {
                0 => value,
                1 => value % 5,
                2 => synthetic::BASE + 0x10000 + value % 0x6000 / 8 * 8,
                _ => memory.get(at) ^ (1 << (value % 64)),
            };
            memory.put(at, value);
        }
        if let Ok(reading) = read(&memory, SLOT, &layout, 6) {
            reading.devices.iter().for_each(check_sums);
        }
        if find == 0
            && let Ok(layout) = find_layout(&memory, SLOT)
        {
            let reading = read(&memory, SLOT, &layout, 6);
            prop_assert!(reading.is_ok());
        }
    }

    /// A damaged layout from a file is refused and not used.
    #[test]
    fn corrupted_layout(which in 0usize..24, value in prop_oneof![any::<u32>(), 0u32..4096]) {
        let (memory, layout) = one(&NEW);
        let mut text = serde_json::to_value(&layout).unwrap();
        let mut seen = 0;
        for path in ["", "/block", "/stats"] {
            let fields = text.pointer_mut(path).unwrap().as_object_mut().unwrap();
            for field in fields.values_mut().filter(|field| field.is_u64()) {
                if seen == which {
                    *field = value.into();
                }
                seen += 1;
            }
        }
        let layout: Layout = serde_json::from_value(text).unwrap();
        if let Ok(reading) = read(&memory, SLOT, &layout, 6) {
            reading.devices.iter().for_each(check_sums);
        }
    }
}
