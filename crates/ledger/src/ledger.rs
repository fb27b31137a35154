//! The ledger: all processes, fed by events and asked by queries.
//!
//! Owns: the processes by handle, the clock pairs, and the forgetting of ended processes. Refuses:
//! to answer for a process that it was never told of.

use crate::clock::Clock;
use crate::config::{KeptCounts, LedgerConfig};
use crate::event::{Body, CodeName, Event, Level, ProcessFacts, ProcessHandle, StackRef};
use crate::fast_hash::FastMap;
use crate::report::{Frame, ProcessState, ProcessSummary, Who};
use crate::state::process::Process;
use serde::{Deserialize, Serialize};

/// All state of all traced processes. See the crate's documentation.
///
/// It can be written with `serde` and read again: what is read answers and goes on exactly as what was written. That is a
/// checkpoint of the journal. Processes are written and read one by one ([`Ledger::parts`], [`Ledger::put`]), so that a
/// checkpoint can be without one of them. A field that is added to any state must have `#[serde(default)]` if checkpoints without it are
/// to be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    config: LedgerConfig,
    /// Checkpoints of format 2 have them here.
    #[serde(default, skip_serializing)]
    processes: FastMap<ProcessHandle, Process>,
    /// By attach.
    order: Vec<ProcessHandle>,
    clock: Clock,
    ignored: u64,
    /// Time of the newest event.
    last_ns: u64,
}

/// What is known of one process, to be written.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The daemon's handle of it.
    pub handle: ProcessHandle,
    /// Its number in the system.
    pub pid: u32,
    process: &'a Process,
}

impl Serialize for Part<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.process.serialize(serializer)
    }
}

/// What is known of one process, as it was read.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct RestoredPart(Process);

impl Ledger {
    /// A ledger that knows nothing.
    pub fn new(config: LedgerConfig) -> Ledger {
        Ledger {
            config,
            processes: FastMap::default(),
            order: Vec::new(),
            clock: Clock::default(),
            ignored: 0,
            last_ns: 0,
        }
    }

