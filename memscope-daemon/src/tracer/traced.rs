//! One traced process, as the tracer sees it.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memscope_common::StorageEntry;
use memscope_ledger::event::{
    AllocatorFacts, Backend, CoverageNote, Level, ProcessFacts, ProcessHandle,
};
use memscope_proto::v1::BaselineRead;
use memscope_rpc::{AttachOptions, Caller};
use memscope_site::FileIdentity;

use crate::probe::links::Link;
use crate::probe::load::Program;
use crate::probe::slot::Slot;

/// Pauses before files that could not be read are looked at again: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Which of PyTorch's two ways in are probed: `record_trace` alone is enough once its layout is proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceState {
    /// There is no probe on `record_trace`.
    Unused,
    /// Both ways are probed, until the layout is proven.
    Searching,
    /// Only `record_trace` is probed.
    Proven,
    /// Both ways stay probed, for this reason.
    Both(String),
}

/// Whether a free that completes at once is told by the probe on its request, so that its completion needs no trap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtOnce {
    /// It is not known yet.
    Unknown,
    /// The probe on the request tells of the completion, too.
    Told,
    /// The completion has a probe of its own, for this reason.
    Not(String),
}

/// A traced process.
pub struct Traced {
    /// Process id.
    pub pid: u32,
    /// The daemon's handle of the process.
    pub handle: ProcessHandle,
    /// Who attached it. What follows from the attach (an exec, a child) is followed with this user's rights.
    pub caller: Caller,
    /// Options with which it was attached.
    pub options: AttachOptions,
    /// Level that was reached.
    pub level: Level,
    /// Facts about the process, read at the attach.
    pub facts: ProcessFacts,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
    /// Its slot in the table that the daemon shares with the programs.
    pub slot: Slot,
    /// Links that carry its probes.
    pub links: Vec<Link>,
    /// Whether torch_npu's allocator is the one that is traced.
    pub torch_npu: bool,
    /// File that holds the `record_trace` in use.
    pub trace_file: Option<FileIdentity>,
    /// State of the search for the allocator's layout.
    pub trace: TraceState,
    /// Whether frees that complete at once are told without a trap of their own, and if not, why.
    pub at_once: AtOnce,
    /// Address of PyTorch's pointer to its allocator in the process.
    pub allocator_address: Option<u64>,
    /// File to which that address belongs.
    pub allocator_file: Option<FileIdentity>,
    /// Address of PyTorch's number of devices in the process.
    pub device_count_address: Option<u64>,
    /// Places where PyTorch's allocator settings may be.
    pub settings: Vec<memscope_site::SettingsPlace>,
    /// What was last read about its allocator: number of devices and settings.
    pub allocator: AllocatorFacts,
    /// Whether the device of threads that never chose one is known.
    pub default_known: bool,
    /// Allocator in use, as it was last read.
    pub backend: Backend,
    /// Whether a reading of its allocator's structures is under way.
    pub reading: bool,
    /// Whether another reading is wanted when that one has ended.
    pub read_again: bool,
    /// The last reading found that the structures of its allocator are a copy of its parent's, which holds the memory.
    pub is_copy: bool,
    /// The structures of its allocator are known to be no copy of its parent's, whatever its parent takes later.
    pub is_own: bool,
    /// When the last reading began, which may be under way, boot-time nanoseconds.
    pub reading_began_ns: u64,
    /// When the reading began that succeeded last, boot-time nanoseconds.
    pub read_ns: Option<u64>,
    /// The reading that ended last found nothing: its allocator had not taken any memory.
    pub found_nothing: bool,
    /// Whether it had opened no device yet when its first probes were in place, so far as that is known.
    pub before_first_memory: Option<bool>,
    /// What the first reading found.
    pub baseline: Option<BaselineRead>,
    /// Pause after the last failed reading. `None` while none has failed since the last success.
    pub retry: Option<Duration>,
    /// When the next reading is due.
    pub next_read: Instant,
    /// Hash of its code mappings when they were last checked.
    pub mappings: Option<u64>,
    /// Processor time that it had had when it was last checked.
    pub ran: Option<Duration>,
    /// It has reported that code was mapped or unmapped, and this was not looked at yet.
    pub mapped: bool,
    /// When its files are looked at again without a change of its mappings, because some of them could not be read.
    pub(super) look_again: Option<LookAgain>,
    /// By what the programs know the memory of its tensors, as it was last set.
    pub storages: Option<StorageEntry>,
    /// Whether its Python stacks can be taken.
    pub python: bool,
    /// Whether the search for its interpreter was given up, and no change of its code mappings was seen since.
    pub python_given_up: bool,
    /// Number by which the programs know its interpreter's layout.
    pub python_number: u32,
    /// Whether its stacks of compiled code can be taken.
    pub native: bool,
    /// Budget of processor time for its stacks.
    pub(super) budget: super::budget::Budget,
    /// Number of the rule that attached it, if one did.
    pub rule: Option<u64>,
    /// Whether its children are attached as well.
    pub children: bool,
    /// Those that it has forked since this moment, boot-time nanoseconds.
    pub forks_since_ns: u64,
    /// Full tables that have been reported: one bit for each [`memscope_common::DropReason`].
    pub full: u64,
    /// What NVML says of its devices, as it was last recorded.
    pub nvml: super::nvml::Told,
    /// Coverage notes that have been recorded: text by code, empty if withdrawn.
    pub notes: BTreeMap<String, String>,
    /// Libraries that have sites, by path.
    pub libraries: BTreeMap<String, Library>,
}

