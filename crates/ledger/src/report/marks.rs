//! Marks that the ledger keeps.

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

/// A mark that the ledger keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMark {
    /// Event of the mark. Questions can be asked about the moment of an event.
    pub event: EventId,
    /// Boot time of the mark, nanoseconds.
    pub time_ns: u64,
    /// Thread that made the mark; 0 where it was made from outside.
    pub tid: u32,
    /// An instant, the beginning of a range, or a step.
    pub kind: MarkKind,
    /// Library or tool with which it was made.
    pub source: MarkSource,
    /// Name of the mark.
    pub name: Arc<str>,
    /// The name was longer than what is kept of it.
    pub cut: bool,
    /// Its number among all marks with this name, from 1; `None` where that is not known any more.
    pub nth: Option<u64>,
}

/// How many marks of one origin there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginMarks {
    /// Who made the marks.
    pub origin: MarkOrigin,
    /// Number of marks since the attach.
    pub count: u64,
    /// Number of those marks that are kept.
    pub kept: u64,
}
