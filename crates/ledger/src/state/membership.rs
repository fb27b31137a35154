//! What a block shares with others, and the place that it has among them.
//!
//! Owns: what the groups that watch for growth are told of a block, and the place that they give it, which the block keeps until it goes.
//! Refuses: the groups themselves, which `growth::group` has.

use crate::report::Space;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};

/// What the blocks of a group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct GroupKey {
    pub(crate) device: Option<i32>,
    /// What kind of memory.
    pub(crate) space: Space,
    pub(crate) stream: Option<u64>,
    pub(crate) size: u64,
    /// Who allocated it, however many blocks this one stands for: the interval of sampling may change at any time.
    pub(crate) stack: StackIndex,
}

/// A block's place; given back when the block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// `NONE` when there was no room for another group.
    pub(crate) exact: u32,
    pub(crate) class: u32,
    pub(crate) of_stack: u32,
    /// Its bytes, in units.
    pub(crate) units: u32,
    /// The tick that it came in.
    pub(crate) tick: u32,
}

/// The number that stands for no group.
pub(crate) const NONE: u32 = u32::MAX;

impl Membership {
    /// In no group.
    pub(crate) const NOWHERE: Membership = Membership {
        exact: NONE,
        class: NONE,
        of_stack: NONE,
        units: 0,
        tick: 0,
    };

    /// Number of the group, for those who count by group.
    pub(crate) fn exact(&self) -> Option<usize> {
        (self.exact != NONE).then_some(self.exact as usize)
    }

    /// Number among the stacks.
    pub(crate) fn of_stack(&self) -> Option<usize> {
        (self.of_stack != NONE).then_some(self.of_stack as usize)
    }

    /// Number of the class.
    pub(crate) fn class(&self) -> Option<usize> {
        (self.class != NONE).then_some(self.class as usize)
    }
}
