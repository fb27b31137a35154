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
use crate::records::Header;
use memscope_common::KIND_DAEMON_FIRST;
use std::io::Cursor;
use std::ops::Range;
use zstd::bulk::{Compressor, Decompressor};

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

/// The bytes were not written by [`Packer`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotPacked;

/// Length and kind of a record. Records of the same shape are stored together.
type Shape = (u16, u16);

fn is_columns((len, kind): Shape) -> bool {
    kind < KIND_DAEMON_FIRST && usize::from(len) <= COLUMNS_MOST
}

/// Shapes in the order of their first appearance, each with the places of its records: where they begin, in bytes.
///
/// There are only a few shapes: one for most kinds, and several for kinds whose records have several lengths. So they
/// are found in a table with an entry for each combination of kind and length.
struct Shapes {
    order: Vec<(Shape, Vec<u32>)>,
    /// Place in `order`, plus one; 0: no record of this shape was added yet.
    places: Vec<u32>,
    /// Lists of an earlier batch, empty, whose memory is used again.
    spare: Vec<Vec<u32>>,
}

impl Default for Shapes {
    fn default() -> Shapes {
        Shapes {
            order: Vec::new(),
            places: vec![0; usize::from(KIND_DAEMON_FIRST) * LENGTHS],
            spare: Vec::new(),
        }
    }
}

impl Shapes {
    fn place(&mut self, (len, kind): Shape) -> Option<&mut u32> {
        let place = usize::from(kind) * LENGTHS + usize::from(len) / ALIGN;
        self.places.get_mut(place)
    }

    /// Only shapes for which [`is_columns`] holds may be added.
    fn add(&mut self, shape: Shape, record: u32) {
        let next = self.order.len() as u32 + 1;
        let Some(place) = self.place(shape) else {
            return;
        };
        let found = *place;
        if found == 0 {
            *place = next;
            let mut records = self.spare.pop().unwrap_or_default();
            records.push(record);
            self.order.push((shape, records));
        } else if let Some((_, records)) = self.order.get_mut(found as usize - 1) {
            records.push(record);
        }
    }

    /// Begins anew, for the next batch.
    fn clear(&mut self) {
        while let Some((shape, mut records)) = self.order.pop() {
            if let Some(place) = self.place(shape) {
                *place = 0;
            }
            records.clear();
            self.spare.push(records);
        }
    }
}

/// Bytes of the length before what is compressed.
const LENGTH: usize = 4;

/// Packs one batch after the other. Its memory is kept from one batch to the next: to make the state of the compression
/// anew takes longer than to pack a small batch.
#[derive(Default)]
pub(crate) struct Packer {
    zstd: Option<Compressor<'static>>,
    shapes: Shapes,
    /// Where the records lie that are not stored as columns.
    others: Vec<Range<usize>>,
    plain: Plain,
    packed: Vec<u8>,
}

/// What is compressed.
#[derive(Default)]
struct Plain {
    /// Room that was used before stays, so that it need not be filled with zeros each time.
    room: Vec<u8>,
    used: usize,
}

impl Plain {
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        self.make_room(bytes.len());
        let end = self.used + bytes.len();
        self.room.get_mut(self.used..end)?.copy_from_slice(bytes);
        self.used = end;
        Some(())
    }

    fn make_room(&mut self, bytes: usize) {
        let needed = self.used + bytes;
        if self.room.len() < needed {
            self.room.resize(needed.max(self.room.len() * 2), 0);
        }
    }

    /// Appends one word of the records at these places, as differences.
    fn push_column(&mut self, records: &[u8], places: &[u32], word: usize) -> Option<()> {
        self.make_room(places.len() * DIFFERENCE_MOST);
        let mut at = self.used;
        let mut before = 0u64;
        for place in places {
            let value = records.get(*place as usize + word..)?.first_chunk()?;
            let value = u64::from_le_bytes(*value);
            let difference = value.wrapping_sub(before) as i64;
            before = value;
            put_difference(difference, &mut self.room, &mut at)?;
        }
        self.used = at;
        Some(())
    }
}

