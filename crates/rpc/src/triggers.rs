//! The trait that a daemon implements to take snapshots by triggers, and the plain types of its methods.

use crate::caller::Account;
use crate::{Caller, Condition, Refusal};
use std::io::Read;
use std::path::PathBuf;

/// Triggers, and the snapshots that they took.
///
/// The server takes out of the answers what the caller may not see, and checks that the caller may see the process for
/// which a trigger is added. [`Triggers::add_trigger`] and [`Triggers::remove_trigger`] change something and get the
/// caller: for callers who are not root, they must concern only the caller's own processes and triggers.
#[tonic::async_trait]
pub trait Triggers: Send + Sync + 'static {
    /// Adds a trigger, for one traced process or for all. If the caller has the same trigger already, that one is
    /// returned, and no second one is added.
    async fn add_trigger(
        &self,
        caller: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal>;

    /// Removes a trigger. It must belong to the caller, as [`TriggerStatus::is_of`] says.
    async fn remove_trigger(&self, caller: Caller, trigger: u64) -> Result<(), Refusal>;

    /// All triggers, in the order of their numbers.
    async fn triggers(&self) -> Result<Vec<TriggerStatus>, Refusal>;

    /// All snapshots that are kept, oldest first.
    async fn kept(&self) -> Result<KeptSnapshots, Refusal>;

    /// Opens the file of one of the kept snapshots.
    async fn open_kept(&self, snapshot: u64) -> Result<OpenKept, Refusal>;
}

/// A trigger, and what it has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerStatus {
    /// Number of the trigger, from 1.
    pub trigger: u64,
    /// Condition on which it takes a snapshot.
    pub condition: Condition,
    /// The one process that it watches: pid, and real, effective and saved user id. `None`: all processes that its user
    /// may see.
    pub process: Option<(u32, [u32; 3])>,
    /// The user, or the certificate's name, by whom it was added.
    pub user: Account,
    /// Whether it comes from the daemon's command line.
    pub from_start: bool,
    /// Number of traced processes that it watches now.
    pub watching: u64,
    /// How often it fired.
    pub fired: u64,
    /// Number of snapshots that were written.
    pub written: u64,
    /// How often it fired and no snapshot was written, as pairs of cause and count.
    pub skipped: Vec<(String, u64)>,
    /// Time at which the last snapshot was written, in nanoseconds since 1970.
    pub last_unix_ns: Option<u64>,
}

impl TriggerStatus {
    /// Whether this caller may remove it and see what it did: who may do everything, and the user who added it.
    #[must_use]
    pub fn is_of(&self, caller: &Caller) -> bool {
        caller.is_admin() || self.user == caller.account()
    }

    /// Whether this caller may see that it exists: it is theirs, or it is root's and watches processes that they may
    /// see.
    #[must_use]
    pub fn is_shown_to(&self, caller: &Caller) -> bool {
        self.is_of(caller)
            || self.user.is_root() && self.process.is_none_or(|(_, uids)| caller.may_see(&uids))
    }
}

/// The snapshots that are kept, and how many may be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSnapshots {
    /// The kept snapshots, oldest first.
    pub snapshots: Vec<KeptSnapshot>,
    /// Largest number of snapshots that are kept.
    pub limit_count: u64,
    /// Largest number of bytes that their files may have together.
    pub limit_bytes: u64,
}

/// A snapshot that a trigger took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSnapshot {
    /// Number of the snapshot; larger than the numbers of all older snapshots that are kept.
    pub snapshot: u64,
    /// Moment that the snapshot describes, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Short name of the process.
    pub comm: String,
    /// All different user ids that the process had, the real one first. A caller who is not root may see the snapshot
    /// only if all of these are the caller's id.
    pub uids: Vec<u32>,
    /// Condition of the trigger, as text.
    pub when: String,
    /// Why the trigger fired, as a sentence.
    pub reason: String,
    /// Ordinal of the device on which it happened, within the process.
    pub device: Option<i32>,
    /// Name of the file's format, for example `memory-viz`.
    pub format: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Path of the file on the daemon's machine.
    pub path: PathBuf,
    /// Whether the baseline was not known, so that the snapshot lacks the blocks from before the attach.
    pub without_baseline: bool,
}

impl KeptSnapshot {
    /// Whether this caller may see it.
    #[must_use]
    pub fn is_shown_to(&self, caller: &Caller) -> bool {
        let is_own = |uid: &u32| caller.uid() == Some(*uid);
        caller.sees_all() || !self.uids.is_empty() && self.uids.iter().all(is_own)
    }
}

/// A snapshot that a trigger took, with its file opened.
pub struct OpenKept {
    /// Facts about the snapshot.
    pub snapshot: KeptSnapshot,
    /// Content of the file.
    pub content: Box<dyn Read + Send>,
}
