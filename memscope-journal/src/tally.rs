//! Counting and cutting consecutive records.

use crate::error::JournalError;
use memscope_common::KIND_LEFT_OUT;
use memscope_decode::{Header, RecordReader};
use std::collections::BTreeMap;

/// How many records there are.
pub(crate) struct Tally {
    /// All.
    pub(crate) count: u32,
    /// Those that have a number, and those that are left out.
    pub(crate) numbered: u64,
}

/// Counts records; an error if the bytes are anything else.
pub(crate) fn tally(records: &[u8]) -> Result<Tally, JournalError> {
    let mut reader = RecordReader::new(records);
    let mut tally = Tally {
        count: 0,
        numbered: 0,
    };
    while let Some(record) = reader.next() {
        let record = record.map_err(|source| JournalError::NotRecords {
            at: reader.offset(),
            source,
        })?;
        tally.count += 1;
        tally.numbered = tally.numbered.saturating_add(numbers(record));
    }
    Ok(tally)
}

/// How many numbers a record takes: one; none if it is repeated; as many as it says if it stands for records that are left out.
pub(crate) fn numbers(record: &[u8]) -> u64 {
    match Header::read(record) {
        Ok(header) if header.kind == KIND_LEFT_OUT => header.sequence,
        Ok(header) => u64::from(!header.is_repeated()),
        Err(_) => 1,
    }
}

/// Adds up the bytes of records by process.
pub(crate) fn by_process(records: &[u8], bytes: &mut BTreeMap<u32, u64>) {
    // Most often the next record is of the same process.
    let mut run = (0, 0);
    for record in RecordReader::new(records).flatten() {
        let process = Header::read(record).map_or(0, |header| header.process);
        if process != run.0 {
            *bytes.entry(run.0).or_default() += run.1;
            run = (process, 0);
        }
        run.1 += record.len() as u64;
    }
    *bytes.entry(run.0).or_default() += run.1;
}

/// The first records that together have at most `most` bytes. For a writer that has more than fits at once.
pub fn leading(records: &[u8], most: usize) -> &[u8] {
    let mut reader = RecordReader::new(records);
    let mut end = 0;
    while let Some(Ok(_)) = reader.next() {
        if reader.offset() > most {
            break;
        }
        end = reader.offset();
    }
    records.get(..end).unwrap_or_default()
}
