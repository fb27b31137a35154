//! Rows become events and rows again, and events of probes become rows.
#![allow(clippy::unwrap_used)]

use memscope_dump::events::import;
use memscope_dump::rows::Rows;
use memscope_dump::{Attr, Device, Reader, Row};
use memscope_ledger::event::{
    Body, Call, CallOp, Event, EventId, HeldPart, HeldSegment, Layer, Level, PoolReport, PoolTrace,
    ProcessFacts, ProcessHandle, StackRef, TraceAction, Vendor,
};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

fn rows(events: &[Event]) -> Vec<Row> {
    let stacks = |_, stack| match stack {
        StackRef::Id(id) => Some(format!("f.py({id}): f")),
        _ => None,
    };
    let mut told = Vec::new();
    let mut fold = Rows::new();
    for event in events {
        fold.apply(event, &stacks, &mut |row| told.push(row));
    }
    fold.finish(&mut |row| told.push(row));
    told.sort_by_key(|row| row.id);
    let ids: Vec<u64> = told.iter().map(|row| row.id).collect();
    assert_eq!(
        ids,
        (1..=told.len() as u64).collect::<Vec<_>>(),
        "each number once"
    );
    told
}

/// What must come back: event, type, device, pid, address, size, name.
type Kept = (
    String,
    String,
    Device,
    Option<u32>,
    Option<u64>,
    Option<u64>,
    Option<String>,
);

fn kept<'a>(rows: impl IntoIterator<Item = &'a Row>, pid: u32) -> Vec<Kept> {
    let own = rows.into_iter().filter(|row| row.pid == Some(pid));
    own.map(|row| {
        // Marks and launches belong to the process, not to a device.
        let device = match row.event.as_str() {
            "MALLOC" | "FREE" => row.device,
            _ => Device::None,
        };
        let (event, event_type) = (row.event.clone(), row.event_type.clone());
        (
            event,
            event_type,
            device,
            row.pid,
            row.ptr,
            row.size(),
            row.name.clone(),
        )
    })
    .collect()
}

fn round(rows_in: &[Row]) -> Vec<Row> {
    let imported = import(rows_in.iter().cloned().map(Ok)).unwrap();
    rows(&imported.events)
}

/// The rows without those that say when the collection began and ended, because an import adds its own.
fn inner(kept: &[Kept]) -> &[Kept] {
    let [first, inner @ .., last] = kept else {
        panic!("{kept:?}");
    };
    assert_eq!(
        (first.1.as_str(), last.1.as_str()),
        ("START_TRACE", "STOP_TRACE")
    );
    inner
}

/// Random rows. The free of a live block has the size that the block was allocated with.
fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    let step = (0..9u8, 0..2u32, 0..6u64, 1..1000u64, 1..3u32);
    proptest::collection::vec(step, 1..60).prop_map(|steps| {
        let mut rows = Vec::new();
        let mut sizes = std::collections::HashMap::new();
        for (place, (what, device, at, size, pid)) in steps.into_iter().enumerate() {
            let id = place as u64 * 3 + 1;
            let mut row = Row {
                id,
                timestamp: id * 100,
                pid: Some(pid),
                tid: Some(pid * 10 + device),
                device: Device::Number(device),
                ..Row::default()
            };
            let (event, event_type): (&str, &str) = match what {
                0..=2 => ("MALLOC", "PTA"),
                3 => ("MALLOC", "HAL"),
                4 | 5 => ("FREE", "PTA"),
                6 => ("FREE", "HAL"),
                7 => (
                    "MSTX",
                    ["Mark", "Range_start", "Range_end"][at as usize % 3],
                ),
                _ => [("SYSTEM", "STEP"), ("KERNEL_LAUNCH", "KERNEL_LAUNCH")][at as usize % 2],
            };
            row.event = event.into();
            row.event_type = event_type.into();
            match event {
                "MALLOC" | "FREE" => {
                    let ptr = 0x1000
                        * (at
                            + 1
                            + 100 * u64::from(device)
                            + 1000 * u64::from(event_type == "HAL"));
                    let key = (pid, event_type.to_owned(), ptr);
                    let size = match event {
                        "MALLOC" => *sizes.entry(key).insert_entry(size).get(),
                        _ => sizes.remove(&key).unwrap_or(size),
                    };
                    row.ptr = Some(ptr);
                    row.attr = Attr::new()
                        .with("size", size)
                        .with("used", at)
                        .with("total", 9);
                }
                "MSTX" => row.name = Some(format!("mark {at}")),
                _ => {}
            }
            rows.push(row);
        }
        rows
    })
}

