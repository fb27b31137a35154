//! Ascend's driver in a dump: rows as msMemScope writes them, which become the same events again.
#![allow(clippy::unwrap_used)]

use memscope_dump::events::import;
use memscope_dump::rows::Rows;
use memscope_dump::{Format, Reader, Row, Writer};
use memscope_ledger::event::{
    Body, Call, CallOp, Event, EventId, HalFacts, HalModule, HalPage, HalSpace, Layer,
    ProcessFacts, ProcessHandle, StackRef, Vendor,
};
use std::path::Path;
use std::sync::Arc;

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ascend_driver.csv")
}

fn event(at: u64, body: Body) -> Event {
    Event {
        id: EventId {
            epoch: 1,
            sequence: at,
        },
        time_ns: at * 1000,
        process: ProcessHandle(1),
        tid: 42,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

fn call(function: &str, op: CallOp, at: u64, size: u64, hal: Option<HalFacts>) -> Body {
    let host = hal.is_some_and(|hal| hal.space == HalSpace::Host);
    let is_handle = matches!(op, CallOp::Create | CallOp::Release);
    Body::Call(Call {
        function: Arc::from(function),
        layer: Layer::Runtime,
        vendor: Vendor::Ascend,
        op,
        status: 0,
        device: (!host).then_some(1),
        ptr: if is_handle { 0 } else { at },
        size,
        stream: None,
        handle: if is_handle { at } else { 0 },
        extra: 0,
        context: 0,
        of_host: false,
        hal,
        nested: 1,
        duration_ns: 10,
    })
}

fn events() -> Vec<Event> {
    let told = |space, page, module, created| {
        Some(HalFacts {
            device: 1,
            space,
            page,
            module: HalModule(module),
            created,
            memory: None,
        })
    };
    let device = |page, module| told(HalSpace::Device, page, module, false);
    let bodies = [
        Body::Attached(Box::new(ProcessFacts {
            pid: 7,
            ..ProcessFacts::default()
        })),
        call(
            "aclrtMalloc",
            CallOp::Alloc,
            0x1000,
            4096,
            device(HalPage::Normal, 33),
        ),
        call(
            "halMemAlloc",
            CallOp::Alloc,
            0x100000,
            20 << 20,
            device(HalPage::Huge, 3),
        ),
        call(
            "halMemAlloc",
            CallOp::Alloc,
            0x40000000,
            1 << 30,
            device(HalPage::Giant, 0),
        ),
        call(
            "aclrtMallocPhysical",
            CallOp::Create,
            0x77,
            2 << 20,
            told(HalSpace::Device, HalPage::Huge, 33, true),
        ),
        call(
            "aclrtMallocHost",
            CallOp::HostAlloc,
            0x9000,
            8192,
            told(HalSpace::Host, HalPage::Normal, 33, false),
        ),
        call(
            "halMemAlloc",
            CallOp::Alloc,
            0xa000,
            512,
            told(HalSpace::Host, HalPage::Normal, 36, false),
        ),
        // Calls for which nothing of the driver was recorded.
        call("aclrtMalloc", CallOp::Alloc, 0x5000, 64, None),
        call("aclrtFree", CallOp::Free, 0x1000, 0, None),
        call("halMemFree", CallOp::Free, 0xa000, 0, None),
        call("aclrtFreeHost", CallOp::HostFree, 0x9000, 0, None),
        call("aclrtFreePhysical", CallOp::Release, 0x77, 0, None),
    ];
    (1..)
        .zip(bodies)
        .map(|(at, body)| event(at, body))
        .collect()
}

fn rows(events: &[Event]) -> Vec<Row> {
    let mut told = Vec::new();
    let mut fold = Rows::new();
    for event in events {
        fold.apply(event, &|_, _| None, &mut |row| told.push(row));
    }
    fold.finish(&mut |row| told.push(row));
    told
}

#[test]
fn the_drivers_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump.csv");
    let mut writer = Writer::create(&file, Format::Csv).unwrap();
    for row in rows(&events()) {
        writer.write(&row).unwrap();
    }
    writer.finish().unwrap();
    let written = std::fs::read_to_string(&file).unwrap();
    let wanted = std::fs::read_to_string(golden()).unwrap();
    assert_eq!(written, wanted);
}

#[test]
fn read_again_they_are_the_same_events() {
    let rows_in: Vec<Row> = Reader::open(&golden())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let imported = import(rows_in.iter().cloned().map(Ok)).unwrap();
    assert_eq!(imported.left_out, 0);
    let calls: Vec<&Call> = imported
        .events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Call(call) => Some(call),
            _ => None,
        })
        .collect();
    assert!(calls.iter().all(|call| call.vendor == Vendor::Ascend));
    let owners: Vec<_> = calls
        .iter()
        .filter_map(|call| call.hal)
        .map(|hal| (hal.module.name(), hal.page.name(), hal.space, hal.created))
        .collect();
    assert_eq!(
        owners,
        [
            ("APP", "normal", HalSpace::Device, false),
            ("HCCL", "huge", HalSpace::Device, false),
            ("UNKNOWN", "giant", HalSpace::Device, false),
            ("APP", "huge", HalSpace::Device, true),
            ("APP", "normal", HalSpace::Host, false),
            ("AICPU", "normal", HalSpace::Host, false),
        ]
    );
    // Written again, they are the same rows, except those that say when the collection began and ended.
    let again = rows(&imported.events);
    let of_blocks = |rows: &[Row]| -> Vec<(String, String, String, Option<u64>)> {
        let blocks = rows.iter().filter(|row| row.ptr.is_some());
        blocks
            .map(|row| {
                let kind = format!("{} {}", row.event, row.event_type);
                (kind, row.device.to_string(), row.attr.to_csv(), row.ptr)
            })
            .collect()
    };
    assert_eq!(of_blocks(&again), of_blocks(&rows_in));
}
