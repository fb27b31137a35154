//! Stacks of compiled code in other processes.
//!
//! Compilers often keep no frame pointers, but files of code have tables (`.eh_frame`) that say for each instruction
//! where its caller's frame is. From the tables this crate makes the rules by which the BPF programs unwind
//! ([`ProcessCode::rule`]), and finds the frames in a copied piece of a stack ([`ProcessCode::unwind`]). The names of
//! functions come from the symbols ([`Symbols`]).
//!
//! Owns: what is mapped as code in a process, the tables of those files, their symbols. Refuses: to guess where the
//! tables say nothing. There the stack ends, and is marked as incomplete.

mod copy;
mod image;
mod process;
mod symbols;

pub use image::{Image, ImageError};
pub use process::{Piece, ProcessCode, Shared, Unwound};
pub use symbols::{Function, Named, Symbols};
