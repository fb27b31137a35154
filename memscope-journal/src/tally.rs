//! Counting and cutting consecutive records.

use crate::error::JournalError;
use memscope_decode::RecordReader;

/// How many records there are.
pub(crate) struct Tally {
    /// All.
    pub(crate) count: u32,
    /// Those that have a number.
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
        tally.numbered += u64::from(!memscope_decode::is_repeated(record));
    }
    Ok(tally)
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
