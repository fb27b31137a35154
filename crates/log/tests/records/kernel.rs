//! Kernel records are decoded to the events that they stand for.

use crate::common::{as_bytes, header, site, stamp};
use memscope_common::*;
use memscope_ledger::event::*;
use memscope_log::records::*;

fn decoder() -> Decoder {
    let mut decoder = Decoder::new(77);
    decoder.decode(&site(3, "cudaMalloc", Some(Layer::Runtime)));
    decoder
}

fn event(decoder: &mut Decoder, record: &[u8]) -> Event {
    match decoder.decode(record) {
        Outcome::Decoded(event) => event,
        other => panic!("{other:?}"),
    }
}

fn call_record() -> CallRecord {
    CallRecord {
        header: RecordHeader {
            flags: CALL_DEVICE_KNOWN,
            ..header::<CallRecord>(KIND_CALL)
        },
        site: 3,
        status: 0,
        device: 1,
        op: Op::Alloc as u16,
        nested: 2,
        ptr: 0x7f00_0000_0000,
        size: 4096,
        stream: UNKNOWN_U64,
        handle: 5,
        extra: 6,
        duration_ns: 7,
    }
}

#[test]
fn a_call_has_the_name_and_layer_of_its_site() {
    let mut decoder = decoder();
    let event = event(&mut decoder, as_bytes(&call_record()));
    assert_eq!(
        event,
        Event {
            id: EventId {
                epoch: 77,
                sequence: 2
            },
            time_ns: 123,
            process: ProcessHandle(8),
            tid: 99,
            lost_before: 4,
            stack: StackRef::NotTaken,
            sampling: 0,
            body: Body::Call(Call {
                function: "cudaMalloc".into(),
                layer: Layer::Runtime,
                vendor: Vendor::Cuda,
                op: CallOp::Alloc,
                status: 0,
                device: Some(1),
                ptr: 0x7f00_0000_0000,
                size: 4096,
                stream: None,
                handle: 5,
                extra: 0,
                context: 6,
                of_host: false,
                hal: None,
                nested: 2,
                duration_ns: 7,
            }),
        }
    );
}

#[test]
fn a_device_without_evidence_is_unknown() {
    let mut record = call_record();
    record.header.flags = 0;
    let Body::Call(call) = event(&mut decoder(), as_bytes(&record)).body else {
        panic!()
    };
    assert_eq!(call.device, None);
    record.header.flags = CALL_DEVICE_KNOWN;
    record.device = DEVICE_UNKNOWN;
    let Body::Call(call) = event(&mut decoder(), as_bytes(&record)).body else {
        panic!()
    };
    assert_eq!(call.device, None);
}

#[test]
fn every_operation_is_a_call_or_only_a_selection() {
    for number in 0..64 {
        let record = CallRecord {
            op: number,
            ..call_record()
        };
        let outcome = decoder().decode(as_bytes(&record));
        match Op::from_u16(number) {
            None => {
                assert!(matches!(outcome, Outcome::Skipped(Skipped::UnknownOp(n)) if n == number))
            }
            Some(
                Op::SetDevice
                | Op::SetContext
                | Op::PushContext
                | Op::PopContext
                | Op::PrimaryContext
                | Op::NewStream
                | Op::PoolOf,
            ) => {
                assert!(matches!(outcome, Outcome::Skipped(Skipped::NoMemoryOp(n)) if n == number))
            }
            Some(op) => {
                let Outcome::Decoded(Event {
                    body: Body::Call(call),
                    ..
                }) = outcome
                else {
                    panic!("{op:?}")
                };
                assert_eq!(format!("{:?}", call.op), format!("{op:?}"));
            }
        }
    }
}

#[test]
fn calls_at_unknown_or_framework_sites_are_skipped() {
    let mut decoder = decoder();
    let mut record = call_record();
    record.site = 4;
    assert!(matches!(
        decoder.decode(as_bytes(&record)),
        Outcome::Skipped(Skipped::UnknownSite(4))
    ));
    decoder.decode(&site(4, "record_trace", None));
    assert!(matches!(
        decoder.decode(as_bytes(&record)),
        Outcome::Skipped(Skipped::NotACall(4))
    ));
    record.header.process = 0;
    assert!(matches!(
        decoder.decode(as_bytes(&record)),
        Outcome::Skipped(Skipped::NoProcess)
    ));
}

#[test]
fn changes_of_processes_and_mappings() {
    let record = |process, what| ProcessRecord {
        header: RecordHeader {
            process,
            ..header::<ProcessRecord>(KIND_PROCESS)
        },
        what,
        tgid: 10,
        other: 11,
        reserved: 0,
    };
    assert_eq!(
        event(&mut decoder(), as_bytes(&record(8, PROCESS_FORK))).body,
        Body::Forked { child: 11 }
    );
    let notice = |record: &[u8]| match decoder().decode(record) {
        Outcome::Notice(notice) => notice.what,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        notice(as_bytes(&record(0, PROCESS_FORK))),
        What::ForkedElsewhere {
            tgid: 10,
            child: 11
        }
    );
    assert_eq!(
        notice(as_bytes(&record(8, PROCESS_EXEC))),
        What::Exec { tgid: 10 }
    );
    assert_eq!(
        notice(as_bytes(&record(8, PROCESS_EXIT))),
        What::LeaderExited { tgid: 10 }
    );
    assert!(matches!(
        decoder().decode(as_bytes(&record(8, 9))),
        Outcome::Skipped(Skipped::UnknownChange(9))
    ));
    let mappings = MappingsRecord {
        header: header::<MappingsRecord>(KIND_MAPPINGS),
    };
    assert_eq!(notice(as_bytes(&mappings)), What::MappingsChanged);
}

