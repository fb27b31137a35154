//! Two runs compared.
#![allow(clippy::unwrap_used)]

use memscope_dump::compare::{CompareError, Difference, Level, Side, compare, write_csv};
use memscope_dump::{Attr, Device, DumpError, Row};
use std::path::Path;

fn op(time: u64, name: &str) -> Row {
    Row {
        id: time,
        event: "OP_LAUNCH".into(),
        event_type: "ATEN_END".into(),
        name: Some(name.into()),
        timestamp: time,
        device: Device::Number(0),
        ..Row::default()
    }
}

fn pool(time: u64, event: &str, pool: &str, size: u64) -> Row {
    Row {
        id: time,
        event: event.into(),
        event_type: pool.into(),
        timestamp: time,
        device: Device::Number(0),
        ptr: Some(time),
        attr: Attr::new().with("size", size),
        ..Row::default()
    }
}

fn side(rows: &[Row], level: Level) -> Side {
    Side::read(Path::new("a.csv"), rows.iter().cloned().map(Ok), level).unwrap()
}

fn lines(differences: &[Difference]) -> String {
    let mut out = Vec::new();
    write_csv(&mut out, differences).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn what_was_added_and_what_grew() {
    // Rows of a file are in any order.
    let base = [
        pool(25, "FREE", "PTA", 100),
        op(20, "aten::add"),
        op(10, "aten::mul"),
        pool(15, "MALLOC", "PTA", 64),
        pool(12, "MALLOC", "HAL", 7),
    ];
    let second = [
        op(10, "aten::mul"),
        pool(11, "MALLOC", "PTA", 128),
        op(12, "aten::new, with a comma"),
        op(20, "aten::add"),
    ];
    let (base, second) = (side(&base, Level::Op), side(&second, Level::Op));
    let answer = compare(&base, &second, &mut || true).unwrap();
    assert_eq!(
        lines(&answer),
        ",,,Base,Compare\n\
         Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)\n\
         OP_LAUNCH,aten::mul,0,64,128,64\n\
         OP_LAUNCH,\"aten::new, with a comma\",0,N/A,0,0\n\
         OP_LAUNCH,aten::add,0,100,0,-100\n"
    );
}

#[test]
fn mindspore_counts_at_kernels_only() {
    let kernel = Row {
        event: "KERNEL_LAUNCH".into(),
        event_type: "KERNEL_LAUNCH".into(),
        name: None,
        ..op(1, "")
    };
    let rows = [kernel, op(2, "a"), pool(3, "MALLOC", "MINDSPORE", 9)];
    let answer = |level| {
        let both = side(&rows, level);
        compare(&both, &both, &mut || true).unwrap()
    };
    assert_eq!(answer(Level::Kernel)[0].base, Some(9));
    assert_eq!(answer(Level::Kernel)[0].name, "N/A");
    assert_eq!(answer(Level::Op)[0].base, Some(0));
}

#[test]
fn what_cannot_be_compared_is_told() {
    let with = side(&[op(1, "a")], Level::Op);
    let without = side(&[pool(1, "MALLOC", "PTA", 1)], Level::Op);
    let error = compare(&with, &without, &mut || true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.csv has no operators (ATEN_END, ATB_END) on any device"
    );
    let error = compare(&with, &with, &mut || false).unwrap_err();
    assert!(matches!(
        error,
        CompareError::OutOfTime {
            base: 1,
            compare: 1,
            ..
        }
    ));
    let mut no_size = pool(5, "FREE", "PTA", 1);
    no_size.attr = Attr::new();
    let error = Side::read(Path::new("b.csv"), [Ok(no_size)], Level::Op).unwrap_err();
    assert!(matches!(error, DumpError::Row { .. }));
}