proptest! {
    #[test]
    fn rows_come_back(given in any_rows(), turn in 0usize..60) {
        let mut shuffled = given.clone();
        let middle = turn % shuffled.len();
        shuffled.rotate_left(middle);
        let back = round(&shuffled);
        for pid in [1, 2] {
            let expected = kept(&given, pid);
            if !expected.is_empty() {
                let back = kept(&back, pid);
                prop_assert_eq!(inner(&back), &expected[..]);
            }
        }
    }
}

#[test]
fn golden_dumps_come_back() {
    for (name, pid) in [("offline_leaks_1.csv", 4242), ("inefficient_2.csv", 777)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(name);
        let mut given: Vec<Row> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
        given.retain(|row| !matches!(row.event.as_str(), "ACCESS" | "OP_LAUNCH"));
        given.sort_by_key(|row| row.id);
        let back = kept(&round(&given), pid);
        assert_eq!(inner(&back), kept(&given, pid), "{name}");
    }
}

/// Events of one process on thread 5, a second apart.
fn events(bodies: Vec<(StackRef, Body)>) -> Vec<Event> {
    let facts = ProcessFacts {
        pid: 42,
        ..ProcessFacts::default()
    };
    let attached = (StackRef::NotTaken, Body::Attached(Box::new(facts)));
    (1..)
        .zip(std::iter::once(attached).chain(bodies))
        .map(|(number, (stack, body))| Event {
            id: EventId {
                epoch: 1,
                sequence: number,
            },
            time_ns: number * 1_000,
            process: ProcessHandle(1),
            tid: 5,
            lost_before: 0,
            stack,
            sampling: 0,
            body,
        })
        .collect()
}

fn trace(
    action: TraceAction,
    addr: u64,
    size: u64,
    block_size: Option<u64>,
    total: Option<u64>,
) -> Body {
    Body::Trace(PoolTrace {
        action,
        allocator: 7,
        device: Some(0),
        addr,
        size,
        stream: 0,
        block_size,
        total_allocated: total,
        total_reserved: total.map(|_| 4096),
        pool: None,
    })
}

fn report(ptr: u64, size: i64, total_allocated: u64) -> Body {
    Body::Report(PoolReport {
        device: 0,
        ptr,
        size,
        total_allocated,
        total_reserved: 4096,
    })
}

fn pool_rows(bodies: Vec<Body>) -> Vec<String> {
    let bodies = bodies
        .into_iter()
        .map(|body| (StackRef::Id(300), body))
        .collect();
    let rows = rows(&events(bodies));
    let rows = rows.iter().filter(|row| row.event_type != "START_TRACE");
    rows.map(|row| format!("{} {} {}", row.event, row.event_type, row.attr.to_csv()))
        .collect()
}

#[test]
fn an_allocation_is_one_row() {
    use TraceAction::{Alloc, FreeCompleted, FreeRequested};
    let whole = [
        "MALLOC PTA {allocation_id:1,addr:0x0000000000000010,size:512,used:512,total:4096}",
        "FREE PTA {allocation_id:1,addr:0x0000000000000010,size:512,used:0,total:4096}",
    ];
    // Entries and reports; only reports; entries of the trace that have everything.
    let both = vec![
        trace(Alloc, 16, 500, None, None),
        report(16, 512, 512),
        trace(FreeRequested, 16, 500, None, None),
        trace(FreeCompleted, 16, 500, None, None),
        report(16, -512, 0),
    ];
    assert_eq!(pool_rows(both), whole);
    assert_eq!(
        pool_rows(vec![report(16, 512, 512), report(16, -512, 0)]),
        whole
    );
    let traced = vec![
        trace(Alloc, 16, 500, Some(512), Some(512)),
        trace(FreeRequested, 16, 500, Some(512), Some(0)),
        trace(FreeCompleted, 16, 500, None, Some(0)),
    ];
    assert_eq!(pool_rows(traced), whole);
    let doubly = vec![
        trace(Alloc, 16, 500, Some(512), Some(512)),
        report(16, 512, 512),
        trace(FreeRequested, 16, 500, Some(512), Some(0)),
        trace(FreeCompleted, 16, 500, Some(512), Some(0)),
        report(16, -512, 0),
    ];
    assert_eq!(pool_rows(doubly), whole);
}