#[test]
fn short_long_and_newer_records_are_told_apart() {
    let record = call_record();
    let whole = as_bytes(&record);
    for len in 0..whole.len() {
        assert!(matches!(
            decoder().decode(&whole[..len]),
            Outcome::Malformed(Malformed::Short { .. } | Malformed::Length { .. })
        ));
    }
    let mut long = whole.to_vec();
    long.extend_from_slice(&[0; 8]);
    assert!(matches!(
        decoder().decode(&long),
        Outcome::Malformed(Malformed::Length {
            said: 112,
            found: 120
        })
    ));
    // A record of a newer build has more fields at its end.
    long[0..2].copy_from_slice(&120u16.to_ne_bytes());
    assert_eq!(
        format!("{:?}", decoder().decode(&long)),
        format!("{:?}", decoder().decode(whole))
    );
    let mut short = whole[..104].to_vec();
    short[0..2].copy_from_slice(&104u16.to_ne_bytes());
    assert!(matches!(
        decoder().decode(&short),
        Outcome::Malformed(Malformed::Size {
            expected: 112,
            found: 104,
            ..
        })
    ));
    let mut newer = record;
    newer.header.version = RECORD_VERSION + 1;
    assert!(matches!(
        decoder().decode(as_bytes(&newer)),
        Outcome::Skipped(Skipped::NewerVersion { .. })
    ));
    newer.header.version = 0;
    assert!(matches!(
        decoder().decode(as_bytes(&newer)),
        Outcome::Malformed(Malformed::Version(0))
    ));
    newer.header.version = RECORD_VERSION;
    newer.header.kind = 99;
    assert!(matches!(
        decoder().decode(as_bytes(&newer)),
        Outcome::Skipped(Skipped::UnknownKind(99))
    ));
}

#[test]
fn every_whole_record_takes_a_number() {
    let mut decoder = decoder();
    let mut unknown = call_record();
    unknown.header.kind = 99;
    let mut odd = call_record();
    odd.header.version = 0;
    decoder.decode(as_bytes(&unknown));
    decoder.decode(as_bytes(&odd));
    // A record that is not whole cannot be in the journal, so it gets no number here either.
    decoder.decode(&as_bytes(&odd)[..48]);
    assert_eq!(event(&mut decoder, as_bytes(&call_record())).id.sequence, 4);
    assert_eq!(decoder.next_sequence(), 5);
    decoder.seek(100);
    assert_eq!(
        event(&mut decoder, as_bytes(&call_record())).id.sequence,
        100
    );
}

fn kernel_record(handle: u64, name: &str) -> KernelRecord {
    let mut record = KernelRecord {
        header: header::<KernelRecord>(KIND_KERNEL),
        handle,
        name_len: name.len() as u32,
        reserved: 0,
        name: [b'?'; KERNEL_NAME],
    };
    record.name[..name.len()].copy_from_slice(name.as_bytes());
    record
}

/// The kernel of a launch with this handle.
fn launched(decoder: &mut Decoder, handle: u64) -> Option<String> {
    let record = LaunchRecord {
        header: header::<LaunchRecord>(KIND_LAUNCH),
        handle,
        site: 4,
        reserved: 0,
    };
    match event(decoder, as_bytes(&record)).body {
        Body::Launch(launch) => {
            assert_eq!(&*launch.function, "cuLaunchKernel");
            launch.kernel.as_deref().map(str::to_owned)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_launch_has_the_name_that_its_kernel_had_last() {
    let mut decoder = decoder();
    decoder.decode(&site(4, "cuLaunchKernel", None));
    assert_eq!(launched(&mut decoder, 0x10), None);
    for (handle, name) in [(0x10, "_Z3addPfi"), (0x20, "triton_red_fused_0")] {
        decoder.decode(as_bytes(&kernel_record(handle, name)));
    }
    assert_eq!(
        launched(&mut decoder, 0x10).as_deref(),
        Some("add(float*, int)")
    );
    assert_eq!(
        launched(&mut decoder, 0x20).as_deref(),
        Some("triton_red_fused_0")
    );
    assert_eq!(launched(&mut decoder, 0), None);
    // The driver uses a handle again; and a text that is no name is not shown.
    decoder.decode(as_bytes(&kernel_record(0x10, "_Z3subPfi")));
    assert_eq!(
        launched(&mut decoder, 0x10).as_deref(),
        Some("sub(float*, int)")
    );
    decoder.decode(as_bytes(&kernel_record(0x10, "\u{1}\u{2}\u{3}")));
    assert_eq!(launched(&mut decoder, 0x10), None);
    // After a detach the names of the process are gone, and are sent again for the next attach.
    let ended = DaemonRecord::Detached.encode(stamp(8)).unwrap();
    decoder.decode(&ended);
    assert_eq!(launched(&mut decoder, 0x20), None);
}
