//! What tells of steps.

use serde::{Deserialize, Serialize};

/// What tells where a step ends, from the weakest to the best.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum StepSource {
    /// Nothing does.
    #[default]
    Unknown,
    /// A pattern of allocations that repeats itself.
    Pattern,
    /// Backward passes.
    Backward,
    /// Steps of optimizers.
    Optimizer,
    /// Steps of PyTorch's profiler.
    Profiler,
    /// Marks of the program.
    Mark,
    /// A name that was picked at the attach.
    Named,
}
