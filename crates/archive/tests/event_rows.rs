//! The rows of events.
#![allow(clippy::unwrap_used)]

use memscope_archive_rows::rows::{Node, Origin, event};
use memscope_archive_rows::{Cell, EventRow, Record as _};
use memscope_proto::v1;
use v1::event::Body;

/// The columns `kind`, `device`, `address` and `size_bytes` of the row of an event.
fn told(body: Body) -> (String, [Option<i64>; 3]) {
    let node = Node::default();
    let origin = Origin {
        node: &node,
        batch: 1,
        epoch: 1,
    };
    let told = v1::Event {
        body: Some(body),
        ..v1::Event::default()
    };
    let row = event(&origin, &told, None, 1);
    let own = &row.cells[row.cells.len() - EventRow::TABLE.own.len()..];
    let at = |name| {
        let mut own = EventRow::TABLE.own.iter().zip(own);
        own.find(|(column, _)| column.name == name).unwrap().1
    };
    let number = |name| match at(name) {
        Cell::Int(number) => *number,
        other => panic!("{name}: {other:?}"),
    };
    let Cell::Text(Some(kind)) = at("kind") else {
        panic!("no kind: {row:?}");
    };
    let numbers = ["device", "address", "size_bytes"].map(number);
    (kind.clone(), numbers)
}

#[test]
fn an_event_has_the_numbers_that_its_kind_has() {
    let trace = |action: v1::TraceAction| {
        Body::Trace(v1::PoolTrace {
            action: action.into(),
            device: Some(2),
            address: 4096,
            size_bytes: 512,
            ..v1::PoolTrace::default()
        })
    };
    let (kind, numbers) = told(trace(v1::TraceAction::Alloc));
    assert_eq!(kind, "trace");
    assert_eq!(numbers, [Some(2), Some(4096), Some(512)]);
    // In its place such an event has the device's free bytes.
    let (_, numbers) = told(trace(v1::TraceAction::Oom));
    assert_eq!(numbers, [Some(2), None, Some(512)]);
    let report = v1::PoolReport {
        device: 1,
        address: 8192,
        size_bytes: -256,
        ..v1::PoolReport::default()
    };
    let (_, numbers) = told(Body::Report(report));
    assert_eq!(numbers, [Some(1), Some(8192), Some(-256)]);
    let (kind, numbers) = told(Body::Exited(v1::Nothing {}));
    assert_eq!((kind.as_str(), numbers), ("exited", [None; 3]));
}
