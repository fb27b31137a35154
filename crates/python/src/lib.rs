//! Everything that must be known of a CPython interpreter inside another, running process in order to walk Python
//! frames from outside.
//!
//! [`find`] opens the files that the process has really mapped, and finds `_PyRuntime` in one of them. It determines
//! the version, the offsets of the fields in the interpreter's structures ([`Layout`]: from the interpreter's own
//! description from 3.13 on, from tables before), and how a thread finds its own state ([`ThreadStateAt`]). Then it
//! proves all that in the process's memory: thread states name threads that exist, the slot of each thread holds
//! exactly that state, frames lead to code objects, and the type of code objects lists the same offsets ([`Proof`]).
//! What cannot be proven is refused, with the reason ([`PythonError`]).
//!
//! [`walk_thread`] walks frame by frame from outside; faster walkers are compared with it. [`read_code`] and
//! [`Code::decode`] give the name, file and line of a frame, from the process or from captured bytes.
//!
//! The crate supports x86-64 and aarch64 (there up to 3.14), glibc, and CPython 3.9 to 3.15 with the GIL. It stops no
//! process, writes nothing, uses no `ptrace`, and refuses to guess.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod code;
mod debug_offsets;
mod error;
mod find;
mod image;
pub mod layout;
mod lines;
mod metered;
mod prove;
mod slot;
mod tables;
#[cfg(test)]
mod testing;
mod text;
mod thread;
mod threads;
mod tls;
mod version;
mod walk;

pub use code::{Code, CodeError, MAX_LINES, MAX_TEXT, RawCode, read_code, read_string};
pub use error::PythonError;
pub use find::{Codes, FileFunction, Interpreter, Limit, VersionFrom, find, threads, walk_thread};
pub use layout::{
    BytesLayout, ChunkLayout, CodeLayout, FrameLayout, Layout, RuntimeLayout, TextLayout,
    ThreadLayout,
};
pub use lines::{LineRange, LineRanges};
pub use prove::Proof;
pub use slot::{Pthread, ThreadStateAt, ThreadStatePath};
pub use tables::layout as table;
pub use text::Text;
pub use thread::Thread;
pub use threads::{State, states};
pub use version::{Release, Version};
pub use walk::{End, MAX_FRAMES, RawFrame, Walk, decode, walk};
