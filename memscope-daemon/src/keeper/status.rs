//! How the keeper is.

use std::path::PathBuf;

/// How the keeper is.
#[derive(Debug, Clone)]
pub struct KeeperStatus {
    /// Records read since the start.
    pub records: u64,
    /// Records of no use, by cause.
    pub skipped: Vec<(String, u64)>,
    /// State of the journal, if there is one.
    pub journal: Option<memscope_log::State>,
    /// Where it lies.
    pub journal_dir: PathBuf,
    /// Records that it did not take.
    pub journal_dropped: u64,
    /// Number of its last record.
    pub journal_sequence: u64,
    /// Why it stopped.
    pub journal_problem: Option<String>,
    /// It stopped because there was no room.
    pub journal_full: bool,
    /// Its epoch.
    pub epoch: u64,
    /// Size of the ring.
    pub ring_bytes: Option<u64>,
    /// Bytes in it that were not read when asked.
    pub ring_unread: u64,
    /// Searches under way: pid and progress.
    pub calibrating: Vec<(u32, String)>,
    /// Boot time of this.
    pub boot_ns: u64,
}
