//! Reads integers, structs and the common header from untrusted bytes.

use crate::records::outcome::Malformed;
use core::mem::size_of;
use memscope_common::{KIND_DAEMON_FIRST, Record, RecordHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `header.flags` of a daemon's record in the preamble of a segment of a journal of format 1, which makes the segment
/// readable without those before it. The record is a copy of an earlier one, and has no number of its own.
pub const REPEATED: u8 = 0x80;

/// Reads integers at offsets of a byte slice. The slice need not be aligned.
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

/// Reads a record of a kind. Bytes beyond the fields that this build knows are ignored. A shorter record was written
/// before its last fields existed, and these are 0.
pub(crate) fn read<R: Record + FromBytes + IntoBytes + Immutable>(
    header: &Header,
    record: &[u8],
) -> Result<R, Malformed> {
    at_least(header, R::FIRST_LEN)?;
    // The usual case, in which the number of bytes to copy is known when this is compiled.
    if let Ok((whole, _)) = R::read_from_prefix(record) {
        return Ok(whole);
    }
    let mut whole = R::new_zeroed();
    let known = record.len().min(size_of::<R>());
    let to = whole.as_mut_bytes().get_mut(..known);
    if let (Some(to), Some(from)) = (to, record.get(..known)) {
        to.copy_from_slice(from);
    }
    Ok(whole)
}

/// Refuses a record that is shorter than any record of its kind has ever been.
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

/// The common part of a record, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole record in bytes.
    pub len: usize,
    /// Kind of the record, which may be unknown to this build.
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
    /// Number among the records of the process, from 1.
    pub sequence: u64,
    /// Number of records of the process that had been lost when this one was made.
    pub lost_before: u64,
    /// Stack of the call: its identity, or a constant that says why there is none. The upper bits hold the sampling
    /// interval.
    pub stack: u64,
}

impl Header {
    /// Size of a header in bytes.
    pub const SIZE: usize = size_of::<RecordHeader>();

    /// Reads the header at the start of `bytes`, which may go on after the record. The length in it is checked to be at
    /// least a header's and a multiple of 8. The caller must check that `bytes` is that long.
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
        length(header.len)?;
        Ok(header)
    }

    /// Whether the record is in the preamble of a segment of a journal of format 1 (see [`REPEATED`]).
    pub fn is_repeated(&self) -> bool {
        self.kind >= KIND_DAEMON_FIRST && self.flags & REPEATED != 0
    }
}

/// Checks that a record can have so many bytes.
fn length(said: usize) -> Result<usize, Malformed> {
    if said < Header::SIZE || !said.is_multiple_of(8) {
        return Err(Malformed::LengthField { said });
    }
    Ok(said)
}

/// Length of the record at the start of `bytes`, checked as [`Header::read`] does.
pub(crate) fn len_of(bytes: &[u8]) -> Result<usize, Malformed> {
    match bytes.first_chunk() {
        Some(said) if bytes.len() >= Header::SIZE => length(usize::from(u16::from_ne_bytes(*said))),
        _ => Err(Malformed::Short { found: bytes.len() }),
    }
}

/// Checks that `record` is exactly one whole record, of whatever kind. Bytes that fail here have no place in a journal
/// and no number: count them and drop them.
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

/// Whether `record` has a whole header and is a repeated record, which has no number.
pub fn is_repeated(record: &[u8]) -> bool {
    Header::read(record).is_ok_and(|header| header.is_repeated())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A record that began with one number and got a second one later.
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
