//! Loads the BPF object: maps, tracepoints, and the uprobe programs in the form that the kernel's links need.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData};
use aya::programs::links::FdLink;
use aya::programs::{RawTracePoint, UProbe};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use memscope_common::{
    DropReason, GlobalConfig, ProcessEntry, PythonEntry, Rule, Signature, StorageEntry, name,
    rule_key,
};

use super::maps::{map_data, map_error};
use super::pins::{PinError, Pins};
use super::slot::{Slot, Slots, map_slots};
use super::tables::Tables;
use super::{ProbeError, kernel, multi};
use crate::ingest::ring::Ring;

/// The compiled object, as the build script provides it: with gzip, a fifth of its size. It is needed when the daemon starts, and then no more.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/memscope.bpf.o.gz"));

/// The compiled object, which lies where one of eight bytes may lie, as its readers want it.
fn object() -> Result<Vec<u8>, ProbeError> {
    let mut object = Vec::new();
    flate2::read::GzDecoder::new(OBJECT)
        .read_to_end(&mut object)
        .map_err(|error| ProbeError::Missing(format!("usable code ({error})")))?;
    Ok(object)
}

/// Rules of unwinding that are removed when a table of them is taken over: more than it has room for.
const MOST_RULES: usize = 1 << 21;

/// The uprobe programs of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Program {
    /// Entry of a runtime or driver call.
    CallEntry,
    /// Return of a runtime or driver call.
    CallReturn,
    /// PyTorch's `reportMemoryUsageToProfiler`.
    Report,
    /// PyTorch's `reportOutOfMemoryToProfiler`.
    Oom,
    /// PyTorch's `record_trace`.
    Trace,
    /// Calls of `record_trace`, except for the one in `free_block`.
    TraceCall,
    /// The call of `record_trace` in `free_block`.
    TraceCompleted,
    /// Calls of `free_block`, except for the one in `free`.
    FreeBlock,
    /// The dynamic linker's hook, by which `dlopen` is followed.
    LinkerHook,
    /// CPython's `code_dealloc`.
    CodeDealloc,
    /// Functions that name a moment, or whose call is itself a moment.
    Mark,
    /// The driver's functions that launch kernels: each launch is counted.
    Launch,
    /// The same functions: each launch is counted, and told with the kernel's name.
    LaunchTold,
    /// torch_npu's `reportMemoryDataToNpuProfiler`.
    NpuReport,
    /// Calls of that function by torch_npu's workspace allocator.
    NpuWorkspace,
    /// Entry of mstx's functions with which pools report their memory.
    RegionEntry,
    /// Return of these functions.
    RegionReturn,
    /// Entry of PyTorch's operators.
    OperatorEntry,
    /// Instructions by which PyTorch's operators return.
    OperatorEnd,
}

impl Program {
    const ALL: [Program; 19] = [
        Program::CallEntry,
        Program::CallReturn,
        Program::Report,
        Program::Oom,
        Program::Trace,
        Program::TraceCall,
        Program::TraceCompleted,
        Program::FreeBlock,
        Program::LinkerHook,
        Program::CodeDealloc,
        Program::Mark,
        Program::Launch,
        Program::LaunchTold,
        Program::NpuReport,
        Program::NpuWorkspace,
        Program::RegionEntry,
        Program::RegionReturn,
        Program::OperatorEntry,
        Program::OperatorEnd,
    ];

    /// Whether the program stands at the return of a function.
    pub fn is_return(self) -> bool {
        matches!(self, Program::CallReturn | Program::RegionReturn)
    }

    /// Whether the program is for multi-uprobe links only: it stands at thousands of places, each of which would take a tenth of a
    /// second to remove otherwise, and uses what kernels have that have such links.
    pub fn needs_multi(self) -> bool {
        matches!(self, Program::OperatorEntry | Program::OperatorEnd)
    }

    /// Whether the program's records report each block with the allocator's own totals.
    pub fn is_report(self) -> bool {
        matches!(self, Program::Report | Program::NpuReport)
    }

