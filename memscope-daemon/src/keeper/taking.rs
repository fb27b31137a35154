//! Snapshots that are taken when triggers fire.

use memscope_ledger::Unnamed;
use memscope_ledger::report::{Baseline, SnapshotReport};
use memscope_rpc::{Caller, Condition, Refusal, TriggerStatus};

use crate::snapshots::{Counts, Writer};
use crate::triggers::{Firing, Triggers};

/// The triggers, and the writer of their snapshots.
pub struct Taking {
    /// The triggers and what they watch.
    pub triggers: Triggers,
    /// Writes the snapshots.
    pub writer: Writer,
    /// Time after a snapshot in which the same trigger takes no other one in the same process, in nanoseconds.
    pub pause_ns: u64,
}

/// A picture that was made, and whose names may not all have been read yet.
pub(super) struct Picture {
    pub(super) report: SnapshotReport,
    pub(super) unnamed: Unnamed,
    /// The firings that need it, each with whether the process's baseline was known.
    pub(super) firings: Vec<(Firing, Baseline)>,
}

impl Taking {
    /// Adds a trigger and returns its status.
    pub fn add(
        &mut self,
        caller: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal> {
        let mut status = self.triggers.add(caller, condition, pid)?;
        self.writer.shelf().complete(&mut status);
        Ok(status)
    }

    /// Removes a trigger and forgets its counts.
    pub fn remove(&mut self, caller: Caller, trigger: u64) -> Result<(), Refusal> {
        self.triggers.remove(caller, trigger)?;
        self.writer.shelf().forget(trigger);
        Ok(())
    }

    /// What the next daemon has to know: the triggers, and what has become of their firings.
    pub(super) fn kept(&self) -> (&Triggers, Counts) {
        let is_there = |number| self.triggers.has(number);
        (&self.triggers, self.writer.shelf().counts(is_there))
    }

    /// Status of all triggers, with the counts of their snapshots.
    pub fn list(&self) -> Vec<TriggerStatus> {
        let mut all = self.triggers.list();
        for status in &mut all {
            self.writer.shelf().complete(status);
        }
        all
    }
}