#[test]
fn a_half_is_not_lost() {
    use TraceAction::{Alloc, Oom};
    let rows = pool_rows(vec![
        trace(Alloc, 16, 500, None, None),
        report(32, 1024, 1536),
        trace(Alloc, 48, 7, None, None),
        trace(Oom, 0, 99, None, None),
        Body::Oom(memscope_ledger::event::PoolOom {
            device: 0,
            size: 99,
            total_allocated: 1,
            total_reserved: 1,
        }),
        trace(Alloc, 64, 8, None, None),
    ]);
    let begins: Vec<&str> = rows
        .iter()
        .map(|row| row.split(",used").next().unwrap())
        .collect();
    assert_eq!(
        begins,
        [
            "MALLOC PTA {allocation_id:1,addr:0x0000000000000010,size:500}",
            "MALLOC PTA {allocation_id:2,addr:0x0000000000000020,size:1024",
            "MALLOC PTA {allocation_id:3,addr:0x0000000000000030,size:7",
            "OOM_DETAIL OOM_TRIGGER {req_size:99}",
            "MALLOC PTA {allocation_id:4,addr:0x0000000000000040,size:8",
        ]
    );
}

#[test]
fn what_was_there_before_is_shadow() {
    let held = |at_ns| {
        Body::Held(Box::new(HeldPart {
            at_ns,
            total_allocated: 1024,
            total_reserved: 4096,
            parts: 1,
            segments: vec![HeldSegment {
                blocks: vec![
                    (16, 512, 500, false),
                    (32, 512, 500, false),
                    (48, 512, 5, true),
                ],
                ..HeldSegment::default()
            }],
            ..HeldPart::default()
        }))
    };
    let driver = |op, device| {
        Body::Call(Call {
            function: Arc::from("cudaMalloc"),
            layer: Layer::Runtime,
            vendor: Vendor::Cuda,
            op,
            status: 0,
            device,
            ptr: 0x9000,
            size: if op == CallOp::Alloc { 2048 } else { 0 },
            stream: None,
            handle: 0,
            context: 0,
            of_host: false,
            hal: None,
            extra: 0,
            nested: 0,
            duration_ns: 0,
        })
    };
    // The second block was freed between the reading's moment and its arrival.
    let rows = pool_rows(vec![
        driver(CallOp::Alloc, Some(0)),
        report(32, -512, 512),
        held(1_500),
        report(16, -512, 0),
        driver(CallOp::Free, None),
    ]);
    assert_eq!(
        rows,
        [
            "MALLOC HAL {allocation_id:1,addr:0x0000000000009000,size:2048,used:2048}",
            "FREE PTA {addr:0x0000000000000020,size:512,used:512,total:4096}",
            "MALLOC PTA {allocation_id:2,addr:0x0000000000000010,size:512,used:1024,total:4096,shadow:true}",
            "FREE PTA {allocation_id:2,addr:0x0000000000000010,size:512,used:0,total:4096}",
            "FREE HAL {allocation_id:1,addr:0x0000000000009000,size:2048,used:0}",
        ]
    );
}

#[test]
fn launches_before_the_recording_begins_are_no_rows() {
    let counted =
        [5_000_000, 5_000_002].map(|count| (StackRef::NotTaken, Body::Launches { count }));
    let events = events(counted.into());
    let launches = |is_late: bool| {
        let (mut fold, mut told) = (Rows::new(), Vec::new());
        for (place, event) in events.iter().enumerate() {
            match is_late && place == 0 {
                true => fold.apply_late(event, &|_, _| None, &mut |row| told.push(row)),
                false => fold.apply(event, &|_, _| None, &mut |row| told.push(row)),
            }
        }
        told.retain(|row| row.event == "KERNEL_LAUNCH");
        (told.len(), fold.left_out())
    };
    assert_eq!(launches(true), (2, 0));
    // A process whose attach is in the recording has made them all since then.
    assert_eq!(launches(false), (1002, 4_999_000));
}

