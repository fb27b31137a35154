//! Firings whose snapshots are not written yet, as they are told to the daemon that comes next.

use memscope_ledger::event::ProcessFacts;
use memscope_ledger::report::AsOf;
use serde::{Deserialize, Serialize};

use crate::triggers::Firing;

/// A firing whose snapshot is not written yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// The firing of the trigger.
    pub firing: Firing,
    /// The moment of which the snapshot is.
    pub as_of: AsOf,
    /// Process id in the initial pid namespace, by which the moment is asked for again.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Short name of the process.
    pub comm: String,
    /// Whether an earlier daemon was killed over it, and it is taken again.
    pub again: bool,
}

impl Waiting {
    /// The one of this firing.
    pub(super) fn of(firing: &Firing, as_of: AsOf, facts: &ProcessFacts) -> Waiting {
        Waiting {
            firing: firing.clone(),
            as_of,
            pid: facts.pid,
            start_ticks: facts.start_ticks,
            comm: facts.comm.clone(),
            again: false,
        }
    }

    /// The message that there will be no snapshot.
    pub(super) fn lost(&self, why: &str) -> String {
        format!(
            "process {} ({}): {}; memscoped was killed before the snapshot was written, and it could not be taken again: {why}",
            self.pid, self.comm, self.firing.reason
        )
    }
}
