//! What a daemon must be able to do to take snapshots by itself, in plain types.

use crate::{Caller, Condition, Refusal};
use std::io::Read;
use std::path::PathBuf;

/// Snapshots that are taken by themselves.
///
/// The server checks who may see what on the answers, and that the caller may see a process that a
/// trigger is to be added for. [`Triggers::add_trigger`] and [`Triggers::remove_trigger`] change
/// things and get the caller: whoever is not root reaches only processes and triggers of their own.
#[tonic::async_trait]
pub trait Triggers: Send + Sync + 'static {
    /// Adds a trigger, for one traced process or for all. The same one again is the same one.
    async fn add_trigger(
        &self,
        caller: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal>;

    /// Removes a trigger that [`TriggerStatus::is_of`] the caller.
    async fn remove_trigger(&self, caller: Caller, trigger: u64) -> Result<(), Refusal>;

    /// All triggers by number.
    async fn triggers(&self) -> Result<Vec<TriggerStatus>, Refusal>;

    /// All snapshots that are kept, oldest first.
    async fn kept(&self) -> Result<KeptSnapshots, Refusal>;

    /// The file of one of them.
    async fn open_kept(&self, snapshot: u64) -> Result<OpenKept, Refusal>;
}

/// A trigger, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerStatus {
    /// Its number, from 1.
    pub trigger: u64,
    /// When it takes a snapshot.
    pub condition: Condition,
    /// The one process that it is for: pid, and real, effective, saved uid.
    pub process: Option<(u32, [u32; 3])>,
    /// User who made it.
    pub uid: u32,
    /// It was there when the daemon started.
    pub from_start: bool,
    /// Traced processes that it watches now.
    pub watching: u64,
    /// How often it fired.
    pub fired: u64,
    /// Snapshots that were written.
    pub written: u64,
    /// How often it fired and nothing was written: (cause, count).
    pub skipped: Vec<(String, u64)>,
    /// When the last snapshot was written, nanoseconds since 1970.
    pub last_unix_ns: Option<u64>,
}

impl TriggerStatus {
    /// Whether this caller may remove it, and see what it did.
    #[must_use]
    pub fn is_of(&self, caller: Caller) -> bool {
        caller.is_root() || self.uid == caller.uid
    }

    /// Whether this caller may know of it: it is theirs, or it is root's and watches processes of theirs.
    #[must_use]
    pub fn is_shown_to(&self, caller: Caller) -> bool {
        self.is_of(caller)
            || self.uid == 0 && self.process.is_none_or(|(_, uids)| caller.may_see(&uids))
    }
}

/// The snapshots that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSnapshots {
    /// Oldest first.
    pub snapshots: Vec<KeptSnapshot>,
    /// At most so many are kept.
    pub limit_count: u64,
    /// At most so many bytes are kept.
    pub limit_bytes: u64,
}

/// A snapshot that a trigger took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSnapshot {
    /// Its number: larger than that of all that are kept and older.
    pub snapshot: u64,
    /// The moment that it describes, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Short name of the process.
    pub comm: String,
    /// Every user id that the process had, the real one first: who is all of them may see it.
    pub uids: Vec<u32>,
    /// The trigger, in words.
    pub when: String,
    /// What happened, in a sentence.
    pub reason: String,
    /// On which device.
    pub device: Option<i32>,
    /// Format of the file.
    pub format: String,
    /// Size of the file.
    pub bytes: u64,
    /// Where the file lies.
    pub path: PathBuf,
    /// What was there before the attach was not known, and is not in it.
    pub without_baseline: bool,
}

impl KeptSnapshot {
    /// Whether this caller may see it.
    #[must_use]
    pub fn is_shown_to(&self, caller: Caller) -> bool {
        caller.is_root() || !self.uids.is_empty() && self.uids.iter().all(|uid| *uid == caller.uid)
    }
}

/// A snapshot that a trigger took, and its file.
pub struct OpenKept {
    /// What it is.
    pub snapshot: KeptSnapshot,
    /// Its bytes.
    pub content: Box<dyn Read + Send>,
}
