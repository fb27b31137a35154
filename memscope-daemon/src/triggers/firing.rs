//! Something for which a snapshot is to be taken.

use memscope_ledger::event::ProcessHandle;
use memscope_rpc::Condition;

/// Something for which a snapshot is to be taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// Number of the trigger.
    pub trigger: u64,
    /// Its condition.
    pub condition: Condition,
    /// In which process.
    pub process: ProcessHandle,
    /// On which device, where one is named.
    pub device: Option<i32>,
    /// What happened, in a sentence without the process.
    pub reason: String,
    /// It fired so many times in this process since its last snapshot there, this one included, too soon
    /// after that: none is to be taken now.
    pub paused: Option<u64>,
    /// How often it fired so before this one.
    pub paused_before: u64,
}
