//! From a process to its sites: every mapped object, the functions in it, and what is missing.

mod answer;
pub use answer::at_level;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use memscope_common::Cookie;
use memscope_ledger::event::Level;

use crate::SiteError;
use crate::elf::{Elf, ElfError};
use crate::file_sites::{self, FileSites, Why};
use crate::identity::FileIdentity;
use crate::mapped::{self, Mapped, MappedObject, OpenError, OpenObject, OpenedBy};
use crate::place::{Emulation, Machine};
use crate::process;
use crate::settings::SettingsPlace;
use memscope_vendors::{Layer, Row, Variant};

use answer::{Answer, chain};

/// So many files are remembered.
const MAX_CACHED: usize = 4096;

/// Finds sites; remembers what it found in each file.
#[derive(Debug)]
pub struct Resolver {
    emulation: Emulation,
    cache: HashMap<FileIdentity, Known>,
    round: u64,
}

#[derive(Debug)]
struct Known {
    sites: Arc<FileSites>,
    used: u64,
}

/// What an opened object turned out to be.
enum Looked {
    /// An ELF file: which, its load bias (where known), its sites.
    Sites(FileIdentity, Option<u64>, Arc<FileSites>),
    /// ELF of another kind of machine.
    Foreign(&'static str),
    /// No ELF file.
    Other,
}

/// What a process has.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// Objects with at least one site of the level, in address order.
    pub objects: Vec<ObjectSites>,
    /// What was looked for and has no probe, with the reason.
    pub missing: Vec<Missing>,
    /// Where the dynamic linker tells that objects were mapped or unmapped.
    pub loader_hook: Option<LoaderHook>,
    /// Address of PyTorch's pointer to the allocator in use ([`crate::backend`]).
    pub allocator_address: Option<u64>,
    /// The file that it is from.
    pub allocator_file: Option<FileIdentity>,
    /// Address of PyTorch's number of devices: a 32-bit number, 0 until PyTorch asked for it.
    pub device_count_address: Option<u64>,
    /// Where PyTorch's allocator settings may be ([`crate::settings`]).
    pub settings: Vec<SettingsPlace>,
    /// PyTorch's CUDA allocator library is mapped.
    pub pytorch: bool,
    /// torch_npu's library is mapped: its allocator is the one in use, whatever else PyTorch was built with.
    pub torch_npu: bool,
    /// A device's runtime or driver is mapped, whether or not a probe may stand in it.
    pub device_library: bool,
    /// Executable objects looked at.
    pub examined: usize,
    /// Of these, objects whose file had to be read (the others were remembered).
    pub scanned: usize,
}

/// One object and its sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSites {
    /// A path to this very file, good for an attach while the mapping exists.
    pub open_path: PathBuf,
    /// How the file was found.
    pub opened_by: OpenedBy,
    /// Path as the process knows it.
    pub display_path: String,
    /// Which file.
    pub identity: FileIdentity,
    /// Runtime address = this + the file's own address (wrapping).
    pub base: u64,
    /// Sites.
    pub sites: Vec<FoundSite>,
    /// The path no longer names this file.
    pub deleted: bool,
}

/// A function that a probe can be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSite {
    /// Which function it is.
    pub row: &'static Row,
    /// Which variant.
    pub variant: Variant,
    /// The symbol that was found.
    pub symbol: String,
    /// Other symbols at the same address.
    pub aliases: Vec<String>,
    /// Offset of the function's first instruction in the file.
    pub function_offset: u64,
    /// File offset for the entry probe.
    pub entry_offset: u64,
    /// File offset for the return probe, where the row wants one.
    pub return_offset: Option<u64>,
    /// The kernel emulates the instruction there.
    pub emulated: bool,
    /// Bytes pushed between the function's entry and the entry probe.
    pub pushed: u32,
    /// Address of the function in the process.
    pub address: u64,
    /// Why the probe stands there: one sentence.
    pub reason: String,
}

impl FoundSite {
    /// The attach cookie.
    pub fn cookie(&self, site: u32) -> Cookie {
        self.row.cookie(site, self.variant)
    }
}

/// The dynamic linker's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderHook {
    /// A path to the linker that is mapped.
    pub open_path: PathBuf,
    /// Path as the process knows it.
    pub display_path: String,
    /// Which file.
    pub identity: FileIdentity,
    /// The function.
    pub site: FoundSite,
}

/// A function without a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Path of the object, as the process knows it.
    pub library: String,
    /// The function; `*` for all of an object.
    pub function: String,
    /// Its layer, where it is one function.
    pub layer: Option<Layer>,
    /// Why.
    pub why: Why,
}

