//! Marks, and findings.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a mark stands for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A single moment.
    #[default]
    Instant,
    /// The beginning of a range.
    Begin,
    /// The end of a range.
    End,
    /// The end of a step and the beginning of the next one.
    Step,
}

/// Who made a mark.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MarkSource {
    /// The program, through memscope's own library.
    #[default]
    Memscope,
    /// The program, through mstx.
    Mstx,
    /// The program, through NVTX.
    Nvtx,
    /// PyTorch's `record_function`, of which `Optimizer.step#NAME.step` and `ProfilerStep#N` are two.
    RecordFunction,
    /// PyTorch's autograd engine, at the beginning of a backward pass.
    Backward,
    /// Somebody outside: `memscope-ctl mark`.
    Outside,
}

/// A named moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// What the mark stands for.
    pub kind: MarkKind,
    /// Who made the mark.
    pub source: MarkSource,
    /// Number of the range that begins or ends, as its library gave it; 0 means the innermost range of the thread.
    #[serde(default)]
    pub range: u64,
    /// Name of the mark; empty at the end of a range. Bytes that are not UTF-8 are replaced.
    #[serde(default)]
    pub name: Arc<str>,
    /// The name was longer than what is kept of it.
    #[serde(default)]
    pub cut: bool,
}

/// A line of the program whose memory keeps growing. It is reported once, and withdrawn when the growth has stopped.
/// The numbers are those of the moment of the report; the answer to `leaks` has the present ones and more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Number of the finding within the process, from 1.
    pub number: u64,
    /// The finding is withdrawn: the memory does not grow any more.
    #[serde(default)]
    pub withdrawn: bool,
    /// Ordinal of the device within the process, where it is known.
    #[serde(default)]
    pub device: Option<i32>,
    /// Kind of memory: `pool`, `driver` or `host`.
    pub space: String,
    /// Live bytes that the line has allocated.
    pub live_bytes: u64,
    /// Growth in bytes per second.
    pub growth_bytes_per_s: f64,
    /// Growth in bytes per step, where steps are known.
    #[serde(default)]
    pub growth_bytes_per_step: Option<f64>,
    /// Step in which the growth began, where steps are known.
    #[serde(default)]
    pub first_step: Option<u64>,
    /// How certain it is that this is a leak, 0 to 1, where steps are known.
    #[serde(default)]
    pub confidence: Option<f64>,
    /// Source file of the line that allocates the memory; empty if the line is not known.
    #[serde(default)]
    pub file: String,
    /// Number of that line in the file.
    #[serde(default)]
    pub line: u32,
    /// Function that the line is in.
    #[serde(default)]
    pub name: String,
    /// Why this was reported or withdrawn, as a sentence for users.
    pub reason: String,
}
