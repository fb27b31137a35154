//! Stacks of compiled code: hands over what must be unwound and named, and takes in the results.

use std::collections::HashSet;

use memscope_ledger::event::{ProcessHandle, StackSeen};
use memscope_log::records::{DaemonRecord, stack_copy};

use super::state::{Keeper, Natives};
use crate::native::{Job, hand};

/// Most stacks that wait for their outer frames.
const MOST_WAITING: usize = 1 << 16;
/// Most addresses of all processes together of which it is remembered that they were handed over to be named.
const MOST_TOLD: usize = 1 << 19;

impl Natives {
    fn wait(&mut self, process: ProcessHandle, seen: &StackSeen) {
        let key = (process, seen.id);
        self.waiting.insert(key, seen.natives.clone());
        self.waited.push_back(key);
        if self.waited.len() > MOST_WAITING
            && let Some(oldest) = self.waited.pop_front()
        {
            self.waiting.remove(&oldest);
        }
    }

    /// Remembers that these addresses of a process are handed over, and gives those that were not handed over before, and
    /// how many more there is no room for. Where there is none, the process that has the most begins anew, so that it
    /// keeps nobody else's functions from having names; it has no more room itself.
    fn tell(&mut self, process: ProcessHandle, addresses: &[u64]) -> (Vec<u64>, u64) {
        let mut all: usize = self.told.values().map(HashSet::len).sum();
        if all + addresses.len() > MOST_TOLD {
            let sizes = self.told.iter().map(|(owner, told)| (told.len(), *owner));
            let own = self.told.get(&process).map_or(0, HashSet::len);
            if let Some((size, owner)) = sizes.max()
                && size > own + addresses.len()
            {
                self.told.remove(&owner);
                all -= size;
            }
        }
        let own = self.told.entry(process).or_default();
        let (mut unknown, mut put_off) = (Vec::new(), 0);
        for address in addresses {
            if own.contains(address) {
                continue;
            }
            if all < MOST_TOLD {
                own.insert(*address);
                unknown.push(*address);
                all += 1;
            } else {
                put_off += 1;
            }
        }
        (unknown, put_off)
    }

    /// Forgets that these addresses were handed over, so that they are handed over when they are seen again.
    fn untell(&mut self, process: ProcessHandle, addresses: &[u64]) {
        if let Some(told) = self.told.get_mut(&process) {
            for address in addresses {
                told.remove(address);
            }
        }
    }

    pub(super) fn forget(&mut self, process: ProcessHandle) {
        self.told.remove(&process);
        self.waiting.retain(|(owner, _), _| *owner != process);
        self.waited.retain(|(owner, _)| *owner != process);
    }
}

impl Keeper {
    /// Hands over a piece of a stack to be unwound.
    pub(super) fn stack_copied(&mut self, record: Vec<u8>) {
        let Some(copy) = stack_copy(&record) else {
            *self.skipped.entry("malformed").or_default() += 1;
            return;
        };
        let process = copy.process;
        let Some(jobs) = self.watched.get(&process).and_then(|w| w.native.as_ref()) else {
            return;
        };
        if !hand(jobs, Job::Copy(record)) {
            *self.skipped.entry("stack_copy_unhandled").or_default() += 1;
        }
    }

    /// Takes in a stack whose frames of compiled code may have to be named.
    pub(super) fn native_stack_came(&mut self, process: ProcessHandle, seen: &StackSeen) {
        if seen.natives.is_empty() {
            return;
        }
        if seen.unfinished {
            self.native.wait(process, seen);
        }
        let (unknown, put_off) = self.native.tell(process, &seen.natives);
        self.count_put_off(put_off);
        if unknown.is_empty() {
            return;
        }
        let jobs = self
            .watched
            .get(&process)
            .and_then(|watched| watched.native.as_ref());
        let addresses = unknown.clone();
        match jobs.map(|jobs| hand(jobs, Job::Name { process, addresses })) {
            Some(true) => {}
            Some(false) => self.put_off_names(process, &unknown),
            // Nobody is there who could find names yet.
            None => self.native.untell(process, &unknown),
        }
    }

