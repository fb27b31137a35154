//! Reading records out of foreign bytes, and the common header.

use crate::records::outcome::Malformed;
use core::mem::size_of;
use memscope_common::{KIND_DAEMON_FIRST, Record, RecordHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `header.flags` of a daemon's record that a journal segment begins with, so that it can be read
/// without the segments before it. The record was in the journal before; this copy has no number
/// of its own.
pub const REPEATED: u8 = 0x80;

/// Integers at offsets of a byte slice of any alignment.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

macro_rules! integers {
    ($($name:ident: $int:ty),*) => {$(
        pub(crate) fn $name(self, at: usize) -> Result<$int, Malformed> {
            Ok(<$int>::from_ne_bytes(self.array(at)?))
        }
    )*};
}

impl Bytes<'_> {
    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], Malformed> {
        self.0
            .get(at..)
            .and_then(|rest| rest.first_chunk::<N>())
            .copied()
            .ok_or(Malformed::Short {
                found: self.0.len(),
            })
    }
    integers!(u32: u32, u64: u64);
}

/// Reads a record of a kind. One that is longer than this build knows is read as far as it is known; of a shorter one, whose writer did not
/// have the last fields yet, these are 0.
pub(crate) fn read<R: Record + FromBytes + IntoBytes + Immutable>(
    header: &Header,
    record: &[u8],
) -> Result<R, Malformed> {
    at_least(header, R::FIRST_LEN)?;
    let mut whole = R::new_zeroed();
    let known = record.len().min(size_of::<R>());
    let to = whole.as_mut_bytes().get_mut(..known);
    if let (Some(to), Some(from)) = (to, record.get(..known)) {
        to.copy_from_slice(from);
    }
    Ok(whole)
}

/// Refuses a record that is shorter than every one of its kind.
pub(crate) fn at_least(header: &Header, first_len: usize) -> Result<(), Malformed> {
    if header.len >= first_len {
        return Ok(());
    }
    Err(Malformed::Size {
        kind: header.kind,
        expected: first_len,
        found: header.len,
    })
}

/// The common part of a record, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole record in bytes.
    pub len: usize,
    /// Kind, known or not.
    pub kind: u16,
    /// Version of the writer's layouts.
    pub version: u8,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// The daemon's handle of the process.
    pub process: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Number among the records of the process.
    pub sequence: u64,
    /// Records of the process lost before this one.
    pub lost_before: u64,
    /// Stack: an identity, or why there is none.
    pub stack: u64,
}

impl Header {
    /// Size of a header in bytes.
    pub const SIZE: usize = size_of::<RecordHeader>();

    /// Reads the header at the start of `bytes`, which may go on behind the record. The length it
    /// gives is at least a header's and a multiple of 8; whether so many bytes are there is
    /// the caller's to see.
    pub fn read(bytes: &[u8]) -> Result<Header, Malformed> {
        let (raw, _) = RecordHeader::read_from_prefix(bytes)
            .map_err(|_| Malformed::Short { found: bytes.len() })?;
        let header = Header {
            len: usize::from(raw.len),
            kind: raw.kind,
            version: raw.version,
            flags: raw.flags,
            process: raw.process,
            tid: raw.tid,
            time_ns: raw.time_ns,
            sequence: raw.sequence,
            lost_before: raw.lost_before,
            stack: raw.stack,
        };
        if header.len < Self::SIZE || !header.len.is_multiple_of(8) {
            return Err(Malformed::LengthField { said: header.len });
        }
        Ok(header)
    }

    /// Whether the record stands in the preamble of a segment of a journal of format 1 (see [`REPEATED`]).
    pub fn is_repeated(&self) -> bool {
        self.kind >= KIND_DAEMON_FIRST && self.flags & REPEATED != 0
    }
}

/// Whether `record` is exactly one whole record, of whatever kind. What fails here has no place in
/// a journal and no number: count it and drop it.
pub fn check(record: &[u8]) -> Result<Header, Malformed> {
    let header = Header::read(record)?;
    if header.len != record.len() {
        return Err(Malformed::Length {
            said: header.len,
            found: record.len(),
        });
    }
    Ok(header)
}

/// Whether `record` is whole and repeated: such a record has no number.
pub fn is_repeated(record: &[u8]) -> bool {
    Header::read(record).is_ok_and(|header| header.is_repeated())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A record that had one number at first, and got a second one.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
    struct Grown {
        header: RecordHeader,
        first: u64,
        second: u64,
    }

    impl Record for Grown {
        const KIND: u16 = 77;
        const FIRST_LEN: usize = Header::SIZE + 8;
    }

    #[test]
    fn a_field_that_an_older_build_did_not_have_is_zero() {
        let mut whole = vec![7; size_of::<Grown>()];
        let numbers = |bytes: &mut [u8], len: usize| {
            bytes[..2].copy_from_slice(&(len as u16).to_ne_bytes());
            let header = check(&bytes[..len])?;
            read::<Grown>(&header, &bytes[..len]).map(|grown| (grown.first, grown.second))
        };
        let seven = u64::from_ne_bytes([7; 8]);
        assert_eq!(numbers(&mut whole, 64).unwrap(), (seven, seven));
        assert_eq!(numbers(&mut whole, 56).unwrap(), (seven, 0));
        assert!(matches!(
            numbers(&mut whole, 48),
            Err(Malformed::Size {
                expected: 56,
                found: 48,
                ..
            })
        ));
    }
}
