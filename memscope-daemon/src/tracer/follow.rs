//! Follows processes: libraries that are loaded later, execs, forks, matches of rules, and the allocator in use.

use std::time::Instant;

use memscope_common::DEVICE_UNKNOWN;
use memscope_ledger::event::{Backend, CoverageNote, Level, ProcessFacts, ProcessHandle};
use memscope_log::records::{DaemonRecord, What};
use memscope_memory::Memory;
use memscope_rpc::{Caller, Refusal};
use memscope_vendors::Vendor;

use super::attach::{Asked, vendor_of};
use super::cause::{Cause, Followed, LONGEST_QUEUE};
use super::nvml::Look;
use super::traced::AtOnce;
use super::{TraceState, Traced, Tracer};
use crate::keeper::KeeperMessage;

impl Tracer {
    pub(super) fn told(&mut self, told: KeeperMessage) {
        match told {
            KeeperMessage::Notice { process, what } => match what {
                What::MappingsChanged => {
                    if let Some(pid) = self.pid_of(process) {
                        self.mapped(pid);
                    }
                }
                What::Exec { tgid } if process.0 != 0 => self.executed(process, tgid),
                What::Exec { tgid } => {
                    if !self.appeared(tgid) {
                        self.started(tgid);
                    }
                }
                What::ForkedElsewhere { child, .. } => {
                    self.appeared(child);
                }
                What::LeaderExited { .. } => self.notice_exits(),
                What::SiteDefined(_) | What::KernelNamed => {}
            },
            KeeperMessage::Forked { process, child } => self.forked(process, child),
            KeeperMessage::Lost { process } => {
                if let Some(pid) = self.pid_of(process) {
                    self.read_after_loss(pid);
                    // What was lost may have told of a child. There may be many losses in a row.
                    self.lost_since_rescan.insert(pid);
                }
            }
            KeeperMessage::GivenUp { process } => {
                let Some(pid) = self.pid_of(process) else {
                    return;
                };
                if let Some(traced) = self.end(pid, DaemonRecord::Detached) {
                    self.given_up.insert(pid, traced.facts.start_ticks);
                }
                self.forget_ended();
                self.save();
            }
            KeeperMessage::Proven { process, layout } => {
                let Some(pid) = self.pid_of(process) else {
                    return;
                };
                if let Some(traced) = self.traced.get_mut(&pid) {
                    if let Some(file) = &traced.trace_file {
                        self.layouts.insert(file.clone(), layout);
                    }
                    traced.trace = TraceState::Proven;
                    if traced.at_once == AtOnce::Unknown {
                        traced.at_once = match layout.frees_at_once && traced.has_completed() {
                            true => AtOnce::Told,
                            false => AtOnce::Not(
                                "its blocks do not tell whether their frees complete at once"
                                    .to_owned(),
                            ),
                        };
                    }
                    // From here on both tell of it, until the other probe is gone.
                    traced
                        .slot
                        .set_frees_at_once(traced.at_once == AtOnce::Told);
                    for library in traced.libraries.values_mut() {
                        library.ways.retain(|way| !memscope_vendors::is_report(way));
                    }
                    tracing::info!(pid, ?layout, "the allocator's layout is proven");
                }
                self.remove_unneeded(Some(pid));
            }
            KeeperMessage::NotCalibrated { process, reason } => {
                let Some(pid) = self.pid_of(process) else {
                    return;
                };
                let Some(traced) = self.traced.get_mut(&pid) else {
                    return;
                };
                // The search was for an allocator that is no longer traced.
                if traced.trace == TraceState::Unused {
                    return;
                }
                tracing::info!(pid, reason, "the allocator's layout was not found");
                traced.trace = TraceState::Both(reason.clone());
                self.note(
                    pid,
                    "both_ways",
                    &format!(
                        "both of PyTorch's ways in stay probed, which costs more traps than one of them: {reason}"
                    ),
                );
            }
        }
    }

    /// A process reports that it has mapped or unmapped code.
    fn mapped(&mut self, pid: u32) {
        self.mappings_changed(pid);
        self.look_at(pid, true);
    }

