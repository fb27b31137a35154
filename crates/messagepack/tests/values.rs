//! Whatever `rmp-serde` writes is read as it was. Damaged bytes are refused, or are the value that `rmp-serde` reads too where it reads
//! one; never is there a panic, or room for more bytes than there are.
#![allow(clippy::unwrap_used)]

use memscope_messagepack::{Error, from_read, from_slice};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};

/// Each kind of field that serde knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct All {
    small: (u8, i8, u16, i16),
    large: (u32, i32, u64, i64),
    floats: (f32, f64),
    yes: bool,
    letter: char,
    text: String,
    bytes: Bytes,
    perhaps: Option<Option<u64>>,
    nothing: (),
    empty: Empty,
    new: New,
    list: Vec<Kind>,
    map: BTreeMap<u64, String>,
    by_name: BTreeMap<String, Option<i32>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Empty;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct New(u32);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Plain,
    One(i64),
    Two(u8, String),
    Named { a: u32, b: Vec<u8> },
    Again(Box<Kind>),
}

/// Bytes as a byte string.
#[derive(Clone, Debug, PartialEq)]
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        struct Taken;
        impl serde::de::Visitor<'_> for Taken {
            type Value = Bytes;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Taken)
    }
}

/// Gives the bytes in pieces of this size, interrupted before each.
struct Pieces<'a>(&'a [u8], usize, bool);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.2 = !self.2;
        if self.2 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let now = self.1.min(buffer.len());
        self.0.read(&mut buffer[..now])
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    let leaf = prop_oneof![
        Just(Kind::Plain),
        any::<i64>().prop_map(Kind::One),
        (any::<u8>(), ".{0,40}").prop_map(|(a, b)| Kind::Two(a, b)),
        (any::<u32>(), any::<Vec<u8>>()).prop_map(|(a, b)| Kind::Named { a, b }),
    ];
    leaf.prop_recursive(4, 8, 1, |inner| {
        inner.prop_map(|it| Kind::Again(Box::new(it)))
    })
}

/// Numbers of every width that MessagePack has.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(value, narrower)| value >> narrower)
}

prop_compose! {
    fn all()(
        small in any::<(u8, i8, u16, i16)>(),
        large in (any::<u32>(), any::<i32>(), number(), number()),
        signs in any::<bool>(),
        floats in any::<(i32, i64)>(),
        others in (any::<bool>(), any::<char>(), ".{0,300}", prop::option::of(prop::option::of(number()))),
        bytes in prop::collection::vec(any::<u8>(), 0..70_000),
        new in any::<u32>(),
        list in prop::collection::vec(kind(), 0..20),
        map in prop::collection::btree_map(number(), ".{0,5}", 0..20),
        by_name in prop::collection::btree_map(".{0,5}", any::<Option<i32>>(), 0..5),
    ) -> All {
        let signed = large.3 as i64;
        All {
            small,
            large: (large.0, large.1, large.2, if signs { signed } else { signed.wrapping_neg() }),
            floats: (floats.0 as f32, floats.1 as f64),
            yes: others.0,
            letter: others.1,
            text: others.2,
            bytes: Bytes(bytes),
            // `Some(None)` is nil in MessagePack, as `None` is.
            perhaps: others.3.filter(Option::is_some),
            nothing: (),
            empty: Empty,
            new: New(new),
            list,
            map,
            by_name,
        }
    }
}

