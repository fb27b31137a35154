//! Stacks of compiled code: hands over what must be unwound and named, and takes in the results.

use memscope_ledger::event::{ProcessHandle, StackSeen};
use memscope_log::records::{DaemonRecord, stack_copy};

use super::state::{Keeper, Natives};
use crate::native::{Job, hand};

/// Most stacks that wait for their outer frames.
const MOST_WAITING: usize = 1 << 16;

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

    /// Forgets that these addresses were handed over, so that they are handed over when they are seen again.
    fn untell(&mut self, process: ProcessHandle, addresses: &[u64]) {
        for address in addresses {
            self.told.remove(&(process, *address));
        }
    }

    pub(super) fn forget(&mut self, process: ProcessHandle) {
        self.told.retain(|(owner, _)| *owner != process);
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
        let mut unknown = Vec::new();
        for address in &seen.natives {
            if self.native.told.insert((process, *address)) {
                unknown.push(*address);
            }
        }
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
        *self.skipped.entry("native_names_put_off").or_default() += addresses.len() as u64;
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
        self.native.told.retain(|(owner, address)| {
            // The name is that of the call, which lies before the return address.
            let call = address.wrapping_sub(1);
            *owner != process || !ranges.iter().any(|(from, to)| (*from..*to).contains(&call))
        });
        if let Some(watched) = self.watched.get(&process) {
            watched.slot.resend_stacks();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_were_put_off_are_asked_for_again() {
        let mut natives = Natives::default();
        let (process, other) = (ProcessHandle(1), ProcessHandle(2));
        for (owner, address) in [(process, 10), (process, 20), (other, 10)] {
            assert!(natives.told.insert((owner, address)));
        }
        natives.untell(process, &[10]);
        assert!(natives.told.insert((process, 10)));
        assert!(!natives.told.insert((process, 20)));
        assert!(!natives.told.insert((other, 10)));
    }
}
