//! Fuzz targets: whatever bytes come, reading them ends, with a result, in time and within a bound of memory.
//!
//! Owns: a target for each kind of bytes that memscope reads and does not control, the inputs that each begins with, and the
//! counting of what one input makes it hold. Refuses: to know what is right; it only sees what panics, hangs, or takes too much.
//!
//! `cargo test -p memscope-fuzz` runs each target over the inputs that are kept in `corpus/` and over mutations of them that
//! follow from a fixed seed. `cargo xtask fuzz` builds the program `fuzz`, in which libFuzzer looks for new ones by coverage.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is a finding

mod ask;
pub mod corpus;
mod dump;
mod elf;
mod held;
mod journal;
mod made;
mod memory;
mod pickle;
mod pieces;
mod python;
mod questions;
mod records;
mod structure;
mod target;
mod texts;
mod unwind;

pub use target::Target;

/// All targets, the riskiest first.
pub const TARGETS: &[Target] = &[
    pickle::TARGET,
    journal::TARGET,
    structure::TARGET,
    python::TARGET,
    elf::TARGET,
    unwind::TARGET,
    records::TARGET,
    dump::TARGET,
    questions::TARGET,
    texts::TARGET,
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
