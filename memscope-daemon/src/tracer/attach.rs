//! Attaches processes: from a pid to live probes.

use std::collections::BTreeMap;
use std::time::Instant;

use memscope_common::{DEVICE_UNKNOWN, NOWHERE, ProcessEntry};
use memscope_ledger::event::{Backend, Level, ProcessFacts, ProcessHandle};
use memscope_log::records::DaemonRecord;
use memscope_proto::v1::{AttachResponse, AttachedProcess, RefusedProcess};
use memscope_rpc::{AttachRequest, AttachScope, Caller, Refusal};
use memscope_site::{Missing, Resolved, SiteError, Why};
use memscope_vendors::{Purpose, Vendor};

use super::cause::Cause;
use super::traced::{AtOnce, LookAgain};
use super::{TraceState, Traced, Tracer, rules};
use crate::keeper::Command;

/// So many images of a process are looked at for one attach, if it executes one after the other.
const IMAGES: u32 = 16;

/// Since when a rule is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Somebody asks for it now: what was detached before is attached again.
    Now,
    Before,
}

impl Tracer {
    pub(super) fn attach(
        &mut self,
        caller: Caller,
        request: &AttachRequest,
    ) -> Result<AttachResponse, Refusal> {
        match &request.scope {
            AttachScope::Pid {
                pid,
                children,
                wait,
            } => {
                let cause = Cause {
                    options: request.options.clone(),
                    rule: None,
                    children: *children,
                    wait: *wait || *children,
                    generation: 0,
                    forks_since_ns: None,
                    late: None,
                };
                let attached = self.attach_one(caller, *pid, cause)?;
                Ok(AttachResponse {
                    processes: vec![attached],
                    ..AttachResponse::default()
                })
            }
            _ => {
                let rule = self.add_rule(caller, request)?;
                let (processes, refused) = self.apply_rule(rule, Asked::Now);
                Ok(AttachResponse {
                    processes,
                    rule: Some(rule),
                    refused,
                })
            }
        }
    }

    /// Attaches the processes that match a rule now.
    pub(super) fn apply_rule(
        &mut self,
        id: u64,
        asked: Asked,
    ) -> (Vec<AttachedProcess>, Vec<RefusedProcess>) {
        let mut attached = Vec::new();
        let mut refused = Vec::new();
        let own = std::process::id();
        let pids = match asked {
            Asked::Now => rules::pids(),
            // Somebody else may have moved a process into another control group.
            Asked::Before => {
                let mut all = self.rules.iter();
                let by_group =
                    all.any(|rule| rule.id == id && matches!(rule.scope, AttachScope::Cgroup(_)));
                let found = self.found.iter();
                let found = found.filter(|(_, changed)| *changed || by_group);
                found.map(|(pid, _)| *pid).collect()
            }
        };
        for pid in pids {
            let Some(rule) = self.rules.iter().find(|r| r.id == id).cloned() else {
                break;
            };
            let is_let_be = match asked {
                Asked::Now => self.was_given_up(pid),
                Asked::Before => self.was_let_be(pid),
            };
            let is_known = self.traced.contains_key(&pid) || is_let_be;
            if pid == own || is_known || !rule.matches(pid) {
                continue;
            }
            let was_detached = matches!(asked, Asked::Now) && self.let_be.contains_key(&pid);
            if was_detached && Tracer::may_see(&rule.caller, pid) {
                // Whoever asks for it gets it, also where it has nothing to trace yet. Those who may not see it do not undo a detach.
                self.let_be.remove(&pid);
            }
            match self.attach_matching(&rule, pid) {
                Ok(one) => attached.push(one),
                // The process is not this caller's, has ended, or has nothing to trace: it is no match after all.
                Err(
                    Refusal::NoSuchProcess { .. }
                    | Refusal::DiedDuringAttach { .. }
                    | Refusal::NoDeviceLibraries { .. },
                ) => {}
                // What its files have will be the same in a second, and to wait for files that do not come takes long.
                Err(refusal @ Refusal::NothingToProbe { .. }) => {
                    refused.push(refusal.of_process(pid));
                }
                Err(refusal) => {
                    self.others.look_again(pid);
                    refused.push(refusal.of_process(pid));
                }
            }
        }
        (attached, refused)
    }

