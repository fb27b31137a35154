//! The levels of one device's memory within one step.
//!
//! Owns: the levels between two ends of steps. Only the levels after events count, as in msMemScope's gap analysis: a
//! step without events has no levels. Refuses: to know which step it is.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepLevels {
    /// Number of events that gave a level.
    events: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// Reserved bytes at the moment of `max`.
    pub(crate) reserved_at_max: u64,
    pub(crate) max_reserved: u64,
    /// Level after the last event.
    pub(crate) end: u64,
    pub(crate) end_reserved: u64,
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Sum of all rises of the level in bytes; `freed_bytes` is the sum of all falls.
    pub(crate) allocated_bytes: u64,
    pub(crate) freed_bytes: u64,
}

impl StepLevels {
    /// The level was at `allocated` and `reserved` bytes when this was first looked at. If a level is known already, nothing changes.
    pub(crate) fn begin_at(&mut self, allocated: u64, reserved: u64) {
        if self.events == 0 && self.end == 0 {
            (self.end, self.end_reserved) = (allocated, reserved);
        }
    }

    /// Takes the level after an event, and how many blocks came and went with it.
    pub(crate) fn note(&mut self, allocated: u64, reserved: u64, allocs: u64, frees: u64) {
        let before = self.end;
        if self.events == 0 || allocated < self.min {
            self.min = allocated;
        }
        if self.events == 0 || allocated > self.max {
            self.max = allocated;
            self.reserved_at_max = reserved;
        }
        self.max_reserved = self.max_reserved.max(reserved);
        self.events += 1;
        self.allocs += allocs;
        self.frees += frees;
        self.allocated_bytes = self
            .allocated_bytes
            .saturating_add(allocated.saturating_sub(before));
        self.freed_bytes = self
            .freed_bytes
            .saturating_add(before.saturating_sub(allocated));
        self.end = allocated;
        self.end_reserved = reserved;
    }

    /// Adds a later part of the same step.
    pub(crate) fn join(&mut self, later: &StepLevels) {
        self.events += later.events;
        self.min = self.min.min(later.min);
        if later.max > self.max {
            self.max = later.max;
            self.reserved_at_max = later.reserved_at_max;
        }
        self.max_reserved = self.max_reserved.max(later.max_reserved);
        self.end = later.end;
        self.end_reserved = later.end_reserved;
        self.allocs += later.allocs;
        self.frees += later.frees;
        self.allocated_bytes = self.allocated_bytes.saturating_add(later.allocated_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(later.freed_bytes);
    }

    /// Ends the step and returns its levels; `None` if nothing happened in it. The next step begins at the last level.
    pub(crate) fn close(&mut self) -> Option<StepLevels> {
        let closed = *self;
        *self = StepLevels {
            end: closed.end,
            end_reserved: closed.end_reserved,
            ..StepLevels::default()
        };
        (closed.events > 0).then_some(closed)
    }
}
