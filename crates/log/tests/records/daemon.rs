//! The daemon's own records, and the repeated ones at the start of a segment.

use crate::common::{as_bytes, header, site, stamp};
use memscope_common::{KERNEL_NAME, KIND_KERNEL, KernelRecord, RecordHeader};
use memscope_ledger::event::*;
use memscope_log::records::*;
use proptest::prelude::*;
use std::mem::offset_of;

fn hardware() -> Hardware {
    Hardware {
        uuid: "GPU-aa11".to_owned(),
        mig_uuid: Some("MIG-1".to_owned()),
        pci_address: Some("0000:01:00.0".to_owned()),
    }
}

fn facts(pid: u32) -> ProcessFacts {
    ProcessFacts {
        pid,
        comm: "python".to_owned(),
        cmdline: vec!["python".to_owned(), "train.py".to_owned()],
        environment: vec![("RANK".to_owned(), "0".to_owned())],
        level: Some(Level::Trace),
        ..ProcessFacts::default()
    }
}

fn attached(process: u32) -> Vec<u8> {
    DaemonRecord::Attached(Box::new(facts(process)))
        .encode(stamp(process))
        .unwrap()
}

fn repeated(mut record: Vec<u8>) -> Vec<u8> {
    record[offset_of!(RecordHeader, flags)] |= REPEATED;
    record
}

fn records() -> Vec<DaemonRecord> {
    vec![
        DaemonRecord::SiteDefined(SiteDefined {
            site: 1,
            function: "cuMemCreate".to_owned(),
            layer: Some(Layer::Driver),
            vendor: Some(Vendor::Ascend),
            op: Some(CallOp::Create),
            library: "/usr/lib/libcuda.so.1".to_owned(),
            offset: u64::MAX,
        }),
        DaemonRecord::Attached(Box::new(facts(4))),
        DaemonRecord::Placed(Placement {
            sites: 4,
            operators: 2,
            ways: vec!["record_trace".to_owned()],
            pool_seen: true,
            function_ends: true,
            libraries: vec!["libc10_cuda.so".to_owned()],
            level: Some(Level::Blocks),
            before_first_memory: Some(true),
        }),
        DaemonRecord::Detached,
        DaemonRecord::Exited,
        DaemonRecord::Replaced,
        DaemonRecord::Coverage(CoverageNote {
            code: "attached_late".to_owned(),
            text: "Ünïcode, \"quotes\" and \0".to_owned(),
        }),
        DaemonRecord::Backend(Backend::Unknown),
        DaemonRecord::Backend(Backend::MallocAsync),
        DaemonRecord::Backend(Backend::Other("my::Allocator".to_owned())),
        DaemonRecord::Clock(Clock { unix_ns: u64::MAX }),
        DaemonRecord::DeviceTotal(DeviceTotal {
            device: 7,
            total_bytes: 1 << 40,
            free_bytes: Some(3),
            reserved_bytes: None,
            process_bytes: Some(9),
            hardware: Some(hardware()),
        }),
        DaemonRecord::RunsOn(RunsOn {
            devices: vec![hardware(), Hardware::default()],
        }),
        DaemonRecord::ReadingCost(ReadingCost {
            at_ns: 7,
            duration_ns: 1_000_000,
            bytes_read: 123_456,
            raced: 3,
        }),
        DaemonRecord::Lost,
    ]
}

#[test]
fn every_kind_comes_back() {
    for record in records() {
        let bytes = record.encode(stamp(3)).unwrap();
        let header = check(&bytes).unwrap();
        assert_eq!(
            (header.process, header.time_ns, header.kind),
            (3, 50, record.kind())
        );
        assert_eq!(DaemonRecord::decode(&bytes).unwrap(), Some(record));
    }
}

