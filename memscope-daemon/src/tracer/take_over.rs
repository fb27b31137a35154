//! Going on with what an earlier daemon has traced: it was killed, or it handed over to this one.
//!
//! Its probes are pinned and went on writing into the ring, with the handles, sites and slots that it had given. So a process that still runs
//! is put back as it was, without touching its probes, and only then is the ring read. Where the probes are gone, and where the journal
//! does not know the process because it had stopped, the process is attached anew.

use std::collections::BTreeSet;
use std::time::Instant;

use memscope_ledger::event::{Level, ProcessHandle};
use memscope_ledger::report::ProcessSummary;
use memscope_log::records::DaemonRecord;
use memscope_proto::v1::BaselineRead;

use super::attach::open_pidfd;
use super::budget::Budget;
use super::calm::TICK;
use super::cause::Cause;
use super::kept::{Kept, KeptProcess, TakeOver, TakenOver};
use super::sites::Sites;
use super::traced::AtOnce;
use super::{RESCAN, TraceState, Traced, Tracer};
use crate::clock;
use crate::ingest::ring::Ring;
use crate::keeper::Command;
use crate::policy::Policy;
use crate::probe::links::Link;
use crate::python::Names;

/// How a process was found.
enum Found {
    /// It runs, and its probes are there.
    Traced,
    /// It has ended, and its probes were there until then.
    Ended,
    /// It has ended, and nobody knows what it did last: its probes were gone, or sent nothing.
    EndedUnseen,
    /// It runs, and its probes are gone, or send nothing, or are of no use.
    Unprobed,
}

impl Tracer {
    /// Puts back what an earlier daemon has left, and gives the ring to the keeper. From now on records are read.
    pub(super) fn begin(
        &mut self,
        ring: Ring,
        left: Option<TakeOver>,
        policy: Policy,
    ) -> TakenOver {
        let mut taken = TakenOver::default();
        let Some(left) = left else {
            self.give_ring(ring, None, Vec::new());
            self.enforce(policy, Vec::new());
            return taken;
        };
        let Kept {
            next_handle,
            next_rule,
            rules,
            policy: in_force,
            let_be,
            sites,
            layouts,
            processes,
            waiting,
            ..
        } = left.kept;
        taken.rules = rules.len();
        self.rules = rules;
        self.let_be = let_be.into_iter().collect();
        self.next_rule = next_rule.max(1);
        self.layouts = layouts.into_iter().collect();
        if left.resumed {
            let known = self.keeper.ask_blocking(|ledger, _| {
                let handles = ledger.processes().into_iter().map(|one| one.handle.0);
                handles.max().unwrap_or(0)
            });
            self.next_handle = next_handle.max(known.unwrap_or(0) + 1);
            self.sites = Sites::of_earlier(sites);
        }
        let kept: BTreeSet<u32> = processes.iter().map(|one| one.handle).collect();
        let mut ended = Vec::new();
        let mut ended_unseen = 0;
        let mut unprobed = Vec::new();
        for process in processes {
            let is_told = !left.untold.contains(&process.handle);
            match self.put_back(&process, &left.ring_position.filter(|_| is_told)) {
                Found::Traced => taken.kept += 1,
                Found::Ended => ended.push(ProcessHandle(process.handle)),
                Found::EndedUnseen => ended_unseen += 1,
                Found::Unprobed => unprobed.push(process),
            }
        }
        let untraced = match left.resumed {
            true => self.untraced(&kept, &ended),
            false => Vec::new(),
        };
        let last = untraced.iter().map(|(one, last_ns)| (one.handle, *last_ns));
        self.give_ring(ring, left.ring_position, last.collect());
        // From here on the log has everything that the programs sent meanwhile, and what the daemon says comes behind it.
        if left.resumed {
            taken.ended = ended.len() + ended_unseen;
            for process in ended {
                self.append(process, DaemonRecord::Exited);
            }
        }
        self.remove_leftovers();
        let pids: Vec<u32> = self.traced.keys().copied().collect();
        for pid in &pids {
            self.go_on(*pid);
        }
        for process in unprobed {
            let pid = process.facts.pid;
            let cause = Cause {
                options: process.options,
                rule: process.rule,
                children: process.children,
                wait: true,
                generation: process.facts.generation,
                forks_since_ns: process.forks_since_ns,
                late: None,
            };
            match self.attach_one(process.caller, pid, cause) {
                Ok(_) if left.untold.contains(&process.handle) => taken.untold += 1,
                Ok(_) => taken.attached += 1,
                Err(error) => {
                    tracing::warn!(pid, error = %error.what(), "was traced before, and could not be attached again");
                    taken.refused += 1;
                }
            }
        }
        for one in waiting {
            self.wait_to_follow(one);
        }
        let lives = |pid, start| {
            memscope_site::process::alive(pid).is_ok_and(|now| now.start_ticks == start)
        };
        let gone = |one: &ProcessSummary| {
            let (pid, start) = (one.facts.pid, one.facts.start_ticks);
            !kept.contains(&one.handle.0) && !self.traced.contains_key(&pid) && lives(pid, start)
        };
        for (one, _) in untraced.iter().filter(|(one, _)| gone(one)) {
            tracing::warn!(
                pid = one.facts.pid,
                "was traced, which could not be written down, and is not traced on"
            );
            taken.unwritten += 1;
        }
        for pid in pids {
            self.follow_what_was_forked(pid);
        }
        self.enforce(policy, in_force);
        // Libraries may have been loaded meanwhile, and rules may match.
        let soon = Instant::now() + TICK;
        self.last_rescan = soon.checked_sub(RESCAN).unwrap_or(soon);
        self.save();
        taken
    }

