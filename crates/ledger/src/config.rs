//! How much is kept, and how much that is.

use serde::{Deserialize, Serialize};

/// How much is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LedgerConfig {
    /// Entries of the allocator trace kept per device.
    pub trace_entries: usize,
    /// How long an ended process can be asked for, nanoseconds.
    pub retention_ns: u64,
    /// Most bytes that all ended processes together may take, by estimate: beyond that, those that ended first are forgotten
    /// before their time. The one that ended last stays in any case.
    #[serde(default = "ended_bytes")]
    pub ended_bytes: u64,
    /// Groups of blocks watched per process.
    pub leak_groups: usize,
    /// Width of the first windows in which groups are watched, nanoseconds. A verdict needs twelve
    /// windows; they grow wider with time.
    pub leak_window_ns: u64,
}

/// Some ten processes with a full trace each.
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

/// How much the ledger keeps of one process: for the daemon's own metrics, and to show that it does
/// not grow with what is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCounts {
    /// Live and pending blocks.
    pub blocks: usize,
    /// What threads, losses, unplaced trace entries and readings under way leave behind.
    pub loose: usize,
    /// Pieces of free room in segments, and of room without memory beside them.
    pub rooms: usize,
    /// Driver allocations, handles, mappings, imports.
    pub allocations: usize,
    /// Groups watched.
    pub groups: usize,
    /// Identities of stacks, of which each stack may have several.
    pub identities: usize,
    /// Entries of allocator traces that are shown (at least 65,536 a device are kept, for readings).
    pub trace_entries: usize,
}

impl KeptCounts {
    /// Bytes that it takes, by what an entry of each kind takes with its place in a table.
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
