//! Moments that were named, and what was found.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a mark is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A moment.
    #[default]
    Instant,
    /// A range begins.
    Begin,
    /// A range ends.
    End,
    /// A step ends and the next one begins.
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
    /// PyTorch's autograd engine begins a backward pass.
    Backward,
    /// Somebody outside: `memscope-ctl mark`.
    Outside,
}

/// A moment that was named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// What.
    pub kind: MarkKind,
    /// Whose.
    pub source: MarkSource,
    /// Number of the range that begins or ends, as its library gave it; 0: the innermost one of the thread.
    #[serde(default)]
    pub range: u64,
    /// Its name; empty at the end of a range. What of it was no UTF-8 is replaced.
    #[serde(default)]
    pub name: Arc<str>,
    /// The name was longer.
    #[serde(default)]
    pub cut: bool,
}

/// A line of the program whose memory keeps growing: said once, and withdrawn when it has stopped. What it says was so at
/// that moment; `leaks` knows more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its number within the process, from 1.
    pub number: u64,
    /// It is no longer so.
    #[serde(default)]
    pub withdrawn: bool,
    /// Device.
    #[serde(default)]
    pub device: Option<i32>,
    /// `pool`, `driver` or `host`.
    pub space: String,
    /// Bytes that live.
    pub live_bytes: u64,
    /// Growth per second, bytes.
    pub growth_bytes_per_s: f64,
    /// Growth per step, bytes, where steps are known.
    #[serde(default)]
    pub growth_bytes_per_step: Option<f64>,
    /// The step in which it began.
    #[serde(default)]
    pub first_step: Option<u64>,
    /// How sure that is, 0 to 1.
    #[serde(default)]
    pub confidence: Option<f64>,
    /// The line that allocates it: file, line, function. Empty file: not known.
    #[serde(default)]
    pub file: String,
    /// See `file`.
    #[serde(default)]
    pub line: u32,
    /// See `file`.
    #[serde(default)]
    pub name: String,
    /// Why, in a sentence.
    pub reason: String,
}
