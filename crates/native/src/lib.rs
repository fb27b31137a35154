//! Stacks of compiled code in other processes.
//!
//! Compilers keep no frame pointers, but beside the code lie tables (`.eh_frame`) that say for each instruction where
//! its caller's frame is. From these come the rules by which the programs in the kernel unwind ([`ProcessCode::rule`]),
//! the frames in a piece of a stack that was copied ([`ProcessCode::unwind`]), and from the symbols the names
//! ([`Symbols`]).
//!
//! Owns: what is mapped as code in a process, the tables of those files, their symbols. Refuses: to guess where the
//! tables are silent: the stack ends there, and says so.

mod image;
mod process;
mod symbols;

pub use image::{Image, ImageError};
pub use process::{Piece, ProcessCode, Shared, Unwound};
pub use symbols::{Function, Named, Symbols};
