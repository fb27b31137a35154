//! How a journal is kept.

use crate::error::JournalError;
use crate::format::{BATCH_HEADER, ClockPair, SEGMENT_HEADER};

/// The longest record: its length is a 16-bit number and a multiple of 8.
const LONGEST_RECORD: u64 = u16::MAX as u64 & !7;
/// What a segment needs besides its preamble: its header, and batches of one record each.
pub(crate) const BESIDES: u64 = SEGMENT_HEADER as u64 + 2 * BATCH_HEADER as u64 + LONGEST_RECORD;

/// How a journal is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Most bytes of all segments together, those of earlier epochs included.
    pub total_bytes: u64,
    /// Boot-time nanoseconds of the journal's start: its name.
    pub epoch: u64,
    /// Which boot (see [`crate::boot_id`]).
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
