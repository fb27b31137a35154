//! Whose memory it is: `top` and `flamegraph`.

pub(crate) mod flamegraph;
mod table;
pub(crate) mod top;
mod view;