    /// Looks at what a process has changed, now or when its user has time again. `mapped`: it has mapped or unmapped code.
    pub(super) fn look_at(&mut self, pid: u32, mapped: bool) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        let (process, uid) = (traced.handle, traced.facts.uids[0]);
        let began = Instant::now();
        // What was put off before is to be done, too.
        let mapped = mapped || traced.mapped;
        traced.mapped = !self.shares.has_time(uid, began);
        if traced.mapped {
            return;
        }
        if mapped {
            self.place_again(pid);
        }
        self.start_python(pid);
        self.read_backend(pid);
        if mapped {
            self.unwinder.mapped(process);
        }
        let now = Instant::now();
        self.shares
            .took(uid, now.saturating_duration_since(began), now);
    }

    /// Looks at the mappings of processes whose users had no time left before, and at files that could not be read before.
    pub(super) fn look_at_what_waits(&mut self) {
        let now = Instant::now();
        let waits = |traced: &&Traced| {
            let again = traced.look_again.is_some_and(|again| again.due <= now);
            traced.mapped || again
        };
        let waiting = self.traced.values().filter(waits);
        let waiting: Vec<u32> = waiting.map(|traced| traced.pid).collect();
        for pid in waiting {
            self.look_at(pid, true);
        }
    }

    pub(super) fn pid_of(&self, process: ProcessHandle) -> Option<u32> {
        self.traced
            .values()
            .find(|t| t.handle == process)
            .map(|t| t.pid)
    }

    /// A traced process has executed another image: what it held is gone, and the new image is attached, unless the policy had attached
    /// the process and does not want it any more.
    fn executed(&mut self, process: ProcessHandle, tgid: u32) {
        if self.pid_of(process) != Some(tgid) {
            return;
        }
        let Some(old) = self.end(tgid, DaemonRecord::Replaced) else {
            return;
        };
        self.forget_ended();
        let Some((options, rule)) = self.judged_again(tgid, old.rule, &old.options) else {
            tracing::info!(
                pid = tgid,
                "no longer traced: the policy does not want what it has become"
            );
            self.save();
            // A rule may want it.
            self.appeared(tgid);
            return;
        };
        let cause = Cause {
            options,
            rule,
            children: old.children,
            wait: true,
            generation: old.facts.generation + 1,
            // What the new image forks is told by nobody until it is attached.
            forks_since_ns: Some(old.forks_since_ns),
            late: None,
        };
        self.follow(old.facts.uids[0], tgid, tgid, old.caller, cause);
    }

    fn forked(&mut self, parent: ProcessHandle, child: u32) {
        let Some(pid) = self.pid_of(parent) else {
            return;
        };
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        if !traced.children {
            // A rule may want it.
            self.appeared(child);
            return;
        }
        let (caller, uid) = (traced.caller.clone(), traced.facts.uids[0]);
        let cause = Tracer::of_child(traced);
        self.follow(uid, pid, child, caller, cause);
    }

    /// Lets those children of a process wait to be followed that it has forked and that are not traced: no probe told of them, or they
    /// waited when the daemon before this one ended.
    pub(super) fn follow_what_was_forked(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid).filter(|traced| traced.children) else {
            return;
        };
        let cause = Tracer::of_child(traced);
        let (caller, uid) = (traced.caller.clone(), traced.facts.uids[0]);
        let since_ticks =
            traced.forks_since_ns / (1_000_000_000 / rustix::param::clock_ticks_per_second());
        for child in memscope_site::process::children(pid) {
            let Ok(stat) = memscope_site::process::alive(child) else {
                continue;
            };
            let is_known = self.traced.contains_key(&child) || self.was_let_be(child);
            if is_known || stat.start_ticks < since_ticks {
                continue;
            }
            // One after the other, so that a chain of forks is no chain of calls.
            self.wait_to_follow(Followed {
                pid: child,
                start_ticks: stat.start_ticks,
                from: pid,
                uid,
                caller: caller.clone(),
                cause: cause.clone(),
            });
        }
    }

    /// How a child of a process comes to be attached. It may have forked others itself before that.
    fn of_child(traced: &Traced) -> Cause {
        let pid = traced.pid;
        Cause {
            options: traced.options.clone(),
            rule: traced.rule,
            children: true,
            wait: true,
            generation: 0,
            forks_since_ns: Some(0),
            late: Some(CoverageNote {
                code: "child_attached_late".to_owned(),
                text: format!(
                    "a child of {pid}: its allocations between the fork and this attach were not \
                     seen"
                ),
            }),
        }
    }

    /// Attaches what a traced process of the user led to. Where the user's processes have taken their share of the tracer's time, it waits
    /// until they have some again, or until nobody else wants anything.
    fn follow(&mut self, uid: u32, from: u32, pid: u32, caller: Caller, cause: Cause) {
        let Ok(stat) = memscope_site::process::alive(pid) else {
            tracing::info!(pid, from, "not followed: it has ended already");
            return;
        };
        let next = Followed {
            pid,
            start_ticks: stat.start_ticks,
            from,
            uid,
            caller,
            cause,
        };
        if self.shares.has_time(uid, Instant::now()) {
            self.follow_now(next);
        } else {
            self.wait_to_follow(next);
        }
    }

    pub(super) fn wait_to_follow(&mut self, next: Followed) {
        let Followed { pid, from, uid, .. } = next;
        if !self.waiting.push(next) {
            tracing::warn!(
                pid,
                from,
                uid,
                "not followed: {LONGEST_QUEUE} others wait to be attached already"
            );
        }
    }

    /// Attaches the process that has waited longest, of those whose users have time again. `nobody_asks`: nobody else wants anything now,
    /// so that it may be any of them.
    pub(super) fn follow_one_that_waits(&mut self, nobody_asks: bool) {
        let now = Instant::now();
        let shares = &self.shares;
        let next = self
            .waiting
            .next(|uid| nobody_asks || shares.has_time(uid, now));
        if let Some(next) = next
            && is_same(Some(&next.start_ticks), next.pid)
        {
            self.follow_now(next);
        }
    }

    /// Whether a process that waits to be followed is still there, and the caller may see it.
    pub(super) fn may_see_that_waits(caller: &Caller, one: &Followed) -> bool {
        is_same(Some(&one.start_ticks), one.pid) && Tracer::may_see(caller, one.pid)
    }

    /// Whether the caller may see a process that is not traced.
    pub(super) fn may_see(caller: &Caller, pid: u32) -> bool {
        caller.sees_all()
            || memscope_site::process::facts(pid).is_ok_and(|facts| caller.may_see(&facts.uids))
    }

    fn follow_now(&mut self, next: Followed) {
        let Followed { pid, from, uid, .. } = next;
        let began = Instant::now();
        match self.attach_one(next.caller, pid, next.cause) {
            Ok(_) => {}
            // It has ended already, or it is somebody else's now. A child may end while it is looked at.
            Err(error) if pid != from || matches!(error, Refusal::NoSuchProcess { .. }) => {
                tracing::info!(pid, from, error = %error.what(), "not followed");
            }
            Err(error) => {
                tracing::warn!(pid, from, error = %error.what(), "not followed");
            }
        }
        let now = Instant::now();
        self.shares
            .took(uid, now.saturating_duration_since(began), now);
    }

    /// A process that is not traced has executed an image or was forked: a rule may want it. Says whether nothing else has to
    /// look at it.
    fn appeared(&mut self, pid: u32) -> bool {
        let own = pid == std::process::id();
        if self.traced.contains_key(&pid) || own || self.was_let_be(pid) {
            return true;
        }
        let rule = self
            .rules
            .iter()
            .find(|r| r.waits() && r.matches(pid))
            .cloned();
        if let Some(rule) = rule
            && let Err(error) = self.attach_matching(&rule, pid)
        {
            tracing::debug!(pid, rule = rule.id, error = %error.what(), "matched, not attached");
        }
        self.traced.contains_key(&pid)
    }

    /// Whether no rule attaches a process again, because somebody has detached it, or because it took too much of the daemon's memory.
    pub(super) fn was_let_be(&self, pid: u32) -> bool {
        is_same(self.let_be.get(&pid), pid) || self.was_given_up(pid)
    }

    /// Whether a process was given up because it took too much of the daemon's memory.
    pub(super) fn was_given_up(&self, pid: u32) -> bool {
        is_same(self.given_up.get(&pid), pid)
    }

    /// Forgets what is known of processes that have ended.
    pub(super) fn forget_let_be(&mut self) {
        for known in [&mut self.let_be, &mut self.given_up] {
            known.retain(|pid, _| memscope_site::process::alive(*pid).is_ok());
        }
    }

    pub(super) fn search_rules(&mut self) {
        self.forget_let_be();
        let rules: Vec<u64> = self.rules.iter().map(|r| r.id).collect();
        for rule in rules {
            let (_, refused) = self.apply_rule(rule, Asked::Before);
            for one in refused {
                tracing::debug!(pid = one.pid, rule, error = one.message, "not attached");
            }
        }
    }

    /// Whether any thread of a process has had a processor since the last call. If none has, nothing in its memory has changed that is
    /// worth a look.
    pub(super) fn has_run(&mut self, pid: u32) -> bool {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return false;
        };
        // Before the look, so that what it does meanwhile is looked at the next time.
        let now = crate::clock::processor_time_of(pid);
        std::mem::replace(&mut traced.ran, now) != now || now.is_none()
    }

    /// Whether a process has mapped or unmapped code since the last call. The linker's hook reports most changes;
    /// this finds those that bypass it, without reading any of the mapped files.
    pub(super) fn mappings_changed(&mut self, pid: u32) -> bool {
        let Some(now) = super::traced::code_mappings(pid) else {
            return false;
        };
        let Some(traced) = self.traced.get_mut(&pid) else {
            return false;
        };
        let before = traced.mappings.replace(now);
        let changed = before != Some(now);
        traced.python_given_up &= !changed;
        changed
    }

    /// Number of devices that the process can see, if the environment or the machine tells it. `vendor`: whose devices it uses.
    pub(super) fn visible_devices(
        &mut self,
        facts: &ProcessFacts,
        vendor: Option<Vendor>,
    ) -> Option<usize> {
        match listed_devices(facts, vendor) {
            Some("") => None,
            Some(list) => Some(list.split(',').count()),
            // NVML knows of no other vendor's devices.
            None if matches!(vendor, Some(Vendor::Ascend | Vendor::Hip)) => None,
            None => self.nvml.devices(),
        }
    }

    /// Reads how many devices PyTorch found and which settings its allocator has, and records a change. With one
    /// device it is clear which one is used by a thread that never chose one.
    fn read_allocator_facts(&mut self, pid: u32) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        if traced.device_count_address.is_none() && traced.settings.is_empty() {
            return;
        }
        let Ok(memory) = memscope_memory::ProcessMemory::open(pid) else {
            return;
        };
        let mut facts = traced.allocator.clone();
        let mut count = [0; 4];
        if let Some(address) = traced.device_count_address
            && memory.read(address, &mut count).is_ok()
        {
            facts.devices = u32::try_from(i32::from_ne_bytes(count)).unwrap_or(0);
        }
        if let Some(settings) = memscope_site::settings::read(&memory, &traced.settings) {
            facts.settings = Some(settings);
        }
        let known = traced.default_known;
        if let Some(known) = default_is_known(facts.devices, known, traced.facts.from_start) {
            traced
                .slot
                .set_default_device(if known { 0 } else { DEVICE_UNKNOWN });
            traced.default_known = known;
        }
        if facts != traced.allocator {
            let handle = traced.handle;
            traced.allocator = facts.clone();
            self.append(handle, DaemonRecord::Allocator(Box::new(facts)));
        }
    }

    /// Whether a thread may have chosen another device than the first while the functions of its library were searched, although the
    /// process was attached before it had that library.
    pub(super) fn may_have_chosen(&mut self, pid: u32) -> bool {
        let known = (self.traced.get(&pid)).filter(|traced| traced.default_known);
        let Some(facts) = known.map(|traced| traced.facts.clone()) else {
            return false;
        };
        self.visible_devices(&facts, vendor_of(pid)) != Some(1)
    }

    /// Reads which allocator PyTorch uses, and records a change.
    pub(super) fn read_backend(&mut self, pid: u32) {
        self.read_allocator_facts(pid);
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let Some(address) = traced.allocator_address else {
            return;
        };
        let Ok(memory) = memscope_memory::ProcessMemory::open(pid) else {
            return;
        };
        let backend = match memscope_site::backend::read(&memory, address) {
            Ok(Some(backend)) => {
                memscope_site::backend::with_environment(backend, &traced.facts.environment)
            }
            Ok(None) => Backend::Unknown,
            Err(error) => {
                tracing::debug!(pid, error = %crate::error_chain(&error), "allocator not read");
                return;
            }
        };
        if backend != traced.backend {
            let handle = traced.handle;
            if let Some(traced) = self.traced.get_mut(&pid) {
                traced.backend = backend.clone();
            }
            self.append(handle, DaemonRecord::Backend(backend));
            if self
                .traced
                .get(&pid)
                .is_some_and(|t| t.level == Level::Read)
            {
                self.say_unreadable(pid);
            }
        }
    }

    /// Records where the process runs and the memory of its devices, if NVML knows it. For a question it is recorded even if it is the
    /// same as before where the moment counts: free memory is valid for a moment only, and which device is meant by a number may follow
    /// from what the process uses by now.
    pub(super) fn say_memory(&mut self, pid: u32, question: bool) {
        let look = self.nvml.look();
        self.say_seen(pid, question, &look);
    }

    /// The same with what was seen of the machine.
    pub(super) fn say_seen(&mut self, pid: u32, question: bool, look: &Look) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        let handle = traced.handle;
        let told = look.of_process(&traced.facts);
        let before = std::mem::replace(&mut traced.nvml, told.clone());
        let moves = told.runs_on != before.runs_on;
        let runs = !told.runs_on.devices.is_empty();
        let passes = runs || told.memory.iter().any(|m| m.free_bytes.is_some());
        if told == before && !(question && passes) {
            return;
        }
        if moves || question && runs {
            self.append(handle, DaemonRecord::RunsOn(told.runs_on));
        }
        for device in told.memory {
            self.append(handle, DaemonRecord::DeviceTotal(device));
        }
    }
}

