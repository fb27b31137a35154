//! Limits on what the ledger keeps, and an estimate of the memory that it takes.

use serde::{Deserialize, Serialize};

/// Limits on what the ledger keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LedgerConfig {
    /// Number of entries of the allocator trace that a snapshot shows per device.
    pub trace_entries: usize,
    /// How long questions about an ended process are answered, nanoseconds.
    pub retention_ns: u64,
    /// Most bytes that all ended processes together may take, by estimate. Beyond that, those that ended first are
    /// forgotten before `retention_ns` is over. The one that ended last is kept in any case.
    #[serde(default = "ended_bytes")]
    pub ended_bytes: u64,
    /// Most groups of blocks that are watched for growth per process.
    pub leak_groups: usize,
    /// Width of the first windows in which groups are watched, nanoseconds. A verdict needs twelve
    /// windows; they grow wider with time.
    pub leak_window_ns: u64,
}

/// Enough for about ten processes with a full trace each.
fn ended_bytes() -> u64 {
    160 << 20
}

impl Default for LedgerConfig {
    fn default() -> LedgerConfig {
        LedgerConfig {
            trace_entries: 200_000,
            retention_ns: 15 * 60 * 1_000_000_000,
            ended_bytes: ended_bytes(),
            leak_groups: 65_536,
            leak_window_ns: 250_000_000,
        }
    }
}

/// Number of entries that the ledger keeps of one process: for the daemon's own metrics, and for tests that the ledger
/// does not grow with memory that has been freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCounts {
    /// Live and pending blocks.
    pub blocks: usize,
    /// Entries kept for threads, for losses, for trace entries whose device is not known, for readings that are not
    /// complete, and for marks.
    pub loose: usize,
    /// Pieces of free room in segments, pieces of unmapped room beside them, and address spaces of expandable segments.
    pub rooms: usize,
    /// Driver allocations, handles, mappings and imports, and regions of pools that report their own memory.
    pub allocations: usize,
    /// Groups of blocks that are watched for growth.
    pub groups: usize,
    /// Identities of stacks. One stack may have several.
    pub identities: usize,
    /// Entries of allocator traces that a snapshot shows (for readings, at least 65,536 are kept per device).
    pub trace_entries: usize,
}

impl KeptCounts {
    /// Estimate of the bytes that all these entries take, from the size of an entry of each kind in its table.
    pub(crate) fn bytes(&self) -> u64 {
        let counts = [
            (self.blocks, 250),
            (self.loose, 100),
            (self.rooms, 120),
            (self.allocations, 200),
            (self.groups, 600),
            (self.identities, 150),
            (self.trace_entries, 64),
        ];
        counts
            .iter()
            .map(|(count, each)| *count as u64 * each)
            .sum()
    }
}
