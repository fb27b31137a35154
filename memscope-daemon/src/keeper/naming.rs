//! Naming the code objects of new stacks.
//!
//! A code object may be freed and another one made in its place at any time. So one is read at once when
//! it is first seen, and the reading counts only if no record of its death came before the reading
//! was over; if one did, what the programs kept of it at its death is its name.

use memscope_decode::{DaemonRecord, dying_code};
use memscope_ledger::event::{CodeName, Event, ProcessHandle, StackSeen};

use super::Keeper;

/// What is to be named when the records at hand have been applied.
#[derive(Default)]
pub(super) struct Naming {
    stacks: Vec<(ProcessHandle, Box<StackSeen>)>,
    dying: Vec<(ProcessHandle, CodeName)>,
    /// Names are being appended: what that turns up waits for the next round.
    busy: bool,
}

/// Rounds in which naming turns up more to name; the rest waits for the next records.
const ROUNDS: u32 = 8;

impl Keeper {
    /// A stack came: its code objects are named soon.
    pub(super) fn stack_came(&mut self, event: &Event, seen: &StackSeen) {
        self.naming
            .stacks
            .push((event.process, Box::new(seen.clone())));
    }

    /// A code object dies: called before the ledger knows.
    pub(super) fn code_dies(&mut self, process: ProcessHandle, record: &[u8]) {
        let Some(dying) = dying_code(record) else {
            return;
        };
        let Some(sighting) = self.ledger.code_sighting(process, dying.code) else {
            return;
        };
        let name = self
            .watched
            .get(&process)
            .and_then(|watched| watched.names.as_ref())
            .and_then(|names| names.decode(&dying, sighting));
        match name {
            Some(name) => self.naming.dying.push((process, name)),
            None => *self.skipped.entry("code_died_unreadable").or_default() += 1,
        }
    }

    /// Names what has come to be named.
    pub(super) fn name_code(&mut self) {
        if self.naming.busy {
            return;
        }
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
            let mut read: Vec<(ProcessHandle, CodeName)> = Vec::new();
            for (process, seen) in stacks {
                let Some(names) = self.watched.get(&process).and_then(|w| w.names.as_ref()) else {
                    continue;
                };
                for (code, sighting) in self.ledger.unnamed_code(process, &seen) {
                    let known = |(of, name): &(ProcessHandle, CodeName)| {
                        *of == process && (name.code, name.sighting) == (code, sighting)
                    };
                    if !read.iter().any(known)
                        && let Some(name) = names.read(code, sighting)
                    {
                        read.push((process, name));
                    }
                }
            }
            // A death that came before the readings were over is in the ring by now.
            self.read_everything();
            for (process, name) in read {
                if self.ledger.code_sighting(process, name.code) == Some(name.sighting) {
                    self.append(process, &DaemonRecord::Code(name));
                }
            }
        }
        self.naming.busy = false;
    }
}
