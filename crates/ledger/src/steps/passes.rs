//! Backward passes: whose are counted, and how many of them make a step.
//!
//! Owns: the thread whose passes are ticks, and the number of passes in a step where gradients are accumulated. Refuses: the count of
//! ticks, which `steps` has.

use crate::steps::cycle::period;
use serde::{Deserialize, Serialize};

/// Number of last rows in which a period of passes is looked for.
pub(crate) const LOOKED_AT: usize = 256;
/// Passes of other threads that are taken for passes inside of one, before two passes of the first thread have shown how many come.
const INSIDE_AT_FIRST: u64 = 256;
/// The same once they have, where fewer came.
const INSIDE_AT_LEAST: u64 = 64;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Passes {
    /// The thread whose passes are counted.
    followed: Option<u32>,
    /// Number of passes of other threads since its last one.
    between: u64,
    /// Largest number of them between two of its passes; `None` until its second one.
    inside: Option<u64>,
    /// The thread that was followed before, and the number of passes since it was left.
    left: Option<(u32, u64)>,
    /// Number of passes in a step, once it was found.
    in_step: Option<u64>,
    /// Number of passes since it was found last.
    unlike: usize,
}

impl Passes {
    /// Goes on with a thread that was followed before anything else of it was known.
    pub(crate) fn follow(&mut self, tid: u32) {
        self.followed.get_or_insert(tid);
    }

    /// Takes a pass of a thread. Returns how many passes are to be counted now.
    ///
    /// Passes inside passes (checkpointing) run on other threads of the autograd engine, and are not counted. When far more come than ever
    /// came inside a pass, the first thread makes none any more: another one is followed, and its passes until now are counted. If the
    /// first thread makes one after all, it is followed again, and so many do not take over a second time.
    pub(crate) fn take(&mut self, tid: u32) -> u64 {
        let Some(followed) = self.followed else {
            self.followed = Some(tid);
            return 1;
        };
        if let Some((left, since)) = &mut self.left {
            if *left == tid {
                *self = Passes {
                    followed: Some(tid),
                    inside: Some(*since),
                    in_step: self.in_step,
                    unlike: self.unlike,
                    ..Passes::default()
                };
                return 1;
            }
            *since += 1;
        }
        if followed == tid {
            let between = std::mem::take(&mut self.between);
            self.inside = Some(self.inside.map_or(between, |most| most.max(between)));
            return 1;
        }
        self.between += 1;
        let inside = self.inside.map_or(INSIDE_AT_FIRST, |most| {
            most.saturating_mul(2).max(INSIDE_AT_LEAST)
        });
        if self.between <= inside {
            return 0;
        }
        let counted = self.between;
        *self = Passes {
            followed: Some(tid),
            left: Some((followed, counted)),
            in_step: self.in_step,
            unlike: self.unlike,
            ..Passes::default()
        };
        counted
    }

    /// Whether the number of passes in a step was found.
    pub(crate) fn has_found(&self) -> bool {
        self.in_step.is_some()
    }

    /// Number of passes in a step.
    pub(crate) fn in_step(&self) -> u64 {
        self.in_step.unwrap_or(1)
    }

    /// Looks for the number of passes in a step: the passes of a step differ in what is allocated between them, and the same sequence
    /// repeats in each step. One pass that is unlike all others hides that for a while, so a number holds until another one is found, or
    /// for as many passes as are looked at.
    /// `recent` has, of each of the last [`LOOKED_AT`] passes, what was allocated on each device.
    pub(crate) fn look(&mut self, recent: &[Vec<(u64, u64)>]) {
        self.unlike += 1;
        if let Some(found) = period(recent, 2) {
            self.in_step = Some(found as u64);
            self.unlike = 0;
        } else if self.unlike > LOOKED_AT {
            self.in_step = None;
        }
    }
}
