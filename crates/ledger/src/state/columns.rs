//! Long lists in checkpoints, as columns of numbers.
//!
//! Owns: their form. Refuses: what the numbers mean.
//!
//! A process may have millions of blocks and hundreds of thousands of entries in its trace. Each of them with the names of its
//! fields, as the rest of a checkpoint is written, takes a microsecond to read. So some rows at a time are written as one
//! piece of bytes: column by column, each number as its difference to the one in the row before, in as few bytes as it
//! needs. Lists that older checkpoints have with the names of their fields are read as well.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// Rows in one piece.
const PIECE: usize = 1024;

/// What can be a row of numbers.
pub(crate) trait Row: Sized {
    /// An array of numbers.
    type Numbers: Copy + Default + AsRef<[u64]> + AsMut<[u64]>;

    fn numbers(&self) -> Self::Numbers;

    /// The reverse of [`Row::numbers`]; `None` if no row has these numbers.
    fn of(numbers: &Self::Numbers) -> Option<Self>;
}

/// Writes a difference of either sign: small ones take few bytes.
fn put(difference: u64, out: &mut Vec<u8>) {
    let signed = difference as i64;
    let mut left = ((signed << 1) ^ (signed >> 63)) as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value >> 1) ^ (value & 1).wrapping_neg());
        }
    }
    None
}

fn pack<N: AsRef<[u64]>>(rows: &[N]) -> Vec<u8> {
    let width = rows.first().map_or(0, |row| row.as_ref().len());
    let mut out = Vec::with_capacity(rows.len() * 2 * width + 2);
    put(rows.len() as u64, &mut out);
    for column in 0..width {
        let mut before = 0u64;
        for number in rows.iter().filter_map(|row| row.as_ref().get(column)) {
            put(number.wrapping_sub(before), &mut out);
            before = *number;
        }
    }
    out
}

fn unpack<R: Row>(mut bytes: &[u8]) -> Option<Vec<R>> {
    let count = usize::try_from(take(&mut bytes)?).ok();
    let count = count.filter(|count| *count <= PIECE)?;
    let empty = R::Numbers::default();
    let mut rows = vec![empty; count];
    for column in 0..empty.as_ref().len() {
        let mut before = 0u64;
        for row in &mut rows {
            before = before.wrapping_add(take(&mut bytes)?);
            *row.as_mut().get_mut(column)? = before;
        }
    }
    if !bytes.is_empty() {
        return None;
    }
    rows.iter().map(R::of).collect()
}

struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Writes `count` rows.
pub(crate) fn write<R: Row, S: Serializer>(
    rows: impl Iterator<Item = R>,
    count: usize,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut pieces = serializer.serialize_seq(Some(count.div_ceil(PIECE)))?;
    let mut some = Vec::with_capacity(PIECE.min(count));
    for row in rows {
        some.push(row.numbers());
        if some.len() == PIECE {
            pieces.serialize_element(&Bytes(&pack(&some)))?;
            some.clear();
        }
    }
    if !some.is_empty() {
        pieces.serialize_element(&Bytes(&pack(&some)))?;
    }
    pieces.end()
}

/// Writes all rows of a list, for `serialize_with`.
pub(crate) fn write_all<'a, L, R, S>(list: &'a L, serializer: S) -> Result<S::Ok, S::Error>
where
    &'a L: IntoIterator<Item = &'a R, IntoIter: ExactSizeIterator>,
    R: Row + Copy + 'a,
    S: Serializer,
{
    let rows = list.into_iter();
    let count = rows.len();
    write(rows.copied(), count, serializer)
}

/// An element of a list: a piece with many rows, or in an older checkpoint one row with the names of its fields.
enum Element<R> {
    Piece(Vec<R>),
    Named(R),
}

impl<'de, R: Row + Deserialize<'de>> Deserialize<'de> for Element<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element<R>, D::Error> {
        struct Read<R>(PhantomData<R>);

        impl<'de, R: Row + Deserialize<'de>> Visitor<'de> for Read<R> {
            type Value = Element<R>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("rows as columns, or a row with the names of its fields")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Element<R>, E> {
                unpack(bytes)
                    .map(Element::Piece)
                    .ok_or_else(|| E::custom("columns of numbers are damaged"))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element<R>, A::Error> {
                R::deserialize(MapAccessDeserializer::new(map)).map(Element::Named)
            }
        }
        deserializer.deserialize_any(Read(PhantomData))
    }
}

