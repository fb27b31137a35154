//! What is in the archive already. It is stored with each batch, in the same step.

use memscope_proto::v1;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is in the archive already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cursor {
    /// The last finding that was heard.
    pub alerts: Heard,
    /// The last event that was heard, where all are wanted.
    pub events: Heard,
    /// What is written of each process, by [`key`].
    pub processes: BTreeMap<String, Seen>,
    /// Snapshots that are written and that the daemon still has: number, and nanoseconds since 1970.
    pub snapshots: BTreeSet<(u64, u64)>,
}

/// How far a stream of events was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Heard {
    /// The journal; 0: nothing was heard yet.
    pub epoch: u64,
    /// Number of the last event.
    pub sequence: u64,
    /// When that was, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The connection was made anew since, so something may be missing before the next event.
    pub interrupted: bool,
}

/// What is written of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// End of the last step that is written, boot-time nanoseconds.
    pub steps_to_ns: u64,
    /// Its number.
    pub step: u64,
    /// What told its end, as a number of the wire.
    pub step_source: i32,
    /// The last hour since 1970 of which its stacks are written.
    pub stacks_hour: Option<u64>,
    /// It has ended, and all of it is written.
    pub ended: bool,
    /// Allocations that failed, by the ordinal of their device.
    pub ooms: BTreeMap<String, u64>,
    /// When it was looked at last, nanoseconds since 1970.
    pub looked_ns: u64,
    /// Numbers of the findings that stand, as far as the archive tells.
    pub standing: BTreeSet<u64>,
}

impl Seen {
    /// A step is written, or a gap that tells of it.
    pub fn wrote(&mut self, row: &v1::StepRow, source: i32) {
        self.steps_to_ns = self.steps_to_ns.max(row.to_boot_ns);
        self.step = row.step;
        self.step_source = source;
    }
}

/// The name of a process in the cursor.
#[must_use]
pub fn key(epoch: u64, handle: u32) -> String {
    format!("{epoch}/{handle}")
}

/// The journal and the number of the process with this name.
#[must_use]
pub fn of_key(name: &str) -> Option<(u64, u32)> {
    let (epoch, handle) = name.split_once('/')?;
    Some((epoch.parse().ok()?, handle.parse().ok()?))
}
