//! Reads other processes' memory and files in processes that have no other task and hardly any right.
//!
//! A page of another process may be one that nobody ever delivers: a file of a FUSE file system whose server does not
//! answer. Whoever reads such a page hangs, and not even SIGKILL ends that. Opening such a file is the same, and so is closing it. So
//! memscoped lets reader processes do it. One that does not come back is given up, and replaced by another one.
//!
//! Owns: the reader processes, their rights, and how long an answer may take. Refuses: to understand what is read.

mod confine;
mod pool;
mod serve;
mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;

use pool::Readers;

pub use pool::ARGUMENT;
pub use serve::serve;
pub(crate) use wire::{MOST_TOLD, Question};

static READERS: OnceLock<Readers> = OnceLock::new();

/// From now on all memory of other processes is read by reader processes. `program` is the program that calls
/// [`serve`] when it is started with [`ARGUMENT`]. Without this call a process reads for itself.
pub fn use_readers(program: PathBuf) {
    let _ = READERS.set(Readers::new(program));
}

/// The reader processes, if they are to be used.
pub(crate) fn readers() -> Option<&'static Readers> {
    READERS.get()
}

/// How many readers were given up so far because they did not come back.
pub fn given_up() -> u64 {
    readers().map_or(0, Readers::given_up)
}