    /// These addresses could not be handed over. They are named when they are seen again.
    pub(super) fn put_off_names(&mut self, process: ProcessHandle, addresses: &[u64]) {
        self.native.untell(process, addresses);
        self.count_put_off(addresses.len() as u64);
    }

    fn count_put_off(&mut self, addresses: u64) {
        if addresses > 0 {
            *self.skipped.entry("native_names_put_off").or_default() += addresses;
        }
    }

    /// Takes in the outer frames of a stack.
    pub(super) fn unwound(
        &mut self,
        process: ProcessHandle,
        stack: u64,
        frames: &[u64],
        whole: bool,
    ) {
        // The stack itself was sent right after the piece, so make sure that it has been read.
        self.read_everything();
        let Some(mut natives) = self.native.waiting.remove(&(process, stack)) else {
            *self.skipped.entry("stack_copy_unhandled").or_default() += 1;
            return;
        };
        natives.extend(frames);
        let seen = StackSeen {
            id: stack,
            natives,
            truncated: !whole,
            completes: true,
            ..StackSeen::default()
        };
        self.append(process, &DaemonRecord::Stack(Box::new(seen)));
    }

    /// Code was unmapped or replaced: addresses in these ranges are named again when they are seen again.
    pub(super) fn moved(&mut self, process: ProcessHandle, ranges: &[(u64, u64)]) {
        if let Some(told) = self.native.told.get_mut(&process) {
            told.retain(|address| {
                // The name is that of the call, which lies before the return address.
                let call = address.wrapping_sub(1);
                !ranges.iter().any(|(from, to)| (*from..*to).contains(&call))
            });
        }
        if let Some(watched) = self.watched.get(&process) {
            watched.slot.resend_stacks();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    #[test]
    fn names_that_were_put_off_are_asked_for_again() {
        let mut natives = Natives::default();
        let (process, other) = (ProcessHandle(1), ProcessHandle(2));
        assert_eq!(natives.tell(process, &[10, 20]), (vec![10, 20], 0));
        assert_eq!(natives.tell(other, &[10]), (vec![10], 0));
        natives.untell(process, &[10]);
        assert_eq!(natives.tell(process, &[10, 20]), (vec![10], 0));
        assert_eq!(natives.tell(other, &[10]), (vec![], 0));
    }

    #[test]
    fn whoever_has_the_most_addresses_has_no_room_for_more() {
        let mut natives = Natives::default();
        let (loud, quiet) = (ProcessHandle(1), ProcessHandle(2));
        assert_eq!(natives.tell(quiet, &[10]), (vec![10], 0));
        let many: Vec<u64> = (0..MOST_TOLD as u64 + 100).collect();
        let (unknown, put_off) = natives.tell(loud, &many);
        assert_eq!((unknown.len(), put_off), (MOST_TOLD - 1, 101));
        let (unknown, put_off) = natives.tell(loud, &many);
        assert_eq!((unknown.len(), put_off), (0, 101));
        // The quiet one has room for what is new, and what it had is not handed over again.
        assert_eq!(natives.tell(quiet, &[10, 20]), (vec![20], 0));
        let (unknown, put_off) = natives.tell(loud, &many);
        assert_eq!((unknown.len(), put_off), (MOST_TOLD - 2, 102));
        natives.forget(loud);
        assert_eq!(natives.tell(quiet, &many).0.len(), MOST_TOLD - 2);
        Met {
            what: "addresses of compiled code that were handed over to be named",
            most: constant("memscope-daemon/src/keeper/native.rs", "MOST_TOLD"),
            beyond: "further ones of the process that has the most have no name; others have room",
            told: "`native_names_put_off` in `status`",
            test: "whoever_has_the_most_addresses_has_no_room_for_more",
        }
        .is_told();
    }
}
