//! Coverage notes of a process that came as events.
//!
//! Owns: one note for each code. Refuses: notes that follow from the state; `questions::coverage` makes those.

use crate::event::CoverageNote;
use serde::{Deserialize, Serialize};

/// Most notes kept per process. The daemon has fewer codes than that, so the limit is not reached in practice.
const KEPT: usize = 256;

/// Notes that came as events, in the order in which their codes came first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Notes {
    notes: Vec<CoverageNote>,
}

impl Notes {
    /// Whether there is a note with this code.
    pub(crate) fn has(&self, code: &str) -> bool {
        self.notes.iter().any(|note| note.code == code)
    }

    /// Takes a note. It replaces an earlier note with the same code; with an empty text it only removes that one.
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

    pub(crate) fn all(self) -> Vec<CoverageNote> {
        self.notes
    }
}