    pub(super) fn attach_matching(
        &mut self,
        rule: &super::Rule,
        pid: u32,
    ) -> Result<AttachedProcess, Refusal> {
        let cause = Cause {
            options: rule.options.clone(),
            rule: Some(rule.id),
            children: false,
            wait: rule.waits(),
            generation: 0,
            forks_since_ns: None,
            late: None,
        };
        let attached = self.attach_one(rule.caller.clone(), pid, cause)?;
        if let Some(rule) = self.rules.iter_mut().find(|r| r.id == rule.id) {
            rule.attached += 1;
        }
        Ok(attached)
    }

    /// Attaches one process. Its probes are live when this returns.
    ///
    /// The process may execute other images meanwhile, one after the other. The kernel reports that only of a process that is in its
    /// table already, so it is looked at here: all that was found, and every right that was checked, is of the image that is attached.
    pub(super) fn attach_one(
        &mut self,
        caller: Caller,
        pid: u32,
        mut cause: Cause,
    ) -> Result<AttachedProcess, Refusal> {
        self.notice_exits();
        if self.traced.contains_key(&pid) {
            // This says so, to who may know it.
            return self.attach_image(caller, pid, cause);
        }
        let mut tries = 1;
        let began_ns = crate::clock::boot_ns();
        loop {
            let before = memscope_site::process::image(pid);
            let outcome = self.attach_image(caller.clone(), pid, cause.clone());
            let after = memscope_site::process::image(pid);
            // What cannot be read, as where the process's files do not come, is not another image.
            let is_same = after.is_none() || after == before;
            if is_same || tries == IMAGES || memscope_site::process::alive(pid).is_err() {
                return outcome;
            }
            tries += 1;
            // What was attached is of an image that is gone, or of none that ever was. The next one is treated as one that is executed
            // after the attach.
            let was_attached = self.end(pid, DaemonRecord::Replaced).is_some();
            if was_attached {
                self.forget_ended();
                cause.generation += 1;
                cause.wait = true;
                cause.forks_since_ns.get_or_insert(began_ns);
            }
            cause.late = None;
            let judged = self.judged_again(pid, cause.rule, &cause.options);
            let goes_on = judged.as_ref().is_some_and(|(_, rule)| *rule == cause.rule);
            if was_attached && !goes_on {
                self.ruling.count_attached(cause.rule);
            }
            let Some((options, rule)) = judged else {
                self.save();
                return Err(Refusal::NothingToProbe {
                    pid,
                    why: "the policy does not want what it has executed meanwhile".to_owned(),
                });
            };
            (cause.options, cause.rule) = (options, rule);
            tracing::debug!(
                pid,
                tries,
                "it has executed another image while it was attached"
            );
        }
    }

    /// A handle for a process. Its rules of unwinding lie in one table with those of all others.
    fn free_handle(&mut self) -> ProcessHandle {
        let mut handle = self.next_handle;
        while (self.traced.values()).any(|t| memscope_common::share_rules(t.handle.0, handle)) {
            handle += 1;
        }
        self.next_handle = handle + 1;
        ProcessHandle(handle)
    }