impl Missing {
    /// Nobody needs to be told: nothing in use today goes through it.
    pub fn is_harmless(&self) -> bool {
        self.why == Why::Narrow
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.function.as_str() {
            "*" => write!(f, "{}: {}", self.library, self.why),
            function => write!(f, "{function} in {}: {}", self.library, self.why),
        }
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new()
    }
}

impl Resolver {
    /// For the running kernel.
    pub fn new() -> Resolver {
        Resolver::for_kernel(Emulation::of_this_kernel())
    }

    /// For a kernel that emulates these instructions.
    pub fn for_kernel(emulation: Emulation) -> Resolver {
        Resolver {
            emulation,
            cache: HashMap::new(),
            round: 0,
        }
    }

    /// Finds the sites of a process.
    pub fn resolve(&mut self, pid: u32, level: Level) -> Result<Resolved, SiteError> {
        let before = process::alive(pid)?;
        self.round += 1;
        let mut answer = Answer {
            pid,
            level,
            resolved: Resolved::default(),
            foreign: None,
            readable: false,
        };
        let mut mapped = mapped::read(pid)?;
        for object in executable(&mapped) {
            match object.open(pid) {
                Ok(open) => self.object(&mut answer, &object, open),
                // Its ranges changed since the maps were read (mprotect splits them).
                Err(OpenError::Unmapped) => {
                    mapped = mapped::read(pid)?;
                    let again = mapped.objects.iter().find(|other| {
                        (other.device, other.inode) == (object.device, object.inode)
                            && other.path == object.path
                            && other.is_executable()
                    });
                    match again.map(|other| (other, other.open(pid))) {
                        Some((other, Ok(open))) => self.object(&mut answer, &other.clone(), open),
                        Some((_, Err(error))) => answer.unopened(&object, &error),
                        None => {}
                    }
                }
                Err(error) => answer.unopened(&object, &error),
            }
        }
        self.forget();
        let after = process::alive(pid)?;
        if after.start_ticks != before.start_ticks {
            return Err(SiteError::Reused { pid });
        }
        answer.finish()
    }

    fn object(&mut self, answer: &mut Answer, object: &MappedObject, open: OpenObject) {
        answer.resolved.examined += 1;
        match self.look(&mut answer.resolved.scanned, object, &open) {
            Ok(Looked::Sites(identity, base, sites)) => {
                answer.readable = true;
                answer.add(object, &open, identity, base, &sites);
            }
            Ok(Looked::Foreign(what)) => answer.foreign = Some(what),
            Ok(Looked::Other) => {}
            Err(error) => answer.missing(object, "*", None, Why::File(chain(&error))),
        }
    }

    /// What a file is and has, from memory or by reading it.
    fn look(
        &mut self,
        scanned: &mut usize,
        object: &MappedObject,
        open: &OpenObject,
    ) -> Result<Looked, ElfError> {
        let elf = match Elf::read(&open.bytes) {
            Ok(elf) => elf,
            Err(ElfError::Kind(what)) => return Ok(Looked::Foreign(what)),
            Err(ElfError::NotElf) => return Ok(Looked::Other),
            Err(error) => return Err(error),
        };
        if Machine::from_elf(elf.machine) != Machine::this() {
            return Ok(Looked::Foreign("code of another machine"));
        }
        let identity = FileIdentity::new(&open.bytes.file().metadata()?, elf.build_id());
        let base = object.bias(&elf);
        if let Some(known) = self.cache.get_mut(&identity) {
            known.used = self.round;
            return Ok(Looked::Sites(identity, base, Arc::clone(&known.sites)));
        }
        *scanned += 1;
        let sites = Arc::new(file_sites::scan(&elf, self.emulation)?);
        let known = Known {
            sites: Arc::clone(&sites),
            used: self.round,
        };
        self.cache.insert(identity.clone(), known);
        Ok(Looked::Sites(identity, base, sites))
    }

    /// Drops the files that no process of the last rounds had, once there are many.
    fn forget(&mut self) {
        let mut age = 16;
        while self.cache.len() > MAX_CACHED {
            let oldest = self.round.saturating_sub(age);
            self.cache.retain(|_, known| known.used > oldest);
            if age == 0 {
                self.cache.clear();
            }
            age /= 2;
        }
    }
}

fn executable(mapped: &Mapped) -> Vec<MappedObject> {
    mapped
        .objects
        .iter()
        .filter(|object| object.is_executable())
        .cloned()
        .collect()
}
