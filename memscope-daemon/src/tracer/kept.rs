//! What the tracer keeps on disk, so that the daemon that comes after it can go on: what is traced and by which links, the numbers
//! of sites and handles, and the rules.
//!
//! Owns: the file `attachments.json` of the state directory and its form. Refuses: to decide what can be taken over from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use memscope_ledger::event::{AllocatorFacts, Backend, Level, ProcessFacts};
use memscope_rpc::{AttachOptions, Caller};
use memscope_site::{FileIdentity, SettingsPlace};
use serde::{Deserialize, Serialize};

use super::cause::Followed;
use super::rules::Rule;
use super::ruling::InForce;
use super::traced::{AtOnce, Library, TraceState, Traced};
use crate::clock;
use crate::probe::calibrate::Layout;
use crate::probe::links::LinkSite;
use crate::sync::write_anew;

/// Version of the file. A reader refuses any other one.
pub const FORMAT: u32 = 1;

/// What a daemon leaves for the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// See [`FORMAT`].
    pub format: u32,
    /// The boot in which it was written, as `/proc/sys/kernel/random/boot_id` has it. Only the rules outlive a boot.
    pub boot_id: String,
    /// The epoch of the journal.
    pub epoch: u64,
    /// The daemon has detached everything and ended: only the rules count.
    pub stopped: bool,
    /// Directory with the pinned maps and links; `None` if nothing is pinned.
    pub pins: Option<PathBuf>,
    /// Names and shapes of the pinned maps ([`crate::probe::load::shapes`]).
    pub shapes: String,
    /// Since when what outlives a daemon counts.
    #[serde(default)]
    pub since: Option<Since>,
    /// Handle of the next process.
    pub next_handle: u32,
    /// Number of the next rule.
    pub next_rule: u64,
    /// The rules.
    pub rules: Vec<Rule>,
    /// The policy that was in force, so that its entries keep their numbers.
    #[serde(default)]
    pub policy: Vec<InForce>,
    /// Processes that no rule attaches again: their pids and the times of their starts.
    #[serde(default)]
    pub let_be: Vec<(u32, u64)>,
    /// Numbers of sites, which are in the attach cookies of the links.
    pub sites: Vec<(FileIdentity, u64, String, u32)>,
    /// Proven layouts of PyTorch's allocator, by library.
    pub layouts: Vec<(FileIdentity, Layout)>,
    /// The traced processes.
    pub processes: Vec<KeptProcess>,
    /// Processes that were traced, have executed another image, and wait to be attached as that. Children that wait are looked for anew.
    #[serde(default)]
    pub(super) waiting: Vec<Followed>,
}

/// Since when what outlives a daemon counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// Boot time and the time since 1970 at one moment, both in nanoseconds. All daemons that go on with one another tell moments of boot
    /// time by the same pair: told by another one, a counter would seem to have begun at another moment.
    pub clock: (u64, u64),
    /// Boot time in nanoseconds at which the maps in the kernel were made, whose counts of losses are taken over with them.
    pub kernel_boot_ns: u64,
}

impl Since {
    /// For a daemon that begins now. `earlier`: of the one that it goes on with; `takes_over`: its maps as well.
    pub fn after(earlier: Option<Since>, takes_over: bool) -> Since {
        let clock = clock::pair();
        let new = Since {
            clock,
            kernel_boot_ns: clock.0,
        };
        match earlier {
            Some(earlier) if takes_over => earlier,
            Some(Since { clock, .. }) => Since { clock, ..new },
            None => new,
        }
    }

    /// What 0 of boot time is, in nanoseconds since 1970.
    pub fn boot_unix_ns(&self) -> u64 {
        let (boot_ns, unix_ns) = self.clock;
        unix_ns.saturating_sub(boot_ns)
    }
}