fn named<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(value in all(), piece in 1_usize..5000) {
        let written = named(&value);
        prop_assert_eq!(&from_slice::<All>(&written).unwrap(), &value);
        let mut pieces = Pieces(&written, piece, false);
        prop_assert_eq!(&from_read::<All>(&mut pieces).unwrap(), &value);
        let without_names = rmp_serde::to_vec(&value).unwrap();
        prop_assert_eq!(&from_slice::<All>(&without_names).unwrap(), &value);
    }

    #[test]
    fn a_value_that_ends_early_is_refused(value in all(), at in any::<prop::sample::Index>()) {
        let written = named(&value);
        let cut = &written[..at.index(written.len())];
        prop_assert!(matches!(from_slice::<All>(cut), Err(Error::Ended)));
    }

    #[test]
    fn damage_is_no_panic_and_nothing_else_than_the_library_reads(
        value in all(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut written = named(&value);
        for (at, byte) in damage {
            let at = at.index(written.len());
            written[at] = byte;
        }
        let library = rmp_serde::from_slice::<All>(&written);
        if let (Ok(ours), Ok(theirs)) = (from_slice::<All>(&written), library) {
            // Numbers that are none are not equal to themselves.
            prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
    }

    #[test]
    fn fields_that_the_type_does_not_have_are_passed_over(value in all(), more in 0_u32..9) {
        #[derive(Serialize)]
        struct Newer<'a> {
            before: &'a All,
            kept: u32,
            after: Vec<(&'a All, Option<f32>)>,
        }
        #[derive(Deserialize)]
        struct Older {
            kept: u32,
        }
        let newer = Newer { before: &value, kept: more, after: vec![(&value, Some(0.5)), (&value, None)] };
        prop_assert_eq!(from_slice::<Older>(&named(&newer)).unwrap().kept, more);
    }
}

#[test]
fn extensions_are_passed_over() {
    #[derive(Debug, Deserialize)]
    struct Older {
        kept: u32,
    }
    // {"new": an extension of 4 bytes, "kept": 7}
    let written = b"\x82\xa3new\xd6\x01abcd\xa4kept\x07";
    assert_eq!(from_slice::<Older>(written).unwrap().kept, 7);
}

#[test]
fn a_length_is_not_believed_before_its_bytes_are_there() {
    // Byte strings, strings, lists and maps of 4,294,967,295 bytes or entries, and nothing after. Room for these would end the process.
    for claim in [0xc6_u8, 0xdb, 0xdd, 0xdf] {
        let written = [claim, 0xff, 0xff, 0xff, 0xff];
        assert!(from_slice::<Bytes>(&written).is_err());
        assert!(from_slice::<String>(&written).is_err());
        assert!(from_slice::<Vec<u64>>(&written).is_err());
        assert!(from_slice::<BTreeMap<u64, u64>>(&written).is_err());
        assert!(from_slice::<serde::de::IgnoredAny>(&written).is_err());
    }
}

#[test]
fn lists_in_lists_end() {
    #[derive(Debug, Serialize, Deserialize)]
    struct List(Vec<List>);
    let nested = |levels: usize| [vec![0x91; levels], vec![0x90]].concat();
    assert!(from_slice::<List>(&nested(1000)).is_ok());
    let deep = from_slice::<List>(&nested(100_000));
    assert!(matches!(deep, Err(Error::TooDeep(_))), "{deep:?}");
    let variants = [b"\x81\xa5Again".repeat(100_000), b"\xa5Plain".to_vec()].concat();
    assert!(matches!(
        from_slice::<Kind>(&variants),
        Err(Error::TooDeep(_))
    ));
    // What is passed over may be as deep as it likes.
    assert!(from_slice::<serde::de::IgnoredAny>(&nested(100_000)).is_ok());
}

#[test]
fn other_kinds_are_refused_by_name() {
    let said = |error: Error| error.to_string();
    let text = named(&"7");
    assert_eq!(
        said(from_slice::<u64>(&text).unwrap_err()),
        "there is a string where an integer should be"
    );
    assert_eq!(
        said(from_slice::<(u8, u8)>(&named(&(1, 2, 3))).unwrap_err()),
        "a list or map has 1 entries too many"
    );
    assert!(from_slice::<u8>(&named(&300)).is_err());
    assert!(from_slice::<Kind>(&named(&"One")).is_err());
    assert!(from_slice::<Kind>(&named(&"Other")).is_err());
    assert!(from_slice::<bool>(&[0xc1]).is_err());
    assert_eq!(
        said(from_slice::<String>(b"\xa2\xff\xff").unwrap_err()),
        "a string is not valid UTF-8"
    );
    // An integer where a floating-point number is wanted is one.
    assert_eq!(from_slice::<f64>(&named(&-3)).unwrap(), -3.0);
}

#[test]
fn a_source_that_fails_says_why() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let failed = from_read::<u64>(&mut Fails).unwrap_err();
    assert!(matches!(failed, Error::Read(why) if why.kind() == io::ErrorKind::PermissionDenied));
}
