//! Records of PyTorch's allocator: reports, out-of-memory, trace, calibration.

use crate::common::{as_bytes, header};
use memscope_common::*;
use memscope_ledger::event::*;
use memscope_log::records::*;

fn decoder() -> Decoder {
    Decoder::new(77)
}

fn event(decoder: &mut Decoder, record: &[u8]) -> Event {
    match decoder.decode(record) {
        Outcome::Decoded(event) => event,
        other => panic!("{other:?}"),
    }
}

fn trace_record(action: i32, flags: u8) -> TraceRecord {
    TraceRecord {
        header: RecordHeader {
            flags,
            ..header::<TraceRecord>(KIND_TRACE)
        },
        allocator: 0xa110c,
        action,
        device: 0,
        addr: 0x7f00_0000_0200,
        size: 1000,
        stream: 9,
        block_size: 1024,
        total_allocated: 5000,
        total_reserved: 6000,
        pool: [1, 2],
    }
}

fn trace(record: TraceRecord) -> PoolTrace {
    match event(&mut decoder(), as_bytes(&record)).body {
        Body::Trace(trace) => trace,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reports_of_other_devices_are_skipped() {
    let mut record = ReportRecord {
        header: header::<ReportRecord>(KIND_REPORT),
        ptr: 0x7f00,
        size: -512,
        total_allocated: 1,
        total_reserved: 2,
        device_type: 1,
        device: 3,
    };
    for device_type in [1, 6, 20] {
        record.device_type = device_type;
        assert_eq!(
            event(&mut decoder(), as_bytes(&record)).body,
            Body::Report(PoolReport {
                device: 3,
                ptr: 0x7f00,
                size: -512,
                total_allocated: 1,
                total_reserved: 2
            })
        );
    }
    for device_type in [0, 2, 12, 19, 21, -1, i32::MAX] {
        record.device_type = device_type;
        assert!(matches!(
            decoder().decode(as_bytes(&record)),
            Outcome::Skipped(Skipped::DeviceType(found)) if found == device_type
        ));
    }
    record.device_type = 1;
    record.device = -1;
    assert!(matches!(
        decoder().decode(as_bytes(&record)),
        Outcome::Skipped(Skipped::NoDevice)
    ));
    record.device = 0;
    record.total_reserved = UNKNOWN_U64;
    assert!(matches!(
        decoder().decode(as_bytes(&record)),
        Outcome::Skipped(Skipped::NoTotals)
    ));
}

#[test]
fn an_oom_has_a_size() {
    let mut record = OomRecord {
        header: header::<OomRecord>(KIND_OOM),
        size: 2048,
        total_allocated: 1,
        total_reserved: 2,
        device_type: 1,
        device: 0,
    };
    assert_eq!(
        event(&mut decoder(), as_bytes(&record)).body,
        Body::Oom(PoolOom {
            device: 0,
            size: 2048,
            total_allocated: 1,
            total_reserved: 2
        })
    );
    record.size = -1;
    assert!(matches!(
        decoder().decode(as_bytes(&record)),
        Outcome::Malformed(Malformed::Value {
            field: "size",
            value: -1
        })
    ));
}

/// While the place of the totals is not proven, they are evidence for the calibration and for nothing else.
#[test]
fn totals_on_trial_are_told_by_no_event() {
    let all = TRACE_HAS_BLOCK | TRACE_HAS_TOTALS;
    for action in 0..9 {
        let record = trace_record(action, all | TRACE_ON_TRIAL);
        let told = trace(record);
        assert_eq!((told.total_allocated, told.total_reserved), (None, None));
        assert_eq!(told.block_size, Some(1024), "it proves itself");
        assert_eq!(totals_on_trial(as_bytes(&record)), Some((5000, 6000)));
    }
    let proven = trace_record(0, all);
    assert_eq!(totals_on_trial(as_bytes(&proven)), Some((5000, 6000)));
    let without = trace_record(0, TRACE_HAS_BLOCK | TRACE_ON_TRIAL);
    assert_eq!(totals_on_trial(as_bytes(&without)), None);
    assert_eq!(totals_on_trial(&[0; 8]), None);
}

#[test]
fn totals_of_an_alloc_are_those_after_it() {
    let all = TRACE_HAS_BLOCK | TRACE_HAS_TOTALS | TRACE_HAS_POOL;
    assert_eq!(
        trace(trace_record(0, all)),
        PoolTrace {
            action: TraceAction::Alloc,
            allocator: 0xa110c,
            device: Some(0),
            addr: 0x7f00_0000_0200,
            size: 1000,
            stream: 9,
            block_size: Some(1024),
            total_allocated: Some(6024),
            total_reserved: Some(6000),
            pool: Some((1, 2)),
        }
    );
    // Without the size of the block, the total after the allocation is not known.
    let bare = trace(trace_record(0, TRACE_HAS_TOTALS));
    assert_eq!(bare.total_allocated, None);
    assert_eq!(bare.total_reserved, Some(6000));
    assert_eq!((bare.block_size, bare.pool), (None, None));
    let nothing = trace(trace_record(0, TRACE_HAS_BLOCK));
    assert_eq!(
        (nothing.total_allocated, nothing.total_reserved),
        (None, None)
    );
    // A sum that overflows is not a total.
    let mut huge = trace_record(0, all);
    huge.total_allocated = u64::MAX;
    assert_eq!(trace(huge).total_allocated, None);
}

#[test]
fn totals_of_other_actions_are_as_memory_held_them() {
    for action in 1..=8 {
        let got = trace(trace_record(action, TRACE_HAS_BLOCK | TRACE_HAS_TOTALS));
        assert_eq!(got.total_allocated, Some(5000), "{:?}", got.action);
        // A segment is subtracted from the total only after its free was recorded and the memory was given back.
        let gone = if got.action == TraceAction::SegmentFree {
            got.size
        } else {
            0
        };
        assert_eq!(got.total_reserved, Some(6000 - gone));
    }
    let without = trace(trace_record(1, TRACE_NO_DEVICE));
    assert_eq!((without.device, without.total_allocated), (None, None));
    for action in [-1, 9, i32::MAX] {
        assert!(matches!(
            decoder().decode(as_bytes(&trace_record(action, 0))),
            Outcome::Skipped(Skipped::UnknownAction(found)) if found == action
        ));
    }
}

#[test]
fn a_calibration_is_a_trace_with_registers() {
    let mut inner = trace_record(1, TRACE_HAS_TOTALS);
    inner.header = RecordHeader {
        flags: TRACE_HAS_TOTALS,
        ..header::<CalibrationRecord>(KIND_CALIBRATION)
    };
    let record = CalibrationRecord {
        trace: inner,
        registers: [1, 2, 3, 4, 5, 6, 7, 8, 9],
        stack: std::array::from_fn(|word| word as u64 + 100),
        caller: 0xca11,
    };
    let bytes = as_bytes(&record);
    let Body::Trace(got) = event(&mut decoder(), bytes).body else {
        panic!()
    };
    assert_eq!(got.action, TraceAction::FreeRequested);
    assert_eq!(
        calibration(bytes),
        Some(Calibration {
            process: ProcessHandle(8),
            tid: 99,
            time_ns: 123,
            action: Some(TraceAction::FreeRequested),
            allocator: 0xa110c,
            addr: 0x7f00_0000_0200,
            size: 1000,
            registers: [1, 2, 3, 4, 5, 6, 7, 8, 9],
            stack: std::array::from_fn(|word| word as u64 + 100),
            caller: 0xca11,
        })
    );
    assert_eq!(calibration(as_bytes(&trace_record(1, 0))), None);
    assert_eq!(calibration(&bytes[..168]), None);
}
