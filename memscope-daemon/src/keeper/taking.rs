//! What takes snapshots by itself.

use memscope_rpc::{Caller, Condition, Refusal, TriggerStatus};

use crate::snapshots::Writer;
use crate::triggers::Triggers;

/// What takes snapshots by itself.
pub struct Taking {
    /// What is watched.
    pub triggers: Triggers,
    /// What writes.
    pub writer: Writer,
    /// How long a trigger rests in a process, nanoseconds.
    pub pause_ns: u64,
}

impl Taking {
    /// Adds a trigger.
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

    /// Removes one.
    pub fn remove(&mut self, caller: Caller, trigger: u64) -> Result<(), Refusal> {
        self.triggers.remove(caller, trigger)?;
        self.writer.shelf().forget(trigger);
        Ok(())
    }

    /// All of them.
    pub fn list(&self) -> Vec<TriggerStatus> {
        let mut all = self.triggers.list();
        for status in &mut all {
            self.writer.shelf().complete(status);
        }
        all
    }
}
