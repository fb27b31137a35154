//! How the ends of steps are found.

use serde::{Deserialize, Serialize};

/// What the ends of steps are found by, from the weakest evidence to the best.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum StepSource {
    /// Nothing was seen by which steps could be found.
    #[default]
    Unknown,
    /// A pattern of allocations that repeats.
    Pattern,
    /// Backward passes.
    Backward,
    /// Steps of optimizers.
    Optimizer,
    /// Steps of PyTorch's profiler.
    Profiler,
    /// Marks of the program.
    Mark,
    /// Marks with a name that the user gave at the attach.
    Named,
}
