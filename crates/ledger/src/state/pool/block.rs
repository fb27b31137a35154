//! One block of a framework's pool.
//!
//! Owns: what is kept of a block. Refuses: totals and groups, which `pool` keeps consistent with the blocks.
//!
//! A process may have millions of blocks, so each byte counts here: a test says how many a block may have.

use crate::event::Level;
use crate::state::labels::LabelSet;
use crate::state::membership::Membership;
use crate::state::pool::totals::Sized;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};

/// How we came to know a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// It was seen to come, or to go.
    Seen,
    /// The first reading of its device contained it, and nothing was missed since the attach: it was there before.
    Baseline,
    /// A reading contained it although it was not seen to come, so it came in a gap. If the first reading came after a gap, it
    /// may have been there before the attach as well (`Read::mixed`).
    Found,
}

/// What has become of a block of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HeldState {
    Active,
    /// Freed by the program, still in use by a stream.
    Pending,
    Gone,
}

/// One block. Device addresses are unique in a process, so the address alone is the key. Checkpoints once had it in this form.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Block {
    pub(crate) device: i32,
    /// Freed by the program, still in use by a stream.
    pub(crate) pending: bool,
    pub(crate) origin: Origin,
    /// The labels that the program gave it.
    #[serde(default)]
    pub(crate) labels: LabelSet,
    /// Rounded bytes; a lower bound while `size` is open.
    pub(crate) rounded: u64,
    pub(crate) size: Sized,
    pub(crate) requested: Known,
    pub(crate) stream: Known,
    /// When the block came. If it was not seen to come, the latest moment at which it can have come; 0 if only its free
    /// was seen.
    pub(crate) born_ns: u64,
    /// Number of the block among all that were seen to come; 0 if it was not.
    pub(crate) serial: u64,
    pub(crate) stack: StackIndex,
    pub(crate) place: Membership,
}

/// A number that may not be known, in eight bytes. No size and no stream has all bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<u64>")]
pub(crate) struct Known(u64);

impl Known {
    /// The number, if it is known.
    pub(crate) fn get(self) -> Option<u64> {
        (self.0 != u64::MAX).then_some(self.0)
    }

    /// As a checkpoint has it.
    pub(crate) fn packed(self) -> u64 {
        self.0
    }

    /// The reverse of [`Known::packed`].
    pub(crate) fn unpacked(packed: u64) -> Known {
        Known(packed)
    }
}

impl From<Option<u64>> for Known {
    fn from(number: Option<u64>) -> Known {
        Known(number.unwrap_or(u64::MAX))
    }
}

impl Block {
    /// When it came, at this level; 0 if that is not known.
    pub(crate) fn since_ns(&self, level: Option<Level>) -> u64 {
        match self.origin {
            Origin::Seen => self.born_ns,
            // At level `read` its birth is known roughly: the reading before this one did not have the block.
            Origin::Found if level == Some(Level::Read) => self.born_ns,
            Origin::Baseline | Origin::Found => 0,
        }
    }

    /// Whether it was seen to come after this moment.
    pub(crate) fn came_after(&self, time_ns: u64) -> bool {
        self.origin == Origin::Seen && self.born_ns > time_ns
    }
}

/// What a thread's last pool event was: the next one may be the other half of the same call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Half {
    /// A trace entry for the block with this serial.
    Alloc { addr: u64, serial: u64 },
    /// A trace entry for a free.
    Free {
        addr: u64,
        /// Bytes that the block was counted with.
        counted: u64,
        /// What became of the block's size.
        size: FreedSize,
    },
    /// A trace entry for a call that is contained in a reading.
    Told { addr: u64 },
    /// A trace entry for an out-of-memory.
    Oom,
}

/// How sure the size of a freed block was when its trace entry came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FreedSize {
    /// The size is known, from the block or from the entry itself.
    Counted,
    /// The block was known, but no total came while it lived: its allocation and its free cancel out.
    Cancelled,
    /// The block was not known: `counted` is a lower bound.
    Unknown,
}