    /// Attaches the image that a process runs now.
    fn attach_image(
        &mut self,
        caller: Caller,
        pid: u32,
        cause: Cause,
    ) -> Result<AttachedProcess, Refusal> {
        self.pulse.beat();
        self.notice_exits();
        let pidfd = open_pidfd(pid)?;
        let mut facts =
            memscope_site::process::facts(pid).map_err(|error| refusal(pid, false, error))?;
        if !caller.may_see(&facts.uids) {
            return Err(Refusal::NoSuchProcess { pid });
        }
        if !caller.is_admin() && !lets_its_user_look(pid) {
            return Err(Refusal::NotPermitted {
                what: format!(
                    "attach process {pid}, which keeps its memory from its own user (it is not dumpable, as after a change of user or with \
                     file capabilities)"
                ),
            });
        }
        if let Some(traced) = self.traced.get(&pid) {
            return Err(Refusal::AlreadyAttached {
                pid,
                level: traced.level,
            });
        }
        if pid == std::process::id() {
            return Err(Refusal::NothingToProbe {
                pid,
                why: "it is this daemon".to_owned(),
            });
        }
        // Before everything that is looked at here.
        let ran = crate::clock::processor_time_of(pid);
        let mappings = super::traced::code_mappings(pid);
        let resolved = self
            .resolve(pid, cause.options.level)
            .map_err(|error| refusal(pid, true, error))?;
        let level = reachable(pid, &facts, &resolved, &cause)?;
        facts.level = Some(level);
        facts.step_name = cause.options.step_name.clone();
        facts.generation = cause.generation;
        facts.image = memscope_site::process::image_number(pid);
        facts.from_start = !resolved.device_library && !resolved.pytorch;
        facts.container = memscope_site::containers::names(&facts, &self.pod_logs);

        let handle = self.free_handle();
        let default_known =
            facts.from_start || self.visible_devices(&facts, vendor_of(pid)) == Some(1);
        let forks_told_ns = crate::clock::boot_ns();
        let slot = self
            .kernel
            .add_process(
                pid,
                ProcessEntry {
                    handle: handle.0,
                    flags: 0,
                    sequence: 0,
                    lost: 0,
                    default_device: if default_known { 0 } else { DEVICE_UNKNOWN },
                    allocated_offset: 0,
                    reserved_offset: 0,
                    block_ptr_offset: 0,
                    alloc_place: NOWHERE,
                    free_place: NOWHERE,
                    python: 0,
                    native: 0,
                    stack_salt: 0,
                    code_deaths: 0,
                    stack_depth: cause.options.stacks.depth,
                    stack_sampling: u32::from(cause.options.stacks.sampling),
                    stacks: 0,
                    stack_ns: 0,
                    launches: 0,
                    launches_told: 0,
                    full: 0,
                    mappings_told: 0,
                    wake: 0,
                    ring_taken: 0,
                    ring_read: 0,
                },
            )
            .map_err(internal(
                "the process could not be entered into the kernel's table",
            ))?;
        let watch = Command::Watch {
            process: handle,
            pid,
            uids: facts.uids,
            namespace: facts.kubernetes_namespace().map(Into::into),
            slot: slot.clone(),
        };
        if self.keeper.send(watch).is_err() {
            return Err(Refusal::ShuttingDown);
        }
        self.append(handle, DaemonRecord::Attached(Box::new(facts.clone())));
        let options = &cause.options;
        self.traced.insert(
            pid,
            Traced {
                pid,
                handle,
                caller,
                level,
                facts,
                pidfd,
                slot: slot.clone(),
                links: Vec::new(),
                torch_npu: false,
                trace_file: None,
                trace: TraceState::Unused,
                at_once: AtOnce::Unknown,
                allocator_address: None,
                allocator_file: None,
                device_count_address: None,
                settings: Vec::new(),
                allocator: Default::default(),
                default_known,
                backend: Backend::Unknown,
                mappings,
                ran,
                mapped: false,
                look_again: None,
                storages: None,
                reading: false,
                read_again: false,
                is_copy: false,
                is_own: false,
                reading_began_ns: 0,
                read_ns: None,
                found_nothing: false,
                before_first_memory: None,
                baseline: None,
                retry: None,
                python: false,
                python_given_up: false,
                python_number: 0,
                native: false,
                budget: super::budget::Budget::new(options.stacks),
                next_read: Instant::now() + options.read_every.unwrap_or_default(),
                options: options.clone(),
                rule: cause.rule,
                children: cause.children,
                forks_since_ns: cause.forks_since_ns.unwrap_or(forks_told_ns),
                full: 0,
                nvml: super::nvml::Told::default(),
                notes: BTreeMap::new(),
                libraries: BTreeMap::new(),
            },
        );
        self.let_be.remove(&pid);
        if let Err(refused) = self.place(pid, &resolved) {
            self.end(pid, DaemonRecord::Detached);
            return Err(refused);
        }
        if resolved.undelivered
            && let Some(traced) = self.traced.get_mut(&pid)
        {
            traced.look_again = Some(LookAgain::after(None));
        }
        if level < cause.options.level {
            self.say_level(pid);
        }
        if let Some(late) = &cause.late {
            self.note(pid, &late.code, &late.text);
        }
        if level == Level::Read {
            self.say_unreadable(pid);
        }
        // Libraries may have been mapped in the meantime. From here on that is reported.
        slot.tell_mappings();
        if self.mappings_changed(pid) {
            self.place_again(pid);
        }
        self.start_python(pid);
        self.start_native(pid);
        self.say_sampled(pid);
        self.read_backend(pid);
        self.say_memory(pid, false);
        self.start_reading(pid);
        if cause.forks_since_ns.is_some() {
            self.follow_what_was_forked(pid);
        }
        self.notice_exits();
        let Some(traced) = self.traced.get(&pid) else {
            return Err(Refusal::DiedDuringAttach { pid });
        };
        tracing::info!(pid, sites = traced.sites(), level = name(level), "traced");
        Ok(AttachedProcess {
            pid,
            comm: traced.facts.comm.clone(),
            sites: traced.sites(),
            ways: traced.ways(),
            level: traced.level.into(),
            coverage: traced.coverage().into_iter().map(Into::into).collect(),
            cost: traced.cost(),
            baseline: None,
            baseline_pending: false,
        })
    }
}

