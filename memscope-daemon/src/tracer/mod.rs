//! The tracer: the one thread that attaches and detaches.
//!
//! Owns: the loaded object, the traced processes with their links, and the rules. It follows processes that load
//! libraries, execute, fork and end. Refuses: to keep what the processes hold, which the keeper does.

mod attach;
mod budget;
mod calm;
mod cause;
mod follow;
mod full;
mod keep_budget;
mod kept;
pub mod nvml;
mod operators;
mod others;
mod outcome;
mod place;
mod policy;
mod python;
mod queue;
mod reading;
mod rounds;
mod rules;
mod ruling;
mod save;
mod share;
mod sites;
mod take_over;
mod traced;
mod waiting;
mod waits;

pub use kept::{
    Keeping, Kept, KeptError, Since, TakeOver, TakenOver, read as read_kept, write_kept,
    write_stopped,
};
pub use outcome::ReadingOutcome;
pub use rules::{Rule, maps_device_library};
pub use ruling::InForce;
pub use traced::{TraceState, Traced};
pub use waiting::QUESTION;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use memscope_common::WATCH_ALL;
use memscope_ledger::event::ProcessHandle;
use memscope_log::records::{DaemonRecord, SiteDefined, What};
use memscope_proto::v1;
use memscope_rpc::{AttachRequest, AttachScope, Caller, DetachScope, Refusal};
use memscope_site::groups::{self, View};
use memscope_site::{FileIdentity, FoundSite, ObjectSites, Resolver};
use memscope_vendors::Purpose;
use tokio::sync::oneshot;

use crate::ingest::ring::Ring;
use crate::keeper::{Command, KeeperHandle, KeeperMessage};
use crate::native::Unwinder;
use crate::policy::Policy;
use crate::probe::ProbeError;
use crate::probe::calibrate::Layout;
use crate::probe::links::{Link, detach_all};
use crate::probe::load::{AttachMethod, Kernel};
use crate::probe::removal::Remover;
use crate::probe::slot::Slot;
use crate::watchdog::Pulse;

/// Time between two searches for processes that match rules.
const RULE_SEARCH: Duration = Duration::from_secs(1);
/// Time between two checks of mappings that are made although the linker reported nothing.
const RESCAN: Duration = Duration::from_secs(5);

/// Rules that root may have, those of all others together, and those of one of them: each costs a look every second at all
/// processes that have run. Root has its own, so that others cannot keep root from adding one.
const MOST_RULES: usize = 64;
const MOST_RULES_OF_A_USER: usize = 8;

/// An order to the tracer.
pub enum Order {
    /// Attach a process, or add a rule.
    Attach {
        /// Client that asks.
        caller: Caller,
        /// What to attach, and how.
        request: AttachRequest,
        /// Gets the outcome.
        reply: oneshot::Sender<Result<v1::AttachResponse, Refusal>>,
    },
    /// Detach processes, or remove rules.
    Detach {
        /// Client that asks.
        caller: Caller,
        /// What to detach.
        scope: DetachScope,
        /// Gets the outcome.
        reply: oneshot::Sender<Result<v1::DetachResponse, Refusal>>,
    },
    /// Check which allocator a process uses, before a question about it is answered.
    Refresh {
        /// The process. Its pid may belong to another one when the order is carried out.
        process: ProcessHandle,
        /// Whether to read the allocator's structures as well.
        read: bool,
        /// Gets a message when this is done.
        reply: oneshot::Sender<()>,
    },
    /// Let this policy count from now on.
    Policy(Policy),
    /// A reading has ended.
    Read {
        /// Process that was read.
        pid: u32,
        /// Its handle.
        process: ProcessHandle,
        /// How the reading ended.
        outcome: ReadingOutcome,
    },
    /// Go round once: somebody wants to know whether the tracer goes on.
    GoRound,
    /// Report the tracer's status.
    Status(oneshot::Sender<TracerStatus>),
    /// A message of the keeper.
    Keeper(KeeperMessage),
    /// End.
    Stop {
        /// Leave probes and maps as they are, for the daemon that comes next; else everything is detached.
        hand_over: bool,
        /// Receives a message when it is done.
        reply: oneshot::Sender<()>,
    },
}

