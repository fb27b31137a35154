//! Snapshots that the daemon takes by itself: conditions that are checked event by event.
//!
//! Owns: the triggers, which of them watches which process, and what they remember of it. Refuses: I/O, clocks and
//! snapshots. It reports what fired and why, and the keeper acts.
//!
//! Levels are checked after an event that gives them exactly. PyTorch reports a segment before the block for which it
//! was taken, and holds its lock in between. So a level that rises with a segment is checked after the event of the
//! block, and the snapshot has the block in it.

mod edge;
mod firing;
mod growth;
mod process;
mod words;

pub use firing::Firing;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use memscope_ledger::Ledger;
use memscope_ledger::event::{Body, Event, ProcessFacts, ProcessHandle, TraceAction};
use memscope_rpc::{Caller, Condition, Metric, Refusal, TriggerStatus};
use process::ProcessTriggers;

/// Most triggers of root, most of all others together, and most of one of them. Root has its own, so that others cannot
/// keep root from adding one.
const MOST: usize = 64;
const MOST_OF_A_USER: usize = 16;
/// Time between two checks of levels without an event, in nanoseconds.
const TICK_NS: u64 = 40_000_000;

/// Which processes a trigger watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Scope {
    /// All processes that the trigger's user may see.
    All,
    /// One process: pid, start time in clock ticks, and user ids.
    One(u32, u64, [u32; 3]),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Trigger {
    number: u64,
    condition: Condition,
    scope: Scope,
    user: Caller,
    from_start: bool,
    fired: u64,
    paused: u64,
}

impl Trigger {
    fn watches(&self, process: &ProcessTriggers) -> bool {
        let is_meant = match self.scope {
            Scope::All => true,
            Scope::One(pid, start, _) => (pid, start) == (process.pid, process.start_ticks),
        };
        is_meant && self.user.may_see(&process.uids)
    }
}

/// All triggers, and what they watch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Triggers {
    triggers: Vec<Trigger>,
    last_number: u64,
    processes: BTreeMap<ProcessHandle, ProcessTriggers>,
    pause_ns: u64,
    /// Whether some trigger needs levels, and not only out-of-memory reports or steps.
    looks_at_levels: bool,
    /// Whether some trigger needs steps.
    #[serde(default)]
    looks_at_steps: bool,
    next_tick_ns: u64,
}

impl Triggers {
    /// Begins with the triggers of the command line. A trigger that fires again in the same process within `pause_ns`
    /// nanoseconds of its last snapshot takes none.
    pub fn new(conditions: &[Condition], pause_ns: u64) -> Triggers {
        let root = Caller::root();
        let mut all = Triggers {
            triggers: Vec::new(),
            last_number: 0,
            processes: BTreeMap::new(),
            pause_ns,
            looks_at_levels: false,
            looks_at_steps: false,
            next_tick_ns: 0,
        };
        for condition in conditions {
            if all.same(condition, Scope::All, &root).is_none() {
                all.push(*condition, Scope::All, root.clone(), true);
            }
        }
        all
    }

    /// Those of an earlier daemon, with those of this one's command line in the place of those of that one's.
    pub fn joined(left: Triggers, conditions: &[Condition], pause_ns: u64) -> Triggers {
        let mut all = Triggers { pause_ns, ..left };
        all.triggers
            .retain(|one| !one.from_start || conditions.contains(&one.condition));
        let root = Caller::root();
        for condition in conditions {
            if all.same(condition, Scope::All, &root).is_none() {
                all.push(*condition, Scope::All, root.clone(), true);
            }
        }
        all.next_tick_ns = 0;
        all.distribute();
        all
    }

    /// Forgets the processes, and the triggers that were for one of them alone: another daemon traced them.
    pub fn forget_processes(&mut self) {
        self.processes.clear();
        self.forget(|trigger| matches!(trigger.scope, Scope::One(..)));
    }

    /// Forgets the processes, but no trigger: nobody looks at what happens now.
    pub fn follow_nothing(&mut self) {
        self.processes.clear();
    }

    /// Whether there is a trigger with this number.
    pub fn has(&self, number: u64) -> bool {
        self.triggers.iter().any(|t| t.number == number)
    }

