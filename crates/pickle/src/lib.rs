//! PyTorch's own snapshots, which are pickles: what `torch.cuda.memory._dump_snapshot()` writes.
//!
//! Owns: the reading of pickles, in which nothing is trusted and nothing is run; and, with the feature `events`, what a snapshot says as
//! the ledger's events. Refuses: to make up what a pickle does not say; what contradicts itself is counted and told.

#[cfg(feature = "events")]
pub mod events;
mod once;
mod reader;

pub use once::Once;
pub use reader::{Pickle, PickleError, Value};
