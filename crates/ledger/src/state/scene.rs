//! The context in which an event is applied: the parts of the process that it may change besides those of its own
//! module (counters of the devices, groups of blocks, stacks, steps), and the event's moment, thread and stack.
//!
//! Owns: nothing; it only passes references on. Refuses: to know what happened.

use crate::growth::group::Groups;
use crate::state::device::Devices;
use crate::state::labels::LabelSet;
use crate::state::stacks::{StackIndex, Stacks};
use crate::steps::Steps;

pub(crate) struct Scene<'a> {
    pub(crate) devices: &'a mut Devices,
    pub(crate) groups: &'a mut Groups,
    pub(crate) stacks: &'a mut Stacks,
    pub(crate) steps: &'a mut Steps,
    /// The event's stack.
    pub(crate) stack: StackIndex,
    pub(crate) time_ns: u64,
    pub(crate) tid: u32,
    /// The labels of what the thread allocates now.
    pub(crate) labels: LabelSet,
    /// Tracing began before the first allocation, and the pool is watched.
    pub(crate) nothing_missed: bool,
    /// The pool's library had its probes later than those that the attach placed (see `Process::pool_came_later`).
    pub(crate) pool_came_later: bool,
}
