//! Finds the names of the code objects in new stacks.
//!
//! A code object may be freed at any time, and another one made in its place. So a code object is read as soon as it
//! is first seen, and the name counts only if no record of its death came before the reading was over. If one came,
//! the name is what the programs kept of the object at its death.

mod put_off;

use std::collections::BTreeMap;

use memscope_ledger::event::{CodeName, Event, ProcessHandle, StackSeen};
use memscope_log::records::{DaemonRecord, dying_code};

pub(super) use put_off::PutOff;

use super::state::Keeper;
use crate::clock;

/// Most rounds in a row, since naming may bring more stacks to name. What is left waits for the next records.
const ROUNDS: u32 = 8;

impl Keeper {
    /// Queues a stack that has come, so that its code objects are named soon.
    pub(super) fn stack_came(&mut self, event: &Event, seen: &StackSeen) {
        self.native_stack_came(event.process, seen);
        if seen.completes {
            return;
        }
        self.naming
            .stacks
            .push((event.process, Box::new(seen.clone())));
    }

    /// Queues the name of a code object that died with this event.
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

    /// Names everything that is queued, and hands over the pictures that waited for that.
    pub(super) fn name_code(&mut self) {
        if self.naming.busy {
            return;
        }
        self.naming.busy = true;
        let due = self.naming.put_off.due(clock::boot_ns());
        self.naming.stacks.extend(due);
        for _ in 0..ROUNDS {
            let dying = std::mem::take(&mut self.naming.dying);
            let stacks = std::mem::take(&mut self.naming.stacks);
            if dying.is_empty() && stacks.is_empty() {
                break;
            }
            let dying = dying.into_iter();
            self.append_all(
                dying
                    .map(|(process, name)| (process, DaemonRecord::Code(name)))
                    .collect(),
            );
            let (mut found, failed) = self.read_names(&stacks);
            // If an object died before the readings were over, the record of its death is in the ring by now.
            let now = clock::boot_ns();
            let all_read = match self.pictures.is_empty() {
                true => self.read_everything_soon(),
                // They are handed over after this, and get no names later.
                false => self.read_everything(),
            };
            if !all_read {
                // A death may be among what cannot be read yet, so the names are read again the next time.
                self.naming.stacks.extend(stacks);
                break;
            }
            self.naming.put_off.keep(stacks, &failed, now);
            found.retain(|(process, sighting, name)| {
                self.ledger.code_sighting(*process, name.code) == Some(*sighting)
            });
            let found = found.into_iter();
            self.write_all(
                now,
                found
                    .map(|(process, _, name)| (process, DaemonRecord::Code(name)))
                    .collect(),
            );
        }
        for process in self.naming.put_off.are_told_again() {
            if let Some(watched) = self.watched.get(&process) {
                watched.slot.resend_stacks();
            }
        }
        self.naming.busy = false;
        self.hand_over_pictures();
    }

    /// Reads the names of the code objects in stacks that have none yet, with the number of the sighting of each object. An object that
    /// cannot be read gets its name at its death, or is read when it is seen again. Also returns the processes that could not be asked.
    fn read_names(
        &self,
        stacks: &[(ProcessHandle, Box<StackSeen>)],
    ) -> (Vec<(ProcessHandle, u32, CodeName)>, Vec<ProcessHandle>) {
        let mut nameless: BTreeMap<ProcessHandle, BTreeMap<u64, u32>> = BTreeMap::new();
        for (process, seen) in stacks {
            for (code, _) in &seen.frames {
                let sighting = self.ledger.code_sighting(*process, *code);
                let known = self.ledger.code_name(*process, *code).is_some();
                if let (Some(sighting), false) = (sighting, known) {
                    nameless
                        .entry(*process)
                        .or_default()
                        .insert(*code, sighting);
                }
            }
        }
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for (process, codes) in nameless {
            let names = self.watched.get(&process).and_then(|w| w.names.as_ref());
            let Some(names) = names else {
                continue;
            };
            let addresses: Vec<u64> = codes.keys().copied().collect();
            let (read, all_asked) = names.read(&addresses);
            if !all_asked {
                failed.push(process);
            }
            let read = read.into_iter();
            found.extend(read.filter_map(|name| Some((process, *codes.get(&name.code)?, name))));
        }
        (found, failed)
    }
}
