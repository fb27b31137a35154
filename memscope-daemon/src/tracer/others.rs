//! Which processes a search has to look at.
//!
//! Owns: all processes as far as they are known, and the processor time that each had had when it was last looked at. One that
//! has not run since then has changed neither its name nor its user and has mapped nothing, and asking for its time costs a hundredth of a
//! look at its files. The kernel tells of new processes; all are listed now and then, because such a record may be lost.
//! Refuses: to judge a process, and to know what others may have changed about it, as its control group.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::rules;
use crate::clock;

/// Time between two lists of all processes.
pub(super) const LISTED: Duration = Duration::from_secs(10);

/// Processes, and what is known of their last look.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Processor time at the last look; `None`: it has to be looked at.
    seen: HashMap<u32, Option<Duration>>,
    /// When all are listed again; `None`: now.
    list_again: Option<Instant>,
}

impl Others {
    /// A process is new, or is to be looked at again even if it does not run.
    pub(super) fn look_again(&mut self, pid: u32) {
        self.seen.insert(pid, None);
    }

    /// Nothing is known any more: all are to be looked at.
    pub(super) fn forget(&mut self) {
        *self = Others::default();
    }

    /// All processes, and of each whether it is new or has run since the last call.
    pub(super) fn look(&mut self, now: Instant) -> Vec<(u32, bool)> {
        if self.list_again.is_none_or(|at| now >= at) {
            self.list_again = Some(now + LISTED);
            let before = std::mem::take(&mut self.seen);
            let known = |pid: u32| (pid, before.get(&pid).copied().flatten());
            self.seen = rules::pids().into_iter().map(known).collect();
        }
        let mut all = Vec::with_capacity(self.seen.len());
        self.seen.retain(|pid, seen| {
            // Before it is looked at, so that what it does meanwhile is seen the next time.
            let time = clock::processor_time_of(*pid);
            if time.is_some() {
                all.push((*pid, *seen != time));
            }
            *seen = time;
            time.is_some()
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::Answers;

    #[test]
    fn only_what_is_new_or_has_run_is_looked_at() {
        let mut answers = Answers::start();
        let pid = answers.pid();
        let now = Instant::now();
        let mut others = Others::default();
        let looks = |others: &mut Others, now| {
            let all = others.look(now).into_iter();
            all.filter(|(one, _)| *one == pid)
                .map(|(_, changed)| changed)
                .collect::<Vec<bool>>()
        };
        answers.ask();
        assert_eq!(looks(&mut others, now), [true]);
        assert_eq!(looks(&mut others, now), [false]);
        answers.ask();
        assert_eq!(looks(&mut others, now), [true]);
        others.look_again(pid);
        assert_eq!(looks(&mut others, now), [true]);
        assert_eq!(looks(&mut others, now + LISTED), [false], "it is listed");
        others.forget();
        assert_eq!(looks(&mut others, now), [true]);
        // One that nobody has told of is found by the list.
        others.seen.remove(&pid);
        assert_eq!(looks(&mut others, now), [false; 0]);
        assert_eq!(looks(&mut others, now + LISTED), [true]);
        answers.end();
        assert_eq!(looks(&mut others, now), [false; 0]);
        assert!(!others.seen.contains_key(&pid));
        others.look_again(pid);
        assert_eq!(looks(&mut others, now), [false; 0]);
    }
}
