//! The ledger: the state of all processes, which events change and questions read.
//!
//! Owns: the processes by handle, the clock pairs, and the rule when an ended process is forgotten. Refuses:
//! to answer for a process of which no event reported an attach.

use crate::clock::Clock;
use crate::config::{KeptBytes, KeptCounts, LedgerConfig};
use crate::event::{
    Body, CodeName, Event, Level, ProcessFacts, ProcessHandle, Shed, ShedPart, StackRef,
};
use crate::fast_hash::FastMap;
use crate::report::{Frame, ProcessState, ProcessSummary, Who};
use crate::state::process::Process;
use serde::{Deserialize, Serialize};
#[cfg(debug_assertions)]
use std::{env, sync::LazyLock};

/// All state of all traced processes. See the crate's documentation.
///
/// A ledger can be written with `serde` and read again; the one that was read gives the same answers and takes further
/// events in the same way. This is how the journal's checkpoints work. Processes are written and read one by one
/// ([`Ledger::parts`], [`Ledger::put`]), so that a checkpoint can leave some of them out. A field that is added to any
/// state must have `#[serde(default)]` if checkpoints without it are to be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    config: LedgerConfig,
    /// Processes by handle. Only checkpoints of format 2 have them in this field; later ones have a part for each.
    #[serde(default, skip_serializing)]
    processes: FastMap<ProcessHandle, Process>,
    /// Handles of the processes, in the order in which they were attached.
    order: Vec<ProcessHandle>,
    clock: Clock,
    /// Number of events that belonged to no live process.
    ignored: u64,
    /// Boot time of the newest event, nanoseconds.
    last_ns: u64,
}

/// The state of one process, for writing it into a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The daemon's handle of the process.
    pub handle: ProcessHandle,
    /// Process id.
    pub pid: u32,
    process: &'a Process,
}

impl Serialize for Part<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.process.serialize(serializer)
    }
}

/// The state of one process as it was read from a checkpoint.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct RestoredPart(Process);

impl Ledger {
    /// Makes a ledger without any process.
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

    /// Sets other limits, as for a ledger that another daemon has written. Processes that are there keep those by which
    /// they are watched for growth.
    pub fn set_config(&mut self, config: LedgerConfig) {
        for process in self.processes.values_mut() {
            process.devices.set_trace_entries(config.trace_entries);
        }
        self.config = config;
    }

    /// The limits on what is kept.
    pub fn config(&self) -> &LedgerConfig {
        &self.config
    }

    /// The state of each process, in the order in which they were attached: the parts of a checkpoint.
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

    /// Adds a process that was read from a checkpoint. Its index of stacks is not stored; it is built here.
    pub fn put(&mut self, part: RestoredPart) {
        let RestoredPart(mut process) = part;
        process.restored();
        self.processes.insert(process.handle, process);
    }

    /// Moves the state of a process from another ledger into this one.
    pub fn take_over(&mut self, p: ProcessHandle, from: &mut Ledger) {
        if let Some(process) = from.processes.remove(&p) {
            self.processes.insert(p, process);
            if !self.order.contains(&p) {
                self.order.push(p);
            }
        }
    }

    /// Completes a ledger that was read from a checkpoint of format 2: builds the indexes that are not stored.
    pub fn restored(mut self) -> Ledger {
        for process in self.processes.values_mut() {
            process.restored();
        }
        self
    }