    /// Whether the program tells what `record_trace` is called for.
    pub fn is_trace(self) -> bool {
        matches!(
            self,
            Program::Trace | Program::TraceCall | Program::TraceCompleted | Program::FreeBlock
        )
    }

    /// Name of the program in the object.
    pub fn name(self) -> &'static str {
        match self {
            Program::CallEntry => "call_entry",
            Program::CallReturn => "call_return",
            Program::Report => "torch_report",
            Program::Oom => "torch_oom",
            Program::Trace => "torch_trace",
            Program::TraceCall => "torch_trace_call",
            Program::TraceCompleted => "torch_trace_completed",
            Program::FreeBlock => "torch_free_block",
            Program::LinkerHook => "linker_hook",
            Program::CodeDealloc => "python_code_dealloc",
            Program::Mark => "mark",
            Program::Launch => "launch",
            Program::LaunchTold => "launch_told",
            Program::NpuReport => "npu_report",
            Program::NpuWorkspace => "npu_workspace",
            Program::RegionEntry => "region_entry",
            Program::RegionReturn => "region_return",
            Program::OperatorEntry => "operator_entry",
            Program::OperatorEnd => "operator_end",
        }
    }
}

/// The kind of link that carries the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMethod {
    /// One multi-uprobe link for each file and program (kernel 6.6 and later).
    Multi,
    /// One perf event for each site.
    Perf,
}

impl AttachMethod {
    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            AttachMethod::Multi => "uprobe_multi",
            AttachMethod::Perf => "perf_event",
        }
    }

    /// What this process lacks to use it, in words for users.
    pub fn lacks(self) -> Option<&'static str> {
        let admin = CapabilitySet::SYS_ADMIN;
        let sets = rustix::thread::capabilities(None);
        match self {
            // The kernel gives perf events of user programs to nobody else, also not to CAP_PERFMON.
            AttachMethod::Perf if sets.is_ok_and(|sets| !sets.effective.contains(admin)) => Some(
                "probes cannot be attached: they are perf events here, which need CAP_SYS_ADMIN, and memscoped does not have it; as \
                 a service on kernels before 6.6, and up to 6.9 without the later mend, it gets it by memscoped-before-6.6.conf in \
                 /etc/systemd/system/memscoped.service.d",
            ),
            AttachMethod::Perf | AttachMethod::Multi => None,
        }
    }
}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct ConfigValue(GlobalConfig);
// SAFETY: the type consists of two u32 without padding, and any bit pattern is valid.
unsafe impl aya::Pod for ConfigValue {}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct PythonValue(PythonEntry);
// SAFETY: the type consists of integers without padding, and any bit pattern is valid.
unsafe impl aya::Pod for PythonValue {}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct SignatureValue(Signature);
// SAFETY: the type consists of integers without padding, and any bit pattern is valid.
unsafe impl aya::Pod for SignatureValue {}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct StorageValue(StorageEntry);
// SAFETY: the type consists of integers without padding, and any bit pattern is valid.
unsafe impl aya::Pod for StorageValue {}

/// The loaded BPF object with its programs, its maps and the slots of processes.
pub struct Kernel {
    /// Whether probes may be placed in files for which a user could keep the kernel waiting ([`memscope_site::mounts`]).
    pub user_mounts: bool,
    bpf: Ebpf,
    multi: BTreeMap<Program, OwnedFd>,
    method: AttachMethod,
    processes: BpfHashMap<MapData, u32, u32>,
    slots: Arc<Slots>,
    free_slots: std::collections::VecDeque<u32>,
    taken: BTreeMap<u32, u32>,
    drops: Array<MapData, u64>,
    config: Array<MapData, ConfigValue>,
    python: Array<MapData, PythonValue>,
    /// Layouts of interpreters that the programs know, by index, and the processes that use each.
    pythons: Vec<(PythonEntry, BTreeSet<u32>)>,
    signatures: Array<MapData, SignatureValue>,
    /// Signatures of operators that the programs know, with their numbers.
    known_signatures: BTreeMap<Signature, u16>,
    storages: BpfHashMap<MapData, u32, StorageValue>,
    tables: Tables,
    rules: Option<Rules>,
    pins: Option<Pins>,
    next_pin: u64,
    /// Links of the process tracepoints, which end with the daemon unless they are pinned.
    _tracepoints: Vec<Box<dyn Any + Send>>,
}