/// A traced process: the fields of [`Traced`] that the next daemon cannot find out again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptProcess {
    /// The daemon's handle.
    pub handle: u32,
    /// Who attached it.
    pub caller: Caller,
    /// What was read about it when it was attached, among that its pid and start time.
    pub facts: ProcessFacts,
    /// What was asked for.
    pub options: AttachOptions,
    /// The level that was reached.
    pub level: Level,
    /// torch_npu's allocator is the one in use.
    pub torch_npu: bool,
    /// The library whose allocator's layout is searched for or proven.
    pub trace_file: Option<FileIdentity>,
    /// State of that search.
    pub trace: TraceState,
    /// Whether frees that complete at once are told without a trap of their own.
    #[serde(default = "unknown")]
    pub at_once: AtOnce,
    /// Address of the allocator's pointer in the process.
    pub allocator_address: Option<u64>,
    /// The library that it belongs to.
    pub allocator_file: Option<FileIdentity>,
    /// Address of the number of devices.
    pub device_count_address: Option<u64>,
    /// Where its allocator's settings may be.
    pub settings: Vec<SettingsPlace>,
    /// What was last read about its allocator.
    pub allocator: AllocatorFacts,
    /// The device of threads that never chose one is known.
    pub default_known: bool,
    /// Its allocator.
    pub backend: Backend,
    /// A reading has told what was there before the attach.
    pub baseline_read: bool,
    /// Python stacks are taken.
    pub python: bool,
    /// The structures of its allocator are a copy of its parent's.
    #[serde(default)]
    pub is_copy: bool,
    /// They are known to be none.
    #[serde(default)]
    pub is_own: bool,
    /// Stacks of compiled code are taken.
    pub native: bool,
    /// The rule that attached it.
    pub rule: Option<u64>,
    /// Its children are attached as well.
    pub children: bool,
    /// Those that it has forked since this moment, boot-time nanoseconds.
    #[serde(default)]
    pub forks_since_ns: Option<u64>,
    /// Coverage notes that were said, by code; empty ones were taken back.
    pub notes: BTreeMap<String, String>,
    /// Libraries with sites, by path.
    pub libraries: BTreeMap<String, Library>,
    /// Its links.
    pub links: Vec<LinkSite>,
}

fn unknown() -> AtOnce {
    AtOnce::Unknown
}

impl Kept {
    /// Lets nothing that is or was to be traced go on.
    pub fn forget_processes(&mut self) {
        self.processes.clear();
        self.waiting.clear();
    }
}

impl KeptProcess {
    /// From a traced process.
    pub(super) fn of(traced: &Traced) -> KeptProcess {
        // All fields are named, so that whoever adds one has to decide here.
        let Traced {
            pid: _,
            handle,
            caller,
            options,
            level,
            facts,
            pidfd: _,
            slot: _,
            links,
            torch_npu,
            trace_file,
            trace,
            at_once,
            allocator_address,
            allocator_file,
            device_count_address,
            settings,
            allocator,
            default_known,
            backend,
            reading: _,
            read_again: _,
            is_copy,
            is_own,
            reading_began_ns: _,
            read_ns: _,
            found_nothing: _,
            before_first_memory: _,
            baseline,
            retry: _,
            next_read: _,
            mappings: _,
            ran: _,
            mapped: _,
            look_again: _,
            storages: _,
            python,
            python_given_up: _,
            python_number: _,
            native,
            budget: _,
            rule,
            children,
            forks_since_ns,
            full: _,
            nvml: _,
            notes,
            libraries,
        } = traced;
        KeptProcess {
            handle: handle.0,
            caller: caller.clone(),
            facts: facts.clone(),
            options: options.clone(),
            level: *level,
            torch_npu: *torch_npu,
            trace_file: trace_file.clone(),
            trace: trace.clone(),
            at_once: at_once.clone(),
            allocator_address: *allocator_address,
            allocator_file: allocator_file.clone(),
            device_count_address: *device_count_address,
            settings: settings.clone(),
            allocator: allocator.clone(),
            default_known: *default_known,
            backend: backend.clone(),
            baseline_read: baseline.is_some(),
            is_copy: *is_copy,
            is_own: *is_own,
            python: *python,
            native: *native,
            rule: *rule,
            children: *children,
            forks_since_ns: Some(*forks_since_ns),
            notes: notes.clone(),
            libraries: libraries.clone(),
            links: links.iter().map(|link| link.site.clone()).collect(),
        }
    }
}

/// What an earlier daemon has left, as far as this one can use it.
pub struct TakeOver {
    /// What was traced, and the rules.
    pub kept: Kept,
    /// The ledger and the journal are those of the earlier daemon: handles and numbers of sites go on.
    pub resumed: bool,
    /// The position of the ring up to which the journal has its records; `None` if the ring is a new one.
    pub ring_position: Option<u64>,
    /// Handles of processes of which the journal does not say that they were attached, or what a probe of theirs is: it stood still then.
    pub untold: BTreeSet<u32>,
}

