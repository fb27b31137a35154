//! `stacks` and `flamegraph`: which stacks allocated the memory.

pub(crate) mod command;
pub(crate) mod flamegraph;
mod summed;
mod table;
mod view;
