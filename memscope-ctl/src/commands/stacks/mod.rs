//! `top` and `flamegraph`: which stacks allocated the memory.

pub(crate) mod flamegraph;
mod summed;
mod table;
pub(crate) mod top;
mod view;
