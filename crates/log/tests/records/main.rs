//! Decoding and encoding of records.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

mod daemon;
mod encode;
mod fuzz;
mod held;
mod kernel;
mod pool;
mod reader;
mod regions;
mod stacks;
