//! Where records are missing.
//!
//! Owns: the count of lost records, as events report it, and the newest gaps. Refuses: to guess what was in the gaps.

use crate::report::Gap;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of gaps that are kept.
const KEPT: usize = 64;

/// Lost records of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loss {
    /// Highest count of lost records that was reported.
    told: u64,
    /// Time of the latest event that reported a count.
    heard_ns: u64,
    gaps: VecDeque<Gap>,
    gap_count: u64,
}

impl Loss {
    /// A process that was attached at `time_ns`, when `lost` records had been lost before.
    pub(crate) fn new(time_ns: u64, lost: u64) -> Loss {
        Loss {
            told: lost,
            heard_ns: time_ns,
            ..Loss::default()
        }
    }

    /// Takes the count from the header of an event at `time_ns`. Returns whether more records have been lost than were
    /// known.
    pub(crate) fn hear(&mut self, lost: u64, time_ns: u64) -> bool {
        let fresh = lost > self.told;
        if fresh {
            if self.gaps.len() == KEPT {
                self.gaps.pop_front();
            }
            self.gaps.push_back(Gap {
                from_ns: self.heard_ns.min(time_ns),
                to_ns: time_ns,
                records: lost - self.told,
            });
            self.gap_count += 1;
            self.told = lost;
        }
        self.heard_ns = self.heard_ns.max(time_ns);
        fresh
    }

    /// Records lost so far.
    pub(crate) fn records(&self) -> u64 {
        self.told
    }

    /// Number of all gaps, including those that are not kept any more.
    pub(crate) fn gap_count(&self) -> u64 {
        self.gap_count
    }

    /// The newest gaps, the oldest of them first.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        self.gaps.iter().copied().collect()
    }
}