/// The list of devices in a process's environment that the vendor whose devices it uses goes by. The lists of other vendors do not
/// matter to it.
fn listed_devices(facts: &ProcessFacts, vendor: Option<Vendor>) -> Option<&str> {
    let wanted = vendor?.facts().visible_devices;
    let mut all = facts.environment.iter();
    let found = all.find(|(name, _)| name == wanted);
    found.map(|(_, value)| value.trim())
}

/// Whether a thread that never chose a device uses the only one, as far as PyTorch's count of them tells. `None`: it tells nothing new.
fn default_is_known(devices: u32, known: bool, from_start: bool) -> Option<bool> {
    match (devices, known) {
        (1, false) => Some(true),
        // The environment or the machine told of fewer devices than there are. From the start on, calls tell which one is chosen.
        (2.., true) if !from_start => Some(false),
        _ => None,
    }
}

/// Whether a pid still belongs to the process that started at this time.
fn is_same(start: Option<&u64>, pid: u32) -> bool {
    start.is_some_and(|start| {
        memscope_site::process::alive(pid).is_ok_and(|stat| stat.start_ticks == *start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_vendor_whose_devices_are_used_counts() {
        let lists = [
            ("HIP_VISIBLE_DEVICES", "0"),
            ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
        ];
        let facts = ProcessFacts {
            environment: lists.map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            ..ProcessFacts::default()
        };
        let of = |vendor| listed_devices(&facts, vendor);
        assert_eq!(of(Some(Vendor::Cuda)), Some("0,1,2,3"));
        assert_eq!(of(Some(Vendor::Hip)), Some("0"));
        assert_eq!(of(Some(Vendor::Ascend)), None);
        assert_eq!(of(None), None);
    }

    #[test]
    fn more_devices_than_were_believed_leave_the_default_unknown() {
        for (devices, known, from_start, now) in [
            (0, true, false, None),
            (1, false, false, Some(true)),
            (1, true, false, None),
            (4, true, false, Some(false)),
            (4, true, true, None),
            (4, false, false, None),
        ] {
            assert_eq!(default_is_known(devices, known, from_start), now);
        }
    }
}
