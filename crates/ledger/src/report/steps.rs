//! How the ends of steps are found.

use serde::{Deserialize, Serialize};

/// What the ends of steps are found by. How good each is as evidence is said by [`StepSource::rank`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

impl StepSource {
    /// How good it is as evidence: the higher, the better. A profiler mostly runs for a few steps of many, so its steps count only where
    /// neither optimizers nor backward passes tell of any.
    pub(crate) fn rank(self) -> u8 {
        match self {
            StepSource::Unknown => 0,
            StepSource::Pattern => 1,
            StepSource::Profiler => 2,
            StepSource::Backward => 3,
            StepSource::Optimizer => 4,
            StepSource::Mark => 5,
            StepSource::Named => 6,
        }
    }
}
