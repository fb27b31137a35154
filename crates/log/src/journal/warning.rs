//! Parts of a recording that a reader had to skip.

use memscope_ledger::event::CoverageNote;
use std::path::PathBuf;

/// A part of a recording that is missing or unreadable. The reader goes on; answers must mention it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The recording begins in the middle of its journal.
    #[error(
        "the recording begins at record {first_sequence}: what was before is no longer in the journal"
    )]
    BeginsLate {
        /// Number of the first record that is there.
        first_sequence: u64,
    },
    /// The file ends inside a batch, or with bytes that are no batch.
    #[error("{} breaks off at byte {at}: {lost_bytes} bytes behind it cannot be read", path.display())]
    Truncated {
        /// Path of the segment or recording file.
        path: PathBuf,
        /// Offset of the end of the last whole batch, in bytes.
        at: u64,
        /// Bytes from `at` up to the last byte that is not zero.
        lost_bytes: u64,
    },
    /// Bytes between whole batches that are not a batch themselves.
    #[error("{} is damaged at byte {at}: {lost_bytes} bytes were left out", path.display())]
    Damaged {
        /// Path of the segment or recording file.
        path: PathBuf,
        /// Offset of the first damaged byte.
        at: u64,
        /// Bytes up to the next batch or segment header that can be read.
        lost_bytes: u64,
    },
    /// Numbers are skipped between two batches, so the records with these numbers are in no batch.
    #[error("records {from_sequence} to {} are missing", from_sequence + records - 1)]
    Missing {
        /// Number of the first missing record.
        from_sequence: u64,
        /// Number of missing records.
        records: u64,
    },
    /// The records of a batch were already read before. The batch is left out.
    #[error("{} repeats records at byte {at}; they were left out", path.display())]
    OutOfOrder {
        /// Path of the segment or recording file.
        path: PathBuf,
        /// Offset of the batch in the file, in bytes.
        at: u64,
    },
    /// A segment file of the directory cannot be read.
    #[error("{} was left out: {reason}", path.display())]
    SegmentUnreadable {
        /// Path of the segment file.
        path: PathBuf,
        /// Why it cannot be read, in words.
        reason: String,
    },
}

impl Warning {
    /// Stable code of the warning, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Warning::BeginsLate { .. } => "recording_begins_late",
            Warning::Truncated { .. } => "recording_truncated",
            Warning::Damaged { .. } => "recording_damaged",
            Warning::Missing { .. } => "recording_incomplete",
            Warning::OutOfOrder { .. } => "recording_out_of_order",
            Warning::SegmentUnreadable { .. } => "recording_segment_unreadable",
        }
    }

    /// The warning as a note for the ledger.
    pub fn note(&self) -> CoverageNote {
        CoverageNote {
            code: self.code().to_owned(),
            text: self.to_string(),
        }
    }
}
