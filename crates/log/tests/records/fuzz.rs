//! Any bytes at all: decoding never panics, and fields are right at any alignment.

use crate::common::{as_bytes, header, site};
use memscope_common::*;
use memscope_ledger::event::*;
use memscope_log::records::*;
use proptest::prelude::*;

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

/// Number and first length of every kind of record from probes whose length is fixed.
const OF_ONE_LENGTH: [(u16, usize); 15] = {
    const fn of<R: Record>() -> (u16, usize) {
        (R::KIND, R::FIRST_LEN)
    }
    [
        of::<CallRecord>(),
        of::<ReportRecord>(),
        (KIND_WORKSPACE, ReportRecord::FIRST_LEN),
        of::<OomRecord>(),
        of::<TraceRecord>(),
        of::<CalibrationRecord>(),
        of::<ProcessRecord>(),
        of::<MappingsRecord>(),
        of::<MarkRecord>(),
        of::<LaunchesRecord>(),
        of::<LaunchRecord>(),
        of::<KernelRecord>(),
        of::<DomainRecord>(),
        of::<RegionRecord>(),
        (KIND_CODE, size_of::<CodeRecord>()),
    ]
};

proptest! {
    #[test]
    fn what_a_newer_build_adds_changes_nothing(
        (kind, len) in proptest::sample::select(&OF_ONE_LENGTH[..]),
        process in 0..3u32,
        flags in any::<u8>(),
        small in proptest::collection::vec(0..4u8, 5200),
        added in proptest::collection::vec(any::<u8>(), 8..64),
    ) {
        let mut whole = as_bytes(&RecordHeader {
            kind,
            len: len as u16,
            flags,
            process,
            ..header::<CallRecord>(kind)
        }).to_vec();
        // The numbers are small so that most actions, operations and marks are known ones.
        whole.extend_from_slice(&small[..len - Header::SIZE]);
        let mut longer = whole.clone();
        longer.extend_from_slice(&added[..added.len() / 8 * 8]);
        let longer_len = longer.len() as u16;
        longer[..2].copy_from_slice(&longer_len.to_ne_bytes());
        let told = |record: &[u8]| format!("{:?}", decoder().decode(record));
        prop_assert!(!told(&whole).contains("Malformed(Size"), "{}", told(&whole));
        prop_assert_eq!(told(&longer), told(&whole));
        prop_assert_eq!(format!("{:?}", calibration(&longer)), format!("{:?}", calibration(&whole)));
        prop_assert_eq!(totals_on_trial(&longer), totals_on_trial(&whole));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decoder = decoder();
        decoder.decode(&bytes);
        let _ = calibration(&bytes);
        let _ = DaemonRecord::decode(&bytes);
        for record in RecordReader::new(&bytes).flatten() {
            decoder.decode(record);
        }
    }

    #[test]
    fn arbitrary_bodies_behind_a_right_header_do_not_panic(
        kind in prop_oneof![0..9u16, 0x100..0x10cu16],
        flags in any::<u8>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let len = (40 + body.len()).next_multiple_of(8);
        let head = RecordHeader { len: len as u16, flags, ..header::<CallRecord>(kind) };
        let mut bytes = as_bytes(&head).to_vec();
        bytes.extend_from_slice(&body);
        bytes.resize(len, 0);
        let mut decoder = decoder();
        decoder.decode(&bytes);
        let _ = calibration(&bytes);
    }

    #[test]
    fn calls_come_back_field_by_field(
        status in any::<i32>(), device in any::<i32>(), nested in any::<u16>(),
        words in any::<[u64; 6]>(), misaligned in 0usize..8,
    ) {
        prop_assume!(words[0] != UNKNOWN_U64 && words[3] != UNKNOWN_U64);
        let record = CallRecord {
            status, device, nested,
            ptr: words[0], size: words[1], stream: words[2], handle: words[3], extra: words[4],
            duration_ns: words[5],
            ..call_record()
        };
        let mut shifted = vec![0; misaligned];
        shifted.extend_from_slice(as_bytes(&record));
        // A result that could not be read must not become an allocation at the last address.
        for unread in [
            CallRecord { ptr: UNKNOWN_U64, ..record },
            CallRecord { handle: UNKNOWN_U64, ..record },
        ] {
            let outcome = decoder().decode(as_bytes(&unread));
            prop_assert!(matches!(outcome, Outcome::Skipped(Skipped::Unreadable)), "{outcome:?}");
        }
        let Body::Call(call) = event(&mut decoder(), &shifted[misaligned..]).body else { panic!() };
        prop_assert_eq!(call.status, status);
        prop_assert_eq!(call.device, (device >= 0).then_some(device));
        prop_assert_eq!(call.nested, u32::from(nested));
        prop_assert_eq!(call.ptr, words[0]);
        prop_assert_eq!(call.size, if words[1] == UNKNOWN_U64 { 0 } else { words[1] });
        prop_assert_eq!(call.stream, (words[2] != UNKNOWN_U64).then_some(words[2]));
        prop_assert_eq!([call.handle, call.context, call.duration_ns], [words[3], words[4], words[5]]);
    }
}
