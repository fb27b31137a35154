//! Packs records for the disk, and unpacks them.
//!
//! Owns: the form in which the records of a batch are stored. Refuses: the meaning of records. Any whole records come
//! back byte for byte.
//!
//! Records of the BPF programs are rows of 64-bit words that change little from one record to the next: the same
//! process and thread, a time and a number that increase, addresses close to each other. So the words of records of the
//! same kind and length are stored as columns of differences to the previous record, in as few bytes as each difference
//! needs, and the result is compressed by zstd. Other records (JSON, stacks) are compressed by zstd as they are.
//!
//! ```text
//! packed  = length of what follows: u32,
//!           zstd(number of records: u32, (length: u16, kind: u16) of each, columns, other records)
//! columns = for each (length, kind) in the order of first appearance: for each word: for each record: difference
//! ```

use crate::journal::format::{ALIGN, BATCH_HEADER, BatchHeader, Packing};
use crate::records::{Header, RecordReader};
use memscope_common::KIND_DAEMON_FIRST;

/// Maximum length in bytes of records that are stored as columns. Longer records are rare.
const COLUMNS_MOST: usize = 256;
/// A fast level, because a record must cost next to nothing. Slower levels save only a tenth.
const LEVEL: i32 = 1;
/// Number of different lengths that such records can have. Lengths are multiples of 8.
const LENGTHS: usize = COLUMNS_MOST / ALIGN + 1;
/// Maximum number of bytes in which a word's difference is stored.
const DIFFERENCE_MOST: usize = 10;
/// Bytes of an entry in the list of records.
const LISTED: usize = 4;

/// The bytes were not written by [`pack`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotPacked;

/// Length and kind of a record. Records of the same shape are stored together.
type Shape = (u16, u16);

fn is_columns((len, kind): Shape) -> bool {
    kind < KIND_DAEMON_FIRST && usize::from(len) <= COLUMNS_MOST
}

/// Shapes in the order of their first appearance, each with the positions of its records.
///
/// There are only a few shapes: one for most kinds, and several for kinds whose records have several lengths. So they
/// are found in a table with an entry for each combination of kind and length.
struct Shapes {
    order: Vec<(Shape, Vec<u32>)>,
    /// Place in `order`, plus one; 0: no record of this shape was added yet.
    places: Vec<u32>,
}

impl Default for Shapes {
    fn default() -> Shapes {
        Shapes {
            order: Vec::new(),
            places: vec![0; usize::from(KIND_DAEMON_FIRST) * LENGTHS],
        }
    }
}

impl Shapes {
    /// Only shapes for which [`is_columns`] holds may be added.
    fn add(&mut self, shape: Shape, record: u32) {
        let (len, kind) = shape;
        let Some(place) = self
            .places
            .get_mut(usize::from(kind) * LENGTHS + usize::from(len) / ALIGN)
        else {
            return;
        };
        if *place == 0 {
            self.order.push((shape, Vec::new()));
            *place = self.order.len() as u32;
        }
        if let Some((_, records)) = self.order.get_mut(*place as usize - 1) {
            records.push(record);
        }
    }
}

/// Appends a batch of `count` whole records to `out`. `first_sequence` is the number of the first record, and
/// `ring_position` the position of the ring's reader after them.
pub(crate) fn frame(
    records: &[u8],
    count: u32,
    (first_sequence, ring_position): (u64, u64),
    out: &mut Vec<u8>,
) {
    let packed = pack(records);
    let (stored, packing) = match &packed {
        Some(packed) => (packed.as_slice(), Packing::Packed),
        None => (records, Packing::Plain),
    };
    let header = BatchHeader {
        header_len: BATCH_HEADER,
        // Both are at most `BATCH_MOST`; the caller takes care of that.
        stored: stored.len() as u32,
        len: records.len() as u32,
        count,
        first_sequence,
        ring_position,
        packing,
    };
    header.encode(stored, out);
}

/// Packs whole records. The result is padded to a multiple of 8 bytes. `None` if the bytes are not whole records, or if
/// packing does not make them smaller.
pub(crate) fn pack(records: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut shapes = Shapes::default();
    let mut plain = Vec::with_capacity(records.len() / 2);
    plain.extend_from_slice(&[0; 4]);
    for record in RecordReader::new(records) {
        let record = record.ok()?;
        let kind = Header::read(record).ok()?.kind;
        let shape = (u16::try_from(record.len()).ok()?, kind);
        plain.extend_from_slice(&shape.0.to_ne_bytes());
        plain.extend_from_slice(&shape.1.to_ne_bytes());
        if is_columns(shape) {
            shapes.add(shape, all.len() as u32);
        }
        all.push((shape, record));
    }
    let count = u32::try_from(all.len()).ok()?;
    plain.get_mut(..4)?.copy_from_slice(&count.to_ne_bytes());
    for ((len, _), numbers) in &shapes.order {
        for word in (0..usize::from(*len)).step_by(8) {
            let mut before = 0u64;
            for number in numbers {
                let record = all.get(*number as usize)?.1;
                let value = u64::from_le_bytes(*record.get(word..)?.first_chunk()?);
                put_difference(value.wrapping_sub(before) as i64, &mut plain);
                before = value;
            }
        }
    }
    for (shape, record) in &all {
        if !is_columns(*shape) {
            plain.extend_from_slice(record);
        }
    }
    let compressed = zstd::bulk::compress(&plain, LEVEL).ok()?;
    let mut packed = u32::try_from(compressed.len()).ok()?.to_ne_bytes().to_vec();
    packed.extend_from_slice(&compressed);
    packed.resize(packed.len().next_multiple_of(ALIGN), 0);
    (packed.len() < records.len()).then_some(packed)
}

