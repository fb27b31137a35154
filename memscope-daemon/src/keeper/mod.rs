//! The keeper: the one thread that owns the ring's reading side, the journal and the ledger.
//!
//! All other threads send it commands over a bounded channel. A question is answered after every record that was
//! submitted before the question has been applied, and the answer has its moment in `as_of`.

mod calibrating;
mod command;
mod findings;
mod frees;
mod handle;
mod intake;
mod memory;
mod naming;
mod native;
mod rest;
mod shedding;
mod snapshots;
mod state;
mod status;
mod taking;
mod thread;
mod watching;

pub use command::{Command, KeeperMessage, Question, TriggerWork};
pub use handle::{Gone, KeeperHandle};
pub use state::Keeper;
pub use status::{KeeperStatus, MemoryStatus};
pub use taking::Taking;
pub use thread::Start;
pub use watching::{LeftWatching, Watching};
