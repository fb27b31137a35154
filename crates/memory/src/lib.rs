//! Reads the memory of another process, at one address or at many addresses in one call, and the files that it has mapped.
//!
//! Owns: the one way in which memscope reads the memory of a traced process and the files that it has mapped, and the reader
//! processes that do it for the daemon. Refuses: to write, to stop the process, and to know what lies at an address.

mod ask;
pub mod file;
mod gather;
mod owner;
mod part;
mod place;
mod process;
pub mod reader;

pub use ask::{AskBack, Patience};
pub use owner::Owner;
pub use part::{Memory, Part};
pub use process::{ProcessMemory, Work};
