//! Where records are missing.
//!
//! Owns: the count of lost records that we have been told of, and the newest gaps. Refuses: to
//! guess what was in them.

use crate::report::Gap;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Gaps kept.
const KEPT: usize = 64;

/// Loss of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loss {
    /// Highest count heard of.
    told: u64,
    /// Time of the last thing heard.
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

    /// A count heard at `time_ns`, in an event's header. Says whether it tells of new loss.
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

    /// How many gaps there were, the forgotten ones too.
    pub(crate) fn gap_count(&self) -> u64 {
        self.gap_count
    }

    /// Newest gaps, oldest first.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        self.gaps.iter().copied().collect()
    }
}
