//! Settings of a journal.

use crate::journal::error::JournalError;
use crate::journal::format::ClockPair;

/// Settings of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of records in a segment file. If the checkpoint at its beginning is larger, the segment holds as many bytes of
    /// records as the checkpoint has, so that checkpoints take at most half of the disk space. What is asked about an earlier
    /// moment reads one checkpoint and the records of at most one segment: smaller segments are answered sooner.
    pub segment_bytes: u64,
    /// Maximum size of all segments and checkpoints together, in bytes, those of earlier epochs included.
    pub total_bytes: u64,
    /// Epoch of the journal, which is also the name of its directory: boot-time nanoseconds of its start.
    pub epoch: u64,
    /// Id of the current boot (see [`crate::journal::boot_id`]).
    pub boot_id: [u8; 16],
    /// The same moment on both clocks.
    pub clock: ClockPair,
}

impl Config {
    /// Default sizes: segments of 8 MiB, and 256 MiB in all.
    pub fn new(epoch: u64, boot_id: [u8; 16], clock: ClockPair) -> Self {
        Self {
            segment_bytes: 8 << 20,
            total_bytes: 256 << 20,
            epoch,
            boot_id,
            clock,
        }
    }

    pub(crate) fn check(&self) -> Result<(), JournalError> {
        if !(256 << 10..=1 << 30).contains(&self.segment_bytes) {
            return Err(JournalError::Config {
                setting: "the size of a journal segment",
                value: self.segment_bytes,
                rule: "it must lie between 256 KiB and 1 GiB",
            });
        }
        if self.total_bytes < self.segment_bytes.saturating_mul(2) {
            return Err(JournalError::Config {
                setting: "the size of the journal",
                value: self.total_bytes,
                rule: "it must be at least two segments",
            });
        }
        Ok(())
    }
}