/// A library that has sites.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// Build id in hexadecimal digits, empty for none.
    pub build_id: String,
    /// Ways into the framework's pool that are in use.
    pub ways: BTreeSet<String>,
    /// Whether a function is probed there that ends PyTorch's `record_function`s. An older daemon did not look for it.
    #[serde(default)]
    pub function_ends: bool,
}

/// When files that could not be read are looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LookAgain {
    pause: Duration,
    /// When that is.
    pub(super) due: Instant,
}

impl LookAgain {
    /// The next look after a failed one. Each pause is twice the one before.
    pub(super) fn after(before: Option<LookAgain>) -> LookAgain {
        let pause = before.map_or(FIRST_PAUSE, |before| before.pause * 2);
        let pause = pause.min(LAST_PAUSE);
        LookAgain {
            pause,
            due: Instant::now() + pause,
        }
    }
}

impl Traced {
    /// Whether a program stands at this place of a file already.
    pub fn has_probe(&self, file: &FileIdentity, offset: u64, program: Program) -> bool {
        self.links.iter().any(|link| {
            link.program() == program
                && link.site.file.as_ref() == Some(file)
                && link.site.offsets.contains(&offset)
        })
    }

    /// Time between two readings that nobody asks for: as was wanted, or after one that has failed. `None`: there are none.
    pub fn reads_every(&self) -> Option<Duration> {
        self.options.read_every.or(self.retry)
    }

    /// Number of places with a probe.
    pub fn places(&self) -> usize {
        self.links.iter().map(|link| link.site.offsets.len()).sum()
    }

    /// Whether the framework's pool reports its blocks by a function of its own.
    pub fn has_report(&self) -> bool {
        self.links.iter().any(|link| link.program().is_report())
    }

    /// Whether the call by which a completed free is told has a probe.
    pub fn has_completed(&self) -> bool {
        let mut programs = self.links.iter().map(Link::program);
        programs.any(|program| program == Program::TraceCompleted)
    }

    /// Number of probe sites in use. Probes on returns, the linker's hook and `code_dealloc` are not counted.
    pub fn sites(&self) -> u32 {
        self.sites_where(|_| true)
    }

    /// The same in one library.
    pub fn sites_in(&self, library: &str) -> u32 {
        self.sites_where(|link| link.site.path == library)
    }

    fn sites_where(&self, is_meant: impl Fn(&Link) -> bool) -> u32 {
        self.links
            .iter()
            .filter(|l| {
                !l.program().is_return()
                    && !matches!(l.program(), Program::LinkerHook | Program::CodeDealloc)
                    && is_meant(l)
            })
            .map(|l| l.site.offsets.len() as u32)
            .sum()
    }

    /// Number of operators of PyTorch that are followed.
    pub fn operators(&self) -> u32 {
        let links = self.links.iter();
        let entries = links.filter(|link| link.program() == Program::OperatorEntry);
        entries.map(|link| link.site.offsets.len() as u32).sum()
    }

    /// Ways into the framework's pool that are in use.
    pub fn ways(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.libraries.values().flat_map(|l| &l.ways).collect();
        all.into_iter().cloned().collect()
    }

