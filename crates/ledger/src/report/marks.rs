//! Marks that are kept.

use crate::event::{EventId, MarkKind, MarkSource};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who named a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkOrigin {
    /// Somebody outside of the process.
    People,
    /// The program, through a library that it calls.
    Program,
    /// PyTorch by itself: optimizers, backward passes, its profiler.
    Framework,
}

/// A mark that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMark {
    /// Its event, which is a moment that can be asked for.
    pub event: EventId,
    /// When, boot time in nanoseconds.
    pub time_ns: u64,
    /// The thread that made it; 0 where it was made from outside.
    pub tid: u32,
    /// An instant, the beginning of a range, or a step.
    pub kind: MarkKind,
    /// What it was made with.
    pub source: MarkSource,
    /// Its name.
    pub name: Arc<str>,
    /// The name was longer.
    pub cut: bool,
    /// Which of its name it is, from 1; `None` where that is not known any more.
    pub nth: Option<u64>,
}

/// How many marks of one origin there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginMarks {
    /// Who named the moments.
    pub origin: MarkOrigin,
    /// How many there were since the attach.
    pub count: u64,
    /// How many of them are kept.
    pub kept: u64,
}
