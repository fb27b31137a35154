//! Pools beside the framework's own, and torch_npu's workspaces: their rows, which become the same events again.
#![allow(clippy::unwrap_used)]

use memscope_dump::events::import;
use memscope_dump::rows::Rows;
use memscope_dump::{Device, Row};
use memscope_ledger::event::*;
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1::{RegionPool, StatsRequest, StatsResponse};
use std::sync::Arc;

fn event(sequence: u64, body: Body) -> Event {
    Event {
        id: EventId { epoch: 1, sequence },
        time_ns: sequence * 1000,
        process: ProcessHandle(1),
        tid: 42,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

fn domain(handle: u64, name: &str) -> Body {
    Body::Domain(Domain {
        handle,
        name: Arc::from(name),
    })
}

fn region(domain: u64, change: RegionChange) -> Body {
    Body::Region(Region {
        domain,
        change,
        untold: 0,
    })
}

fn came(domain: u64, ptr: u64, size: u64, handle: u64) -> Body {
    let change = RegionChange::Came {
        device: Some(0),
        ptr,
        size,
        handle,
        heap: 0,
    };
    region(domain, change)
}

fn heap(domain: u64, size: u64) -> Body {
    let change = RegionChange::HeapCame {
        device: Some(0),
        ptr: 0x1000,
        size,
        handle: 0,
    };
    region(domain, change)
}

fn workspace(ptr: u64, size: i64) -> Body {
    Body::Workspace(Workspace {
        device: Some(0),
        ptr,
        size,
    })
}

fn driver(op: CallOp, ptr: u64, size: u64) -> Body {
    Body::Call(Call {
        function: Arc::from("aclrtMalloc"),
        layer: Layer::Runtime,
        vendor: Vendor::Ascend,
        op,
        status: 0,
        device: Some(0),
        ptr,
        size,
        stream: None,
        handle: 0,
        extra: 0,
        context: 0,
        of_host: false,
        hal: None,
        nested: 0,
        duration_ns: 1,
    })
}

fn rows(bodies: Vec<Body>) -> (Vec<Row>, u64) {
    let facts = ProcessFacts {
        pid: 7,
        from_start: true,
        ..ProcessFacts::default()
    };
    let all = [Body::Attached(Box::new(facts))].into_iter().chain(bodies);
    let (mut maker, mut rows) = (Rows::new(), Vec::new());
    for (at, body) in (1..).zip(all) {
        maker.apply(&event(at, body), &|_, _| None, &mut |row| rows.push(row));
    }
    let left_out = maker.left_out();
    maker.finish(&mut |row| rows.push(row));
    (rows, left_out)
}

/// Event, type and attributes of the rows of blocks.
fn blocks(rows: &[Row]) -> Vec<String> {
    let blocks = rows.iter().filter(|row| row.ptr.is_some());
    blocks
        .map(|row| {
            let attr = |key| row.attr.get(key).unwrap_or("-").to_owned();
            format!(
                "{} {} {:#x} #{} {} {}/{}",
                row.event,
                row.event_type,
                row.ptr.unwrap(),
                attr("allocation_id"),
                attr("size"),
                attr("used"),
                attr("total")
            )
        })
        .collect()
}

fn read_back(rows: Vec<Row>) -> StatsResponse {
    let imported = import(rows.into_iter().map(Ok)).unwrap();
    let mut ledger = Ledger::new(LedgerConfig::default());
    for event in &imported.events {
        ledger.apply(event);
    }
    let last = imported.events.last().unwrap().time_ns;
    let as_of = AsOf {
        boot_ns: last,
        ..AsOf::default()
    };
    ledger
        .ask(&[ProcessHandle(1)], as_of, &StatsRequest::default())
        .unwrap()
}

#[test]
fn rows_of_regions() {
    let (rows, left_out) = rows(vec![
        domain(1, "atb"),
        domain(2, "mindsporeMemPool"),
        domain(3, "mine"),
        heap(1, 1000),
        came(1, 0x1000, 300, 5),
        came(1, 0x1000, 200, 6),
        region(1, RegionChange::WentByHandle { handle: 5 }),
        came(2, 0x9000, 64, 0),
        heap(2, 5000),
        region(2, RegionChange::Went { ptr: 0x9000 }),
        region(2, RegionChange::Went { ptr: 0x7000 }),
        came(3, 0x4000, 1, 0),
        region(1, RegionChange::WentByHandle { handle: 99 }),
    ]);
    assert_eq!(
        blocks(&rows),
        [
            "MALLOC ATB 0x1000 #1 300 300/1000",
            "MALLOC ATB 0x1000 #2 200 500/1000",
            "FREE ATB 0x1000 #1 300 200/1000",
            "MALLOC MINDSPORE 0x9000 #3 64 64/-",
            "FREE MINDSPORE 0x9000 #3 64 0/5000",
            "FREE MINDSPORE 0x7000 #- - -/-",
        ]
    );
    // The three names of domains, two heaps, a pool of another name, and one whose handle says nothing.
    assert!(left_out >= 2, "{left_out}");
}

#[test]
fn a_workspace_is_told_of_once() {
    let placed = Body::Placed(Box::new(Placement {
        pool_seen: true,
        ..Placement::default()
    }));
    let (rows, _) = rows(vec![
        placed,
        domain(1, "ptaWorkspace"),
        domain(2, "ptaCaching"),
        driver(CallOp::Alloc, 0x1000, 4096),
        came(1, 0x1000, 4096, 0),
        workspace(0x1000, 4096),
        came(2, 0x5000, 512, 0),
        driver(CallOp::Free, 0x1000, 0),
        region(1, RegionChange::Went { ptr: 0x1000 }),
        workspace(0x1000, -4096),
    ]);
    assert_eq!(
        blocks(&rows),
        [
            "MALLOC HAL 0x1000 #1 4096 4096/-",
            "MALLOC PTA_WORKSPACE 0x1000 #2 4096 4096/4096",
            "FREE HAL 0x1000 #1 4096 0/-",
            "FREE PTA_WORKSPACE 0x1000 #2 4096 0/0",
        ]
    );
    // Read back, the memory is the driver's, and its component is the workspace.
    let stats = read_back(rows.into_iter().take(3).collect());
    let zero = stats.devices.first().unwrap();
    assert_eq!(zero.driver.unwrap().bytes, 4096);
    assert_eq!(zero.components[0].name, "PTA_WORKSPACE");
    assert!(stats.region_pools.is_empty());
}

fn row(id: u64, event: &str, kind: &str, ptr: u64, attr: &str) -> Row {
    Row {
        id,
        event: event.to_owned(),
        event_type: kind.to_owned(),
        timestamp: id * 1000,
        pid: Some(7),
        tid: Some(1),
        device: Device::Number(0),
        ptr: Some(ptr),
        attr: memscope_dump::Attr::from_csv(attr).unwrap(),
        ..Row::default()
    }
}

fn pool<'a>(stats: &'a StatsResponse, name: &str) -> &'a RegionPool {
    let named = |pool: &&RegionPool| pool.domain.as_deref() == Some(name);
    stats.region_pools.iter().find(named).unwrap()
}

