//! One block of a framework's pool, and the blocks of a process by address.
//!
//! Owns: what is kept of a block. Refuses: totals and groups, which `pool` keeps consistent with the blocks.

use crate::event::Level;
use crate::fast_hash::FastMap;
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
    /// The first reading of its device contained it: as far as we know it was there before the attach.
    Baseline,
    /// A reading contained it although it was not seen to come, so it came in a gap.
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

/// One block. Device addresses are unique in a process, so the address alone is the key.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Block {
    pub(crate) device: i32,
    /// Freed by the program, still in use by a stream.
    pub(crate) pending: bool,
    pub(crate) origin: Origin,
    /// The labels that the program gave it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) labels: LabelSet,
    /// Rounded bytes; a lower bound while `size` is open.
    pub(crate) rounded: u64,
    pub(crate) size: Sized,
    pub(crate) requested: Option<u64>,
    pub(crate) stream: Option<u64>,
    /// When the block came. If it was not seen to come, the latest moment at which it can have come; 0 if only its free
    /// was seen.
    pub(crate) born_ns: u64,
    /// Number of the block among all that were seen to come; 0 if it was not.
    pub(crate) serial: u64,
    pub(crate) stack: StackIndex,
    pub(crate) place: Membership,
}

const fn is_none(labels: &LabelSet) -> bool {
    *labels == 0
}

/// Blocks by address.
pub(crate) type Blocks = FastMap<u64, Block>;

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