/// What became of the processes that were traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// They are traced as before, and nothing was missed but what found no room in the ring.
    pub kept: usize,
    /// Their probes were gone. They were attached anew.
    pub attached: usize,
    /// The journal does not know them. They were attached anew.
    pub untold: usize,
    /// They still run and are not traced any more: that they were traced was not written down, as on a full disk.
    pub unwritten: usize,
    /// They have ended meanwhile.
    pub ended: usize,
    /// They still run and could not be attached anew.
    pub refused: usize,
    /// Rules that are in force again.
    pub rules: usize,
}

impl std::fmt::Display for TakenOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        for (count, what) in [
            (self.kept, "traced on"),
            (self.attached, "attached anew, since their probes were gone"),
            (
                self.untold,
                "attached anew, since the journal had stopped before they were in it",
            ),
            (
                self.unwritten,
                "not traced on, since it was not written down that they were traced (attach them again)",
            ),
            (self.ended, "ended meanwhile"),
            (self.refused, "could not be attached anew"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let processes = match parts.is_empty() {
            true => "no process".to_owned(),
            false => format!("processes: {}", parts.join(", ")),
        };
        let rules = match self.rules {
            1 => "1 rule".to_owned(),
            count => format!("{count} rules"),
        };
        write!(
            f,
            "taken over from the memscoped before: {processes}; {rules}"
        )
    }
}

/// Why what an earlier daemon has left cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is not of this form.
    #[error("{} is damaged, or of another version of memscoped", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// What does not fit.
        #[source]
        source: serde_json::Error,
    },
    /// It has another version.
    #[error("{} is of another version of memscoped (form {found}, this one reads {FORMAT})", path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// Name of the file in the state directory.
pub(super) const FILE: &str = "attachments.json";

/// Reads what an earlier daemon has left in a state directory; `None` if none has.
pub fn read(state_dir: &Path) -> Result<Option<Kept>, KeptError> {
    let path = state_dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(KeptError::Read { path, source }),
    };
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let form = |source| KeptError::Form {
        path: path.clone(),
        source,
    };
    let version: Version = serde_json::from_slice(&bytes).map_err(form)?;
    if version.format != FORMAT {
        return Err(KeptError::Version {
            found: version.format,
            path,
        });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(form)
}

/// Writes it, so that either the old file or the new one is there after a power cut.
pub fn write(state_dir: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = state_dir.join(FILE);
    // Always the same name, so that what a killed daemon leaves is taken away by the next one.
    let new = path.with_added_extension("new");
    write_anew(&new, bytes)?.sync_data()?;
    std::fs::rename(&new, &path)?;
    std::fs::File::open(state_dir)?.sync_all()
}

/// Writes down what is traced, or was.
pub fn write_kept(state_dir: &Path, kept: &Kept) -> std::io::Result<()> {
    write(state_dir, &serde_json::to_vec(kept)?)
}

/// Writes down that nothing is traced any more.
pub fn write_stopped(state_dir: &Path, mut kept: Kept) -> std::io::Result<()> {
    kept.stopped = true;
    kept.pins = None;
    kept.forget_processes();
    write_kept(state_dir, &kept)
}

/// The tracer's side of the file.
pub struct Keeping {
    /// The state directory.
    pub(super) state_dir: PathBuf,
    pub(super) boot_id: String,
    pub(super) epoch: u64,
    pub(super) shapes: String,
    /// Since when what outlives this daemon counts.
    pub since: Since,
    /// What is on disk.
    pub(super) written: Vec<u8>,
    pub(super) looked: Instant,
    /// The last write failed, which is logged once.
    pub(super) failed: bool,
    /// Everything is detached, and the daemon ends.
    pub(super) stopped: bool,
}

impl Keeping {
    /// For this boot and this epoch of the journal.
    pub fn new(
        state_dir: &Path,
        boot_id: String,
        epoch: u64,
        shapes: String,
        since: Since,
    ) -> Keeping {
        Keeping {
            state_dir: state_dir.to_owned(),
            boot_id,
            epoch,
            shapes,
            since,
            written: Vec::new(),
            looked: Instant::now(),
            failed: false,
            stopped: false,
        }
    }
}