#[test]
fn pools_of_a_dump_stand_beside_each_other() {
    let rows = vec![
        row(1, "MALLOC", "PTA", 0x1000, "{size:512,used:512,total:4096}"),
        row(2, "MALLOC", "ATB", 0x1000, "{size:100,used:100,total:900}"),
        row(3, "MALLOC", "ATB", 0x1100, "{size:50,used:150,total:1900}"),
        row(4, "FREE", "ATB", 0x1000, "{size:100,used:50,total:1900}"),
        row(5, "MALLOC", "MINDSPORE", 0x2000, "{size:7,used:7,total:70}"),
        row(
            6,
            "MALLOC",
            "PTA_WORKSPACE",
            0x3000,
            "{size:8,used:8,total:8}",
        ),
    ];
    let stats = read_back(rows);
    let zero = stats.devices.first().unwrap();
    assert_eq!(zero.allocated_bytes, Some(512), "PTA's own numbers");
    assert_eq!(zero.reserved_bytes, Some(4096));
    for (name, expected) in [
        ("atb", (1, 50, Some(1900))),
        ("mindsporeMemPool", (1, 7, Some(70))),
        ("ptaWorkspace", (1, 8, Some(8))),
    ] {
        let row = pool(&stats, name).devices.first().unwrap();
        assert_eq!((row.count, row.bytes, row.heap_bytes), expected, "{name}");
    }
    // If there is no other pool, MindSpore's is the framework's own.
    let alone = read_back(vec![row(
        1,
        "MALLOC",
        "MINDSPORE",
        0x2000,
        "{size:7,used:7,total:70}",
    )]);
    assert_eq!(alone.devices.first().unwrap().allocated_bytes, Some(7));
    assert!(alone.region_pools.is_empty());
}