impl Packer {
    /// Appends a batch of `count` whole records to `out`. `first_sequence` is the number of the first record, and
    /// `ring_position` the position of the ring's reader after them.
    pub(crate) fn frame(
        &mut self,
        records: &[u8],
        count: u32,
        (first_sequence, ring_position): (u64, u64),
        out: &mut Vec<u8>,
    ) {
        let (stored, packing) = match self.pack(records) {
            Some(packed) => (packed, Packing::Packed),
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

    /// Packs whole records. The result is padded to a multiple of 8 bytes. `None` if the bytes are not whole records,
    /// or if packing does not make them smaller.
    fn pack(&mut self, records: &[u8]) -> Option<&[u8]> {
        self.list(records)?;
        for (shape, places) in &self.shapes.order {
            for word in (0..usize::from(shape.0)).step_by(8) {
                self.plain.push_column(records, places, word)?;
            }
        }
        for other in &self.others {
            self.plain.push(records.get(other.clone())?)?;
        }
        let plain = self.plain.room.get(..self.plain.used)?;
        if self.zstd.is_none() {
            self.zstd = Some(Compressor::new(LEVEL).ok()?);
        }
        self.packed.clear();
        self.packed.extend_from_slice(&[0; LENGTH]);
        let most = zstd::compress_bound(plain.len());
        self.packed.reserve(most);
        let mut behind_length = Cursor::new(&mut self.packed);
        behind_length.set_position(LENGTH as u64);
        let zstd = self.zstd.as_mut()?;
        let compressed = zstd.compress_to_buffer(plain, &mut behind_length);
        let length = u32::try_from(compressed.ok()?).ok()?.to_ne_bytes();
        self.packed.get_mut(..LENGTH)?.copy_from_slice(&length);
        let padded = self.packed.len().next_multiple_of(ALIGN);
        self.packed.resize(padded, 0);
        (padded < records.len()).then_some(self.packed.as_slice())
    }

    /// Begins `plain` with the list of the records, and finds out where the records of each shape lie.
    fn list(&mut self, records: &[u8]) -> Option<()> {
        self.shapes.clear();
        self.others.clear();
        self.plain.used = 0;
        self.plain.push(&[0; LENGTH])?;
        let mut count = 0u32;
        for record in Places::new(records) {
            let (shape, place) = record?;
            let (len, kind) = (shape.0.to_ne_bytes(), shape.1.to_ne_bytes());
            self.plain.push(&[len[0], len[1], kind[0], kind[1]])?;
            if is_columns(shape) {
                self.shapes.add(shape, u32::try_from(place.start).ok()?);
            } else {
                self.others.push(place);
            }
            count = count.checked_add(1)?;
        }
        let start = self.plain.room.get_mut(..LENGTH)?;
        start.copy_from_slice(&count.to_ne_bytes());
        Some(())
    }
}

/// The shapes and places of consecutive records; `None` where there is no whole record.
struct Places<'a> {
    records: &'a [u8],
    at: usize,
}

impl<'a> Places<'a> {
    fn new(records: &'a [u8]) -> Places<'a> {
        Places { records, at: 0 }
    }

    fn read(&self, rest: &[u8]) -> Option<(Shape, Range<usize>)> {
        let [a, b, c, d] = *rest.first_chunk()?;
        let shape = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let len = usize::from(shape.0);
        let whole = len >= Header::SIZE && len.is_multiple_of(ALIGN) && len <= rest.len();
        whole.then(|| (shape, self.at..self.at + len))
    }
}

impl Iterator for Places<'_> {
    type Item = Option<(Shape, Range<usize>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self
            .records
            .get(self.at..)
            .filter(|rest| !rest.is_empty())?;
        let read = self.read(rest);
        self.at = read
            .as_ref()
            .map_or(self.records.len(), |(_, place)| place.end);
        Some(read)
    }
}

/// Unpacks one batch after the other, and keeps its memory as [`Packer`] does.
#[derive(Default)]
pub(crate) struct Unpacker {
    zstd: Option<Decompressor<'static>>,
    shapes: Shapes,
    others: Vec<Range<usize>>,
    plain: Vec<u8>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Unpacker {
    /// Unpacks `len` bytes of records that [`Packer`] has packed. Other bytes may follow in `packed`. The records take
    /// the place of what is in `out`; after an error it has no meaning.
    pub(crate) fn unpack(
        &mut self,
        packed: &[u8],
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), NotPacked> {
        self.decompress(packed, len)?;
        let (count, rest) = self.plain.split_first_chunk().ok_or(NotPacked)?;
        let count = u32::from_ne_bytes(*count) as usize;
        let (list, mut rest) = rest
            .split_at_checked(count.checked_mul(LISTED).ok_or(NotPacked)?)
            .ok_or(NotPacked)?;
        self.shapes.clear();
        self.others.clear();
        let mut at = 0usize;
        for listed in list.chunks_exact(LISTED) {
            let [a, b, c, d] = listed else {
                return Err(NotPacked);
            };
            let shape = (u16::from_ne_bytes([*a, *b]), u16::from_ne_bytes([*c, *d]));
            let record = usize::from(shape.0);
            if record < Header::SIZE || !record.is_multiple_of(8) {
                return Err(NotPacked);
            }
            if is_columns(shape) {
                let place = u32::try_from(at).map_err(|_| NotPacked)?;
                self.shapes.add(shape, place);
            } else {
                self.others.push(at..at + record);
            }
            at += record;
        }
        if at != len {
            return Err(NotPacked);
        }
        // What is in there from before is overwritten, because every byte belongs to a record.
        out.resize(len, 0);
        for (shape, places) in &self.shapes.order {
            for word in (0..usize::from(shape.0)).step_by(8) {
                take_column(&mut rest, places, word, out)?;
            }
        }
        for place in &self.others {
            let (record, left) = rest.split_at_checked(place.len()).ok_or(NotPacked)?;
            out.get_mut(place.clone())
                .ok_or(NotPacked)?
                .copy_from_slice(record);
            rest = left;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(NotPacked)
        }
    }

    fn decompress(&mut self, packed: &[u8], len: usize) -> Result<(), NotPacked> {
        // No record is shorter than a header.
        let records = len / Header::SIZE;
        let most = LENGTH + records * LISTED + len / 8 * DIFFERENCE_MOST;
        let (length, compressed) = packed.split_first_chunk().ok_or(NotPacked)?;
        let compressed = compressed
            .get(..u32::from_ne_bytes(*length) as usize)
            .ok_or(NotPacked)?;
        if self.zstd.is_none() {
            self.zstd = Some(Decompressor::new().map_err(|_| NotPacked)?);
        }
        self.plain.clear();
        self.plain.reserve(most);
        let zstd = self.zstd.as_mut().ok_or(NotPacked)?;
        zstd.decompress_to_buffer(compressed, &mut self.plain)
            .map(|_| ())
            .map_err(|_| NotPacked)
    }
}

/// Reads one word of the records at these places.
fn take_column(
    rest: &mut &[u8],
    places: &[u32],
    word: usize,
    out: &mut [u8],
) -> Result<(), NotPacked> {
    let mut before = 0u64;
    for place in places {
        before = before.wrapping_add(take_difference(rest)? as u64);
        let at = *place as usize + word;
        let to = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        *to.ok_or(NotPacked)? = before.to_le_bytes();
    }
    Ok(())
}

/// Writes a difference of either sign: small ones take few bytes. Each byte has seven bits, the lowest come first.
/// `None` if `room` ends before.
#[inline]
fn put_difference(difference: i64, room: &mut [u8], at: &mut usize) -> Option<()> {
    let mut left = ((difference << 1) ^ (difference >> 63)) as u64;
    while left >= 0x80 {
        *room.get_mut(*at)? = left as u8 | 0x80;
        *at += 1;
        left >>= 7;
    }
    *room.get_mut(*at)? = left as u8;
    *at += 1;
    Some(())
}

#[inline]
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

