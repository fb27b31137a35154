//! Stacks within a budget of processor time. The programs themselves measure what stacks cost in a process. If that
//! is too much, fewer stacks or frames are taken, and more again when they have become cheap.

use std::time::{Duration, Instant};

use memscope_rpc::StackKinds;

/// Time between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// Shortest time on a step before the next better step is tried. It is doubled each time that this fails, up to
/// `LONGEST`.
const STAY: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(320);
/// Bytes for which one stack is taken, as logarithms to base 2: 1 MiB and 64 MiB.
const SAMPLINGS: [u8; 2] = [20, 26];

/// State of the budget of one process.
#[derive(Debug)]
pub(super) struct Budget {
    /// Kinds of stacks, step by step: from what was asked for down to nothing.
    steps: Vec<StackKinds>,
    step: usize,
    since: Instant,
    stay: Duration,
    looked: Instant,
    taken: Duration,
}

impl Budget {
    /// Begins with what was asked for.
    pub(super) fn new(asked: StackKinds) -> Budget {
        let mut steps = vec![asked];
        let mut less = asked;
        if less.python && less.native {
            less.native = false;
            steps.push(less);
        }
        for sampling in SAMPLINGS {
            if less.sampling < sampling {
                less.sampling = sampling;
                steps.push(less);
            }
        }
        steps.push(StackKinds {
            python: false,
            native: false,
            ..less
        });
        let now = Instant::now();
        Budget {
            steps,
            step: 0,
            since: now,
            stay: STAY,
            looked: now,
            taken: Duration::ZERO,
        }
    }

    /// The same for a process that an earlier daemon has traced, whose stacks have taken so much time already.
    pub(super) fn going_on(asked: StackKinds, taken: Duration) -> Budget {
        Budget {
            taken,
            ..Budget::new(asked)
        }
    }

    fn kinds(&self) -> StackKinds {
        self.steps.get(self.step).copied().unwrap_or_default()
    }

    /// Checks the cost. `taken` is the time that stacks have taken so far, `most` the share of a processor that they
    /// may take. If the step changes, returns what has to be taken from now on, and the share that stacks took.
    pub(super) fn look(
        &mut self,
        now: Instant,
        taken: Duration,
        most: f64,
    ) -> Option<(StackKinds, f64)> {
        let elapsed = now.saturating_duration_since(self.looked);
        if elapsed < LOOK {
            return None;
        }
        let share = taken.saturating_sub(self.taken).as_secs_f64() / elapsed.as_secs_f64();
        (self.looked, self.taken) = (now, taken);
        let stayed = now.saturating_duration_since(self.since);
        if share > most && self.step + 1 < self.steps.len() {
            // The better step was tried too soon, so the next attempt has to wait longer.
            self.stay = if stayed < STAY && self.step + 1 < self.steps.len() {
                (self.stay * 2).min(LONGEST)
            } else {
                STAY
            };
            self.step += 1;
        } else if self.step > 0 && stayed >= self.stay && share <= most {
            self.step -= 1;
        } else {
            return None;
        }
        self.since = now;
        Some((self.kinds(), share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks once a second a process whose stacks take this share of a processor.
    fn run(
        budget: &mut Budget,
        from: &mut Instant,
        seconds: u32,
        share: impl Fn(StackKinds) -> f64,
    ) -> Vec<StackKinds> {
        let mut changes = Vec::new();
        for _ in 0..seconds {
            *from += LOOK;
            let taken = budget.taken + LOOK.mul_f64(share(budget.kinds()));
            if let Some((kinds, _)) = budget.look(*from, taken, 0.1) {
                changes.push(kinds);
            }
        }
        changes
    }

    #[test]
    fn down_step_by_step_and_up_again() {
        let asked = StackKinds::ALL;
        let mut budget = Budget::new(asked);
        let mut now = budget.looked;
        assert!(
            run(&mut budget, &mut now, 60, |_| 0.1).is_empty(),
            "no more than it may be"
        );
        // Stacks are so expensive that only taking none is cheap enough.
        let down = run(&mut budget, &mut now, 8, |kinds| {
            if kinds.python { 0.5 } else { 0.0 }
        });
        let samplings: Vec<(bool, bool, u8)> = down
            .iter()
            .map(|k| (k.python, k.native, k.sampling))
            .collect();
        assert_eq!(
            samplings,
            [
                (true, false, 0),
                (true, false, 20),
                (true, false, 26),
                (false, false, 26)
            ]
        );
        // The load is over: back to what was asked for, one step at a time.
        let up = run(&mut budget, &mut now, 1200, |_| 0.0);
        assert_eq!(up.len(), 4);
        assert_eq!(up.last(), Some(&asked));
    }

    #[test]
    fn what_stacks_took_before_a_take_over_is_not_of_now() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut budget = Budget::going_on(StackKinds::ALL, HOUR);
        let now = budget.looked + LOOK;
        let changed = budget.look(now, HOUR + Duration::from_millis(1), 0.1);
        assert!(changed.is_none(), "{changed:?}");
        let changed = budget.look(now + LOOK, HOUR + LOOK, 0.1);
        assert!(changed.is_some(), "what they take from then on counts");
    }

    #[test]
    fn a_step_that_fails_again_is_tried_ever_less_often() {
        let mut budget = Budget::new(StackKinds::PYTHON);
        let mut now = budget.looked;
        let expensive = |kinds: StackKinds| if kinds.sampling == 0 { 0.5 } else { 0.01 };
        let changes = run(&mut budget, &mut now, 1000, expensive);
        // After 10, 20, 40 … seconds, up to 320: each time up and down again.
        assert!((8..=20).contains(&changes.len()), "{}", changes.len());
        // Steps that would take more stacks than were asked for are left out.
        assert_eq!(
            Budget::new(StackKinds {
                sampling: 30,
                ..StackKinds::PYTHON
            })
            .steps
            .len(),
            2
        );
    }
}
