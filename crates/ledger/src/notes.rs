//! Coverage notes of a process that came as events.
//!
//! Owns: one note for each code. Refuses: what follows from the state, which `questions::coverage` says.

use crate::event::CoverageNote;
use serde::{Deserialize, Serialize};

/// Notes kept per process; codes are words of the daemon's, so this is never reached in earnest.
const KEPT: usize = 256;

/// Notes that came as events, in the order in which their codes came first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Notes {
    notes: Vec<CoverageNote>,
}

impl Notes {
    /// Whether there is one with this code.
    pub(crate) fn has(&self, code: &str) -> bool {
        self.notes.iter().any(|note| note.code == code)
    }

    /// One note per code: a later text replaces, an empty one withdraws.
    pub(crate) fn take(&mut self, note: &CoverageNote) {
        let place = self.notes.iter().position(|old| old.code == note.code);
        match place {
            Some(place) if note.text.is_empty() => {
                self.notes.remove(place);
            }
            Some(place) => self.notes[place] = note.clone(),
            None if !note.text.is_empty() && self.notes.len() < KEPT => {
                self.notes.push(note.clone());
            }
            None => {}
        }
    }

    /// All of them.
    pub(crate) fn all(self) -> Vec<CoverageNote> {
        self.notes
    }
}