/// Status of the tracer.
#[derive(Debug, Clone)]
pub struct TracerStatus {
    /// The kind of link that carries the probes.
    pub method: AttachMethod,
    /// Number of probe sites in use.
    pub sites: u64,
    /// Number of losses for each cause, as the programs have counted them.
    pub drops: Vec<(String, u64)>,
    /// Libraries that have probes.
    pub libraries: Vec<v1::Library>,
    /// Rules that are in force.
    pub rules: Vec<v1::Rule>,
}

/// The state of the tracer's thread.
pub struct Tracer {
    kernel: Kernel,
    keeper: KeeperHandle,
    unwinder: Unwinder,
    /// Share of one processor that walking stacks may take in a process; `None`: no limit.
    stack_budget: Option<f64>,
    /// Folder in which kubelet keeps the logs of pods.
    pod_logs: PathBuf,
    /// What is attached by itself.
    ruling: ruling::Ruling,
    orders: Sender<Order>,
    resolver: Resolver,
    traced: BTreeMap<u32, Traced>,
    /// Processes that were given up because they took too much of the daemon's memory, with the times of their starts.
    given_up: HashMap<u32, u64>,
    /// Processes that somebody has detached, which neither a policy nor a search for a rule attaches again, with the times of their starts.
    let_be: HashMap<u32, u64>,
    rules: Vec<Rule>,
    /// Processes that rules may want.
    others: others::Others,
    /// All processes at the last search by rules, and of each whether it may have changed.
    found: Vec<(u32, bool)>,
    next_rule: u64,
    next_handle: u32,
    sites: sites::Sites,
    /// Layouts of PyTorch's allocator that were proven, by library.
    layouts: HashMap<FileIdentity, Layout>,
    /// Layouts of its other structures, which readings use, by library.
    structures: HashMap<FileIdentity, memscope_structure::Layout>,
    wake_bytes: u32,
    last_rule_search: Instant,
    last_rescan: Instant,
    /// Processes that have lost records since then.
    lost_since_rescan: HashSet<u32>,
    calm: calm::Calm,
    nvml: nvml::Machine,
    /// Attaches that are not written down yet.
    unsaved: Vec<waits::Unsaved>,
    /// Attaches whose answers wait for readings.
    attaching: Vec<waits::Attaching>,
    /// Questions whose answers wait for readings.
    refreshing: Vec<waits::Refreshing>,
    shares: share::Shares,
    /// Processes that wait to be followed, because their users' share of the time is used up.
    waiting: cause::Waiting,
    /// Removes the probes of processes that have ended.
    remover: Remover,
    keeping: Keeping,
    /// Beats as the thread goes on.
    pulse: Pulse,
}

/// What the tracer begins with.
pub struct Start {
    /// The loaded object.
    pub kernel: Kernel,
    /// Its ring, which goes to the keeper when everything is in place.
    pub ring: Ring,
    /// The keeper.
    pub keeper: KeeperHandle,
    /// Number of unread bytes in the ring at which the keeper is woken.
    pub wake_bytes: u32,
    /// Share of one processor that walking stacks may take in a process; `None`: no limit.
    pub stack_budget: Option<f64>,
    /// Folder in which kubelet keeps the logs of pods.
    pub pod_logs: PathBuf,
    /// Folder in which kubelet keeps the volumes of pods.
    pub pod_volumes: PathBuf,
    /// What is to be attached by itself.
    pub policy: Policy,
    /// Writes down what is traced.
    pub keeping: Keeping,
    /// What an earlier daemon has left.
    pub left: Option<TakeOver>,
    /// Beats as the thread goes on.
    pub pulse: Pulse,
}

