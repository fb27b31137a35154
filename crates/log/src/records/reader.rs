//! Iterates over consecutive records in a byte slice.

use crate::records::bytes::len_of;
use crate::records::outcome::Malformed;

/// Iterates over the records of a byte slice, whatever their kinds. After the first error it ends, because the place of
/// the next record is not known.
#[derive(Clone, Debug)]
pub struct RecordReader<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> RecordReader<'a> {
    /// Begins at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            failed: false,
        }
    }

    /// Offset of the end of the last whole record that was read.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn read(&self, rest: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let len = len_of(rest)?;
        rest.get(..len).ok_or(Malformed::Length {
            said: len,
            found: rest.len(),
        })
    }
}

impl<'a> Iterator for RecordReader<'a> {
    type Item = Result<&'a [u8], Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if self.failed || rest.is_empty() {
            return None;
        }
        let record = self.read(rest);
        match &record {
            Ok(record) => self.at += record.len(),
            Err(_) => self.failed = true,
        }
        Some(record)
    }
}

impl std::iter::FusedIterator for RecordReader<'_> {}
