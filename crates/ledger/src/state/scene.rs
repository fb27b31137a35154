//! What an event changes besides the books of its own room: the counters of the devices, the steps and the
//! groups of blocks, at one moment, on behalf of one thread.
//!
//! Owns: nothing; it only travels. Refuses: to know what happened.

use crate::growth::group::Groups;
use crate::state::device::Devices;
use crate::state::stacks::{StackIndex, Stacks};
use crate::steps::Steps;

/// See the module.
pub(crate) struct Scene<'a> {
    pub(crate) devices: &'a mut Devices,
    pub(crate) groups: &'a mut Groups,
    pub(crate) stacks: &'a mut Stacks,
    pub(crate) steps: &'a mut Steps,
    /// The stack of what happens.
    pub(crate) stack: StackIndex,
    pub(crate) time_ns: u64,
    pub(crate) tid: u32,
    /// Tracing began before the first allocation, and the pool is watched.
    pub(crate) nothing_missed: bool,
}