/// The vendor whose devices a process uses, by the libraries that it has mapped.
pub(super) fn vendor_of(pid: u32) -> Option<Vendor> {
    let files = memscope_site::process::mapped_files(pid);
    Vendor::of_libraries(files.iter().map(|(name, _)| name.as_str()))
}

pub(super) fn name(level: Level) -> &'static str {
    match level {
        Level::Read => "read",
        Level::Segments => "segments",
        Level::Blocks => "blocks",
        Level::Trace => "trace",
    }
}

pub(super) fn internal<E: std::error::Error + Send + Sync + 'static>(
    what: &'static str,
) -> impl FnOnce(E) -> Refusal {
    move |source| Refusal::Internal {
        what: what.to_owned(),
        source: Box::new(source),
    }
}

/// Whether a process lets its own user read its memory. The kernel gives the files in `/proc` of one that does not to root. The
/// daemon reads memory with root's rights, so it has to refuse what the user could not do.
fn lets_its_user_look(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let uids = memscope_site::process::facts(pid).map(|facts| facts.uids);
    let owner = std::fs::metadata(format!("/proc/{pid}/environ")).map(|facts| facts.uid());
    matches!((uids, owner), (Ok([real, ..]), Ok(owner)) if real == owner)
}

pub(super) fn open_pidfd(pid: u32) -> Result<std::os::fd::OwnedFd, Refusal> {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or(Refusal::NoSuchProcess { pid })?;
    match rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()) {
        Ok(fd) => Ok(fd),
        // For the id of a thread the kernel answers "invalid" (or, from 6.9 on, "no such file").
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Err(Refusal::Invalid {
            what: format!("{pid} is a thread, not a process"),
            hint: format!("name its process: grep Tgid /proc/{pid}/status"),
        }),
        Err(_) => Err(Refusal::NoSuchProcess { pid }),
    }
}

