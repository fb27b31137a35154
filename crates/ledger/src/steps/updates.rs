//! Which steps of optimizers are of one step of the program: those that one line makes after the same backward pass, as
//! `for optimizer in optimizers: optimizer.step()` does, or an optimizer for each parameter that is stepped in a hook.
//!
//! Owns: the last backward pass of each thread, and how many of a line's steps came after the same one. Refuses: a program without
//! backward passes, where each step of an optimizer is one of the program.

use serde::{Deserialize, Serialize};

/// Threads whose backward passes are known. Further ones are taken for threads of the autograd engine.
const THREADS: usize = 64;
/// Most further steps of a line after one pass that are taken for one step of the program, before two passes have shown how many there are.
/// A program that captures its passes in a graph makes none later, and each of its steps beyond these counts.
const AT_FIRST: u64 = 1024;

/// The last backward pass of each thread, by number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LastPasses {
    /// Number of passes of all threads.
    count: u64,
    last: Vec<(u32, u64)>,
}

impl LastPasses {
    /// A thread makes a backward pass.
    pub(crate) fn passed(&mut self, tid: u32) {
        self.count += 1;
        let is_full = self.last.len() >= THREADS;
        match self.last.iter_mut().find(|(by, _)| *by == tid) {
            Some((_, last)) => *last = self.count,
            None if is_full => {}
            None => self.last.push((tid, self.count)),
        }
    }

    /// Records were lost. A pass of each thread may be among them: what comes next is taken for a step of its own.
    pub(crate) fn records_lost(&mut self) {
        if self.count > 0 {
            self.count += 1;
            for (_, last) in &mut self.last {
                *last = self.count;
            }
        }
    }

    /// Number of the last pass before a step of an optimizer on this thread; `None` if there was none. Hooks of a pass run on threads of
    /// the autograd engine, which make none of their own: for them it is the last one of all.
    pub(crate) fn before(&self, tid: u32) -> Option<u64> {
        let own = self.last.iter().find(|(by, _)| *by == tid);
        let number = own.map_or(self.count, |(_, last)| *last);
        (number > 0).then_some(number)
    }
}

/// The steps that a line's optimizers made after the last backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AfterPass {
    /// Number of the pass; 0 before the first.
    pass: u64,
    /// Number of steps after the first one since the pass.
    more: u64,
    /// The same of the pass before it, once that is known.
    before: Option<u64>,
    /// The most that two passes, one after the other, both had; `None` until two are known.
    most: Option<u64>,
}

impl AfterPass {
    /// Takes a step of an optimizer. Returns whether it belongs to the step of the program that has ended with the first one after that
    /// pass. Where far more come than ever did, there are no passes any more, and each counts.
    pub(crate) fn goes_on(&mut self, pass: u64) -> bool {
        if self.pass != pass {
            if self.pass > 0 {
                if let Some(before) = self.before {
                    // A long time without passes, once, says nothing of how many optimizers there are.
                    self.most = self.most.max(Some(before.min(self.more)));
                }
                self.before = Some(self.more);
            }
            (self.pass, self.more) = (pass, 0);
            return false;
        }
        self.more += 1;
        let twice = |known: u64| 2 * known + 2;
        let most = match self.most {
            Some(most) => twice(most),
            None => AT_FIRST.max(self.before.map_or(0, twice)),
        };
        self.more <= most
    }

    /// Whether the line has made a step after this pass.
    pub(crate) fn is_after(&self, pass: u64) -> bool {
        self.pass == pass
    }

    /// Another key turned out to be the same line.
    pub(crate) fn join(&mut self, other: AfterPass) {
        if other.pass > self.pass {
            *self = other;
        }
    }
}
