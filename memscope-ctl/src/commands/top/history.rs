//! The moments that the view itself has seen, so that one can look back at what the daemon cannot be asked about for an earlier moment.

use super::ask::{Answer, Ask};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The latest answer to each question.
pub(super) type Answers = BTreeMap<Ask, Arc<Answer>>;

/// Moments that are kept as they come.
const NEWEST: usize = 240;
/// Older moments that are kept, at least [`APART_NS`] from one another.
const OLDER: usize = 240;
/// Time between two older moments, nanoseconds.
const APART_NS: u64 = 60_000_000_000;

/// All answers as they stood at one moment. Answers that did not change are shared between moments.
#[derive(Clone)]
pub(super) struct Seen {
    /// Nanoseconds since 1970.
    pub(super) unix_ns: u64,
    pub(super) answers: Answers,
}

/// The moments, oldest first: those of the last minutes, and of the hours before one in a minute.
#[derive(Default)]
pub(super) struct History {
    older: VecDeque<Seen>,
    newest: VecDeque<Seen>,
}

impl History {
    /// Adds the present moment; what is too old gives way.
    pub(super) fn push(&mut self, seen: Seen) {
        if self
            .newest
            .back()
            .is_some_and(|last| last.unix_ns >= seen.unix_ns)
        {
            return;
        }
        self.newest.push_back(seen);
        if self.newest.len() <= NEWEST {
            return;
        }
        let Some(old) = self.newest.pop_front() else {
            return;
        };
        let last = self.older.back();
        if last.is_none_or(|last| old.unix_ns - last.unix_ns >= APART_NS) {
            self.older.push_back(old);
        }
        if self.older.len() > OLDER {
            self.older.pop_front();
        }
    }

    /// All moments, oldest first.
    pub(super) fn moments(&self) -> Vec<u64> {
        let all = self.older.iter().chain(&self.newest);
        all.map(|seen| seen.unix_ns).collect()
    }

    /// What was seen last at or before a moment.
    pub(super) fn at(&self, unix_ns: u64) -> Option<&Seen> {
        let mut all = self.newest.iter().rev().chain(self.older.iter().rev());
        all.find(|seen| seen.unix_ns <= unix_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_kept_in_a_bounded_number_of_moments() {
        let mut history = History::default();
        let second = 1_000_000_000;
        for at in 1..=40_000 {
            history.push(Seen {
                unix_ns: at * second,
                answers: Answers::new(),
            });
        }
        let moments = history.moments();
        assert_eq!(moments.len(), NEWEST + OLDER);
        assert!(moments.is_sorted());
        assert_eq!(moments.last(), Some(&(40_000 * second)));
        // Four minutes second by second, and four hours before them minute by minute.
        assert_eq!(moments[OLDER], (40_001 - NEWEST as u64) * second);
        assert!(moments[0] < (40_000 - 4 * 3600) * second);
        let seen = history.at(39_999 * second + 5).map(|seen| seen.unix_ns);
        assert_eq!(seen, Some(39_999 * second));
        assert!(history.at(0).is_none());
    }
}