/// Reads all rows of a list, for `deserialize_with`.
pub(crate) fn read_all<'de, L, R, D>(deserializer: D) -> Result<L, D::Error>
where
    L: Default + Extend<R> + IntoIterator<Item = R>,
    R: Row + Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Read<L>(PhantomData<L>);

    impl<'de, L> Visitor<'de> for Read<L>
    where
        L: Default + Extend<L::Item> + IntoIterator<Item: Row + Deserialize<'de>>,
    {
        type Value = L;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a list of rows")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<L, A::Error> {
            let mut list = L::default();
            while let Some(element) = elements.next_element()? {
                match element {
                    Element::Piece(rows) => list.extend(rows),
                    Element::Named(row) => list.extend(Some(row)),
                }
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(Read(PhantomData))
}

/// The pieces of what an older checkpoint has as a map.
struct Piece<R>(Vec<R>);

impl<'de, R: Row> Deserialize<'de> for Piece<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Piece<R>, D::Error> {
        struct Read<R>(PhantomData<R>);

        impl<R: Row> Visitor<'_> for Read<R> {
            type Value = Piece<R>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("rows as columns")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Piece<R>, E> {
                unpack(bytes)
                    .map(Piece)
                    .ok_or_else(|| E::custom("columns of numbers are damaged"))
            }
        }
        deserializer.deserialize_bytes(Read(PhantomData))
    }
}

/// Reads rows of a key and a value each, which an older checkpoint has as a map.
pub(crate) fn read_map<'de, K, V, D>(
    deserializer: D,
    take: impl FnMut(K, V),
) -> Result<(), D::Error>
where
    (K, V): Row,
    K: Deserialize<'de>,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Read<K, V, F>(F, PhantomData<(K, V)>);

    impl<'de, K, V, F> Visitor<'de> for Read<K, V, F>
    where
        (K, V): Row,
        K: Deserialize<'de>,
        V: Deserialize<'de>,
        F: FnMut(K, V),
    {
        type Value = ();

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("rows as columns, or a map")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut pieces: A) -> Result<(), A::Error> {
            while let Some(Piece(rows)) = pieces.next_element::<Piece<(K, V)>>()? {
                for (key, value) in rows {
                    (self.0)(key, value);
                }
            }
            Ok(())
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some((key, value)) = map.next_entry()? {
                (self.0)(key, value);
            }
            Ok(())
        }
    }
    deserializer.deserialize_any(Read(take, PhantomData))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    struct Two {
        one: u64,
        other: u64,
    }

    impl Row for Two {
        type Numbers = [u64; 2];

        fn numbers(&self) -> [u64; 2] {
            [self.one, self.other]
        }

        fn of(numbers: &[u64; 2]) -> Option<Two> {
            let [one, other] = *numbers;
            Some(Two { one, other })
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct List(
        #[serde(serialize_with = "write_all", deserialize_with = "read_all")] Vec<Two>,
        u8,
    );

    fn two((one, other): (u64, u64)) -> Two {
        Two { one, other }
    }

    proptest! {
        #[test]
        fn any_rows_come_back(rows in proptest::collection::vec(any::<(u64, u64)>(), 0..3000)) {
            let list = List(rows.into_iter().map(two).collect(), 7);
            let written = rmp_serde::to_vec_named(&list).unwrap();
            prop_assert_eq!(memscope_messagepack::from_slice::<List>(&written).unwrap(), list);
        }

        #[test]
        fn damaged_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(rows) = unpack::<Two>(&bytes) {
                prop_assert!(rows.len() <= PIECE);
            }
        }

        /// As checkpoints had it before.
        #[test]
        fn rows_with_names_are_read(rows in proptest::collection::vec(any::<(u64, u64)>(), 0..60)) {
            let rows: Vec<Two> = rows.into_iter().map(two).collect();
            let written = rmp_serde::to_vec_named(&(&rows, 7u8)).unwrap();
            prop_assert_eq!(memscope_messagepack::from_slice::<List>(&written).unwrap(), List(rows, 7));
        }
    }
}
