//! Which parts of a process were given up because the daemon's memory was short.
//!
//! Owns: the numbers of that moment. Refuses: to take anything out of the state; `shed` does.

use crate::event::{Shed, ShedPart};
use serde::{Deserialize, Serialize};

/// Which parts of a process were given up, with the numbers of that moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gone {
    parts: Vec<Shed>,
}

impl Gone {
    /// What was given up of a part; `None` if it is there.
    pub(crate) fn of(&self, part: ShedPart) -> Option<Shed> {
        self.parts.iter().find(|shed| shed.part == part).copied()
    }

    /// All parts that are gone, each once.
    pub(crate) fn all(&self) -> &[Shed] {
        &self.parts
    }

    /// Notes that a part is gone.
    pub(crate) fn note(&mut self, shed: &Shed) {
        self.parts.retain(|known| known.part != shed.part);
        self.parts.push(*shed);
    }
}