/// Unpacks `len` bytes of records that [`pack`] has packed. Other bytes may follow in `packed`.
pub(crate) fn unpack(packed: &[u8], len: usize) -> Result<Vec<u8>, NotPacked> {
    // No record is shorter than a header.
    let records = len / Header::SIZE;
    let most = 4 + records * LISTED + len / 8 * DIFFERENCE_MOST;
    let (length, compressed) = packed.split_first_chunk().ok_or(NotPacked)?;
    let compressed = compressed
        .get(..u32::from_ne_bytes(*length) as usize)
        .ok_or(NotPacked)?;
    let plain = zstd::bulk::decompress(compressed, most).map_err(|_| NotPacked)?;
    let (count, rest) = plain.split_first_chunk().ok_or(NotPacked)?;
    let count = u32::from_ne_bytes(*count) as usize;
    let (list, mut rest) = rest
        .split_at_checked(count.checked_mul(LISTED).ok_or(NotPacked)?)
        .ok_or(NotPacked)?;
    let mut shapes = Shapes::default();
    let mut places = Vec::with_capacity(count);
    let mut at = 0usize;
    for (number, listed) in (0u32..).zip(list.chunks_exact(LISTED)) {
        let [a, b, c, d] = listed else {
            return Err(NotPacked);
        };
        let shape = (u16::from_ne_bytes([*a, *b]), u16::from_ne_bytes([*c, *d]));
        if usize::from(shape.0) < Header::SIZE || !shape.0.is_multiple_of(8) {
            return Err(NotPacked);
        }
        places.push((shape, at));
        at += usize::from(shape.0);
        if is_columns(shape) {
            shapes.add(shape, number);
        }
    }
    if at != len {
        return Err(NotPacked);
    }
    let mut out = vec![0u8; len];
    for ((shape_len, _), numbers) in &shapes.order {
        for word in (0..usize::from(*shape_len)).step_by(8) {
            let mut before = 0u64;
            for number in numbers {
                let (_, at) = places.get(*number as usize).ok_or(NotPacked)?;
                before = before.wrapping_add(take_difference(&mut rest)? as u64);
                out.get_mut(at + word..at + word + 8)
                    .ok_or(NotPacked)?
                    .copy_from_slice(&before.to_le_bytes());
            }
        }
    }
    for (shape, at) in places {
        if !is_columns(shape) {
            let (record, left) = rest
                .split_at_checked(usize::from(shape.0))
                .ok_or(NotPacked)?;
            out.get_mut(at..at + record.len())
                .ok_or(NotPacked)?
                .copy_from_slice(record);
            rest = left;
        }
    }
    if rest.is_empty() {
        Ok(out)
    } else {
        Err(NotPacked)
    }
}

/// Writes a difference of either sign: small ones take few bytes. Each byte has seven bits, the lowest come first.
fn put_difference(difference: i64, out: &mut Vec<u8>) {
    let mut left = ((difference << 1) ^ (difference >> 63)) as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn take_difference(bytes: &mut &[u8]) -> Result<i64, NotPacked> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(NotPacked)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    Err(NotPacked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u16, words: usize, seed: u64) -> Vec<u8> {
        let len = Header::SIZE + 8 * words;
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(len as u16).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        let mut state = seed;
        while bytes.len() < len {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(seed);
            bytes.push((state >> 56) as u8);
        }
        bytes
    }

    proptest! {
        #[test]
        fn any_records_come_back(
            list in proptest::collection::vec((0u16..0x110, 0usize..60, any::<u64>()), 0..60),
        ) {
            let records: Vec<u8> = list
                .iter()
                .flat_map(|(kind, words, seed)| record(*kind, *words, *seed))
                .collect();
            if let Some(packed) = pack(&records) {
                prop_assert!(packed.len().is_multiple_of(ALIGN));
                prop_assert_eq!(unpack(&packed, records.len()), Ok(records));
            }
        }

        #[test]
        fn damaged_bytes_are_refused_or_read(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            len in 0usize..4096,
        ) {
            let records: Vec<u8> = (0..40).flat_map(|n| record(4, 10, n / 9)).collect();
            let mut packed = pack(&records).unwrap();
            for (place, byte) in damage {
                let place = place.index(packed.len());
                packed[place] ^= byte;
            }
            for len in [records.len(), len] {
                if let Ok(read) = unpack(&packed, len) {
                    prop_assert_eq!(read.len(), len);
                }
            }
        }

        #[test]
        fn differences_come_back(values in proptest::collection::vec(any::<i64>(), 1..20)) {
            let mut bytes = Vec::new();
            for value in &values {
                put_difference(*value, &mut bytes);
            }
            let mut rest = bytes.as_slice();
            for value in values {
                prop_assert_eq!(take_difference(&mut rest), Ok(value));
            }
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn records_that_go_on_alike_become_small() {
        let records: Vec<u8> = (0..1000u64)
            .flat_map(|n| {
                let mut bytes = record(4, 10, 7);
                bytes[16..24].copy_from_slice(&(1_000_000 + n * 1234).to_le_bytes());
                bytes[24..32].copy_from_slice(&n.to_le_bytes());
                bytes
            })
            .collect();
        let packed = pack(&records).unwrap();
        assert!(packed.len() < records.len() / 50, "{}", packed.len());
    }
}