    fn give_ring(
        &mut self,
        ring: Ring,
        position: Option<u64>,
        untraced: Vec<(ProcessHandle, u64)>,
    ) {
        let (done, wait) = std::sync::mpsc::channel();
        let command = Command::Ring {
            ring: Box::new(ring),
            position,
            untraced,
            done,
        };
        if self.keeper.send(command).is_ok() {
            // An error means that the keeper has ended, and with it every question.
            let _ = wait.recv();
        }
    }

    /// Puts a process back as it was.
    fn put_back(&mut self, process: &KeptProcess, ring_position: &Option<u64>) -> Found {
        let pid = process.facts.pid;
        let handle = ProcessHandle(process.handle);
        let slot = self.kernel.taken_over(pid);
        // A daemon that was killed while it removed probes had told the programs before to send nothing more, nor
        // to count what is missing.
        let slot = slot.filter(|slot| {
            ring_position.is_some() && slot.handle() == handle.0 && !slot.is_silent()
        });
        let ended = match slot {
            Some(_) => Found::Ended,
            None => Found::EndedUnseen,
        };
        let Ok(pidfd) = open_pidfd(pid) else {
            return ended;
        };
        // The descriptor is of whoever has the number now.
        let now = memscope_site::process::facts(pid);
        if !now.is_ok_and(|now| now.start_ticks == process.facts.start_ticks) {
            return ended;
        }
        let (Some(slot), Some(pins)) = (slot, self.kernel.pins().cloned()) else {
            return Found::Unprobed;
        };
        let mut links = Vec::new();
        for site in process.links.iter().filter(|site| !site.pins.is_empty()) {
            match Link::pinned(&pins, site.clone()) {
                Ok(link) => links.push(link),
                // It is placed again like any site that has no probe.
                Err(error) => {
                    tracing::warn!(pid, error = %crate::error_chain(&error), "a probe is gone");
                }
            }
        }
        let watch = Command::Watch {
            process: handle,
            pid,
            uids: process.facts.uids,
            namespace: process.facts.kubernetes_namespace().map(Into::into),
            slot: slot.clone(),
        };
        let _ = self.keeper.send(watch);
        let budget = Budget::going_on(process.options.stacks, slot.stack_time());
        let traced = Traced {
            pid,
            handle,
            caller: process.caller.clone(),
            options: process.options.clone(),
            level: process.level,
            facts: process.facts.clone(),
            pidfd,
            slot,
            links,
            torch_npu: process.torch_npu,
            trace_file: process.trace_file.clone(),
            trace: process.trace.clone(),
            at_once: process.at_once.clone(),
            allocator_address: process.allocator_address,
            allocator_file: process.allocator_file.clone(),
            device_count_address: process.device_count_address,
            settings: process.settings.clone(),
            allocator: process.allocator.clone(),
            default_known: process.default_known,
            backend: process.backend.clone(),
            reading: false,
            read_again: false,
            is_copy: process.is_copy,
            is_own: process.is_own,
            reading_began_ns: 0,
            read_ns: None,
            found_nothing: false,
            // The keeper knows what an earlier placement said.
            before_first_memory: None,
            baseline: process.baseline_read.then(BaselineRead::default),
            retry: None,
            next_read: Instant::now() + process.options.read_every.unwrap_or_default(),
            mappings: None,
            ran: None,
            mapped: false,
            look_again: None,
            storages: None,
            python: false,
            python_given_up: false,
            python_number: 0,
            native: false,
            budget,
            rule: process.rule,
            children: process.children,
            forks_since_ns: process.forks_since_ns.unwrap_or_else(clock::boot_ns),
            full: 0,
            nvml: super::nvml::Told::default(),
            notes: process.notes.clone(),
            libraries: process.libraries.clone(),
        };
        self.traced.insert(pid, traced);
        if process.python {
            self.name_python_again(pid);
        }
        if process.native {
            self.start_native(pid);
        }
        Found::Traced
    }

