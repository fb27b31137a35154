//! What is written is read again, also by and from `rmp-serde`, which wrote checkpoints before; and what is damaged is refused.

#![allow(clippy::unwrap_used)]

use memscope_pack::{from_slice, read, to_vec, to_vec_named, write_named};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Number(i64);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pair(u8, String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Plain,
    One(Option<u32>),
    Two(i8, u64),
    Named { text: String, flag: bool },
    Empty {},
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "name")]
enum Tagged {
    Plain,
    Named(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct All {
    number: Number,
    pair: Pair,
    small: (u8, u8),
    #[serde(skip)]
    skipped: u8,
    key: [u8; 20],
    kinds: Vec<Kind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tagged: Option<Tagged>,
    map: BTreeMap<u64, (i16, Option<bool>)>,
    texts: BTreeMap<String, f64>,
    letter: char,
    short: f32,
    unit: Unit,
    nothing: (),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Plain),
        any::<Option<u32>>().prop_map(Kind::One),
        any::<(i8, u64)>().prop_map(|(one, two)| Kind::Two(one, two)),
        any::<(String, bool)>().prop_map(|(text, flag)| Kind::Named { text, flag }),
        Just(Kind::Empty {}),
    ]
}

fn tagged() -> impl Strategy<Value = Tagged> {
    prop_oneof![Just(Tagged::Plain), any::<String>().prop_map(Tagged::Named)]
}

prop_compose! {
    fn all()(
        number in any::<i64>(),
        pair in any::<(u8, String)>(),
        small in any::<(u8, u8)>(),
        key in any::<[u8; 20]>(),
        kinds in vec(kind(), 0..20),
        tagged in proptest::option::of(tagged()),
        map in btree_map(any::<u64>(), any::<(i16, Option<bool>)>(), 0..20),
        texts in btree_map(any::<String>(), any::<i32>().prop_map(f64::from), 0..4),
        letter in any::<char>(),
        short in any::<i16>(),
    ) -> All {
        All {
            number: Number(number),
            pair: Pair(pair.0, pair.1),
            small,
            skipped: 0,
            key,
            kinds,
            tagged,
            map,
            texts,
            letter,
            short: short.into(),
            unit: Unit,
            nothing: (),
        }
    }
}

/// Gives a few bytes at a time.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let few = into.len().min(3);
        self.0.read(into.get_mut(..few).unwrap_or_default())
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in all()) {
        let named = to_vec_named(&all).unwrap();
        prop_assert_eq!(&from_slice::<All>(&named).unwrap(), &all);
        prop_assert_eq!(&read::<All>(&mut Slow(&named)).unwrap(), &all);
        let numbered = to_vec(&all).unwrap();
        prop_assert!(numbered.len() < named.len());
        prop_assert_eq!(&from_slice::<All>(&numbered).unwrap(), &all);
    }

    #[test]
    fn what_others_wrote_is_read(all in all()) {
        let written = rmp_serde::to_vec_named(&all).unwrap();
        prop_assert_eq!(from_slice::<All>(&written).unwrap(), all);
    }

    #[test]
    fn others_read_what_is_written(all in all()) {
        let written = to_vec_named(&all).unwrap();
        prop_assert_eq!(rmp_serde::from_slice::<All>(&written).unwrap(), all);
    }

    #[test]
    fn numbers_keep_their_range(number in any::<u64>()) {
        let written = to_vec(&number).unwrap();
        prop_assert_eq!(from_slice::<u64>(&written).unwrap(), number);
        prop_assert_eq!(from_slice::<u8>(&written).ok(), u8::try_from(number).ok());
        prop_assert_eq!(from_slice::<i32>(&written).ok(), i32::try_from(number).ok());
        prop_assert_eq!(from_slice::<i64>(&written).ok(), i64::try_from(number).ok());
    }

    #[test]
    fn what_is_cut_is_refused(all in all(), part in 0.0..1.0) {
        let mut written = to_vec_named(&all).unwrap();
        written.truncate((written.len() as f64 * part) as usize);
        prop_assert!(from_slice::<All>(&written).is_err());
    }

    /// Whatever comes of it, it comes to an end.
    #[test]
    fn what_is_damaged_ends(all in all(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut written = to_vec_named(&all).unwrap();
        let at = at.index(written.len());
        written[at] = byte;
        let _ = from_slice::<All>(&written);
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Newer {
    before: u8,
    added: Vec<Kind>,
    after: u8,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Older {
    before: u8,
    after: u8,
    #[serde(default)]
    other: Option<u64>,
}

#[test]
fn fields_that_are_not_known_are_passed_over_and_those_that_lack_get_their_default() {
    let added = vec![
        Kind::Plain,
        Kind::Named {
            text: "x".repeat(200_000),
            flag: true,
        },
        Kind::Two(-1, 300),
    ];
    let newer = Newer {
        before: 1,
        added,
        after: 2,
    };
    let written = to_vec_named(&newer).unwrap();
    let older = Older {
        before: 1,
        after: 2,
        other: None,
    };
    assert_eq!(from_slice::<Older>(&written).unwrap(), older);
}

#[test]
fn what_is_longer_than_a_piece_comes_back() {
    let long: Vec<String> = (0..50)
        .map(|n| {
            char::from(b'a' + n % 26)
                .to_string()
                .repeat(n as usize * 1000)
        })
        .collect();
    let mut written = Vec::new();
    write_named(&mut written, &long).unwrap();
    assert_eq!(from_slice::<Vec<String>>(&written).unwrap(), long);
    assert_eq!(
        rmp_serde::from_slice::<Vec<String>>(&written).unwrap(),
        long
    );
}

#[test]
fn a_length_is_believed_only_as_far_as_bytes_follow() {
    for head in [
        [0xdb, 0xff, 0xff, 0xff, 0xff],
        [0xc6, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(from_slice::<String>(&head).is_err());
        assert!(from_slice::<Vec<u64>>(&head).is_err());
    }
    for head in [
        [0xdd, 0xff, 0xff, 0xff, 0xff],
        [0xdf, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(from_slice::<Vec<u64>>(&head).is_err());
        assert!(from_slice::<BTreeMap<u64, u64>>(&head).is_err());
        assert!(from_slice::<serde::de::IgnoredAny>(&head).is_err());
    }
}

#[derive(Debug, Deserialize)]
struct Nested {
    _inner: Vec<Nested>,
}

#[test]
fn what_is_nested_too_deeply_is_refused() {
    // Each level is a map of one field to a list of one.
    let level = b"\x81\xa6_inner\x91";
    let deep: Vec<u8> = level.repeat(100_000);
    let error = from_slice::<Nested>(&deep).unwrap_err();
    assert!(error.to_string().contains("too deeply"), "{error}");
    // What nobody wants may be as deep as it likes: it is not read level by level.
    assert!(
        from_slice::<serde::de::IgnoredAny>(&[level.repeat(100_000), vec![0xc0]].concat()).is_ok()
    );
}

#[test]
fn a_list_of_another_length_is_refused() {
    let written = to_vec(&(1, 2, 3)).unwrap();
    assert!(from_slice::<(u8, u8)>(&written).is_err());
    assert!(from_slice::<(u8, u8, u8, u8)>(&written).is_err());
    assert_eq!(from_slice::<(u8, u8, u8)>(&written).unwrap(), (1, 2, 3));
}

#[test]
fn an_error_of_whoever_gives_the_bytes_is_told() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
    let error = read::<u64>(&mut Broken).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let cause = cause.downcast_ref::<io::Error>().unwrap();
    assert_eq!(cause.kind(), io::ErrorKind::TimedOut);
}
