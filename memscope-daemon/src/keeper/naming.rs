//! Naming the code objects of new stacks.
//!
//! A code object may be freed and another one made in its place at any time. So one is read at once when
//! it is first seen, and the reading counts only if no record of its death came before the reading
//! was over; if one did, what the programs kept of it at its death is its name.
//!
//! A segment of the journal must be readable without those before it: when one begins, every stack is
//! sent again at its next sight, and every name is told again with it.

use std::collections::HashSet;

use memscope_decode::{DaemonRecord, dying_code};
use memscope_journal::Journal;
use memscope_ledger::event::{CodeName, Event, ProcessHandle, StackSeen};

use super::Keeper;

/// What is to be named when the records at hand have been applied.
#[derive(Default)]
pub(super) struct Naming {
    stacks: Vec<(ProcessHandle, Box<StackSeen>)>,
    dying: Vec<(ProcessHandle, CodeName)>,
    /// Names are being appended: what that turns up waits for the next round.
    busy: bool,
    /// Code objects that the journal's segment at hand has named.
    told: HashSet<(ProcessHandle, u32)>,
    /// Segments when that was begun.
    segments: u64,
}

/// Rounds in which naming turns up more to name; the rest waits for the next records.
const ROUNDS: u32 = 8;

impl Keeper {
    /// A stack came: its code objects are named soon.
    pub(super) fn stack_came(&mut self, event: &Event, seen: &StackSeen) {
        self.native_stack_came(event.process, seen);
        if seen.completes {
            return;
        }
        self.naming
            .stacks
            .push((event.process, Box::new(seen.clone())));
    }

    /// A code object dies by this event.
    pub(super) fn code_dies(&mut self, event: &Event, record: &[u8]) {
        let Some(dying) = dying_code(record) else {
            return;
        };
        let name = self
            .watched
            .get(&event.process)
            .and_then(|watched| watched.names.as_ref())
            .and_then(|names| names.decode(&dying, event.id.sequence));
        match name {
            Some(name) => self.naming.dying.push((event.process, name)),
            None => *self.skipped.entry("code_died_unreadable").or_default() += 1,
        }
    }

    /// Has everything told again that a new segment of the journal needs.
    fn begin_segment(&mut self) {
        let segments = self.journal.as_ref().map_or(0, Journal::segments);
        if segments == self.naming.segments {
            return;
        }
        self.naming.segments = segments;
        self.naming.told.clear();
        self.native.begin_segment();
        for watched in self.watched.values() {
            if watched.names.is_some() || watched.native.is_some() {
                watched.slot.resend_stacks();
            }
        }
    }

    /// Names what has come to be named.
    pub(super) fn name_code(&mut self) {
        if self.naming.busy {
            return;
        }
        self.begin_segment();
        self.naming.busy = true;
        for _ in 0..ROUNDS {
            let dying = std::mem::take(&mut self.naming.dying);
            let stacks = std::mem::take(&mut self.naming.stacks);
            if dying.is_empty() && stacks.is_empty() {
                break;
            }
            for (process, name) in dying {
                self.append(process, &DaemonRecord::Code(name));
            }
            let mut found: Vec<(ProcessHandle, u32, CodeName)> = Vec::new();
            for (process, seen) in stacks {
                self.read_names(process, &seen, &mut found);
            }
            // A death that came before the readings were over is in the ring by now.
            self.read_everything();
            for (process, sighting, name) in found {
                if self.ledger.code_sighting(process, name.code) == Some(sighting) {
                    self.append(process, &DaemonRecord::Code(name));
                } else {
                    self.naming.told.remove(&(process, sighting));
                }
            }
        }
        self.tell_natives_again();
        self.naming.busy = false;
    }

    fn read_names(
        &mut self,
        process: ProcessHandle,
        seen: &StackSeen,
        found: &mut Vec<(ProcessHandle, u32, CodeName)>,
    ) {
        let Some(names) = self.watched.get(&process).and_then(|w| w.names.as_ref()) else {
            return;
        };
        for (code, _) in &seen.frames {
            let Some(sighting) = self.ledger.code_sighting(process, *code) else {
                continue;
            };
            if !self.naming.told.insert((process, sighting)) {
                continue;
            }
            let name = match self.ledger.code_name(process, *code) {
                Some(known) => Some(known.clone()),
                None => names.read(*code),
            };
            match name {
                Some(name) => found.push((process, sighting, name)),
                None => {
                    // Its death may tell, or its next sight.
                    self.naming.told.remove(&(process, sighting));
                }
            }
        }
    }
}