#[test]
fn events_are_those_of_the_ledger() {
    let mut decoder = Decoder::new(1);
    let mut bodies = Vec::new();
    for record in records() {
        match decoder.decode(&record.encode(stamp(3)).unwrap()) {
            Outcome::Decoded(event) => bodies.push(event.body),
            Outcome::Notice(notice) => assert!(matches!(notice.what, What::SiteDefined(_))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bodies.len(), records().len() - 1);
    assert_eq!(bodies[0], Body::Attached(Box::new(facts(4))));
    assert_eq!(bodies[9], Body::Clock { unix_ns: u64::MAX });
    assert_eq!(decoder.site(1).unwrap().function, "cuMemCreate");
}

#[test]
fn broken_json_is_malformed() {
    let mut bytes = DaemonRecord::Clock(Clock { unix_ns: 5 })
        .encode(stamp(0))
        .unwrap();
    bytes[Header::SIZE] = b'[';
    assert!(matches!(
        Decoder::new(1).decode(&bytes),
        Outcome::Malformed(Malformed::Json {
            kind: KIND_CLOCK,
            ..
        })
    ));
}

#[test]
fn a_preamble_changes_nothing_for_who_knows_it() {
    let mut decoder = Decoder::new(1);
    let known = |outcome: Outcome| matches!(outcome, Outcome::Skipped(Skipped::Repeated));
    let placed = DaemonRecord::Placed(Placement::default())
        .encode(stamp(8))
        .unwrap();
    let clock = DaemonRecord::Clock(Clock { unix_ns: 1 })
        .encode(stamp(0))
        .unwrap();
    for record in [&clock, &attached(8), &placed] {
        assert!(matches!(decoder.decode(record), Outcome::Decoded(_)));
    }
    for record in [clock, attached(8), placed] {
        assert!(known(decoder.decode(&repeated(record))));
    }
    assert!(matches!(
        decoder.decode(&repeated(site(1, "cudaFree", Some(Layer::Runtime)))),
        Outcome::Notice(_)
    ));
    assert_eq!(
        decoder.next_sequence(),
        4,
        "repeated records take no number"
    );
}

#[test]
fn a_preamble_is_all_there_is_for_who_begins_there() {
    let mut decoder = Decoder::new(1);
    decoder.seek(1000);
    let placed = DaemonRecord::Placed(Placement::default())
        .encode(stamp(8))
        .unwrap();
    let note = DaemonRecord::Coverage(CoverageNote {
        code: "a".to_owned(),
        text: "b".to_owned(),
    })
    .encode(stamp(8))
    .unwrap();
    let preamble = [attached(8), placed, note.clone(), note].map(repeated);
    for record in &preamble {
        let Outcome::Decoded(event) = decoder.decode(record) else {
            panic!()
        };
        assert_eq!(event.id.sequence, 999);
    }
    assert!(matches!(
        decoder.decode(&DaemonRecord::Detached.encode(stamp(8)).unwrap()),
        Outcome::Decoded(event) if event.id.sequence == 1000
    ));
    for record in &preamble {
        assert!(matches!(
            decoder.decode(record),
            Outcome::Skipped(Skipped::Repeated)
        ));
    }
}

/// The name of a kernel, as a program sends it.
fn kernel_named(process: u32) -> KernelRecord {
    KernelRecord {
        header: RecordHeader {
            process,
            ..header::<KernelRecord>(KIND_KERNEL)
        },
        handle: 7,
        name_len: 4,
        reserved: 0,
        name: [b'k'; KERNEL_NAME],
    }
}

/// Every checkpoint has the decoder in it.
#[test]
fn processes_that_ended_take_no_room() {
    let mut decoder = Decoder::new(1);
    let visible = (
        Vendor::Ascend.facts().visible_devices.to_owned(),
        "3,1".to_owned(),
    );
    for process in 1..=10_000 {
        let facts = ProcessFacts {
            environment: vec![visible.clone()],
            ..facts(process)
        };
        let attached = DaemonRecord::Attached(Box::new(facts));
        let end = match process % 3 {
            0 => DaemonRecord::Exited,
            1 => DaemonRecord::Detached,
            _ => DaemonRecord::Replaced,
        };
        // The end is told by the daemon, and a record that the program sent before it may be read after it.
        for record in [
            &attached.encode(stamp(process)).unwrap()[..],
            as_bytes(&kernel_named(process)),
            &end.encode(stamp(process)).unwrap(),
            as_bytes(&kernel_named(process)),
        ] {
            let outcome = decoder.decode(record);
            assert!(
                matches!(outcome, Outcome::Decoded(_) | Outcome::Notice(_)),
                "{outcome:?}"
            );
        }
        assert_eq!(decoder.came(ProcessHandle(process)), 0);
    }
    let kept = serde_json::to_vec(&decoder).unwrap().len();
    assert!(kept < 4096, "{kept} bytes");
}

/// The preambles of an imported recording of format 1 have all of its processes, also those that have ended.
#[test]
fn a_preamble_does_not_bring_a_process_back() {
    let mut decoder = Decoder::new(1);
    let exited = DaemonRecord::Exited.encode(stamp(8)).unwrap();
    for record in [attached(8), attached(9), exited] {
        assert!(matches!(decoder.decode(&record), Outcome::Decoded(_)));
    }
    for process in [8, 9] {
        assert!(matches!(
            decoder.decode(&repeated(attached(process))),
            Outcome::Skipped(Skipped::Repeated)
        ));
    }
    assert!(matches!(
        decoder.decode(&repeated(attached(7))),
        Outcome::Decoded(_)
    ));
}

#[test]
fn a_command_line_too_long_is_cut_and_the_environment_is_not() {
    let mut long = facts(1);
    long.cmdline = (0..100_000).map(|n| format!("--argument={n}")).collect();
    let bytes = DaemonRecord::Attached(Box::new(long.clone()))
        .encode(stamp(1))
        .unwrap();
    let Some(DaemonRecord::Attached(back)) = DaemonRecord::decode(&bytes).unwrap() else {
        panic!()
    };
    assert_eq!(back.cmdline[..100], long.cmdline[..100]);
    assert_eq!(back.cmdline.last().unwrap(), "…");
    assert_eq!(back.environment, long.environment);
}

fn text() -> impl Strategy<Value = String> {
    // Characters that take one byte or six in JSON, and one to four in UTF-8.
    (
        prop_oneof!["[a-z\"\\\\]", "\\PC", Just("\u{1}".to_owned())],
        0usize..40_000,
    )
        .prop_map(|(unit, times)| unit.repeat(times))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_the_size_the_record_is_valid(
        comm in text(),
        cgroup in proptest::option::of(text()),
        cmdline in proptest::collection::vec(text(), 0..12),
        copies in 1usize..400,
        environment in proptest::collection::vec(("[A-Z_]{1,20}", text()), 0..6),
    ) {
        let cmdline: Vec<String> =
            cmdline.iter().cycle().take(cmdline.len() * copies).map(|arg| arg.chars().take(300).collect()).collect();
        let whole = ProcessFacts { comm, cgroup, cmdline, environment, ..facts(9) };
        let bytes = DaemonRecord::Attached(Box::new(whole.clone())).encode(stamp(9)).unwrap();
        prop_assert!(check(&bytes).is_ok());
        prop_assert!(bytes.len() <= MAX_JSON + 48);
        let Some(DaemonRecord::Attached(back)) = DaemonRecord::decode(&bytes).unwrap() else {
            panic!()
        };
        let begins = |short: &str, long: &str| {
            short == long || long.starts_with(short.strip_suffix('…').unwrap_or(short))
        };
        prop_assert!(begins(&back.comm, &whole.comm));
        for (short, long) in back.cmdline.iter().zip(&whole.cmdline) {
            prop_assert!(begins(short, long));
        }
        for (short, long) in back.environment.iter().zip(&whole.environment) {
            prop_assert_eq!(&short.0, &long.0);
            prop_assert!(begins(&short.1, &long.1));
        }
        if serde_len(&whole) <= MAX_JSON {
            prop_assert_eq!(*back, whole);
        }
    }
}

fn serde_len(facts: &ProcessFacts) -> usize {
    serde_json::to_vec(facts).unwrap().len()
}