/// The map of rules by which the programs unwind compiled code.
pub struct Rules(BpfHashMap<MapData, u64, u64>);

impl Rules {
    /// Sets the rule for an address of a process (by handle).
    pub fn set(&mut self, process: u32, address: u64, rule: Rule) -> Result<(), ProbeError> {
        self.0
            .insert(rule_key(process, address), rule.0, 0)
            .map_err(map_error(name::RULES, "changed"))
    }

    /// Removes the rule for an address.
    pub fn remove(&mut self, process: u32, address: u64) {
        // The map may never have had room for the rule.
        let _ = self.0.remove(&rule_key(process, address));
    }
}

impl Kernel {
    /// Loads everything and starts the process tracepoints. `method` forces a kind of link. With `pins`, maps and links outlive the
    /// daemon; maps that are pinned there already are taken over with what is in them, so they must have this build's
    /// shapes (see [`shapes`]).
    pub fn load(
        method: Option<AttachMethod>,
        ring_bytes: u32,
        pins: Option<Pins>,
    ) -> Result<(Kernel, Ring), ProbeError> {
        let offsets = kernel::task_offsets()?;
        let mut loader = aya::EbpfLoader::new();
        loader
            .override_global("TASK_TGID_OFFSET", &offsets.tgid, true)
            .override_global("TASK_TLS_OFFSET", &offsets.thread_pointer, true)
            .map_max_entries(name::RING, ring_bytes);
        let shared = shared_maps()?;
        if let Some(pins) = &pins {
            for map in &shared {
                loader.map_pin_path(map, pins.path(&map_pin(map)));
            }
        }
        let mut bpf = loader
            .load(&object()?)
            .map_err(|e| ProbeError::Load(Box::new(e)))?;
        let (method, multi) = match method {
            Some(AttachMethod::Perf) => (AttachMethod::Perf, BTreeMap::new()),
            Some(AttachMethod::Multi) => (AttachMethod::Multi, load_multi(&bpf)?),
            None => match load_multi(&bpf) {
                Ok(programs) if multi_works(&programs) => (AttachMethod::Multi, programs),
                Ok(_) => (AttachMethod::Perf, BTreeMap::new()),
                Err(error) => {
                    tracing::debug!(%error, "no multi-uprobe programs; using perf events");
                    (AttachMethod::Perf, BTreeMap::new())
                }
            },
        };
        if method == AttachMethod::Perf {
            for program in Program::ALL.into_iter().filter(|one| !one.needs_multi()) {
                uprobe(&mut bpf, program)?
                    .load()
                    .map_err(|source| ProbeError::Aya {
                        program: program.name().to_owned(),
                        action: "loaded",
                        source: Box::new(source),
                    })?;
            }
        }
        let mut tracepoints = Vec::new();
        for (program, tracepoint) in [
            ("process_fork", "sched_process_fork"),
            ("process_exec", "sched_process_exec"),
            ("process_exit", "sched_process_exit"),
        ] {
            tracepoints.push(start_tracepoint(
                &mut bpf,
                program,
                tracepoint,
                pins.as_ref(),
            )?);
        }
        let ring_map = bpf
            .map(name::RING)
            .and_then(map_data)
            .ok_or_else(|| ProbeError::Missing(name::RING.to_owned()))?;
        let ring_fd = ring_map
            .fd()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| {
                ProbeError::Ring(crate::ingest::ring::RingError::Map {
                    part: "descriptor",
                    source,
                })
            })?;
        // A ring that was taken over has the size that it was made with.
        let ring_bytes = ring_map
            .info()
            .map_err(map_error(name::RING, "looked at"))?
            .max_entries();
        let ring = Ring::open(ring_fd, ring_bytes)?;
        let slots = Arc::new(map_slots(&bpf)?);
        let tables = Tables::open(&mut bpf)?;
        let mut take = |map: &str| {
            bpf.take_map(map)
                .ok_or_else(|| ProbeError::Missing(map.to_owned()))
        };
        let processes = BpfHashMap::try_from(take(name::PROCESSES)?)
            .map_err(map_error(name::PROCESSES, "opened"))?;
        let drops =
            Array::try_from(take(name::DROPS)?).map_err(map_error(name::DROPS, "opened"))?;
        let config =
            Array::try_from(take(name::CONFIG)?).map_err(map_error(name::CONFIG, "opened"))?;
        let python =
            Array::try_from(take(name::PYTHON)?).map_err(map_error(name::PYTHON, "opened"))?;
        let signatures = Array::try_from(take(name::SIGNATURES)?)
            .map_err(map_error(name::SIGNATURES, "opened"))?;
        let storages = BpfHashMap::try_from(take(name::STORAGES)?)
            .map_err(map_error(name::STORAGES, "opened"))?;
        let rules =
            BpfHashMap::try_from(take(name::RULES)?).map_err(map_error(name::RULES, "opened"))?;
        let mut kernel = Kernel {
            user_mounts: false,
            bpf,
            multi,
            method,
            processes,
            slots,
            free_slots: (0..memscope_common::SLOTS).collect(),
            taken: BTreeMap::new(),
            drops,
            config,
            python,
            pythons: Vec::new(),
            signatures,
            known_signatures: BTreeMap::from([(Signature::default(), 0)]),
            storages,
            tables,
            rules: Some(Rules(rules)),
            next_pin: next_pin(pins.as_ref())?,
            pins,
            _tracepoints: tracepoints,
        };
        kernel.take_over()?;
        kernel.configure(0, ring_bytes / 4)?;
        Ok((kernel, ring))
    }

    /// Learns what the maps hold, where they were taken over.
    fn take_over(&mut self) -> Result<(), ProbeError> {
        for entry in self.processes.iter() {
            let (tgid, index) = entry.map_err(map_error(name::PROCESSES, "read"))?;
            self.taken.insert(tgid, index);
        }
        let taken: BTreeSet<u32> = self.taken.values().copied().collect();
        self.free_slots.retain(|index| !taken.contains(index));
        for index in 0..memscope_common::PYTHONS {
            let PythonValue(entry) = self
                .python
                .get(&index, 0)
                .map_err(map_error(name::PYTHON, "read"))?;
            if entry == PythonEntry::default() {
                break;
            }
            self.pythons.push((entry, BTreeSet::new()));
        }
        for number in 1..memscope_common::SIGNATURES {
            let SignatureValue(signature) = self
                .signatures
                .get(&number, 0)
                .map_err(map_error(name::SIGNATURES, "read"))?;
            if signature == Signature::default() {
                break;
            }
            self.known_signatures.insert(signature, number as u16);
        }
        // Which rules belong to whom is not known any more. They are made again when their addresses are met.
        if let Some(Rules(rules)) = &mut self.rules {
            let known: Vec<u64> = rules.keys().take(MOST_RULES).flatten().collect();
            for key in known {
                let _ = rules.remove(&key);
            }
        }
        Ok(())
    }

    /// Where maps and links are pinned.
    pub fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    /// A name for the pin of a new link.
    pub(super) fn next_pin(&mut self) -> String {
        self.next_pin += 1;
        format!("{}{}", super::pins::LINK, self.next_pin)
    }

    /// The slot of a process that an earlier daemon has entered, with everything that the programs count there.
    pub fn taken_over(&self, tgid: u32) -> Option<Slot> {
        let index = self.taken.get(&tgid)?;
        Some(Slot::new(Arc::clone(&self.slots), *index))
    }

    /// Removes what an earlier daemon has left and this one does not take over: slots of processes that are not in `processes`, and
    /// pinned links whose names are not in `links`.
    pub fn keep_taken(&mut self, processes: &BTreeSet<u32>, links: &BTreeSet<String>) {
        let others: Vec<u32> = self
            .taken
            .keys()
            .copied()
            .filter(|tgid| !processes.contains(tgid))
            .collect();
        for tgid in others {
            self.remove_process(tgid);
        }
        let Some(pins) = &self.pins else {
            return;
        };
        for name in pins.names().unwrap_or_default() {
            if is_numbered_link(&name)
                && !links.contains(&name)
                && let Err(error) = pins.unpin(&name)
            {
                tracing::error!(error = %crate::error_chain(&error), "a probe of an earlier daemon could not be removed");
            }
        }
    }

    /// Removes everything that would outlive the daemon.
    pub fn remove_pins(&self) {
        if let Some(pins) = &self.pins
            && let Err(error) = pins.remove_all()
        {
            tracing::error!(error = %crate::error_chain(&error), "pinned maps or probes could not be removed; memscoped --cleanup tries again");
        }
    }

    /// Hands over the rules of unwinding, for the thread that makes them. Returns `None` after the first call.
    pub fn take_rules(&mut self) -> Option<Rules> {
        self.rules.take()
    }

    /// The kind of link in use.
    pub fn method(&self) -> AttachMethod {
        self.method
    }

    /// Sets the global flags, and the number of unread bytes in the ring at which the daemon is woken.
    pub fn configure(&mut self, flags: u32, wake_bytes: u32) -> Result<(), ProbeError> {
        self.config
            .set(0, ConfigValue(GlobalConfig { flags, wake_bytes }), 0)
            .map_err(map_error(name::CONFIG, "set"))
    }

    /// Returns the number by which a process's slot refers to this layout of an interpreter. Few layouts are needed
    /// (one for each build of an interpreter). If there is no room, a layout that no process uses any more is
    /// replaced.
    pub fn python(&mut self, tgid: u32, entry: &PythonEntry) -> Result<u32, ProbeError> {
        let at = match place_of(&self.pythons, entry) {
            Some(at) => at,
            None => {
                return Err(ProbeError::Full {
                    what: "the layout of another interpreter",
                    most: memscope_common::PYTHONS,
                });
            }
        };
        match self.pythons.get_mut(at) {
            Some((known, users)) if known == entry => {
                users.insert(tgid);
            }
            other => {
                self.python
                    .set(at as u32, PythonValue(*entry), 0)
                    .map_err(map_error(name::PYTHON, "set"))?;
                let new = (*entry, BTreeSet::from([tgid]));
                match other {
                    Some(unused) => *unused = new,
                    None => self.pythons.push(new),
                }
            }
        }
        Ok(at as u32 + 1)
    }

    /// Returns the number by which the cookies of operators refer to this signature. There are a few hundred of them.
    pub fn signature(&mut self, signature: &Signature) -> Result<u16, ProbeError> {
        if let Some(known) = self.known_signatures.get(signature) {
            return Ok(*known);
        }
        let number = self.known_signatures.len() as u32;
        if number >= memscope_common::SIGNATURES {
            return Err(ProbeError::Full {
                what: "the signature of another operator",
                most: memscope_common::SIGNATURES,
            });
        }
        self.signatures
            .set(number, SignatureValue(*signature), 0)
            .map_err(map_error(name::SIGNATURES, "set"))?;
        self.known_signatures.insert(*signature, number as u16);
        Ok(number as u16)
    }

    /// Says how the programs find the memory of tensors of a process (by handle).
    pub fn set_storage(&mut self, process: u32, entry: StorageEntry) -> Result<(), ProbeError> {
        self.storages
            .insert(process, StorageValue(entry), 0)
            .map_err(map_error(name::STORAGES, "changed"))
    }

    /// Removes the programs' entries of all processes except these (by handle). Returns whether code objects were
    /// among them.
    pub fn keep_only(&mut self, processes: &BTreeSet<u32>) -> Result<bool, ProbeError> {
        let known = self.storages.keys().take(memscope_common::SLOTS as usize);
        let gone: Vec<u32> = known
            .flatten()
            .filter(|process| !processes.contains(process))
            .collect();
        for process in gone {
            // Nobody else removes entries; one that is gone already needs nothing.
            let _ = self.storages.remove(&process);
        }
        self.tables.keep_only(processes)
    }

    /// Number of losses for each cause.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        DropReason::ALL
            .iter()
            .map(|reason| (*reason, self.drops.get(&(*reason as u32), 0).unwrap_or(0)))
            .collect()
    }

    /// Takes a slot for a process, or the slot that the process already has. Its records are sent only when its flags
    /// ask for them.
    pub fn add_process(&mut self, tgid: u32, entry: ProcessEntry) -> Result<Slot, ProbeError> {
        let index = match self.taken.get(&tgid) {
            Some(index) => *index,
            None => self.free_slots.pop_front().ok_or(ProbeError::Full {
                what: "another process",
                most: memscope_common::SLOTS,
            })?,
        };
        let slot = Slot::new(Arc::clone(&self.slots), index);
        // SAFETY: the index is below the array's length. No program uses the slot before the insert below; and if a
        // process is taken over after an exec, no program counts in its slot while it is not live.
        unsafe { std::ptr::write_volatile(slot.entry(), entry) };
        self.taken.insert(tgid, index);
        self.processes
            .insert(tgid, index, 0)
            .map_err(map_error(name::PROCESSES, "changed"))?;
        Ok(slot)
    }

    /// Removes a process from the table and frees its slot.
    pub fn remove_process(&mut self, tgid: u32) {
        let Some(index) = self.taken.remove(&tgid) else {
            return;
        };
        Slot::new(Arc::clone(&self.slots), index).set_flags(0);
        if let Err(error) = self.processes.remove(&tgid) {
            tracing::debug!(%error, tgid, "was not in the table of processes");
        }
        self.free_slots.push_back(index);
        for (_, users) in &mut self.pythons {
            users.remove(&tgid);
        }
    }

    /// Descriptor of a program that was loaded for multi-uprobe links.
    pub(super) fn multi_program(&self, program: Program) -> Option<BorrowedFd<'_>> {
        self.multi.get(&program).map(|fd| fd.as_fd())
    }

    /// Whether operators can be followed: there are multi-uprobe links, and the kernel has taken the programs.
    pub fn follows_operators(&self) -> bool {
        let programs = [Program::OperatorEntry, Program::OperatorEnd];
        self.method == AttachMethod::Multi
            && programs.iter().all(|one| self.multi.contains_key(one))
    }

    /// A program as aya loaded it, for perf events.
    pub(super) fn perf_program(&mut self, program: Program) -> Result<&mut UProbe, ProbeError> {
        uprobe(&mut self.bpf, program)
    }
}

