//! Reading integers out of foreign bytes, and the common header.

use crate::records::outcome::Malformed;
use core::mem::{offset_of, size_of};
use memscope_common::{KIND_DAEMON_FIRST, RecordHeader};

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
    integers!(u8: u8, u16: u16, u32: u32, u64: u64, i32: i32, i64: i64);
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
        let raw = Bytes(bytes);
        let header = Header {
            len: usize::from(raw.u16(offset_of!(RecordHeader, len))?),
            kind: raw.u16(offset_of!(RecordHeader, kind))?,
            version: raw.u8(offset_of!(RecordHeader, version))?,
            flags: raw.u8(offset_of!(RecordHeader, flags))?,
            process: raw.u32(offset_of!(RecordHeader, process))?,
            tid: raw.u32(offset_of!(RecordHeader, tid))?,
            time_ns: raw.u64(offset_of!(RecordHeader, time_ns))?,
            sequence: raw.u64(offset_of!(RecordHeader, sequence))?,
            lost_before: raw.u64(offset_of!(RecordHeader, lost_before))?,
            stack: raw.u64(offset_of!(RecordHeader, stack))?,
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
