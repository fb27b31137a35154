//! Limits on what the ledger keeps, and an estimate of the memory that it takes.

use crate::event::ShedPart;
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

/// Estimate of the memory that the ledger takes for one process, in bytes: each part that may be given up when memory
/// is short, and the rest, which goes only with the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBytes {
    /// Entries of the allocator's trace that snapshots show.
    pub trace: u64,
    /// The course of levels over time, and what is watched for growth.
    pub history: u64,
    /// Stacks, their names, and sums by stack.
    pub stacks: u64,
    /// Blocks, segments, allocations, and everything else.
    pub rest: u64,
}

impl KeptBytes {
    /// All parts together.
    pub fn all(&self) -> u64 {
        self.trace + self.history + self.stacks + self.rest
    }

    /// What is free again when a part is given up.
    pub fn of(&self, part: ShedPart) -> u64 {
        match part {
            ShedPart::Trace => self.trace,
            ShedPart::History => self.history,
            ShedPart::Stacks => self.stacks,
            ShedPart::Process => self.all(),
        }
    }
}

/// Bytes of the entries of a hash table, with room for growth as the table takes it: a power of two of places, of which
/// at most seven of eight are in use, and one byte beside each.
pub(crate) fn table_bytes<T>(capacity: usize) -> u64 {
    let places = (capacity * 8 / 7) as u64;
    places * (size_of::<T>() as u64 + 1)
}

/// Bytes of the entries of a B-tree whose keys come in ascending order, which leaves its nodes half empty.
pub(crate) fn tree_bytes<T>(entries: usize) -> u64 {
    entries as u64 * (size_of::<T>() as u64 * 11 / 6 + 4)
}
