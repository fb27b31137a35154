//! PyTorch's own snapshots, which are pickles: what `torch.cuda.memory._dump_snapshot()` writes.
//!
//! Owns: the reading of pickles, in which nothing is trusted and nothing is run; what a snapshot says ([`Snapshot`]); and, with the feature
//! `events`, the same as the ledger's events. Refuses: to make up what a pickle does not say; what contradicts itself is counted and told.

#[cfg(feature = "events")]
pub mod events;
mod once;
mod reader;
mod snapshot;
mod stacks;

pub use reader::{Pickle, PickleError, Value};
pub use snapshot::{Action, Block, Entry, NotASnapshot, Note, Origin, Segment, Snapshot, State};
pub use stacks::{MOST_FRAMES, Stacks};
