//! Tests with pickles: some as Python writes them, and hostile ones.
#![allow(clippy::unwrap_used)]

use super::*;
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;

/// `{"segments": [{"address": 2**63, "size": -2}], "same": …}` by CPython 3.11, protocol 4.
fn sample() -> Vec<u8> {
    let mut bytes = vec![0x80, 4, 0x95, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(b"}\x94(\x8c\x08segments\x94]\x94}\x94(\x8c\x07address\x94");
    bytes.extend([0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0x80, 0]);
    bytes.extend(b"\x8c\x04size\x94\x8a\x01\xfeu\x61\x8c\x04same\x94h\x02u.");
    bytes
}

#[test]
fn reads_what_python_writes() {
    let pickle = Pickle::read(&sample()[..]).unwrap();
    let segments = pickle.get(pickle.root(), "segments").unwrap();
    assert_eq!(pickle.get(pickle.root(), "same"), Some(segments));
    let first = pickle.list(segments).unwrap()[0];
    assert_eq!(
        pickle.get(first, "address").unwrap().unsigned(),
        Some(1 << 63)
    );
    assert_eq!(pickle.get(first, "size"), Some(Value::Signed(-2)));
    assert_eq!(pickle.get(first, "none"), None);
    assert_eq!(pickle.text(segments), None);
}

#[test]
fn names_no_code() {
    // os.system("true"), as a hostile file would have it.
    let bytes = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.";
    let refused = Pickle::read(&bytes[..]).unwrap_err();
    assert!(
        matches!(refused, PickleError::Opcode { opcode: 0x93, .. }),
        "{refused}"
    );
    // The global of older protocols.
    let refused = Pickle::read(&b"\x80\x02cposix\nsystem\n."[..]).unwrap_err();
    assert!(matches!(refused, PickleError::Opcode { opcode: b'c', .. }));
}

#[test]
fn what_holds_itself_or_doubles_is_small() {
    // A list that contains itself.
    let pickle = Pickle::read(&b"\x80\x02]q\x00h\x00a."[..]).unwrap();
    let list = pickle.list(pickle.root()).unwrap();
    assert_eq!(list, [pickle.root()]);
    // Thirty tuples, each with the one before twice: 2^30 values if each were a copy.
    let mut bytes = b"\x80\x02]q\x00".to_vec();
    for place in 0..30u8 {
        bytes.extend([b'h', place, b'h', place, 0x86, b'q', place + 1]);
    }
    bytes.push(b'.');
    let pickle = Pickle::read(&bytes[..]).unwrap();
    assert_eq!(pickle.nodes.len(), 31);
    // A million lists in lists.
    let mut bytes = b"\x80\x02".to_vec();
    bytes.extend(std::iter::repeat_n(b']', 1_000_000));
    bytes.extend(std::iter::repeat_n(b'a', 999_999));
    bytes.push(b'.');
    assert!(Pickle::read(&bytes[..]).is_ok());
}

#[test]
fn memory_has_a_limit() {
    // Values, marks, containers, texts, and memo entries of one value: each counts.
    let texts: Vec<u8> = (0..=255u8)
        .flat_map(|n| [0x8c, 2, b'a' + n % 16, b'a' + n / 16])
        .collect();
    let places: Vec<u8> = (0..=255u8).flat_map(|n| [b'q', n]).collect();
    for bytes in [
        vec![b'N'; 300],
        vec![b'('; 300],
        vec![b']'; 300],
        texts,
        [&b"N"[..], &places].concat(),
    ] {
        let bytes = [b"\x80\x04", &bytes[..]].concat();
        let refused = Pickle::read_within(&bytes[..], 5000).unwrap_err();
        assert!(matches!(refused, PickleError::TooLarge { .. }), "{refused}");
    }
    assert!(Pickle::read_within(&sample()[..], 5000).is_ok());
    // A length without that many bytes behind it takes no memory.
    let refused = Pickle::read(&b"\x80\x04X\xff\xff\xff\x00abc"[..]).unwrap_err();
    assert!(
        matches!(refused, PickleError::EndsEarly { .. }),
        "{refused}"
    );
    let refused = Pickle::read(&b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"[..]).unwrap_err();
    assert!(matches!(refused, PickleError::Broken { .. }), "{refused}");
    Met {
        what: "memory that the values of a pickle take",
        most: constant("crates/pickle/src/reader.rs", "MOST_BYTES"),
        beyond: "the file is refused",
        told: "the error says how much",
        test: "memory_has_a_limit",
    }
    .is_told();
}

/// A list of many values takes room on the stack and in the list at the same time; one that grows by and by does not.
#[test]
fn the_stack_counts_as_high_as_it_was() {
    let at_once = [&b"\x80\x04]("[..], &[b'N'; 300], b"e."].concat();
    let by_and_by = [&b"\x80\x04]"[..], &b"Na".repeat(300), b"."].concat();
    let limit = 450 * VALUE + NODE;
    let refused = Pickle::read_within(&at_once[..], limit).unwrap_err();
    assert!(matches!(refused, PickleError::TooLarge { .. }), "{refused}");
    assert!(Pickle::read_within(&by_and_by[..], limit).is_ok());
}

#[test]
fn every_beginning_of_a_pickle_ends_early() {
    let whole = sample();
    for end in 0..whole.len() {
        let error = Pickle::read(&whole[..end]).unwrap_err();
        assert!(matches!(error, PickleError::EndsEarly { .. }), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut pickle = vec![0x80, 4];
        pickle.extend(&bytes);
        let _ = Pickle::read(&bytes[..]);
        let _ = Pickle::read(&pickle[..]);
    }

    #[test]
    fn any_opcodes_are_read_or_refused(
        opcodes in prop::collection::vec(
            prop::sample::select(&b"(N\x88\x89JKM\x8aG\x8cX\x8d}])\x85\x86\x87tldaesu\x94qrhj."[..]),
            0..300,
        )
    ) {
        let mut pickle = vec![0x80, 4];
        pickle.extend(&opcodes);
        let _ = Pickle::read(&pickle[..]);
    }

    #[test]
    fn damage_is_read_or_refused(at in 0usize..90, byte in any::<u8>()) {
        let mut bytes = sample();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        let _ = Pickle::read(&bytes[..]);
    }
}
