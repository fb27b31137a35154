//! Status of the keeper.

use std::path::PathBuf;

use memscope_ledger::event::ShedPart;

/// Status of the keeper.
#[derive(Debug, Clone)]
pub struct KeeperStatus {
    /// Number of records that were read since the start.
    pub records: u64,
    /// Number of records that were of no use, by cause.
    pub skipped: Vec<(String, u64)>,
    /// State of the journal, if there is one.
    pub journal: Option<memscope_log::State>,
    /// Directory of the journal's epoch; empty without a journal.
    pub journal_dir: PathBuf,
    /// Number of records that the journal did not take.
    pub journal_dropped: u64,
    /// Number of the journal's last record.
    pub journal_sequence: u64,
    /// Why the journal stopped or works only in part, in words.
    pub journal_problem: Option<String>,
    /// Epoch of this run of the daemon.
    pub epoch: u64,
    /// Size of the ring in bytes; `None` without a ring.
    pub ring_bytes: Option<u64>,
    /// Bytes in the ring that were not read yet at the moment of this status.
    pub ring_unread: u64,
    /// Searches for an allocator's layout that are under way: pid and progress.
    pub calibrating: Vec<(u32, String)>,
    /// The daemon's memory; `None` where a recording is replayed.
    pub memory: Option<MemoryStatus>,
    /// Boot time of this status, in nanoseconds.
    pub boot_ns: u64,
}

/// The daemon's memory, in bytes.
#[derive(Debug, Clone)]
pub struct MemoryStatus {
    /// What it may take in all.
    pub limit: u64,
    /// What it takes now.
    pub used: u64,
    /// What all processes together may take of it.
    pub of_processes: u64,
    /// What all processes together take of it, by estimate.
    pub processes: u64,
    /// How often each part of a process was given up.
    pub shed: Vec<(ShedPart, u64)>,
}