    /// Whether the ends of PyTorch's `record_function`s are probed.
    pub fn sees_function_ends(&self) -> bool {
        self.libraries.values().any(|library| library.function_ends)
    }

    /// Whether a way into the framework's pool is probed.
    pub fn sees_pool(&self) -> bool {
        let mut programs = self.links.iter().map(Link::program);
        programs.any(|program| program.is_report() || program.is_trace())
    }

    /// Removes the probes of the pool, because the library of another allocator has come and the first one's are of
    /// no use.
    pub fn forget_pool(&mut self) {
        let of_pool =
            |program: Program| program.is_report() || program.is_trace() || program == Program::Oom;
        let (pool, rest) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(|link| of_pool(link.program()));
        self.links = rest;
        for library in self.libraries.values_mut() {
            library.ways.clear();
        }
        self.trace = TraceState::Unused;
        self.at_once = AtOnce::Unknown;
        self.slot.set_frees_at_once(false);
        // Nothing of another allocator's object is where the first one had it.
        self.slot.set_on_trial(true);
        self.slot.set_layout(None);
        self.trace_file = None;
        self.level = self.level.min(Level::Segments);
        crate::probe::links::detach_all(pool, || ());
    }

    /// The coverage notes that are in force, in the ledger's form.
    pub fn coverage(&self) -> Vec<CoverageNote> {
        self.notes
            .iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(code, text)| CoverageNote {
                code: code.clone(),
                text: text.clone(),
            })
            .collect()
    }

    /// What the probes cost, in words; `None` if nothing of the pool is probed.
    pub fn cost(&self) -> Option<String> {
        // torch_npu also reports when a freed block is out of use.
        let report = if self.torch_npu { 3 } else { 2 };
        let both = 3 + report;
        match (&self.trace, self.level) {
            (TraceState::Searching, _) => {
                let then = match self.at_once {
                    AtOnce::Not(_) => 3,
                    AtOnce::Unknown | AtOnce::Told => 2,
                };
                Some(format!(
                    "both of PyTorch's ways in are probed ({both} traps for an allocation and its \
                     free) until the allocator's layout is proven; then {then}"
                ))
            }
            (TraceState::Both(why), _) => Some(format!(
                "both of PyTorch's ways in stay probed ({both} traps for an allocation and its \
                 free): {why}"
            )),
            (TraceState::Proven, _) => Some(match &self.at_once {
                AtOnce::Told => "2 traps for an allocation and its free".to_owned(),
                AtOnce::Unknown => "3 traps for an allocation and its free".to_owned(),
                AtOnce::Not(why) => {
                    format!("3 traps for an allocation and its free, one for its completion: {why}")
                }
            }),
            (TraceState::Unused, Level::Blocks) => {
                Some(format!("{report} traps for an allocation and its free"))
            }
            (TraceState::Unused, _) => None,
        }
    }
}

/// Those of the processes that have ended.
pub(super) fn ended<'a>(processes: impl Iterator<Item = &'a Traced>) -> Vec<u32> {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let (pids, mut fds): (Vec<u32>, Vec<PollFd<'_>>) = processes
        .map(|one| (one.pid, PollFd::new(&one.pidfd, PollFlags::IN)))
        .unzip();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0) {
        return Vec::new();
    }
    let all = pids.into_iter().zip(&fds);
    let ended = all.filter(|(_, fd)| !fd.revents().is_empty());
    ended.map(|(pid, _)| pid).collect()
}

/// A hash of the code that a process has mapped from files; `None` if it has ended.
pub(super) fn code_mappings(pid: u32) -> Option<u64> {
    use std::hash::{Hash, Hasher};
    let maps = memscope_site::process::read(pid, "maps").ok()?;
    let mut hasher = std::hash::DefaultHasher::new();
    for line in maps.split(|b| *b == b'\n') {
        let flags = line.split(|b| *b == b' ').nth(1);
        let is_code = flags.is_some_and(|flags| flags.contains(&b'x'));
        if is_code && line.contains(&b'/') {
            line.hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A newer daemon takes over what an older one wrote.
    #[test]
    fn a_library_of_an_older_daemon_is_read() {
        let read: Library =
            serde_json::from_str(r#"{"build_id": "ab", "ways": ["record_trace"]}"#).unwrap();
        assert!(!read.function_ends && read.ways.contains("record_trace"));
    }
}
