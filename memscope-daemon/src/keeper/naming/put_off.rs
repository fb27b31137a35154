//! Stacks whose code objects could not be read for a reason that passes.
//!
//! The programs tell each stack once, so what is given up here would have no name for as long as its code lives. A process that holds its memory
//! map for long, as a fork of a large one does, lets readers wait until they are given up, and is left alone for a while after that.

use memscope_ledger::event::{ProcessHandle, StackSeen};

/// A stack that has come, of a process.
pub(super) type Came = (ProcessHandle, Box<StackSeen>);

/// Most stacks that wait for another try, of all processes.
const MOST_PUT_OFF: usize = 1 << 14;

/// Time until the next try. Asking a process that is left alone costs nothing.
const PAUSE_NS: u64 = 1_000_000_000;

/// The stacks that wait.
#[derive(Debug, Default)]
pub(in crate::keeper) struct PutOff {
    stacks: Vec<Came>,
    /// Processes of which there was no room for a stack. Their programs are to tell all of them again, once they can be read.
    beyond: Vec<ProcessHandle>,
    /// Boot time in nanoseconds of the next try.
    next_ns: u64,
}

impl PutOff {
    /// Keeps those of these stacks whose process could not be read.
    pub(super) fn keep(&mut self, stacks: Vec<Came>, failed: &[ProcessHandle], now: u64) {
        for came in stacks {
            let process = came.0;
            if !failed.contains(&process) {
                continue;
            }
            self.next_ns = now + PAUSE_NS;
            if self.stacks.len() < MOST_PUT_OFF {
                self.stacks.push(came);
            } else if !self.beyond.contains(&process) {
                self.beyond.push(process);
            }
        }
    }

    /// The stacks whose turn it is.
    pub(super) fn due(&mut self, now: u64) -> Vec<Came> {
        match now < self.next_ns {
            true => Vec::new(),
            false => std::mem::take(&mut self.stacks),
        }
    }

    /// The processes whose programs are to tell their stacks again, since none of their stacks waits any more.
    pub(super) fn are_told_again(&mut self) -> Vec<ProcessHandle> {
        let stacks = &self.stacks;
        let waits = |process: &ProcessHandle| stacks.iter().any(|(of, _)| of == process);
        let (wait, again) = self.beyond.drain(..).partition(waits);
        self.beyond = wait;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    const P: ProcessHandle = ProcessHandle(1);
    const Q: ProcessHandle = ProcessHandle(2);

    fn came(process: ProcessHandle) -> Came {
        (process, Box::default())
    }

    fn of(stacks: &[Came]) -> Vec<ProcessHandle> {
        stacks.iter().map(|(process, _)| *process).collect()
    }

    #[test]
    fn what_could_not_be_read_is_tried_again() {
        let mut put_off = PutOff::default();
        assert!(put_off.due(5).is_empty());
        put_off.keep(vec![came(P), came(Q), came(P)], &[P], 5);
        assert!(put_off.due(5 + PAUSE_NS - 1).is_empty());
        assert_eq!(of(&put_off.due(5 + PAUSE_NS)), [P, P]);
        assert!(put_off.due(6 + PAUSE_NS).is_empty());
        assert!(put_off.are_told_again().is_empty());
    }

    #[test]
    fn what_there_is_no_room_for_is_told_again() {
        let mut put_off = PutOff::default();
        put_off.keep((0..MOST_PUT_OFF).map(|_| came(P)).collect(), &[P], 5);
        put_off.keep(vec![came(Q), came(P), came(Q)], &[P, Q], 5);
        // What is read of the others would be told once more.
        assert_eq!(put_off.are_told_again(), [Q]);
        assert_eq!(put_off.due(5 + PAUSE_NS).len(), MOST_PUT_OFF);
        assert_eq!(put_off.are_told_again(), [P]);
        assert!(put_off.are_told_again().is_empty());
        Met {
            what: "stacks whose code could not be read yet",
            most: constant(
                "memscope-daemon/src/keeper/naming/put_off.rs",
                "MOST_PUT_OFF",
            ),
            beyond: "the programs tell all stacks of the process again",
            told: "nothing is missing",
            test: "what_there_is_no_room_for_is_told_again",
        }
        .is_told();
    }
}
