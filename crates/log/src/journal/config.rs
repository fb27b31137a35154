//! How a journal is kept.

use crate::journal::error::JournalError;
use crate::journal::format::ClockPair;

/// How a journal is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of records in a segment file. Where the checkpoint at its beginning is larger than half of that, a segment has twice as many
    /// bytes of records as it has of checkpoint, so that checkpoints take a third of the disk at most.
    pub segment_bytes: u64,
    /// Most bytes of all segments together, those of earlier epochs included.
    pub total_bytes: u64,
    /// Boot-time nanoseconds of the journal's start: its name.
    pub epoch: u64,
    /// Which boot (see [`crate::journal::boot_id`]).
    pub boot_id: [u8; 16],
    /// A pair of clock readings.
    pub clock: ClockPair,
}

impl Config {
    /// Segments of 16 MiB, 256 MiB in all.
    pub fn new(epoch: u64, boot_id: [u8; 16], clock: ClockPair) -> Self {
        Self {
            segment_bytes: 16 << 20,
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
