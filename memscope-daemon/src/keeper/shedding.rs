//! The budget of memory as the keeper has it.
//!
//! Owns: when it was looked at last, and the counts of what was given up. Refuses: to give anything up; `memory` does.

use memscope_ledger::event::ShedPart;

use crate::memory::Memory;

/// The keeper's side of the budget.
pub(super) struct Shedding {
    pub(super) memory: Memory,
    pub(super) looked_ns: u64,
    pub(super) looked_records: u64,
    pub(super) counts: [u64; ShedPart::ALL.len()],
}

impl Shedding {
    pub(super) fn new(memory: Memory) -> Shedding {
        Shedding {
            memory,
            looked_ns: 0,
            looked_records: 0,
            counts: [0; ShedPart::ALL.len()],
        }
    }
}
