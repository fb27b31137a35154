//! What a reader could not read, and went on.

use memscope_ledger::event::CoverageNote;
use std::path::PathBuf;

/// A part of a recording that is missing. Reading goes on; the answer must say so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The recording begins in the middle of its journal.
    #[error(
        "the recording begins at record {first_sequence}: what was before is no longer in the journal"
    )]
    BeginsLate {
        /// Number of its first record.
        first_sequence: u64,
    },
    /// The file ends inside a batch, or in bytes that are none.
    #[error("{} breaks off at byte {at}: {lost_bytes} bytes behind it cannot be read", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the last whole batch ends.
        at: u64,
        /// Bytes there that are not zero padding.
        lost_bytes: u64,
    },
    /// Bytes between whole batches that are no batch.
    #[error("{} is damaged at byte {at}: {lost_bytes} bytes were left out", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// How many bytes.
        lost_bytes: u64,
    },
    /// Records that are in no batch.
    #[error("records {from_sequence} to {} are missing", from_sequence + records - 1)]
    Missing {
        /// Number of the first.
        from_sequence: u64,
        /// How many.
        records: u64,
    },
    /// A batch whose records were read already.
    #[error("{} repeats records at byte {at}; they were left out", path.display())]
    OutOfOrder {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
    },
    /// A segment that cannot be read.
    #[error("{} was left out: {reason}", path.display())]
    SegmentUnreadable {
        /// The file.
        path: PathBuf,
        /// Why, in words.
        reason: String,
    },
}

impl Warning {
    /// A stable word for programs.
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

    /// As a note for the ledger.
    pub fn note(&self) -> CoverageNote {
        CoverageNote {
            code: self.code().to_owned(),
            text: self.to_string(),
        }
    }
}