    /// Has code objects named while the ring is read. Its probe is there already, and so is the layout in the programs' table.
    fn name_python_again(&mut self, pid: u32) {
        let Ok(interpreter) = memscope_python::find(pid) else {
            return;
        };
        let number = crate::python::entry(&interpreter)
            .ok()
            .and_then(|layout| self.kernel.python(pid, &layout).ok());
        let names = Names::open(pid, interpreter);
        let (Some(traced), Some(number), Ok(names)) = (self.traced.get_mut(&pid), number, names)
        else {
            return;
        };
        traced.python = true;
        traced.python_number = number;
        let _ = self.keeper.send(Command::Python {
            process: traced.handle,
            names: Box::new(names),
        });
    }

    /// Has a process that was put back be looked at as if nothing had been.
    fn go_on(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let stacks = traced.options.stacks;
        let (slot, handle) = (traced.slot.clone(), traced.handle);
        // What walking stacks costs is measured anew.
        if traced.python {
            slot.set_python(traced.python_number);
        }
        slot.set_native(traced.native);
        slot.set_stack_sampling(u32::from(stacks.sampling));
        // Names that the earlier daemon was about to look up, and stacks that it was about to finish, come again with their stacks.
        slot.resend_stacks();
        slot.set_frees_at_once(traced.at_once == AtOnce::Told);
        let searching = traced.trace == TraceState::Searching;
        let known = traced.trace_file.as_ref();
        let known = known.and_then(|file| self.layouts.get(file)).copied();
        let unread = traced.baseline.is_none() || traced.level == Level::Read;
        let is_python = traced.python;
        self.note(pid, "stacks_reduced", "");
        self.say_settled(pid);
        if searching {
            let _ = self.keeper.send(Command::Calibrate {
                process: handle,
                known,
            });
        }
        if !is_python {
            self.start_python(pid);
        }
        if unread {
            self.start_reading(pid);
        }
    }

    /// Processes that the log knows as traced and that are not, with the moment up to which they were, in nanoseconds of boot time: their
    /// attach was not finished, or their probes are gone, or that they are traced could not be written down. Those that were `kept` were
    /// traced as long as the daemon before wrote anything. The others end with the last that is known of them, the same at each start.
    fn untraced(
        &mut self,
        kept: &BTreeSet<u32>,
        ended: &[ProcessHandle],
    ) -> Vec<(ProcessSummary, u64)> {
        let mut known: BTreeSet<ProcessHandle> = self.traced.values().map(|t| t.handle).collect();
        known.extend(ended);
        let kept = kept.clone();
        let untraced = self.keeper.ask_blocking(move |ledger, _| {
            let mut living = ledger.processes();
            living.retain(|one| one.ended_ns.is_none() && !known.contains(&one.handle));
            let last = |one: ProcessSummary| {
                let last_ns = match kept.contains(&one.handle.0) {
                    true => ledger.last_ns(),
                    false => ledger.last_event_ns(one.handle).unwrap_or_default(),
                };
                (one, last_ns)
            };
            living.into_iter().map(last).collect()
        });
        // The keeper ends last: if it is gone, nobody is left who could ask.
        untraced.unwrap_or_default()
    }

    /// Removes slots and probes that nobody will read.
    fn remove_leftovers(&mut self) {
        let processes: BTreeSet<u32> = self.traced.keys().copied().collect();
        let links = self.traced.values().flat_map(|t| &t.links);
        let links: BTreeSet<String> = links.flat_map(|l| l.site.pins.clone()).collect();
        self.kernel.keep_taken(&processes, &links);
        self.forget_ended();
    }
}
