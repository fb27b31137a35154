//! Places probes on the sites that a process has, and records what is probed.

use std::collections::BTreeMap;
use std::path::Path;

use memscope_common::DEVICE_UNKNOWN;
use memscope_ledger::event::{CoverageNote, Level, Placement};
use memscope_log::records::DaemonRecord;
use memscope_rpc::Refusal;
use memscope_site::{FileIdentity, ObjectSites, Resolved, Resolver, SiteError};
use memscope_vendors::{Purpose, Variant};

use super::attach::internal;
use super::traced::{AtOnce, Library, LookAgain, Traced, ended};
use super::{TraceState, Tracer};
use crate::keeper::Command;
use crate::panics::guarded;
use crate::probe::links;
use crate::probe::load::Program;
use crate::probe::multi::Point;

impl Tracer {
    /// Searches for sites that have no probe yet, and places probes on them.
    pub(super) fn place_again(&mut self, pid: u32) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        traced.slot.tell_mappings();
        let level = traced.options.level;
        let before = traced.look_again.take();
        let saw_pool = traced.sees_pool();
        let again = match self.resolve(pid, level) {
            Ok(resolved) => {
                if let Err(error) = self.place(pid, &resolved) {
                    self.note(
                        pid,
                        "not_probed",
                        &format!("probes could not be placed: {}", error.what()),
                    );
                }
                resolved.undelivered
            }
            // The process has ended, which its pidfd will show.
            Err(SiteError::NoSuchProcess { .. } | SiteError::Zombie { .. }) => false,
            Err(error) => {
                let text = crate::error_chain(&error);
                tracing::warn!(pid, error = %text, "mappings could not be read");
                self.note(
                    pid,
                    "not_probed",
                    &format!(
                        "libraries that it has loaded could not be searched for functions, and this is tried again: {text}"
                    ),
                );
                true
            }
        };
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        if again {
            traced.look_again = Some(LookAgain::after(before));
        }
        if !saw_pool && traced.sees_pool() {
            // The allocator has mostly not begun yet. Where it was quicker than the probes, a reading tells what it holds.
            self.read_backend(pid);
            self.start_reading(pid);
        }
    }

    /// Finds the sites of a process.
    pub(super) fn resolve(&mut self, pid: u32, level: Level) -> Result<Resolved, SiteError> {
        let found = guarded("searching a process's files for functions", || {
            self.resolver.resolve(pid, level)
        });
        found.unwrap_or_else(|| {
            self.resolver = Resolver::new().with_user_mounts(self.kernel.user_mounts);
            Err(SiteError::Fault { pid })
        })
    }

    /// Places probes on the sites that were found and have none, then records what is in use.
    pub(super) fn place(&mut self, pid: u32, resolved: &Resolved) -> Result<(), Refusal> {
        // There is no hurry to remove probes of what has ended, and the kernel removes and places one after the other.
        let _paused = self.remover.pause(|| self.pulse.beat());
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        let other = resolved.torch_npu && !traced.torch_npu;
        if other {
            traced.torch_npu = true;
            if traced.sees_pool() {
                traced.forget_pool();
                let process = traced.handle;
                // It must know before the new probes tell anything.
                let _ = self.keeper.send(Command::FreesUnsettled { process });
                self.keeper_is_up_to_date();
            }
        }
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        let before = traced.places();
        let had_sites = traced.sites() > 0;
        // No library is late at the first placement, which has what was there at the attach.
        let late = (before > 0).then(|| speaker(traced, resolved)).flatten();
        let has_trace = traced.options.level == Level::Trace
            && resolved
                .objects
                .iter()
                .flat_map(|o| &o.sites)
                .any(|s| s.row.purpose == Purpose::Trace);
        for object in &resolved.objects {
            self.place_object(pid, object, has_trace)?;
        }
        self.place_operators(pid)?;
        if let Some(library) = late {
            self.say_regions_missed(pid, library);
        }
        // At level `read` there is no probe, not even the linker's hook.
        let reads = self
            .traced
            .get(&pid)
            .is_some_and(|traced| traced.options.level == Level::Read);
        if let (Some(hook), false) = (&resolved.loader_hook, reads) {
            let point = Point {
                offset: hook.site.entry_offset,
                cookie: 0,
            };
            self.place_points(
                pid,
                Program::LinkerHook,
                &hook.open_path,
                &hook.display_path,
                &hook.identity,
                vec![point],
            )?;
        }
        if !reads {
            self.say_missing(pid, resolved);
            self.say_task_queue(pid, resolved);
        } else {
            // An earlier search may have failed as a whole.
            self.note(pid, "not_probed", "");
        }
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        if resolved.allocator_address.is_some() {
            traced.allocator_address = resolved.allocator_address;
            traced.allocator_file = resolved.allocator_file.clone();
        }
        if resolved.device_count_address.is_some() {
            traced.device_count_address = resolved.device_count_address;
        }
        if !resolved.settings.is_empty() {
            traced.settings.clone_from(&resolved.settings);
        }
        let start_search = has_trace && traced.trace == TraceState::Unused;
        if start_search {
            let reports = traced.has_report();
            traced.trace = if reports {
                TraceState::Searching
            } else {
                TraceState::Both(
                    "the reporting function was not found, so rounded sizes and totals are not \
                     known"
                        .to_owned(),
                )
            };
        }
        let level = traced.level;
        if traced.trace != TraceState::Unused {
            traced.level = Level::Trace;
        } else if traced.has_report() {
            traced.level = Level::Blocks;
        } else if resolved.pytorch && !reads {
            traced.level = Level::Segments;
        }
        let other = other || traced.level != level;
        let handle = traced.handle;
        let searching = traced.trace == TraceState::Searching;
        let slot = traced.slot.clone();
        let trace_file = traced.trace_file.clone();
        // The keeper must know the process before the first record can come.
        self.keeper_is_up_to_date();
        let has_open = || memscope_site::device_files::has_device_open(pid);
        // There is no site at level `read`.
        let is_first = (self.traced.get(&pid)).is_some_and(|t| !had_sites && t.sites() > 0);
        let may_have_chosen = is_first && self.may_have_chosen(pid) && has_open().is_some();
        if may_have_chosen {
            // The first device is not a thread's by default until it is known that no thread can have chosen another.
            slot.set_default_device(DEVICE_UNKNOWN);
        }
        slot.go_live();
        if let Some(traced) = self.traced.get_mut(&pid)
            && is_first
        {
            // Records come from here on.
            let open = has_open();
            traced.before_first_memory = open.map(|open| !open);
            if may_have_chosen {
                traced.default_known = open == Some(false);
            }
            if may_have_chosen && traced.default_known {
                slot.set_default_device(0);
            }
        }
        if start_search && searching {
            let known = trace_file.and_then(|file| self.layouts.get(&file)).copied();
            let _ = self.keeper.send(Command::Calibrate {
                process: handle,
                known,
            });
        }
        let changed = self.traced.get(&pid).is_some_and(|t| t.places() != before);
        if changed || before == 0 || other {
            self.say_placed(pid);
        }
        if other {
            self.say_level(pid);
        }
        Ok(())
    }

    /// Records that reports of pools may have been missed. Pools report from the first moment on: by the time that a
    /// library which was loaded later has its probes, something has been reported through it. (Functions that only
    /// allocate are called later than that.)
    fn say_regions_missed(&mut self, pid: u32, library: &str) {
        let name = library.rsplit('/').next().unwrap_or(library);
        self.note(
            pid,
            "regions_baseline_unknown",
            &format!(
                "{name} was loaded after the attach: what pools told through mstx in the moment before it was probed is not known"
            ),
        );
    }

    fn place_object(
        &mut self,
        pid: u32,
        object: &ObjectSites,
        has_trace: bool,
    ) -> Result<(), Refusal> {
        let mut points: BTreeMap<Program, Vec<Point>> = BTreeMap::new();
        let told = (self.traced.get(&pid)).is_some_and(|t| t.at_once == AtOnce::Told);
        let mut new = Vec::new();
        let mut full = None;
        // What is placed without a process that is known is not a user's doing.
        let uid = self.traced.get(&pid).map_or(0, |t| t.facts.uids[0]);
        for site in &object.sites {
            let program = match site.row.purpose {
                Purpose::Call(_) => Program::CallEntry,
                Purpose::Report if matches!(site.variant, Variant::Usage { .. }) => {
                    Program::NpuReport
                }
                Purpose::Report => Program::Report,
                Purpose::Workspace => Program::NpuWorkspace,
                // `record_trace` reports it already.
                Purpose::Oom if has_trace => continue,
                Purpose::Oom => Program::Oom,
                Purpose::Trace => Program::Trace,
                Purpose::Mark(_) => Program::Mark,
                Purpose::Region(_) => Program::RegionEntry,
                Purpose::Launch => match self.traced.get(&pid).map(|t| &t.options) {
                    Some(options) if options.kernels => Program::LaunchTold,
                    Some(options) if options.launches => Program::Launch,
                    _ => continue,
                },
                Purpose::Loader => continue,
            };
            if program.is_report()
                && self
                    .traced
                    .get(&pid)
                    .is_some_and(|t| t.trace == TraceState::Proven)
            {
                continue;
            }
            let number = match self.site_number(object, site, uid, &mut new) {
                Ok(number) => number,
                Err(error) => {
                    full = Some(error);
                    break;
                }
            };
            let cookie = site.cookie(number).0;
            let mut add = |program: Program, offset: u64| {
                let points = points.entry(program).or_default();
                points.push(Point { offset, cookie });
            };
            match (&site.calls, program) {
                (Some(Ok(calls)), Program::Trace) => {
                    for at in &calls.record_trace {
                        add(Program::TraceCall, *at);
                    }
                    for at in &calls.waited {
                        add(Program::FreeBlock, *at);
                    }
                    if !told {
                        add(Program::TraceCompleted, calls.completed);
                    }
                }
                _ => add(program, site.entry_offset),
            }
            if let Some(offset) = site.return_offset {
                let on_return = match program {
                    Program::RegionEntry => Program::RegionReturn,
                    _ => Program::CallReturn,
                };
                points
                    .entry(on_return)
                    .or_default()
                    .push(Point { offset, cookie });
            }
            if program == Program::Trace
                && let Some(traced) = self.traced.get_mut(&pid)
            {
                traced.trace_file = Some(object.identity.clone());
                match &site.calls {
                    Some(Ok(_)) => {}
                    Some(Err(why)) => traced.at_once = AtOnce::Not(why.to_string()),
                    None => {
                        let why =
                            "torch_npu's calls of record_trace are not searched for".to_owned();
                        traced.at_once = AtOnce::Not(why);
                    }
                }
            }
        }
        if !new.is_empty() {
            self.define(new);
        }
        if let Some(full) = full {
            return Err(internal("probes could not be attached")(full));
        }
        // Returns first: a return without its entry is dropped, but an entry without its return would wait for ever.
        for program in [
            Program::CallReturn,
            Program::CallEntry,
            Program::RegionReturn,
            Program::RegionEntry,
            Program::Report,
            Program::NpuReport,
            Program::NpuWorkspace,
            Program::Oom,
            // A completion before the calls by which frees are requested: none may be told by nobody.
            Program::TraceCompleted,
            Program::FreeBlock,
            Program::TraceCall,
            Program::Trace,
            Program::Mark,
            Program::Launch,
            Program::LaunchTold,
        ] {
            if let Some(points) = points.remove(&program) {
                self.place_points(
                    pid,
                    program,
                    &object.open_path,
                    &object.display_path,
                    &object.identity,
                    points,
                )?;
            }
        }
        if let Some(traced) = self.traced.get_mut(&pid) {
            let ways = object
                .sites
                .iter()
                .filter(|site| match site.row.purpose {
                    Purpose::Report => traced.trace != TraceState::Proven,
                    Purpose::Oom => !has_trace,
                    Purpose::Trace => true,
                    Purpose::Call(_)
                    | Purpose::Loader
                    | Purpose::Mark(_)
                    | Purpose::Region(_)
                    | Purpose::Workspace
                    | Purpose::Launch => false,
                })
                .map(|site| site.row.name.to_owned())
                .collect();
            traced.libraries.insert(
                object.display_path.clone(),
                Library {
                    build_id: object.identity.build_id_hex(),
                    ways,
                    function_ends: (object.sites.iter())
                        .any(|site| site.row.ends_record_functions()),
                },
            );
        }
        if object.deleted {
            self.note(
                pid,
                "library_replaced",
                &format!(
                    "{} was replaced on disk while the process runs; the file that it really maps \
                     is probed",
                    object.display_path
                ),
            );
        }
        Ok(())
    }

    pub(super) fn place_points(
        &mut self,
        pid: u32,
        program: Program,
        open_path: &Path,
        shown: &str,
        identity: &FileIdentity,
        mut points: Vec<Point>,
    ) -> Result<(), Refusal> {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        points.retain(|point| !traced.has_probe(identity, point.offset, program));
        points.sort_by_key(|p| p.offset);
        points.dedup_by_key(|p| p.offset);
        if points.is_empty() {
            return Ok(());
        }
        match links::attach(
            &mut self.kernel,
            program,
            pid,
            open_path,
            shown,
            Some(identity),
            &points,
        ) {
            Ok(link) => {
                traced.links.push(link);
                Ok(())
            }
            Err(error) => {
                if !ended(std::iter::once(&*traced)).is_empty() {
                    return Err(Refusal::DiedDuringAttach { pid });
                }
                Err(internal("probes could not be attached")(error))
            }
        }
    }

    /// Records a note if the level that was reached is lower than the one that was asked for.
    pub(super) fn say_level(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let (wanted, level) = (traced.options.level, traced.level);
        let text = if level < wanted {
            format!(
                "level {} needs functions that were not found in the process's libraries; traced at \
                 level {}",
                super::attach::name(wanted),
                super::attach::name(level)
            )
        } else {
            String::new()
        };
        self.note(pid, "level_reduced", &text);
    }

    /// Records which probes and ways in are in use now.
    pub(super) fn say_placed(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        let pool_seen = traced.sees_pool();
        let placement = Placement {
            sites: traced.sites(),
            operators: traced.operators(),
            ways: traced.ways(),
            pool_seen,
            function_ends: traced.sees_function_ends(),
            libraries: traced.libraries.keys().cloned().collect(),
            level: Some(traced.level),
            before_first_memory: traced.before_first_memory,
        };
        self.append(traced.handle, DaemonRecord::Placed(placement));
    }

    fn say_missing(&mut self, pid: u32, resolved: &Resolved) {
        let lines: Vec<String> = resolved
            .missing
            .iter()
            .filter(|m| !m.is_harmless())
            .map(ToString::to_string)
            .collect();
        let text = if lines.len() > 6 {
            format!("{}; and {} more", lines[..6].join("; "), lines.len() - 6)
        } else {
            lines.join("; ")
        };
        self.note(pid, "not_probed", &text);
    }

    /// Records a coverage note, unless it was recorded with the same text before. An empty text withdraws it.
    pub(super) fn note(&mut self, pid: u32, code: &str, text: &str) {
        debug_assert!(
            memscope_ledger::is_judged(code),
            "memscope-ledger's affects.rs does not say what {code} makes inexact"
        );
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        let said = traced.notes.get(code).map_or("", String::as_str);
        if said == text {
            return;
        }
        traced.notes.insert(code.to_owned(), text.to_owned());
        let handle = traced.handle;
        self.append(
            handle,
            DaemonRecord::Coverage(CoverageNote {
                code: code.to_owned(),
                text: text.to_owned(),
            }),
        );
    }
}

/// Path of a library through which pools report and that has no probe yet.
fn speaker<'a>(traced: &Traced, resolved: &'a Resolved) -> Option<&'a str> {
    let speaks = |object: &&ObjectSites| {
        let mut sites = object.sites.iter();
        sites.any(|site| matches!(site.row.purpose, Purpose::Region(_)))
    };
    let paths = resolved.objects.iter().filter(speaks);
    paths
        .map(|object| object.display_path.as_str())
        .find(|path| !traced.libraries.contains_key(*path))
}
