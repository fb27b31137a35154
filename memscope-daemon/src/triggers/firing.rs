//! A condition that came true.

use memscope_ledger::event::ProcessHandle;
use memscope_rpc::Condition;
use serde::{Deserialize, Serialize};

/// A condition that came true, for which a snapshot is taken unless it is paused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Firing {
    /// Number of the trigger.
    pub trigger: u64,
    /// Condition of the trigger.
    pub condition: Condition,
    /// Process in which it came true.
    pub process: ProcessHandle,
    /// Device on which it came true, if it is about one.
    pub device: Option<i32>,
    /// What happened, as a sentence without the process.
    pub reason: String,
    /// Set if no snapshot is to be taken, because it came too soon after the last one of this trigger in this
    /// process: how often that happened since that snapshot, this time included.
    pub paused: Option<u64>,
    /// How often that happened before this firing, since the snapshot before.
    pub paused_before: u64,
    /// When this trigger last had a snapshot taken in this process before, nanoseconds of boot time.
    pub last_before_ns: Option<u64>,
}
