//! By what a block is put into groups, and the block's place in them.
//!
//! Owns: what the groups that watch for growth need to know of a block, and the place that they give it, which the
//! block keeps until it is freed. Refuses: the groups themselves, which `growth::group` has.

use crate::report::Space;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};

/// What the blocks of a group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct GroupKey {
    pub(crate) device: Option<i32>,
    /// Kind of memory.
    pub(crate) space: Space,
    pub(crate) stream: Option<u64>,
    pub(crate) size: u64,
    /// Stack that allocated the block. Groups ignore the sampling interval in it, which may change at any time.
    pub(crate) stack: StackIndex,
}

/// A block's place in its groups; handed back to them when the block is freed. It names one group, which knows the
/// others: all of them follow from the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Number of the group of its exact size. From [`LOOSE`] on: if there was no room for another group, the number of
    /// an entry that has the other groups.
    exact: u32,
    /// Number of the tick at which the block came, among those of all sources of steps.
    pub(crate) tick: u32,
}

/// The number that stands for no group.
pub(crate) const NONE: u32 = u32::MAX;
/// Where the numbers of entries begin that stand in for a group.
const LOOSE: u32 = 1 << 31;
/// Largest number of groups, and of entries that stand in for one.
pub(crate) const NUMBERS: usize = (LOOSE - 1) as usize;

/// What a block's place names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The group of its exact size.
    Group(usize),
    /// An entry that stands in for one.
    Loose(usize),
    Nothing,
}

impl Membership {
    /// Place of a block that is in no group.
    pub(crate) const NOWHERE: Membership = Membership {
        exact: NONE,
        tick: 0,
    };

    /// The place of a block of the group with this number.
    pub(crate) fn of_group(number: u32, tick: u32) -> Membership {
        Membership {
            exact: number,
            tick,
        }
    }

    /// The place of a block of no group of an exact size, whose other groups this entry has.
    pub(crate) fn loose(number: u32, tick: u32) -> Membership {
        Membership {
            exact: LOOSE | number,
            tick,
        }
    }

    /// What it names.
    pub(crate) fn named(self) -> Named {
        match self.exact {
            NONE => Named::Nothing,
            number if number >= LOOSE => Named::Loose((number - LOOSE) as usize),
            number => Named::Group(number as usize),
        }
    }

    /// Number of the group of its exact size, if it is in one.
    pub(crate) fn exact(self) -> Option<usize> {
        match self.named() {
            Named::Group(number) => Some(number),
            Named::Loose(_) | Named::Nothing => None,
        }
    }

    /// As a checkpoint has it.
    pub(crate) fn packed(self) -> (u32, u32) {
        (self.exact, self.tick)
    }

    /// The reverse of [`Membership::packed`].
    pub(crate) fn unpacked(exact: u32, tick: u32) -> Membership {
        Membership { exact, tick }
    }
}
