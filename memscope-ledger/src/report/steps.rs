//! The answers about steps.

use super::{AsOf, Frame, ProcessSummary, Source};
use crate::event::CoverageNote;
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

/// What is known of a process's steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepSummary {
    /// What tells of them.
    pub source: StepSource,
    /// Steps since that was seen first; `None`: there is nothing to tell them by.
    pub count: Option<u64>,
    /// Median time of the last ones, nanoseconds.
    pub median_ns: Option<u64>,
    /// On what that rests, in a sentence.
    pub evidence: String,
}

/// What to ask of `steps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepQuery {
    /// At most so many rows, the last ones (0: all).
    pub limit: usize,
    /// So many steps make a row (0: one).
    pub every: u64,
}

/// A line of the program that tells of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// Name of the mark.
    pub name: String,
    /// How often it came.
    pub count: u64,
    /// The innermost of the program's own lines, where known.
    pub line: Option<Frame>,
}

/// How far one device's memory went within one step. Levels are those after events of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRow {
    /// Number, from 1; of several steps the last one's.
    pub step: u64,
    /// How many steps it tells of.
    pub steps: u64,
    /// Boot time of its begin.
    pub from_ns: u64,
    /// Boot time of its end.
    pub to_ns: u64,
    /// Device.
    pub device: Option<i32>,
    /// Pool or driver.
    pub source: Source,
    /// Smallest allocated bytes.
    pub min_allocated_bytes: u64,
    /// Largest.
    pub max_allocated_bytes: u64,
    /// At the end.
    pub end_allocated_bytes: u64,
    /// Largest reserved bytes.
    pub max_reserved_bytes: u64,
    /// Reserved when most was allocated: the difference was of no use then.
    pub reserved_at_max_bytes: u64,
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// What the level rose by, summed up.
    pub allocated_bytes: u64,
    /// What it fell by, summed up.
    pub freed_bytes: u64,
}

/// Smallest against largest level of a step, as msMemScope's gap analysis has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepGap {
    /// The step.
    pub step: u64,
    /// Smallest allocated bytes after an event of it.
    pub min_bytes: u64,
    /// Largest.
    pub max_bytes: u64,
    /// One by the other.
    pub ratio: f64,
}

/// One device over its steps, the first one left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDevice {
    /// Device.
    pub device: Option<i32>,
    /// Pool or driver.
    pub source: Source,
    /// Steps that are counted.
    pub steps: u64,
    /// The step with the smallest ratio; the first of several.
    pub smallest_gap: Option<StepGap>,
    /// The step with the largest.
    pub largest_gap: Option<StepGap>,
    /// Smallest allocated bytes of a step: quantiles of 5 %, 50 % and 95 % over steps.
    pub min_bytes: [u64; 3],
    /// The same of the largest.
    pub max_bytes: [u64; 3],
    /// Change of the floor per step, bytes: the median of the slopes between all pairs of the last 512.
    pub floor_bytes_per_step: f64,
    /// Allocations in them.
    pub allocs: u64,
    /// Frees in them.
    pub frees: u64,
}

pub use crate::survivors::Survivor;

/// The answer to `steps`.
#[derive(Clone, Debug, PartialEq)]
pub struct StepsReport {
    /// Whose.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// How many, and how we know.
    pub summary: StepSummary,
    /// Lines that tell of steps.
    pub lines: Vec<StepLine>,
    /// Device by device.
    pub devices: Vec<StepDevice>,
    /// Step by step, device by device; the oldest are forgotten.
    pub rows: Vec<StepRow>,
    /// Kernels launched, where they are counted.
    pub launches: Option<u64>,
    /// Blocks that outlived their step, by msMemScope's rule.
    pub survivor_count: u64,
    /// Their bytes.
    pub survivor_bytes: u64,
    /// The first 100,000 of them.
    pub survivors: Vec<Survivor>,
    /// Blocks of which that cannot be said: too many came in one step.
    pub unchecked_blocks: u64,
    /// What limits this answer.
    pub coverage: Vec<CoverageNote>,
}