/// Index at which a layout is, or can be put: a new entry if there is room, else the entry of a layout without users.
fn place_of(known: &[(PythonEntry, BTreeSet<u32>)], entry: &PythonEntry) -> Option<usize> {
    let same = known.iter().position(|(known, _)| known == entry);
    let room = (known.len() < memscope_common::PYTHONS as usize).then_some(known.len());
    same.or(room)
        .or_else(|| known.iter().position(|(_, users)| users.is_empty()))
}

fn uprobe(bpf: &mut Ebpf, program: Program) -> Result<&mut UProbe, ProbeError> {
    bpf.program_mut(program.name())
        .and_then(|p| p.try_into().ok())
        .ok_or_else(|| ProbeError::Missing(program.name().to_owned()))
}

/// Starts a tracepoint's program, or holds the link that an earlier daemon has pinned.
fn start_tracepoint(
    bpf: &mut Ebpf,
    program: &'static str,
    tracepoint: &str,
    pins: Option<&Pins>,
) -> Result<Box<dyn Any + Send>, ProbeError> {
    let pin = format!("{}{program}", super::pins::LINK);
    if let Some(link) = pins.and_then(|pins| pins.get(&pin).ok()) {
        return Ok(Box::new(link));
    }
    let raw: &mut RawTracePoint = bpf
        .program_mut(program)
        .and_then(|p| p.try_into().ok())
        .ok_or_else(|| ProbeError::Missing(program.to_owned()))?;
    let failed = |action| {
        move |source| ProbeError::Aya {
            program: program.to_owned(),
            action,
            source: Box::new(source),
        }
    };
    raw.load().map_err(failed("loaded"))?;
    let id = raw.attach(tracepoint).map_err(failed("attached"))?;
    let link = FdLink::from(raw.take_link(id).map_err(failed("attached"))?);
    match pins {
        None => Ok(Box::new(link)),
        Some(pins) => {
            let path = pins.path(&pin);
            let pinned = link.pin(&path).map_err(|source| PinError::Io {
                doing: "pin",
                path,
                source: std::io::Error::other(source),
            })?;
            Ok(Box::new(pinned))
        }
    }
}