    fn pack(records: &[u8]) -> Option<Vec<u8>> {
        Packer::default().pack(records).map(<[u8]>::to_vec)
    }

    fn unpack(packed: &[u8], len: usize) -> Result<Vec<u8>, NotPacked> {
        // What was in the buffer before must not show.
        let mut out = vec![0xaa; 1000];
        Unpacker::default()
            .unpack(packed, len, &mut out)
            .map(|()| out)
    }

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
        fn one_batch_leaves_nothing_to_the_next(
            batches in proptest::collection::vec(
                proptest::collection::vec((0u16..0x110, 0usize..60, any::<u64>()), 0..20),
                1..8,
            ),
        ) {
            let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
            let mut out = Vec::new();
            for list in batches {
                let records: Vec<u8> = list
                    .iter()
                    .flat_map(|(kind, words, seed)| record(*kind, *words, *seed))
                    .collect();
                let packed = packer.pack(&records).map(<[u8]>::to_vec);
                if let Some(packed) = packed {
                    prop_assert_eq!(unpacker.unpack(&packed, records.len(), &mut out), Ok(()));
                    prop_assert_eq!(&out, &records);
                    prop_assert_eq!(unpack(&packed, records.len()), Ok(records));
                    // Bytes that are not packed are refused, and change nothing for the next batch.
                    prop_assert!(unpacker.unpack(&packed, 8, &mut out).is_err());
                }
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
            let mut bytes = vec![0; values.len() * DIFFERENCE_MOST];
            let mut at = 0;
            for value in &values {
                put_difference(*value, &mut bytes, &mut at);
            }
            let mut rest = &bytes[..at];
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
