//! One traced process, as the tracer sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memscope_ledger::event::{
    AllocatorFacts, Backend, CoverageNote, Level, ProcessFacts, ProcessHandle,
};
use memscope_proto::v1::BaselineRead;
use memscope_rpc::AttachOptions;
use memscope_site::FileIdentity;

use crate::probe::links::Link;
use crate::probe::load::Program;
use crate::probe::slot::Slot;

/// Whether `record_trace` alone tells everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceState {
    /// No `record_trace` probe.
    Unused,
    /// Both probes, until the layout is proven.
    Searching,
    /// One probe.
    Proven,
    /// Both probes for good, and why.
    Both(String),
}

/// A live attachment of the tracer's.
pub struct Traced {
    /// Process id.
    pub pid: u32,
    /// Handle.
    pub handle: ProcessHandle,
    /// What was asked for.
    pub options: AttachOptions,
    /// Level reached.
    pub level: Level,
    /// What was read at the attach.
    pub facts: ProcessFacts,
    /// Tells when it ends.
    pub pidfd: OwnedFd,
    /// The kernel's side.
    pub slot: Slot,
    /// Live links.
    pub links: Vec<Link>,
    /// What has a probe already: file, offset, program.
    pub placed: BTreeSet<(FileIdentity, u64, Program)>,
    /// torch_npu's allocator is the one that is traced.
    pub torch_npu: bool,
    /// File that holds the `record_trace` in use.
    pub trace_file: Option<FileIdentity>,
    /// State of the search for the allocator's layout.
    pub trace: TraceState,
    /// Allocator pointer of PyTorch in the process.
    pub allocator_address: Option<u64>,
    /// File that it is from.
    pub allocator_file: Option<FileIdentity>,
    /// PyTorch's number of devices in the process.
    pub device_count_address: Option<u64>,
    /// Where PyTorch's allocator settings may be.
    pub settings: Vec<memscope_site::SettingsPlace>,
    /// What was last read about its allocator.
    pub allocator: AllocatorFacts,
    /// Whether the device of threads that chose none is known.
    pub default_known: bool,
    /// Allocator in use, as read last.
    pub backend: Backend,
    /// A reading of its allocator's structures is under way.
    pub reading: bool,
    /// Another is wanted when it has ended.
    pub read_again: bool,
    /// Knows where its allocator's structures lie, once one was read; a reading under way has it.
    pub reader: Option<Box<memscope_structure::Reader>>,
    /// What the first reading found.
    pub baseline: Option<BaselineRead>,
    /// Time until a reading that failed is made again; `None` while none has.
    pub retry: Option<Duration>,
    /// When the next one is due.
    pub next_read: Instant,
    /// Hash of its code mappings when they were last looked at.
    pub mappings: Option<u64>,
    /// Python stacks are taken.
    pub python: bool,
    /// The programs' number of its interpreter's layout.
    pub python_number: u32,
    /// Stacks of compiled code are taken.
    pub native: bool,
    /// What stacks may cost.
    pub(super) budget: super::budget::Budget,
    /// Rule that attached it.
    pub rule: Option<u64>,
    /// Also attach its children.
    pub children: bool,
    /// Tables that had no room for something of it, as far as said: a bit for each [`memscope_common::DropReason`].
    pub full: u64,
    /// Memory of its devices, as told last.
    pub memory: Vec<memscope_log::records::DeviceTotal>,
    /// Coverage notes said so far.
    pub notes: BTreeMap<String, String>,
    /// Libraries with sites, by path.
    pub libraries: BTreeMap<String, Library>,
}

/// A library with sites.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Library {
    /// Build id in hexadecimal digits, empty for none.
    pub build_id: String,
    /// Sites with a probe.
    pub sites: u32,
    /// Ways into the framework's pool that are in use.
    pub ways: BTreeSet<String>,
}

impl Traced {
    /// Number of probe sites in use (returns not counted apart).
    pub fn sites(&self) -> u32 {
        self.links
            .iter()
            .filter(|l| {
                !l.program.is_return()
                    && !matches!(l.program, Program::LinkerHook | Program::CodeDealloc)
            })
            .map(|l| l.points as u32)
            .sum()
    }

    /// Ways into the framework's pool that are in use.
    pub fn ways(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.libraries.values().flat_map(|l| &l.ways).collect();
        all.into_iter().cloned().collect()
    }

    /// Whether a way into the framework's pool is probed.
    pub fn sees_pool(&self) -> bool {
        self.placed
            .iter()
            .any(|(_, _, p)| p.is_report() || *p == Program::Trace)
    }

    /// Another allocator's library has come: what was probed of the first one's is of no use.
    pub fn forget_pool(&mut self) {
        let of_pool = |program: Program| {
            program.is_report() || matches!(program, Program::Oom | Program::Trace)
        };
        let (pool, rest) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(|link| of_pool(link.program));
        self.links = rest;
        self.placed.retain(|(_, _, program)| !of_pool(*program));
        for library in self.libraries.values_mut() {
            library.ways.clear();
        }
        self.trace = TraceState::Unused;
        self.trace_file = None;
        self.level = self.level.min(Level::Segments);
        crate::probe::links::detach_all(pool);
    }

    /// The notes as the ledger takes them.
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

    /// What the probes cost, in words.
    pub fn cost(&self) -> Option<String> {
        // torch_npu also reports when a block that was freed is out of use.
        let report = if self.torch_npu { 3 } else { 2 };
        let both = 3 + report;
        match (&self.trace, self.level) {
            (TraceState::Searching, _) => Some(format!(
                "both of PyTorch's ways in are probed ({both} traps for an allocation and its \
                 free) until the allocator's layout is proven; then 3"
            )),
            (TraceState::Both(why), _) => Some(format!(
                "both of PyTorch's ways in stay probed ({both} traps for an allocation and its \
                 free): {why}"
            )),
            (TraceState::Proven, _) => Some("3 traps for an allocation and its free".to_owned()),
            (TraceState::Unused, Level::Blocks) => {
                Some(format!("{report} traps for an allocation and its free"))
            }
            (TraceState::Unused, _) => None,
        }
    }
}