/// Two threads may tell the count at once, and the smaller one comes last.
#[test]
fn a_count_of_launches_that_comes_late_takes_none_back() {
    let counted = [9, 14, 10, 15].map(|count| (StackRef::NotTaken, Body::Launches { count }));
    let (mut fold, mut told) = (Rows::new(), Vec::new());
    for event in &events(counted.into()) {
        fold.apply(event, &|_, _| None, &mut |row| told.push(row));
    }
    told.retain(|row| row.event == "KERNEL_LAUNCH");
    assert_eq!(told.len(), 15);
}

/// One part of a reading of device 0: addresses and sizes of blocks.
fn reading(at_ns: u64, (part, parts): (u32, u32), blocks: &[(u64, u64)]) -> Body {
    Body::Held(Box::new(HeldPart {
        at_ns,
        part,
        parts,
        total_allocated: 1024,
        total_reserved: 4096,
        segments: vec![HeldSegment {
            blocks: blocks
                .iter()
                .map(|(addr, size)| (*addr, *size, *size, false))
                .collect(),
            ..HeldSegment::default()
        }],
        ..HeldPart::default()
    }))
}

/// Each row in short: what it is, of which allocation, and whether it is told by a reading.
fn short(rows: &[String]) -> Vec<String> {
    let shadow = |row: &String| row.contains("shadow:true");
    rows.iter()
        .map(|row| {
            let begin = row.split(",used").next().unwrap();
            format!("{begin}{}", if shadow(row) { " shadow" } else { "" })
        })
        .collect()
}

#[test]
fn a_late_reading_brings_no_freed_block_back() {
    // The events are at 2, 3, 4 and 5 microseconds; what is read was there between the third and the fourth.
    let rows = pool_rows(vec![
        report(16, 512, 512),
        report(32, 512, 1024),
        report(16, -512, 512),
        reading(3_500, (0, 1), &[(16, 512), (32, 512)]),
    ]);
    assert_eq!(
        short(&rows),
        [
            "MALLOC PTA {allocation_id:1,addr:0x0000000000000010,size:512",
            "MALLOC PTA {allocation_id:2,addr:0x0000000000000020,size:512",
            "FREE PTA {allocation_id:1,addr:0x0000000000000010,size:512",
        ]
    );
    // A later reading has another block there, whose allocation was lost.
    let rows = pool_rows(vec![
        report(16, 512, 512),
        report(16, -512, 0),
        reading(3_500, (0, 1), &[(16, 512)]),
    ]);
    assert_eq!(
        short(&rows)[2..],
        ["MALLOC PTA {allocation_id:2,addr:0x0000000000000010,size:512 shadow"]
    );
}

#[test]
fn what_the_next_reading_lacks_is_freed_where_only_readings_tell() {
    let of_level = |level| {
        let mut events = events(
            [
                reading(1_500, (0, 1), &[(16, 512), (32, 512), (48, 512)]),
                // It is not complete, so it says nothing of what it lacks.
                reading(2_500, (0, 2), &[(16, 512)]),
                reading(3_500, (0, 2), &[(16, 512)]),
                reading(3_500, (1, 2), &[(48, 1024)]),
                reading(4_500, (0, 1), &[(32, 512), (48, 1024)]),
            ]
            .map(|body| (StackRef::NotTaken, body))
            .into(),
        );
        if let Body::Attached(facts) = &mut events[0].body {
            facts.level = Some(level);
        }
        let rows = rows(&events);
        let rows = rows.iter().filter(|row| row.event_type == "PTA");
        rows.map(|row| {
            let (id, size) = (row.attr.get("allocation_id"), row.size());
            format!(
                "{} {} {} at {}",
                row.event,
                id.unwrap_or_default(),
                size.unwrap_or_default(),
                row.timestamp
            )
        })
        .collect::<Vec<_>>()
    };
    let first = [
        "MALLOC 1 512 at 1500",
        "MALLOC 2 512 at 1500",
        "MALLOC 3 512 at 1500",
    ];
    let expected = [
        "FREE 3 512 at 3500",
        "MALLOC 4 1024 at 3500",
        "FREE 2 512 at 3500",
        "MALLOC 5 512 at 4500",
        "FREE 1 512 at 4500",
    ];
    assert_eq!(of_level(Level::Read), [&first[..], &expected].concat());
    // With probes each free has its own event.
    assert_eq!(of_level(Level::Blocks), first);
}