/// Turns an error of examining a process into the refusal for the caller. `under_way`: the attach had begun already.
pub(super) fn refusal(pid: u32, under_way: bool, error: SiteError) -> Refusal {
    match error {
        SiteError::NoSuchProcess { .. } | SiteError::Reused { .. } | SiteError::Zombie { .. }
            if under_way =>
        {
            Refusal::DiedDuringAttach { pid }
        }
        SiteError::NoSuchProcess { .. } | SiteError::Reused { .. } => {
            Refusal::NoSuchProcess { pid }
        }
        SiteError::ThreadId { process, .. } => Refusal::Invalid {
            what: format!("{pid} is a thread of process {process}"),
            hint: format!("attach its process: memscope-ctl attach --pid {process}"),
        },
        error @ (SiteError::Zombie { .. }
        | SiteError::KernelThread { .. }
        | SiteError::MainThreadEnded { .. }
        | SiteError::UnsupportedMachine { .. }) => Refusal::NothingToProbe {
            pid,
            why: error.to_string(),
        },
        SiteError::NotPermitted { path, source, .. } => Refusal::Unreadable {
            pid,
            what: path.display().to_string(),
            source,
        },
        SiteError::Read { path, source, .. } => Refusal::Unreadable {
            pid,
            what: path.display().to_string(),
            source,
        },
        other => Refusal::Internal {
            what: format!("process {pid} could not be looked at"),
            source: Box::new(other),
        },
    }
}

/// What is missing and says best why there is nothing to trace: a vendor's library that was left out as a whole, or else what was looked
/// for first and not found.
fn first_missing(resolved: &Resolved) -> Option<&Missing> {
    let is_library = |missing: &&Missing| {
        let name = missing.library.rsplit('/').next().unwrap_or_default();
        missing.function == "*" && memscope_vendors::library(name.as_bytes()).is_some()
    };
    let mut all = resolved.missing.iter().filter(|m| !m.is_harmless());
    all.clone().find(is_library).or_else(|| all.next())
}

/// The level that the process's libraries allow, or the reason why there is nothing to trace.
fn reachable(
    pid: u32,
    facts: &ProcessFacts,
    resolved: &Resolved,
    cause: &Cause,
) -> Result<Level, Refusal> {
    if !resolved.device_library && !resolved.pytorch {
        if cause.wait {
            return Ok(cause.options.level);
        }
        // A process that ended meanwhile maps nothing either.
        memscope_site::process::alive(pid).map_err(|error| refusal(pid, false, error))?;
        return Err(Refusal::NoDeviceLibraries {
            pid,
            comm: facts.comm.clone(),
        });
    }
    if cause.options.level == Level::Read {
        if resolved.allocator_address.is_none() && !cause.wait {
            return Err(Refusal::NothingToProbe {
                pid,
                why:
                    "level read reads the structures of PyTorch's caching allocator for a device, and this \
                      process has none; the other levels see calls of the runtime and the driver"
                        .to_owned(),
            });
        }
        return Ok(Level::Read);
    }
    let has = |purpose: fn(&Purpose) -> bool| {
        resolved
            .objects
            .iter()
            .flat_map(|o| &o.sites)
            .any(|s| purpose(&s.row.purpose))
    };
    let calls = has(|p| matches!(p, Purpose::Call(_)));
    let report = has(|p| matches!(p, Purpose::Report));
    let trace = has(|p| matches!(p, Purpose::Trace));
    if !calls && !report && !trace && !cause.wait {
        return Err(match first_missing(resolved) {
            Some(missing) if matches!(missing.why, Why::UserMount(_) | Why::File(_)) => {
                Refusal::NothingToProbe {
                    pid,
                    why: missing.to_string(),
                }
            }
            Some(missing) => Refusal::StrippedLibrary {
                pid,
                path: missing.library.clone().into(),
                missing: missing.to_string(),
            },
            None => Refusal::NothingToProbe {
                pid,
                why: "none of its libraries has a function that memscope knows".to_owned(),
            },
        });
    }
    if !resolved.pytorch {
        return Ok(cause.options.level);
    }
    Ok(match cause.options.level {
        Level::Trace if trace => Level::Trace,
        Level::Trace | Level::Blocks if report => Level::Blocks,
        _ => Level::Segments,
    })
}
