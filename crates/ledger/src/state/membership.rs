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

/// A block's place in its groups; handed back to them when the block is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Number of the group of its exact size; `NONE` if there was no room for another group.
    pub(crate) exact: u32,
    pub(crate) class: u32,
    pub(crate) of_stack: u32,
    /// Size of the block in units (`growth::group::UNIT`), rounded up.
    pub(crate) units: u32,
    /// Number of the tick at which the block came.
    pub(crate) tick: u32,
}

/// The number that stands for no group.
pub(crate) const NONE: u32 = u32::MAX;

impl Membership {
    /// Place of a block that is in no group.
    pub(crate) const NOWHERE: Membership = Membership {
        exact: NONE,
        class: NONE,
        of_stack: NONE,
        units: 0,
        tick: 0,
    };

    /// Number of the group of its exact size, if it is in one.
    pub(crate) fn exact(&self) -> Option<usize> {
        (self.exact != NONE).then_some(self.exact as usize)
    }

    /// Number of the group of its stack, if it is in one.
    pub(crate) fn of_stack(&self) -> Option<usize> {
        (self.of_stack != NONE).then_some(self.of_stack as usize)
    }

    /// Number of its class of sizes, if it is in one.
    pub(crate) fn class(&self) -> Option<usize> {
        (self.class != NONE).then_some(self.class as usize)
    }
}
