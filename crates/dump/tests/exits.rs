//! Rows of a process that has ended, as a dump has them where threads still wrote while it ended.
#![allow(clippy::unwrap_used)]

use memscope_dump::events::{Imported, import};
use memscope_dump::{Attr, Device, Row};
use memscope_ledger::event::Body;
use memscope_ledger::report::{AsOf, ProcessState};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1::{StatsRequest, StatsResponse};

fn row(id: u64, event: &str, event_type: &str, ptr: Option<u64>) -> Row {
    Row {
        id,
        event: event.into(),
        event_type: event_type.into(),
        timestamp: id * 1000,
        pid: Some(7),
        device: Device::Number(0),
        ptr,
        attr: Attr::new().with("size", 512),
        ..Row::default()
    }
}

fn told(imported: &Imported) -> (StatsResponse, ProcessState) {
    let mut ledger = Ledger::new(LedgerConfig::default());
    for event in &imported.events {
        ledger.apply(event);
    }
    let process = ledger.find(7).unwrap();
    let stats = ledger.ask(&[process], AsOf::default(), &StatsRequest::default());
    (stats.unwrap(), ledger.summary(process).unwrap().state)
}

fn text<'a>(stats: &'a StatsResponse, code: &str) -> Option<&'a str> {
    let mut notes = stats.coverage.iter();
    Some(&notes.find(|note| note.code == code)?.text)
}

#[test]
fn rows_after_the_exit_are_left_out_and_said() {
    let rows = [
        row(1, "MALLOC", "PTA", Some(0x1000)),
        row(2, "CLEAN_UP", "PROC_EXIT", None),
        row(3, "MALLOC", "PTA", Some(0x2000)),
        row(4, "MALLOC", "HAL", Some(0x3000)),
        row(5, "MALLOC", "HAL", Some(0x4000)),
        row(6, "CLEAN_UP", "PROC_EXIT", None),
    ];
    let imported = import(rows.into_iter().map(Ok)).unwrap();
    assert_eq!(imported.left_out, 4);
    let exits = imported.events.iter();
    let exits = exits.filter(|event| matches!(event.body, Body::Exited));
    assert_eq!(exits.count(), 1);
    let (stats, state) = told(&imported);
    assert_eq!(state, ProcessState::Exited);
    assert_eq!(stats.devices[0].allocated_bytes, Some(512));
    assert_eq!(
        text(&stats, "import_rows_left_out"),
        Some(
            "rows that no event tells were left out: 1 CLEAN_UP PROC_EXIT after the process's exit, \
             2 MALLOC HAL after the process's exit, 1 MALLOC PTA after the process's exit"
        )
    );
}

/// A dump of an older version counts in microseconds, which is said of a process that has ended as well.
#[test]
fn an_exit_takes_no_note_away() {
    let mut rows = [
        row(1, "MALLOC", "PTA", Some(0x1000)),
        row(2, "CLEAN_UP", "PROC_EXIT", None),
        row(3, "MALLOC", "PTA", Some(0x1000)),
    ];
    for row in &mut rows {
        row.timestamp = 1_700_000_000_000_000 + row.id;
        row.attr = Attr::new().with("size", 512).with("MID", row.id);
    }
    rows[2].pid = Some(8);
    assert!(rows[0].is_older());
    let (stats, _) = told(&import(rows.into_iter().map(Ok)).unwrap());
    assert!(text(&stats, "import_microseconds").is_some());
    assert!(text(&stats, "imported").is_some());
    assert!(text(&stats, "import_rows_left_out").is_none());
}