    fn same(&self, condition: &Condition, scope: Scope, user: &Caller) -> Option<&Trigger> {
        self.triggers
            .iter()
            .find(|t| t.condition == *condition && t.scope == scope && t.user.is_same(user))
    }

    fn push(&mut self, condition: Condition, scope: Scope, user: Caller, from_start: bool) -> u64 {
        self.last_number += 1;
        self.triggers.push(Trigger {
            number: self.last_number,
            condition,
            scope,
            user,
            from_start,
            fired: 0,
            paused: 0,
        });
        self.distribute();
        self.last_number
    }

    /// Gives each process the triggers that watch it. Triggers that stay keep their state.
    fn distribute(&mut self) {
        let watching = |process: &ProcessTriggers| {
            let all = self.triggers.iter().filter(|t| t.watches(process));
            all.map(|t| (t.number, t.condition)).collect::<Vec<_>>()
        };
        let plan: Vec<_> = self
            .processes
            .iter()
            .map(|(handle, process)| (*handle, watching(process)))
            .collect();
        for (handle, triggers) in plan {
            if let Some(process) = self.processes.get_mut(&handle) {
                process.watch(&triggers);
            }
        }
        self.looks_at_levels = self
            .triggers
            .iter()
            .any(|t| t.condition.metric != Metric::Oom && !t.condition.metric.is_of_steps());
        let of_steps = |one: &Trigger| one.condition.metric.is_of_steps();
        self.looks_at_steps = self.triggers.iter().any(of_steps);
    }