impl Tracer {
    /// Starts the thread, and waits until it has taken over what an earlier daemon has left. `own` sends into the same channel as
    /// `orders` receives from.
    pub fn start(
        start: Start,
        (own, orders): (Sender<Order>, Receiver<Order>),
    ) -> std::io::Result<(std::thread::JoinHandle<()>, TakenOver)> {
        let Start {
            mut kernel,
            ring,
            keeper,
            wake_bytes,
            stack_budget,
            pod_logs,
            pod_volumes,
            policy,
            keeping,
            left,
            pulse,
        } = start;
        let (ready, wait) = std::sync::mpsc::channel();
        let unwinder = Unwinder::start(kernel.take_rules(), keeper.clone())?;
        let remover = Remover::start(kernel.method())?;
        let thread = std::thread::Builder::new()
            .name("tracer".to_owned())
            .spawn(move || {
                let now = Instant::now();
                let mut tracer = Tracer {
                    resolver: Resolver::new().with_user_mounts(kernel.user_mounts),
                    kernel,
                    keeper,
                    unwinder,
                    stack_budget,
                    ruling: ruling::Ruling::new(ruling::places(&pod_logs, &pod_volumes)),
                    pod_logs,
                    orders: own,
                    traced: BTreeMap::new(),
                    given_up: HashMap::new(),
                    let_be: HashMap::new(),
                    rules: Vec::new(),
                    others: others::Others::default(),
                    found: Vec::new(),
                    next_rule: 1,
                    next_handle: 1,
                    sites: sites::Sites::default(),
                    layouts: HashMap::new(),
                    structures: HashMap::new(),
                    wake_bytes,
                    last_rule_search: now,
                    last_rescan: now,
                    lost_since_rescan: HashSet::new(),
                    calm: calm::Calm::new(now),
                    nvml: nvml::Machine::default(),
                    unsaved: Vec::new(),
                    attaching: Vec::new(),
                    refreshing: Vec::new(),
                    shares: share::Shares::default(),
                    waiting: cause::Waiting::default(),
                    remover,
                    keeping,
                    pulse,
                };
                let _ = ready.send(tracer.begin(ring, left, policy));
                tracer.run(&orders);
            })?;
        // A thread that panics ends the process.
        let taken = wait.recv().map_err(std::io::Error::other)?;
        Ok((thread, taken))
    }

    fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            crate::panics::if_a_test_wants_it("tracer");
            self.pulse.beat();
            let order = self.next_order(orders);
            if order.as_ref().is_ok_and(Order::stirs) {
                self.calm.stir(Instant::now());
            }
            let nobody_asks = matches!(order, Err(RecvTimeoutError::Timeout));
            match order {
                Ok(Order::Attach {
                    caller,
                    request,
                    reply,
                }) => {
                    let outcome = self.attach(caller, &request);
                    self.unsaved.push(waits::Unsaved {
                        since: Instant::now(),
                        outcome,
                        reply,
                    });
                }
                Ok(Order::Detach {
                    caller,
                    scope,
                    reply,
                }) => {
                    let outcome = self.detach(caller, scope);
                    self.save();
                    let _ = reply.send(outcome);
                }
                Ok(Order::Refresh {
                    process,
                    read,
                    reply,
                }) => {
                    // Dropping the reply of a process that is no longer traced says that there is nothing to wait for.
                    if let Some(pid) = self.pid_of(process) {
                        self.say_full();
                        self.say_memory(pid, true);
                        self.refresh(pid, read, reply);
                    }
                }
                Ok(Order::Status(reply)) => {
                    let _ = reply.send(self.status());
                }
                Ok(Order::Keeper(told)) => {
                    self.heard(&told);
                    self.told(told);
                }
                Ok(Order::Policy(policy)) => {
                    let before = self.ruling.in_force();
                    self.enforce(policy, before);
                }
                Ok(Order::GoRound) => {}
                Ok(Order::Read {
                    pid,
                    process,
                    outcome,
                }) => self.reading_ended(pid, process, outcome),
                Ok(Order::Stop { hand_over, reply }) => {
                    self.save_attached();
                    if hand_over {
                        self.save();
                        // The kernel would remove what is left one after the other, and only then has this process ended.
                        self.remover.finish(|| self.pulse.beat());
                    } else {
                        self.end_everything();
                    }
                    let _ = reply.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.end_everything();
                    return;
                }
            }
            self.follow_one_that_waits(nobody_asks);
            self.look_around();
        }
    }

    /// Notes which processes are new, for the next search.
    fn heard(&mut self, told: &KeeperMessage) {
        let pid = match told {
            KeeperMessage::Notice {
                what: What::Exec { tgid: pid } | What::ForkedElsewhere { child: pid, .. },
                ..
            }
            | KeeperMessage::Forked { child: pid, .. } => *pid,
            _ => return,
        };
        if !self.rules.is_empty() {
            self.others.look_again(pid);
        }
        if !self.ruling.is_empty() {
            self.ruling.judged.remove(&pid);
            self.ruling.others.look_again(pid);
        }
    }

    /// Checks that are made between orders, each at its own interval.
    fn look_around(&mut self) {
        self.notice_activity();
        let rescans = self.last_rescan.elapsed() > RESCAN;
        // The end of a process comes as an order; without one, as when its record was lost, it is found a little later.
        if !self.is_calm() || rescans {
            self.notice_exits();
        }
        self.say_full();
        self.look_at_what_waits();
        self.read_what_is_due();
        self.answer_waiting();
        self.keep_to_budget();
        // What changes while nothing happens is found by the checks below, and written after them.
        if !self.is_calm() {
            self.save_sometimes();
        }
        if !self.rules.is_empty() && self.last_rule_search.elapsed() > RULE_SEARCH {
            self.last_rule_search = Instant::now();
            self.found = self.others.look(self.last_rule_search);
            self.search_rules();
        }
        self.search_by_policy();
        if rescans {
            self.last_rescan = Instant::now();
            self.rescan();
        }
    }

    /// Looks for what the traced processes have changed and nothing has reported.
    fn rescan(&mut self) {
        self.forget_let_be();
        let pids: Vec<u32> = self.traced.keys().copied().collect();
        if pids.is_empty() {
            return;
        }
        for pid in std::mem::take(&mut self.lost_since_rescan) {
            self.follow_what_was_forked(pid);
        }
        let mut have_run = HashSet::new();
        for pid in &pids {
            if self.has_run(*pid) {
                have_run.insert(*pid);
                let mapped = self.mappings_changed(*pid);
                self.look_at(*pid, mapped);
            }
        }
        // What it tells counts from when it is noted on, so nothing that takes long is between.
        let look = self.nvml.look();
        for pid in pids {
            // Others may have taken the device's memory.
            self.say_seen(pid, false, &look);
            // By now it may have been seen to use a device itself.
            if have_run.contains(&pid) && self.traced.get(&pid).is_some_and(|one| one.is_copy) {
                self.start_reading(pid);
            }
        }
        if !have_run.is_empty() {
            self.save_sometimes();
        }
    }

    fn append(&self, process: ProcessHandle, record: DaemonRecord) {
        // The keeper ends last: if it is gone, nobody is left who could ask.
        let _ = self.keeper.send(Command::Append { process, record });
    }

    /// Waits until the keeper has handled everything that was sent to it so far. Records that come from the kernel
    /// after that find their process and their site defined.
    fn keeper_is_up_to_date(&self) {
        self.define(Vec::new());
    }

    fn define(&self, records: Vec<DaemonRecord>) {
        let (done, wait) = std::sync::mpsc::channel();
        if self.keeper.send(Command::Define { records, done }).is_ok() {
            // An error means that the keeper has ended, so that no question can be asked any more.
            let _ = wait.recv();
        }
    }

    /// The number of a site in a process of the user. If the site is new, its definition is added to `new`, which must reach the keeper before
    /// the site's probe is live.
    fn site_number(
        &mut self,
        object: &ObjectSites,
        site: &FoundSite,
        uid: u32,
        new: &mut Vec<DaemonRecord>,
    ) -> Result<u32, ProbeError> {
        let function = (
            object.identity.clone(),
            site.function_offset,
            site.row.name.to_owned(),
        );
        let (number, is_new) = self.sites.number(function, uid)?;
        if !is_new {
            return Ok(number);
        }
        let op = match site.row.purpose {
            Purpose::Call(op) => memscope_log::records::call_op(op),
            _ => None,
        };
        new.push(DaemonRecord::SiteDefined(SiteDefined {
            site: number,
            function: site.row.name.to_owned(),
            layer: match site.row.layer {
                memscope_vendors::Layer::Runtime => Some(memscope_ledger::event::Layer::Runtime),
                memscope_vendors::Layer::Driver => Some(memscope_ledger::event::Layer::Driver),
                _ => None,
            },
            vendor: site.row.vendor,
            op,
            library: object.display_path.clone(),
            offset: site.entry_offset,
        }));
        Ok(number)
    }

    /// Whether processes that come later may have to be attached.
    fn looks_for_processes(&self) -> bool {
        !self.rules.is_empty() || !self.ruling.is_empty()
    }

    fn configure(&mut self) {
        let flags = match self.looks_for_processes() {
            true => WATCH_ALL,
            false => 0,
        };
        if let Err(error) = self.kernel.configure(flags, self.wake_bytes) {
            tracing::error!(error = %crate::error_chain(&error), "could not watch for new processes");
        }
    }

    /// Stops tracing processes that have ended: their pidfds are readable.
    fn notice_exits(&mut self) {
        let ended = traced::ended(self.traced.values());
        if ended.is_empty() {
            return;
        }
        self.end_all(&ended, &DaemonRecord::Exited);
        self.forget_ended();
    }

    /// Stops tracing a process, and records `why`.
    fn end(&mut self, pid: u32, why: DaemonRecord) -> Option<Traced> {
        self.end_all(&[pid], &why).pop()
    }

    /// Stops tracing processes, and records `why`. Returns those that were traced.
    fn end_all(&mut self, pids: &[u32], why: &DaemonRecord) -> Vec<Traced> {
        self.pulse.beat();
        self.say_full();
        let traced = pids.iter().filter_map(|pid| self.traced.remove(pid));
        let mut ended: Vec<Traced> = traced.collect();
        let parts = ended
            .iter_mut()
            .map(|one| (one.handle, &one.slot, std::mem::take(&mut one.links)));
        let beat = || self.pulse.beat();
        silence(
            parts,
            |process| self.append(process, why.clone()),
            // In a process that has ended no probe runs that could count in a slot that is another one's by then.
            |links| match why {
                DaemonRecord::Exited => self.remover.remove(links, beat),
                _ => {
                    let _paused = self.remover.pause(beat);
                    detach_all(links, beat);
                }
            },
        );
        for one in &ended {
            self.forget(one);
        }
        ended
    }

    /// Drops what is kept of a process whose probes are gone, or that has ended.
    fn forget(&mut self, traced: &Traced) {
        self.pulse.beat();
        let (done, wait) = std::sync::mpsc::channel();
        let sent = self.keeper.send(Command::Unwatch {
            process: traced.handle,
            done,
        });
        if sent.is_ok() {
            // The slot may be used again only when the keeper has read its counters.
            let _ = wait.recv();
        }
        self.kernel.remove_process(traced.pid);
        self.unwinder.forget(traced.handle);
        tracing::info!(pid = traced.pid, "no longer traced");
    }

    fn detach(
        &mut self,
        caller: Caller,
        scope: DetachScope,
    ) -> Result<v1::DetachResponse, Refusal> {
        self.notice_exits();
        let mut outcome = v1::DetachResponse::default();
        // What waits to be followed counts as traced: it is to be let be as well.
        let (traced, waiting) = (&self.traced, &self.waiting);
        let that_wait = |wanted: &dyn Fn(&cause::Followed) -> bool| -> Vec<u32> {
            let others = waiting.all().filter(|one| !traced.contains_key(&one.pid));
            others
                .filter(|one| wanted(one))
                .map(|one| one.pid)
                .collect()
        };
        let may_see = |one: &cause::Followed| Tracer::may_see_that_waits(&caller, one);
        let pids: Vec<u32> = match scope {
            DetachScope::Pid(pid) => {
                let may_be = match self.traced.get(&pid) {
                    Some(traced) => caller.may_see(&traced.facts.uids),
                    None => !that_wait(&|one| one.pid == pid && may_see(one)).is_empty(),
                };
                if !may_be {
                    return Err(Refusal::NotTraced { pid });
                }
                vec![pid]
            }
            DetachScope::Rule(rule) if self.ruling.has(rule) && caller.is_admin() => {
                return Err(Refusal::Invalid {
                    what: format!("rule {rule} is an entry of the configuration file"),
                    hint: "remove it there, then: systemctl reload memscoped; detach --pid lets one process be".to_owned(),
                });
            }
            DetachScope::Rule(rule) => {
                let found = self
                    .rules
                    .iter()
                    .position(|r| r.id == rule && (caller.is_admin() || r.caller.is_same(&caller)));
                let Some(at) = found else {
                    return Err(Refusal::NoSuchRule { rule });
                };
                self.rules.remove(at);
                outcome.rules.push(rule);
                let of_rule = self.traced.values().filter(|t| t.rule == Some(rule));
                let mut pids: Vec<u32> = of_rule.map(|t| t.pid).collect();
                pids.extend(that_wait(&|one| one.cause.rule == Some(rule)));
                pids
            }
            DetachScope::All => {
                let mine = |r: &Rule| caller.is_admin() || r.caller.is_same(&caller);
                outcome
                    .rules
                    .extend(self.rules.iter().filter(|r| mine(r)).map(|r| r.id));
                self.rules.retain(|r| !mine(r));
                let seen = self.traced.values();
                let seen = seen.filter(|t| caller.may_see(&t.facts.uids));
                let mut pids: Vec<u32> = seen.map(|t| t.pid).collect();
                pids.extend(that_wait(&may_see));
                pids
            }
        };
        self.configure();
        let all: HashSet<u32> = pids.iter().copied().collect();
        let waited = self.waiting.take_out(&all).into_iter();
        let waited: HashMap<u32, u64> = waited.map(|one| (one.pid, one.start_ticks)).collect();
        let ended = self.end_all(&pids, &DaemonRecord::Detached).into_iter();
        let ended: HashMap<u32, u64> = ended.map(|one| (one.pid, one.facts.start_ticks)).collect();
        for pid in pids {
            if let Some(&start_ticks) = ended.get(&pid).or_else(|| waited.get(&pid)) {
                // A search for a rule or a policy would attach it again within a second, also for a policy that comes later.
                self.let_be.insert(pid, start_ticks);
                outcome.pids.push(pid);
            }
        }
        self.forget_ended();
        Ok(outcome)
    }

    fn detach_everything(&mut self) {
        let pids: Vec<u32> = self.traced.keys().copied().collect();
        self.end_all(&pids, &DaemonRecord::Detached);
    }

    /// Detaches everything, and removes what would outlive the daemon. Rules stay written down: they are in force again at the next
    /// start, also after a reboot.
    fn end_everything(&mut self) {
        // Written down first: on older kernels the probes take long to remove, and whoever stopped memscoped may kill it meanwhile.
        self.keeping.stopped = true;
        self.save();
        self.detach_everything();
        self.remover.finish(|| self.pulse.beat());
        self.kernel.remove_pins();
        self.save();
    }

    fn status(&self) -> TracerStatus {
        let mut libraries: BTreeMap<String, v1::Library> = BTreeMap::new();
        for traced in self.traced.values() {
            for (path, used) in &traced.libraries {
                let library = libraries.entry(path.clone()).or_default();
                library.path = path.clone();
                library.build_id = (!used.build_id.is_empty()).then(|| used.build_id.clone());
                library.pids.push(traced.pid);
                library.sites = library.sites.max(traced.sites_in(path));
                for way in &used.ways {
                    if !library.ways.contains(way) {
                        library.ways.push(way.clone());
                    }
                }
            }
        }
        TracerStatus {
            method: self.kernel.method(),
            sites: self.traced.values().map(|t| u64::from(t.sites())).sum(),
            drops: self
                .kernel
                .drops()
                .into_iter()
                .map(|(reason, n)| (reason.name().to_owned(), n))
                .collect(),
            libraries: libraries.into_values().collect(),
            rules: self
                .rules
                .iter()
                .map(|r| {
                    let account = r.caller.account();
                    v1::Rule {
                        rule: r.id,
                        scope: scope(&r.scope),
                        level: r.options.level.into(),
                        uid: account.wire_uid(),
                        attached: r.attached,
                        policy: false,
                        certificate: account.certificate().map(str::to_owned),
                    }
                })
                .chain(self.ruling.listed())
                .collect(),
        }
    }

    fn add_rule(&mut self, caller: Caller, request: &AttachRequest) -> Result<u64, Refusal> {
        if matches!(request.scope, AttachScope::Cgroup(_)) && *View::own() == View::Unknown {
            return Err(Refusal::Invalid {
                what: groups::UNKNOWN.to_owned(),
                hint: groups::WAY_OUT.to_owned(),
            });
        }
        let all = self.rules.iter();
        let beside = all.filter(|r| r.caller.is_admin() == caller.is_admin());
        let own = self.rules.iter().filter(|r| r.caller.is_same(&caller));
        if beside.count() >= MOST_RULES || !caller.is_admin() && own.count() >= MOST_RULES_OF_A_USER
        {
            return Err(Refusal::Invalid {
                what: format!(
                    "there are too many rules: at most {MOST_RULES} of root, {MOST_RULES} of all others, and {MOST_RULES_OF_A_USER} of one of them"
                ),
                hint: "remove one: memscope-ctl status lists them, memscope-ctl detach --rule NUMBER ends one".to_owned(),
            });
        }
        let id = self.next_rule;
        self.next_rule += 1;
        self.rules.push(Rule {
            id,
            scope: request.scope.clone(),
            options: request.options.clone(),
            caller,
            attached: 0,
        });
        self.others.forget();
        self.configure();
        Ok(id)
    }
}