/// The maps of the object, but for those of the compiler's making, which every load has for itself.
fn shared_maps() -> Result<Vec<String>, ProbeError> {
    Ok(maps_of_object()?.into_keys().collect())
}

fn maps_of_object() -> Result<BTreeMap<String, aya_obj::Map>, ProbeError> {
    let object = aya_obj::Object::parse(&object()?)
        .map_err(|error| ProbeError::Missing(format!("usable code ({error})")))?;
    let maps = object.maps.into_iter();
    Ok(maps.filter(|(name, _)| !name.starts_with('.')).collect())
}

/// Names and shapes of the maps, and the version of what is in them: pinned maps of another description cannot be taken over.
pub fn shapes() -> Result<String, ProbeError> {
    let maps = maps_of_object()?;
    let one = |(name, map): (&String, &aya_obj::Map)| {
        // The ring's size is an option.
        let entries = match name.as_str() {
            name::RING => 0,
            _ => map.max_entries(),
        };
        format!(
            "{name}:{}:{}:{}:{entries}",
            map.map_type(),
            map.key_size(),
            map.value_size()
        )
    };
    let all: Vec<String> = maps.iter().map(one).collect();
    Ok(format!(
        "{} {}",
        memscope_common::MAPS_VERSION,
        all.join(" ")
    ))
}