    /// What is known of each process, by attach: the parts of a checkpoint.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let processes = self.order.iter();
        processes.filter_map(|handle| {
            let process = self.processes.get(handle)?;
            Some(Part {
                handle: *handle,
                pid: process.facts.pid,
                process,
            })
        })
    }

    /// Takes what was read of a process. What follows from the rest is not stored, and is made here.
    pub fn put(&mut self, part: RestoredPart) {
        let RestoredPart(mut process) = part;
        process.stacks.index_contents();
        self.processes.insert(process.handle, process);
    }

    /// Takes what another ledger knows of a process, as it is.
    pub fn take_over(&mut self, p: ProcessHandle, from: &mut Ledger) {
        if let Some(process) = from.processes.remove(&p) {
            self.processes.insert(p, process);
            if !self.order.contains(&p) {
                self.order.push(p);
            }
        }
    }

    /// Makes a ledger that was read from a checkpoint of format 2 complete.
    pub fn restored(mut self) -> Ledger {
        for process in self.processes.values_mut() {
            process.stacks.index_contents();
        }
        self
    }

    /// Now and then writes the state and goes on with what is read again.
    #[cfg(feature = "checkpoint-between-events")]
    fn pass_through_checkpoint(&mut self) {
        let events: u64 = self.processes.values().map(|process| process.events).sum();
        // At each of the first, and then some thirty times until there are twice as many.
        let pace = (events.next_power_of_two() / 64).max(1);
        if events.is_multiple_of(pace) {
            let written = rmp_serde::to_vec_named(self).unwrap_or_default();
            let read: Result<Ledger, _> = rmp_serde::from_slice(&written);
            assert!(read.is_ok(), "a checkpoint cannot be read: {read:?}");
            let mut again = read.unwrap_or_else(|_| self.clone());
            for part in self.parts() {
                let written = rmp_serde::to_vec_named(&part).unwrap_or_default();
                let read: Result<RestoredPart, _> = rmp_serde::from_slice(&written);
                assert!(read.is_ok(), "a process cannot be read: {read:?}");
                if let Ok(read) = read {
                    again.put(read);
                }
            }
            *self = again;
        }
    }

    /// Takes one event. Events of unknown or ended processes change nothing and are counted.
    pub fn apply(&mut self, event: &Event) {
        #[cfg(feature = "checkpoint-between-events")]
        self.pass_through_checkpoint();
        self.last_ns = self.last_ns.max(event.time_ns);
        if let Body::Clock { unix_ns } = event.body {
            self.clock.note(event.time_ns, unix_ns);
            if event.process == ProcessHandle(0) {
                return;
            }
        }
        match (self.processes.get_mut(&event.process), &event.body) {
            (Some(process), _) if process.ended_ns.is_none() => process.apply(event),
            // What limits the numbers may turn out later: a damaged recording.
            (Some(process), Body::Coverage(note)) => process.note(note),
            (None, Body::Attached(facts)) if event.process != ProcessHandle(0) => {
                self.attach(event, facts);
            }
            _ => self.ignored += 1,
        }
    }

    /// An event of a process that is not looked at came: it tells what time it is.
    pub fn pass(&mut self, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
    }

    /// Takes from an event that lies behind the moment asked about only what names the stacks before it: a
    /// stack is named when somebody has found the time, a little later than it was seen.
    pub fn learn(&mut self, event: &Event) {
        if let Some(process) = self.processes.get_mut(&event.process) {
            process.stacks.learn(&event.body, event.id.sequence);
        }
    }

    /// Whether there are stacks with frames that nobody has named yet.
    pub fn has_unnamed(&self) -> bool {
        let mut processes = self.processes.values();
        processes.any(|process| process.stacks.has_unnamed())
    }

    fn attach(&mut self, event: &Event, facts: &ProcessFacts) {
        // One pid is one process at a time: an older one has ended without a word of it.
        for old in self.processes.values_mut() {
            if old.facts.pid == facts.pid && old.ended_ns.is_none() {
                let state = if old.facts.start_ticks == facts.start_ticks {
                    ProcessState::Replaced
                } else {
                    ProcessState::Exited
                };
                old.end(state, event.time_ns);
            }
        }
        self.order.push(event.process);
        self.processes
            .insert(event.process, Process::new(&self.config, event, facts));
    }

    /// All processes, by attach.
    pub fn processes(&self) -> Vec<ProcessSummary> {
        self.order
            .iter()
            .filter_map(|handle| self.summary(*handle))
            .collect()
    }

    /// The process with this pid: the live one, else the newest.
    pub fn find(&self, pid: u32) -> Option<ProcessHandle> {
        self.order
            .iter()
            .enumerate()
            .filter_map(|(age, handle)| Some((age, self.processes.get(handle)?)))
            .filter(|(_, process)| process.facts.pid == pid)
            .max_by_key(|(age, process)| (process.ended_ns.is_none(), *age))
            .map(|(_, process)| process.handle)
    }

    /// Who the processes are; with a pid, the process that [`Ledger::find`] gives.
    pub fn who(&self, pid: Option<u32>) -> Vec<Who> {
        let who = |handle: &ProcessHandle| {
            let process = self.processes.get(handle)?;
            Some(Who {
                handle: *handle,
                pid: process.facts.pid,
                uids: process.facts.uids,
                is_live: process.state == ProcessState::Attached,
            })
        };
        match pid {
            Some(pid) => self.find(pid).iter().filter_map(who).collect(),
            None => self.order.iter().filter_map(who).collect(),
        }
    }

    pub(crate) fn process(&self, p: ProcessHandle) -> Option<&Process> {
        self.processes.get(&p)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// One process among all.
    pub fn summary(&self, p: ProcessHandle) -> Option<ProcessSummary> {
        self.processes.get(&p).map(Process::summary)
    }

    /// The frames of a stack that an event names, innermost first, as far as they are known; none where there is no stack.
    pub fn frames(&self, p: ProcessHandle, stack: StackRef) -> Vec<Frame> {
        self.processes
            .get(&p)
            .map(|process| process.stacks.frames_by_identity(stack))
            .unwrap_or_default()
    }

    /// What names the code object at an address now, if anything does.
    pub fn code_name(&self, p: ProcessHandle, code: u64) -> Option<&CodeName> {
        self.processes.get(&p)?.stacks.name_at(code)
    }

    /// Which code object an address names now, if it is in a stack.
    pub fn code_sighting(&self, p: ProcessHandle, code: u64) -> Option<u32> {
        self.processes.get(&p)?.stacks.sighting_at(code)
    }

    /// How deep a process is looked into, where it was said.
    pub fn level(&self, p: ProcessHandle) -> Option<Level> {
        self.processes.get(&p)?.facts.level
    }

    /// Whether a reading of the allocator's structures would tell of a process what events do not: at
    /// level `read` anything at all, at level `blocks` what only the trace tells, else what is missing.
    pub fn wants_reading(&self, p: ProcessHandle) -> bool {
        self.processes.get(&p).is_some_and(Process::wants_reading)
    }

    /// Forgets processes that ended longer ago than the retention, and those that there is no room for. Says which.
    pub fn expire(&mut self, now_ns: u64) -> Vec<ProcessHandle> {
        let mut gone = self.expire_by_time(now_ns);
        let ended = self.processes.values().filter_map(|process| {
            let kept = self.kept(process.handle)?;
            Some((process.ended_ns?, process.handle, kept.bytes()))
        });
        let mut ended: Vec<(u64, ProcessHandle, u64)> = ended.collect();
        ended.sort_unstable();
        let mut bytes = 0u64;
        for (number, (_, handle, theirs)) in ended.iter().rev().enumerate() {
            bytes = bytes.saturating_add(*theirs);
            if number > 0 && bytes > self.config.ended_bytes {
                self.processes.remove(handle);
                self.order.retain(|other| other != handle);
                gone.push(*handle);
            }
        }
        gone
    }

    fn expire_by_time(&mut self, now_ns: u64) -> Vec<ProcessHandle> {
        let retention = self.config.retention_ns;
        let processes = &mut self.processes;
        let mut gone = Vec::new();
        self.order.retain(|handle| {
            let over = processes
                .get(handle)
                .and_then(|process| process.ended_ns)
                .is_some_and(|ended| now_ns.saturating_sub(ended) > retention);
            if over {
                processes.remove(handle);
                gone.push(*handle);
            }
            !over
        });
        gone
    }

    /// Boot time of the newest event, nanoseconds.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Nanoseconds since 1970 at a boot time, by the clock pairs seen; 0 before the first.
    pub fn unix_ns(&self, boot_ns: u64) -> u64 {
        self.clock.unix_ns(boot_ns)
    }

    /// How much is kept of a process.
    pub fn kept(&self, p: ProcessHandle) -> Option<KeptCounts> {
        let process = self.processes.get(&p)?;
        let (blocks, loose) = process.pool.kept();
        Some(KeptCounts {
            blocks,
            loose: loose + process.readings.kept() + process.marks.kept(),
            rooms: process.devices.iter().map(|row| row.pool.rooms.len()).sum(),
            allocations: process.driver.kept() + process.regions.kept(),
            groups: process.groups.len(),
            identities: process.stacks.identities(),
            trace_entries: process.devices.iter().map(|row| row.pool.ring.len()).sum(),
        })
    }

    /// Events that belonged to no live process.
    pub fn ignored_events(&self) -> u64 {
        self.ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_can_move_between_tasks() {
        fn moves<T: Send + Sync + Clone>() {}
        moves::<Ledger>();
    }
}
