//! What the daemon gives up of a process when its memory is short.

use serde::{Deserialize, Serialize};

/// A part of what is kept of a process. When memory is short, the parts go in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShedPart {
    /// The entries of the allocator's trace that snapshots show.
    Trace,
    /// The course of levels over time, and what is watched for growth.
    History,
    /// The stacks that allocated, with their names.
    Stacks,
    /// Everything: the process is not traced any more.
    Process,
}

impl ShedPart {
    /// All parts, in the order in which they go.
    pub const ALL: [ShedPart; 4] = [
        ShedPart::Trace,
        ShedPart::History,
        ShedPart::Stacks,
        ShedPart::Process,
    ];

    /// The word for it in answers.
    pub fn word(self) -> &'static str {
        match self {
            ShedPart::Trace => "trace",
            ShedPart::History => "history",
            ShedPart::Stacks => "stacks",
            ShedPart::Process => "process",
        }
    }

    /// The code of the coverage note that says that the part is gone.
    pub fn code(self) -> &'static str {
        match self {
            ShedPart::Trace => "trace_shed",
            ShedPart::History => "history_shed",
            ShedPart::Stacks => "stacks_shed",
            ShedPart::Process => "given_up",
        }
    }
}

/// A part of what was kept of a process was given up, because the daemon's memory was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shed {
    /// The part.
    pub part: ShedPart,
    /// Bytes of the daemon's memory that the process took before, by estimate.
    pub held_bytes: u64,
    /// Bytes that all processes together may take.
    pub limit_bytes: u64,
}