    /// Adds a trigger. If the same one exists already, that one is returned.
    pub fn add(
        &mut self,
        user: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal> {
        let scope = match pid {
            None => Scope::All,
            Some(pid) => self
                .processes
                .values()
                .find(|p| p.pid == pid && user.may_see(&p.uids))
                .map(|p| Scope::One(pid, p.start_ticks, p.uids))
                .ok_or(Refusal::NotTraced { pid })?,
        };
        if let Some(same) = self.same(&condition, scope, &user) {
            return Ok(self.status(same));
        }
        let all = self.triggers.iter();
        let beside = all.filter(|t| t.user.is_admin() == user.is_admin());
        let own = self.triggers.iter().filter(|t| t.user.is_same(&user));
        if beside.count() >= MOST || !user.is_admin() && own.count() >= MOST_OF_A_USER {
            return Err(Refusal::Invalid {
                what: format!(
                    "there are too many triggers: at most {MOST} of root, {MOST} of all others, and {MOST_OF_A_USER} of \
                     one of them"
                ),
                hint: "remove one: memscope-ctl trigger remove NUMBER".to_owned(),
            });
        }
        let number = self.push(condition, scope, user, false);
        // A level that is above its threshold already is found at the next tick.
        self.next_tick_ns = 0;
        self.triggers
            .iter()
            .find(|t| t.number == number)
            .map(|t| self.status(t))
            .ok_or(Refusal::NoSuchTrigger { trigger: number })
    }

    /// Removes a trigger of this user, or any trigger if the user is root.
    pub fn remove(&mut self, user: Caller, number: u64) -> Result<(), Refusal> {
        let found = self.triggers.iter().find(|t| t.number == number);
        let status = found
            .map(|t| self.status(t))
            .filter(|status| status.is_shown_to(&user))
            .ok_or(Refusal::NoSuchTrigger { trigger: number })?;
        if !status.is_of(&user) {
            return Err(Refusal::NotPermitted {
                what: format!("remove trigger {number}, which is root's"),
            });
        }
        self.forget(|t| t.number == number);
        Ok(())
    }

    fn forget(&mut self, goes: impl Fn(&Trigger) -> bool) {
        let before = self.triggers.len();
        self.triggers.retain(|t| !goes(t));
        if self.triggers.len() != before {
            self.distribute();
        }
    }

    fn status(&self, trigger: &Trigger) -> TriggerStatus {
        let watching = self.processes.values().filter(|p| trigger.watches(p));
        let watching = watching.filter(|p| !p.hides(trigger.condition.metric));
        TriggerStatus {
            trigger: trigger.number,
            condition: trigger.condition,
            process: match trigger.scope {
                Scope::All => None,
                Scope::One(pid, _, uids) => Some((pid, uids)),
            },
            user: trigger.user.account(),
            from_start: trigger.from_start,
            watching: watching.count() as u64,
            fired: trigger.fired,
            written: 0,
            skipped: match trigger.paused {
                0 => Vec::new(),
                paused => vec![("paused".to_owned(), paused)],
            },
            last_unix_ns: None,
        }
    }

    /// Status of all triggers, by number. The counts of their snapshots are not known here.
    pub fn list(&self) -> Vec<TriggerStatus> {
        self.triggers.iter().map(|t| self.status(t)).collect()
    }

    /// Pids and start times of processes that have triggers of their own but are not traced now. [`Triggers::end`]
    /// removes the triggers of such a process when it has ended.
    pub fn waiting(&self) -> Vec<(u32, u64)> {
        self.triggers
            .iter()
            .filter_map(|t| match t.scope {
                Scope::One(pid, start, _) => Some((pid, start)),
                Scope::All => None,
            })
            .filter(|(pid, start)| {
                !self
                    .processes
                    .values()
                    .any(|p| (p.pid, p.start_ticks) == (*pid, *start))
            })
            .collect()
    }

    /// Removes the triggers that were for this process alone, because it has ended.
    pub fn end(&mut self, pid: u32, start_ticks: u64) {
        self.forget(|t| matches!(t.scope, Scope::One(p, s, _) if (p, s) == (pid, start_ticks)));
    }

    /// Checks the triggers after an event that the ledger has applied, and adds the firings to `due`.
    #[inline]
    pub fn after(&mut self, event: &Event, ledger: &Ledger, due: &mut Vec<Firing>) {
        // Nearly every event only changes a level, and usually no trigger needs levels.
        let tells_level_only = match &event.body {
            Body::Trace(trace) => trace.action != TraceAction::Oom,
            Body::Report(_) | Body::Call(_) => true,
            _ => false,
        };
        if self.looks_at_levels || !tells_level_only {
            self.look_after(event, ledger, due);
        }
    }

    fn look_after(&mut self, event: &Event, ledger: &Ledger, due: &mut Vec<Firing>) {
        match &event.body {
            Body::Attached(facts) => {
                self.attached(event.process, facts, event.time_ns);
                self.look_at_level(event.process, ledger);
            }
            Body::Placed(_) | Body::Backend(_) => self.look_at_level(event.process, ledger),
            Body::Exited => {
                if let Some(process) = self.processes.remove(&event.process) {
                    self.end(process.pid, process.start_ticks);
                }
            }
            Body::Detached | Body::Replaced => {
                self.processes.remove(&event.process);
            }
            Body::Oom(oom) => {
                self.look(event, Some(oom.device), true, ledger, due);
                self.out_of_memory(event, oom.size, ledger, due);
            }
            Body::Trace(trace) => match trace.action {
                // These change no level.
                TraceAction::FreeCompleted | TraceAction::Snapshot => {}
                TraceAction::Oom => {
                    self.look(event, trace.device, true, ledger, due);
                    self.out_of_memory(event, trace.size, ledger, due);
                }
                TraceAction::Alloc | TraceAction::FreeRequested => {
                    let exact = trace.total_allocated.is_some();
                    self.look(event, trace.device, exact, ledger, due);
                }
                TraceAction::SegmentAlloc
                | TraceAction::SegmentFree
                | TraceAction::SegmentMap
                | TraceAction::SegmentUnmap => self.look(event, trace.device, false, ledger, due),
            },
            Body::Report(report) => self.look(event, Some(report.device), true, ledger, due),
            Body::Held(part) => self.look(event, Some(part.device), true, ledger, due),
            Body::Call(_) => self.look(event, None, true, ledger, due),
            Body::Mark(_) => self.look_at_steps(event, ledger, due),
            _ => {}
        }
    }

    /// Notes what nothing tells of a process at its level.
    pub fn look_at_level(&mut self, process: ProcessHandle, ledger: &Ledger) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.hidden = ledger.hidden(process);
        }
    }

    /// Nearly all steps end with a mark. Those that are told by the pattern of the allocations are looked for at each tick.
    fn look_at_steps(&mut self, event: &Event, ledger: &Ledger, due: &mut Vec<Firing>) {
        if !self.looks_at_steps {
            return;
        }
        let before = due.len();
        if let Some(process) = self.processes.get_mut(&event.process) {
            process.look_at_steps(ledger, due);
        }
        self.count(event.time_ns, due.get_mut(before..).unwrap_or_default());
    }

    /// Watches a process, unless it is watched already.
    pub fn attached(&mut self, handle: ProcessHandle, facts: &ProcessFacts, attached_ns: u64) {
        let process = self
            .processes
            .entry(handle)
            .or_insert_with(|| ProcessTriggers::new(handle, attached_ns));
        process.pid = facts.pid;
        process.start_ticks = facts.start_ticks;
        process.uids = facts.uids;
        // The pid may have belonged to another process, whose end nobody saw.
        let (pid, start) = (facts.pid, facts.start_ticks);
        self.forget(|t| matches!(t.scope, Scope::One(p, s, _) if p == pid && s != start));
        self.distribute();
    }

    fn look(
        &mut self,
        event: &Event,
        device: Option<i32>,
        exact: bool,
        ledger: &Ledger,
        due: &mut Vec<Firing>,
    ) {
        if !self.looks_at_levels {
            return;
        }
        let Some(process) = self.processes.get_mut(&event.process) else {
            return;
        };
        if !process.looks_at_levels() {
            return;
        }
        let before = due.len();
        match device {
            Some(device) => {
                if let Some(gauge) = ledger.gauge(event.process, device) {
                    process.look(gauge, event.time_ns, exact, ledger, due);
                }
            }
            None => {
                for gauge in ledger.gauges(event.process) {
                    // A call of another thread says nothing of the block for which a segment was made.
                    let exact = exact && !process.waits_for_block(gauge.device);
                    process.look(gauge, event.time_ns, exact, ledger, due);
                }
            }
        }
        if due.len() > before {
            self.count(event.time_ns, due.get_mut(before..).unwrap_or_default());
        }
    }

    /// `size` is the size in bytes of the request that failed.
    fn out_of_memory(&mut self, event: &Event, size: u64, ledger: &Ledger, due: &mut Vec<Firing>) {
        let before = due.len();
        if let Some(process) = self.processes.get_mut(&event.process) {
            process.out_of_memory(size, ledger, due);
        }
        self.count(event.time_ns, due.get_mut(before..).unwrap_or_default());
    }

    /// No snapshot was taken for this firing, as there was no room. So its trigger does not rest: it would miss what comes next.
    pub fn not_taken(&mut self, firing: &Firing) {
        if let Some(process) = self.processes.get_mut(&firing.process) {
            process.not_taken(firing);
        }
    }

    /// Whether there is anything to check from time to time.
    pub fn ticks(&self) -> bool {
        self.looks_at_levels || self.looks_at_steps
    }

    /// Checks levels for which no exact event came, floors that rose only because time went by, and steps that no mark tells.
    pub fn tick(&mut self, now_ns: u64, ledger: &Ledger, due: &mut Vec<Firing>) {
        if !self.ticks() || now_ns < self.next_tick_ns {
            return;
        }
        self.next_tick_ns = now_ns.saturating_add(TICK_NS);
        let before = due.len();
        for process in self.processes.values_mut() {
            process.tick(now_ns, ledger, due);
        }
        self.count(now_ns, due.get_mut(before..).unwrap_or_default());
    }

    /// Counts the firings, and marks those that come too soon after the last snapshot.
    fn count(&mut self, now_ns: u64, fired: &mut [Firing]) {
        for one in fired {
            let Some(trigger) = self.triggers.iter_mut().find(|t| t.number == one.trigger) else {
                continue;
            };
            trigger.fired += 1;
            if let Some(process) = self.processes.get_mut(&one.process) {
                process.pause(one, now_ns, self.pause_ns);
            }
            trigger.paused += u64::from(one.paused.is_some());
        }
    }
}