    /// For tests, which ask for it in the environment: from time to time writes the state as a checkpoint and continues
    /// with what is read from it, so that each test of the ledger is a test of checkpoints as well.
    #[cfg(debug_assertions)]
    fn pass_through_checkpoint(&mut self) {
        static ASKED: LazyLock<bool> = LazyLock::new(|| {
            env::var_os("MEMSCOPE_TEST_CHECKPOINTS").is_some_and(|it| it == "between-events")
        });
        if !*ASKED {
            return;
        }
        let events: u64 = self.processes.values().map(|process| process.events).sum();
        // Before each of the first 64 events, then about 8 times while the number of events doubles. From 1,024 on a
        // checkpoint takes long, and twice has to do.
        let pace = match events {
            0..=64 => 1,
            65..=1024 => events.next_power_of_two() / 16,
            _ => events.next_power_of_two() / 4,
        };
        if events.is_multiple_of(pace) {
            let written = rmp_serde::to_vec_named(self).unwrap_or_default();
            let read: Result<Ledger, _> = memscope_messagepack::from_slice(&written);
            assert!(read.is_ok(), "a checkpoint cannot be read: {read:?}");
            let mut again = read.unwrap_or_else(|_| self.clone());
            for part in self.parts() {
                let written = rmp_serde::to_vec_named(&part).unwrap_or_default();
                let read: Result<RestoredPart, _> = memscope_messagepack::from_slice(&written);
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
        #[cfg(debug_assertions)]
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
            // A note may also come after the process has ended, as when the recording turns out to be damaged.
            (Some(process), Body::Coverage(note)) => process.note(note),
            // What is kept of an ended process goes first when memory is short.
            (Some(process), Body::Shed(shed)) => process.shed(shed, event.time_ns),
            (None, Body::Attached(facts)) if event.process != ProcessHandle(0) => {
                self.attach(event, facts);
            }
            _ => self.ignored += 1,
        }
    }

    /// Takes only the time of an event, because it belongs to a process that nobody asked for.
    pub fn pass(&mut self, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
    }

    /// Takes from an event after the moment asked about only the names of frames in stacks that were seen before that
    /// moment. The daemon reads such names a little later than it sees the stack.
    pub fn learn(&mut self, event: &Event) {
        if let Some(process) = self.processes.get_mut(&event.process) {
            process.stacks.learn(&event.body, event.id.sequence);
        }
    }

    /// Whether there are stacks with frames whose names are not known yet.
    pub fn has_unnamed(&self) -> bool {
        let mut processes = self.processes.values();
        processes.any(|process| process.stacks.has_unnamed())
    }

    fn attach(&mut self, event: &Event, facts: &ProcessFacts) {
        // A pid belongs to one process at a time, so an older process with this pid has ended unnoticed.
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
        self.pass_attached(facts);
        self.order.push(event.process);
        self.processes
            .insert(event.process, Process::new(&self.config, event, facts));
    }

    /// Takes from an attach only what it means for the parent: the child is followed. The child may be one that nobody asked for.
    pub fn pass_attached(&mut self, facts: &ProcessFacts) {
        // A later program of the same process is no other child.
        if facts.generation > 0 {
            return;
        }
        let mut processes = self.processes.values_mut();
        let parent = processes
            .find(|process| process.facts.pid == facts.parent_pid && process.ended_ns.is_none());
        if let Some(parent) = parent {
            parent.child_attached(facts.pid);
        }
    }

    /// All processes, in the order in which they were attached.
    pub fn processes(&self) -> Vec<ProcessSummary> {
        self.order
            .iter()
            .filter_map(|handle| self.summary(*handle))
            .collect()
    }

    /// Whether a process belongs in lists. One that has ended and has used no device is still there until [`Ledger::expire`] forgets it, and
    /// stays in a recording.
    pub fn is_listed(&self, p: ProcessHandle) -> bool {
        let process = self.processes.get(&p);
        process.is_some_and(|process| !process.is_nothing_to_keep())
    }

    /// When the last event of a process came, nanoseconds of boot time.
    pub fn last_event_ns(&self, p: ProcessHandle) -> Option<u64> {
        self.processes.get(&p).map(|process| process.last_ns)
    }

    /// The process with this pid: one that has not ended, else the one that was attached last.
    pub fn find(&self, pid: u32) -> Option<ProcessHandle> {
        self.order
            .iter()
            .enumerate()
            .filter_map(|(age, handle)| Some((age, self.processes.get(handle)?)))
            .filter(|(_, process)| process.facts.pid == pid)
            .max_by_key(|(age, process)| (process.ended_ns.is_none(), *age))
            .map(|(_, process)| process.handle)
    }

    /// Identity and owners of all processes; with a pid, only of the process that [`Ledger::find`] gives.
    pub fn who(&self, pid: Option<u32>) -> Vec<Who> {
        let who = |handle: &ProcessHandle| {
            let process = self.processes.get(handle)?;
            Some(Who {
                handle: *handle,
                pid: process.facts.pid,
                uids: process.facts.uids,
                is_live: process.state == ProcessState::Attached,
                namespace: process.facts.kubernetes_namespace().map(Into::into),
            })
        };
        match pid {
            Some(pid) => self.find(pid).iter().filter_map(who).collect(),
            None => self.order.iter().filter_map(who).collect(),
        }
    }

    /// Looks up blocks that events will be about soon, by process and address, so that they are in the processor's cache by then. Whoever
    /// applies many events saves a seventh of the time if a process has a million blocks: one event after the other waits for the
    /// memory, while lookups that follow one another directly wait for it together.
    pub fn prefetch(&self, blocks: impl Iterator<Item = (ProcessHandle, u64)>) {
        for (process, addr) in blocks {
            if let Some(process) = self.processes.get(&process) {
                process.prefetch(addr);
            }
        }
    }

    pub(crate) fn process(&self, p: ProcessHandle) -> Option<&Process> {
        self.processes.get(&p)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The summary of one process.
    pub fn summary(&self, p: ProcessHandle) -> Option<ProcessSummary> {
        self.processes.get(&p).map(Process::summary)
    }

    /// When a process was detached that ran on, boot-time nanoseconds. `None` if it was not.
    pub fn detached_ns(&self, p: ProcessHandle) -> Option<u64> {
        let process = self.processes.get(&p)?;
        process
            .ended_ns
            .filter(|_| process.state == ProcessState::Detached)
    }

    /// The frames of an event's stack, innermost first, as far as they are known; none where there is no stack.
    pub fn frames(&self, p: ProcessHandle, stack: StackRef) -> Vec<Frame> {
        self.processes
            .get(&p)
            .map(|process| process.stacks.frames_by_identity(stack))
            .unwrap_or_default()
    }

    /// Name of the code object that is at an address now, where it is known.
    pub fn code_name(&self, p: ProcessHandle, code: u64) -> Option<&CodeName> {
        self.processes.get(&p)?.stacks.name_at(code)
    }

    /// The ledger's number for the code object that is at an address now; `None` if it is in no stack. An address gets
    /// another number when its code object has died.
    pub fn code_sighting(&self, p: ProcessHandle, code: u64) -> Option<u32> {
        self.processes.get(&p)?.stacks.sighting_at(code)
    }

    /// The level at which a process is watched, where it is known.
    pub fn level(&self, p: ProcessHandle) -> Option<Level> {
        self.processes.get(&p)?.facts.level
    }

    /// Whether a reading of the allocator's structures would show what events did not: at level `read` everything, at
    /// level `blocks` what only the trace reports, and at other levels what is known to be missing.
    pub fn wants_reading(&self, p: ProcessHandle) -> bool {
        self.processes.get(&p).is_some_and(Process::wants_reading)
    }

    /// Whether anything was seen of a process on a device.
    pub fn has_devices(&self, p: ProcessHandle) -> bool {
        let process = self.processes.get(&p);
        process.is_some_and(|process| !process.visible_devices().is_empty())
    }

    /// Whether it is certain that a process uses a device itself: it has allocated there, or NVML sees it on one. A process that was
    /// forked by one that uses devices cannot.
    pub fn uses_devices_itself(&self, p: ProcessHandle) -> bool {
        let process = self.processes.get(&p);
        process.is_some_and(Process::uses_devices_itself)
    }

    /// Forgets the processes with this pid that have ended and that [`Ledger::find`] will never give again, because one
    /// that was attached later has their pid.
    pub fn forget_before(&mut self, pid: u32) {
        let newest = self.find(pid);
        let processes = &mut self.processes;
        self.order.retain(|handle| {
            let is_over = processes.get(handle).is_some_and(|process| {
                process.facts.pid == pid && process.ended_ns.is_some() && Some(*handle) != newest
            });
            if is_over {
                processes.remove(handle);
            }
            !is_over
        });
    }

    /// Forgets processes that ended longer ago than the retention, those that ended first while all ended ones
    /// together take too much memory, and those that ended without ever having loaded a library of a device. Returns the handles of
    /// those that were forgotten.
    pub fn expire(&mut self, now_ns: u64) -> Vec<ProcessHandle> {
        let mut gone = self.expire_by_time(now_ns);
        let ended = self.processes.values().filter_map(|process| {
            Some((
                process.ended_ns?,
                process.handle,
                process.kept_bytes().all(),
            ))
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
            // A rule for a group of processes also meets the shells and scripts in it. There would soon be more of them than of
            // processes that somebody wants to know about. One that executes a program while it is attached may get that one's probes.
            let over = processes.get(handle).is_some_and(|process| {
                let is_old = |ended: u64| now_ns.saturating_sub(ended) > retention;
                process.is_nothing_to_keep() || process.ended_ns.is_some_and(is_old)
            });
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

    /// Real time at a boot time, nanoseconds since 1970, by the clock pairs seen; 0 before the first pair.
    pub fn unix_ns(&self, boot_ns: u64) -> u64 {
        self.clock.unix_ns(boot_ns)
    }

    /// The same as [`Ledger::boot_ns`] for a time at which it is known how the clock was set; `None` for earlier ones. Of a time that was
    /// twice, since the clock was set back, the last one is meant.
    pub fn known_boot_ns(&self, unix_ns: u64) -> Option<u64> {
        self.clock.known_boot_ns(unix_ns)
    }

    /// Boot time at a real time, in nanoseconds; `None` before the first pair of clock readings.
    pub fn boot_ns(&self, unix_ns: u64) -> Option<u64> {
        self.clock.boot_ns(unix_ns)
    }

    /// The blocks of PyTorch's pool that a process holds: address, and boot time of the allocation in nanoseconds as a snapshot
    /// shows it, 0 if it is not known.
    pub fn blocks(&self, p: ProcessHandle) -> impl Iterator<Item = (u64, u64)> {
        let process = self.processes.get(&p);
        process.into_iter().flat_map(|process| {
            let level = process.facts.level;
            let blocks = process.pool.blocks().filter(|(_, block)| !block.pending);
            blocks.map(move |(addr, block)| (addr, block.since_ns(level)))
        })
    }

    /// How many entries of each kind the ledger keeps of a process.
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

    /// Estimate of the memory that the ledger takes for a process.
    pub fn kept_bytes(&self, p: ProcessHandle) -> Option<KeptBytes> {
        self.processes.get(&p).map(Process::kept_bytes)
    }

    /// Estimate of the memory that the ledger takes for all processes together.
    pub fn bytes(&self) -> u64 {
        let processes = self.processes.values();
        processes.map(|process| process.kept_bytes().all()).sum()
    }

    /// What was given up of a part of a process because memory was short; `None` if the part is there.
    pub fn shed(&self, p: ProcessHandle, part: ShedPart) -> Option<Shed> {
        self.processes.get(&p)?.shed.of(part)
    }

    /// Number of events that were ignored because they belonged to no live process.
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
