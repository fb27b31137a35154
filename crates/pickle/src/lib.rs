//! PyTorch's own snapshots, which are pickles: what `torch.cuda.memory._dump_snapshot()` writes.
//!
//! Owns: the reading of pickles, in which nothing is trusted and nothing is run; what a snapshot says ([`Snapshot`]); whether peak and
//! course follow from its trace ([`doubts()`]); and, with the feature `events`, the same as the ledger's events. Refuses: to make up what a pickle does not say; what contradicts itself is counted and told.

mod doubts;
#[cfg(feature = "events")]
pub mod events;
mod once;
mod pool;
mod reader;
mod snapshot;
mod stacks;
mod whole;

pub use doubts::{Doubt, Doubts, LeftOut, doubts, notes};
pub use reader::{Pickle, PickleError, Value};
pub use snapshot::{Action, Block, Entry, NotASnapshot, Note, Origin, Segment, Snapshot, State};
pub use stacks::{MOST_FRAMES, Stacks};
