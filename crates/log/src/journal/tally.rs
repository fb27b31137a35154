//! Counting and cutting consecutive records.

use crate::journal::error::JournalError;
use crate::records::{Header, RecordReader};
use memscope_common::KIND_LEFT_OUT;
use std::collections::BTreeMap;

/// How many records there are.
pub(crate) struct Tally {
    /// All.
    pub(crate) count: u32,
    /// Those that have a number, and those that are left out.
    pub(crate) numbered: u64,
    /// Bytes of the records of each process; 0: of the machine.
    pub(crate) bytes: BTreeMap<u32, u64>,
}

/// Counts records; an error if the bytes are anything else.
pub(crate) fn tally(records: &[u8]) -> Result<Tally, JournalError> {
    let mut reader = RecordReader::new(records);
    let mut tally = Tally {
        count: 0,
        numbered: 0,
        bytes: BTreeMap::new(),
    };
    // Most often the next record is of the same process.
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

/// How many numbers a record takes: one; none if it is repeated; as many as it says if it stands for records that are left out.
pub(crate) fn numbers(header: &Header) -> u64 {
    match header.kind {
        KIND_LEFT_OUT => header.sequence,
        _ => u64::from(!header.is_repeated()),
    }
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