/// Whether all maps are pinned there.
pub fn has_all_maps(pins: &Pins) -> bool {
    let names = pins.names().unwrap_or_default();
    let mut maps = shared_maps().unwrap_or_default().into_iter();
    maps.all(|map| names.contains(&map_pin(&map)))
}

/// The pin of a map.
fn map_pin(map: &str) -> String {
    format!("map_{map}")
}

fn is_numbered_link(name: &str) -> bool {
    link_number(name).is_some()
}

fn link_number(name: &str) -> Option<u64> {
    name.strip_prefix(super::pins::LINK)?.parse().ok()
}

/// The largest number of a pinned link.
fn next_pin(pins: Option<&Pins>) -> Result<u64, ProbeError> {
    let names = pins.map(Pins::names).transpose()?.unwrap_or_default();
    let numbers = names.iter().filter_map(|name| link_number(name));
    Ok(numbers.max().unwrap_or(0))
}

/// Loads the uprobe programs a second time, for multi-uprobe links, with the maps that aya made.
fn load_multi(bpf: &Ebpf) -> Result<BTreeMap<Program, OwnedFd>, ProbeError> {
    let broken = |e: &dyn std::fmt::Display| ProbeError::Missing(format!("usable code ({e})"));
    let mut object = aya_obj::Object::parse(&self::object()?).map_err(|e| broken(&e))?;
    let btf = match aya::features().btf() {
        Some(features) => object
            .fixup_and_sanitize_btf(features)
            .map_err(|e| broken(&e))?
            .map(|btf| multi::load_btf(&btf.to_bytes()))
            .transpose()
            .map_err(|e| broken(&e))?,
        None => None,
    };
    let text: HashSet<usize> = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let maps: Vec<(String, i32, aya_obj::Map)> = bpf
        .maps()
        .filter_map(|(name, map)| {
            let fd = map_data(map)?.fd().as_fd().as_raw_fd();
            Some((name.to_owned(), fd, object.maps.get(name)?.clone()))
        })
        .collect();
    object
        .relocate_maps(maps.iter().map(|(n, fd, m)| (n.as_str(), *fd, m)), &text)
        .map_err(|e| broken(&e))?;
    object.relocate_calls(&text).map_err(|e| broken(&e))?;
    let mut programs = BTreeMap::new();
    for program in Program::ALL {
        let function = object
            .programs
            .get(program.name())
            .and_then(|p| object.functions.get(&p.function_key()))
            .ok_or_else(|| ProbeError::Missing(program.name().to_owned()))?;
        let btf = btf.as_ref().map(AsFd::as_fd);
        let loaded = multi::load_program(program.name(), function, btf);
        let error = |(source, log)| ProbeError::Program {
            program: program.name().to_owned(),
            log,
            source,
        };
        match loaded.map_err(error) {
            Ok(fd) => {
                programs.insert(program, fd);
            }
            // Nothing else depends on it.
            Err(error) if program.needs_multi() => {
                tracing::warn!(%error, "operators cannot be followed");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(programs)
}

/// Whether the kernel has the multi-uprobe link, and the link sees all threads of a process. Kernels before 6.6 accept the programs but
/// not the link. So this asks for a link with a path that cannot exist: a kernel that knows the link answers "no such file" (or "bad file"
/// if it checks that first). The first kernels that have the link see only the thread whose number is that of the process. The change that
/// mended it (6.10, and later releases of 6.6 and 6.9) also made the kernel refuse a negative process number as invalid, whatever the
/// path is.
fn multi_works(programs: &BTreeMap<Program, OwnedFd>) -> bool {
    let Some(program) = programs.get(&Program::LinkerHook) else {
        return false;
    };
    let point = multi::Point {
        offset: 0,
        cookie: 0,
    };
    let refused = |process: u32| {
        let path = c"/proc/self/no-such-file".to_owned();
        let link = multi::attach(program.as_fd(), &path, process, &[point], false);
        link.err().and_then(|error| error.raw_os_error())
    };
    sees_all_threads(refused(std::process::id()), refused(u32::MAX))
}

/// What the kernel's refusals of two links say (see [`multi_works`]): one for a process, and one for a process with a negative number.
fn sees_all_threads(refused: Option<i32>, refused_negative: Option<i32>) -> bool {
    matches!(
        refused,
        None | Some(libc::ENOENT | libc::EBADF | libc::ENOTDIR)
    ) && refused_negative == Some(libc::EINVAL)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_sees_one_thread_only_is_not_used() {
        // Without the link, with the first one, and with the mended one.
        assert!(!sees_all_threads(Some(libc::EINVAL), Some(libc::EINVAL)));
        assert!(!sees_all_threads(Some(libc::ENOENT), Some(libc::ENOENT)));
        assert!(sees_all_threads(Some(libc::ENOENT), Some(libc::EINVAL)));
        assert!(sees_all_threads(Some(libc::EBADF), Some(libc::EINVAL)));
    }

    /// Without it the kernel gives a program one stack for each processor, on which two threads can meet
    /// (memscope-ebpf/src/own_stack.rs).
    #[test]
    fn every_uprobe_program_keeps_its_own_stack() {
        let object = aya_obj::Object::parse(&super::object().unwrap()).unwrap();
        for program in Program::ALL {
            let found = &object.programs[program.name()];
            let function = &object.functions[&found.function_key()];
            let tail_call = function.instructions.iter().any(|one| {
                // A call of the helper `bpf_tail_call`.
                one.code == 0x85 && one.src_reg() == 0 && one.imm == 12
            });
            assert!(tail_call, "{}", program.name());
        }
    }

    #[test]
    fn a_layout_that_nobody_uses_makes_room() {
        let layout = |tls: i64| PythonEntry {
            tls_offsets: [tls, 0, 0],
            ..PythonEntry::default()
        };
        let mut known = Vec::new();
        for n in 0..memscope_common::PYTHONS {
            let entry = layout(i64::from(n));
            assert_eq!(place_of(&known, &entry), Some(n as usize));
            known.push((entry, BTreeSet::from([n + 1])));
        }
        assert_eq!(place_of(&known, &layout(5)), Some(5), "known");
        assert_eq!(place_of(&known, &layout(-1)), None, "all are in use");
        known[7].1.clear();
        assert_eq!(place_of(&known, &layout(-1)), Some(7));
        assert_eq!(place_of(&known, &layout(7)), Some(7), "it is still there");
    }
}