/// A channel for the keeper's messages. A thread passes them on to the tracer as orders.
pub fn told_channel(orders: Sender<Order>) -> std::io::Result<Sender<KeeperMessage>> {
    let (sender, receiver) = std::sync::mpsc::channel::<KeeperMessage>();
    std::thread::Builder::new()
        .name("told".to_owned())
        .spawn(move || {
            for told in receiver {
                if orders.send(Order::Keeper(told)).is_err() {
                    return;
                }
            }
        })?;
    Ok(sender)
}

/// Has the programs send nothing more of processes, says so, and only then has their probes removed: that may take half a minute, in
/// which what is known of a process is no longer what it has. All are removed together, because each removal waits for the kernel.
fn silence<'a>(
    processes: impl Iterator<Item = (ProcessHandle, &'a Slot, Vec<Link>)>,
    say: impl Fn(ProcessHandle),
    remove: impl FnOnce(Vec<Link>),
) {
    let mut all = Vec::new();
    for (process, slot, links) in processes {
        slot.set_flags(0);
        say(process);
        all.extend(links);
    }
    remove(all);
}

/// The scope of a rule, in the words of `status`.
fn scope(scope: &AttachScope) -> String {
    match scope {
        AttachScope::Pid { pid, .. } => format!("pid={pid}"),
        AttachScope::Comm(name) => format!("comm={name}"),
        AttachScope::Cgroup(path) => format!("cgroup={path}"),
        AttachScope::All => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Their probes take long to remove, and the processes go on meanwhile.
    #[test]
    fn a_process_has_ended_before_its_probes_are_removed() {
        let slots = [Slot::untraced(), Slot::untraced()];
        for slot in &slots {
            slot.go_live();
        }
        let order = RefCell::new(Vec::new());
        let processes = (1..).zip(&slots);
        silence(
            processes.map(|(number, slot)| (ProcessHandle(number), slot, Vec::new())),
            |process| {
                let silent = slots.each_ref().map(Slot::is_silent);
                order.borrow_mut().push((process.0, silent));
            },
            |_| order.borrow_mut().push((0, [true, true])),
        );
        let expected = [(1, [true, false]), (2, [true, true]), (0, [true, true])];
        assert_eq!(order.into_inner(), expected);
    }
}
