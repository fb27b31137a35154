//! Counts and splits consecutive records.

use crate::journal::error::JournalError;
use crate::records::{Header, RecordReader};
use memscope_common::KIND_LEFT_OUT;
use std::collections::BTreeMap;

/// Result of counting the records of a batch.
pub(crate) struct Tally {
    /// Number of records of every kind.
    pub(crate) count: u32,
    /// Number of sequence numbers that the records take, including those of records that are left out.
    pub(crate) numbered: u64,
    /// Bytes of the records of each process. Key 0: records that belong to no process.
    pub(crate) bytes: BTreeMap<u32, u64>,
}

/// Counts records. Returns an error if the bytes are not whole records.
pub(crate) fn tally(records: &[u8]) -> Result<Tally, JournalError> {
    let mut reader = RecordReader::new(records);
    let mut tally = Tally {
        count: 0,
        numbered: 0,
        bytes: BTreeMap::new(),
    };
    // The next record is usually of the same process, so bytes are added to the map only when the process changes.
    let (mut process, mut run) = (0, 0);
    while let Some(record) = reader.next() {
        let record = record.map_err(|source| JournalError::NotRecords {
            at: reader.offset(),
            source,
        })?;
        tally.count += 1;
        let header = Header::read(record).map_err(|source| JournalError::NotRecords {
            at: reader.offset(),
            source,
        })?;
        tally.numbered = tally.numbered.saturating_add(numbers(&header));
        if header.process != process {
            *tally.bytes.entry(process).or_default() += run;
            (process, run) = (header.process, 0);
        }
        run += record.len() as u64;
    }
    *tally.bytes.entry(process).or_default() += run;
    Ok(tally)
}

/// Number of sequence numbers that a record takes: one for an ordinary record, none for a repeated one. A record that
/// stands for left-out records takes their number.
pub(crate) fn numbers(header: &Header) -> u64 {
    match header.kind {
        KIND_LEFT_OUT => header.sequence,
        _ => u64::from(!header.is_repeated()),
    }
}

/// Returns the longest run of whole records at the beginning of `records` that has at most `most` bytes. A writer uses
/// it to split more records than [`crate::journal::Journal::append`] accepts at once.
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
