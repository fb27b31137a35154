//! Finds the sites of a process: examines every mapped object, finds the functions in it, and names what is missing.

mod answer;
mod found;
mod operators;

pub use answer::at_level;
pub use found::{FoundSite, LoaderHook, Missing, ObjectSites, Resolved};
pub use operators::ProcessOperators;

use std::collections::HashMap;
use std::sync::Arc;

use memscope_ledger::event::Level;

use crate::SiteError;
use crate::elf::{Budget, Elf, ElfError, Segment, Whole};
use crate::file_sites::{self, FileSites};
use crate::identity::FileIdentity;
use crate::mapped::{self, Mapped, MappedObject, OpenError, OpenObject};
use crate::operators::Operators;
use crate::place::{Emulation, Machine};
use crate::process;

use answer::Answer;

/// Most files whose results are kept.
const MAX_CACHED: usize = 4096;
/// Most names of functions in all of these results.
const MAX_CACHED_NAMES: usize = 1 << 17;
/// So many segments of a file are kept with its result; libraries have four to six. Of a file with more they are read each time.
const KEPT_SEGMENTS: usize = 16;
/// Most names of allocators' functions in all files of one process. Real processes have about a thousand.
const MOST_NAMES: usize = 1 << 16;

/// Finds the sites of processes, and keeps what it has found in each file.
#[derive(Debug)]
pub struct Resolver {
    emulation: Emulation,
    user_mounts: bool,
    /// By the file's identity as far as the file system tells it, without the build id: a file that is known is not read.
    cache: HashMap<FileIdentity, CachedSites>,
    round: u64,
    /// Operators of the libraries that were searched for them last.
    operators: Vec<(FileIdentity, Arc<Operators>)>,
    /// In libraries that were searched for it last: the table of virtual functions of what holds the memory of tensors.
    tables: Vec<(FileIdentity, Option<u64>)>,
}

#[derive(Debug)]
struct CachedSites {
    identity: FileIdentity,
    /// What is loaded of it; `None` if that is in more pieces than are kept.
    segments: Option<Vec<Segment>>,
    sites: Arc<FileSites>,
    used: u64,
}

/// What an opened object is.
enum Looked {
    /// An ELF file for this machine: its identity, its load bias (if it is known), and what was found in it.
    Sites(FileIdentity, Option<u64>, Arc<FileSites>),
    /// An ELF file for another kind of machine, with a text that names the kind.
    Foreign(&'static str),
    /// Not an ELF file.
    Other,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new()
    }
}

impl Resolver {
    /// A resolver that chooses the places of probes for the running kernel.
    pub fn new() -> Resolver {
        Resolver::for_kernel(Emulation::of_this_kernel())
    }

    /// A resolver that chooses the places of probes for a kernel that emulates these instructions.
    pub fn for_kernel(emulation: Emulation) -> Resolver {
        Resolver {
            emulation,
            user_mounts: false,
            cache: HashMap::new(),
            round: 0,
            operators: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Whether sites may lie in files for which a user could keep the kernel waiting (see [`crate::mounts`]). At first they may not.
    pub fn with_user_mounts(self, allowed: bool) -> Resolver {
        Resolver {
            user_mounts: allowed,
            ..self
        }
    }

    /// Finds the sites of a process for this level. Fails if the process cannot be examined, or has ended meanwhile.
    pub fn resolve(&mut self, pid: u32, level: Level) -> Result<Resolved, SiteError> {
        let before = process::alive(pid)?;
        self.round += 1;
        let mut answer = Answer {
            pid,
            level,
            user_mounts: self.user_mounts,
            resolved: Resolved::default(),
            foreign: None,
            readable: false,
            names: 0,
        };
        let mut mapped = mapped::read(pid)?;
        let budget = Budget::of_process();
        for object in executable(&mapped) {
            match object.open(pid) {
                Ok(open) => self.object(&mut answer, &budget, &object, open),
                // The ranges of its mappings have changed since they were read (mprotect splits mappings).
                Err(OpenError::Unmapped) => {
                    mapped = mapped::read(pid)?;
                    let again = mapped.objects.iter().find(|other| {
                        (other.device, other.inode) == (object.device, object.inode)
                            && other.path == object.path
                            && other.is_executable()
                    });
                    match again.map(|other| (other, other.open(pid))) {
                        Some((other, Ok(open))) => {
                            self.object(&mut answer, &budget, &other.clone(), open)
                        }
                        Some((_, Err(error))) => answer.unopened(&object, &error),
                        None => {}
                    }
                }
                Err(error) => answer.unopened(&object, &error),
            }
        }
        self.forget();
        answer.resolved.read_bytes = budget.taken();
        answer.resolved.looked_at_bytes = budget.worked();
        let after = process::alive(pid)?;
        if after.start_ticks != before.start_ticks {
            return Err(SiteError::Reused { pid });
        }
        answer.finish()
    }

    fn object(
        &mut self,
        answer: &mut Answer,
        budget: &Budget,
        object: &MappedObject,
        open: OpenObject,
    ) {
        answer.resolved.examined += 1;
        match self.look(&mut answer.resolved.scanned, budget, object, &open) {
            Ok(Looked::Sites(identity, base, sites)) => {
                answer.readable = true;
                answer.names += sites.names();
                if answer.names > MOST_NAMES && sites.names() > 0 {
                    let error = ElfError::TooMany {
                        what: "names of allocators' functions",
                        whole: Whole::Process,
                        most: MOST_NAMES as u64,
                    };
                    answer.left_out(object, &error);
                    return;
                }
                answer.add(object, &open, identity, base, &sites);
            }
            Ok(Looked::Foreign(what)) => answer.foreign = Some(what),
            Ok(Looked::Other) => {}
            Err(error) => answer.left_out(object, &error),
        }
    }

    /// What a file is, and what was found in it: from an earlier result, or by searching it now.
    fn look(
        &mut self,
        scanned: &mut usize,
        budget: &Budget,
        object: &MappedObject,
        open: &OpenObject,
    ) -> Result<Looked, ElfError> {
        let facts = open.bytes.file().facts();
        let key = FileIdentity::new(facts, None);
        if let Some(known) = self.cache.get_mut(&key)
            && let Some(segments) = &known.segments
        {
            known.used = self.round;
            let base = object.bias_of(segments);
            let sites = Arc::clone(&known.sites);
            return Ok(Looked::Sites(known.identity.clone(), base, sites));
        }
        let elf = match Elf::read_within(&open.bytes, budget) {
            Ok(elf) => elf,
            Err(ElfError::Kind(what)) => return Ok(Looked::Foreign(what)),
            Err(ElfError::NotElf) => return Ok(Looked::Other),
            Err(error) => return Err(error),
        };
        if Machine::from_elf(elf.machine) != Machine::this() {
            return Ok(Looked::Foreign("code of another machine"));
        }
        let identity = FileIdentity::new(facts, elf.build_id());
        let base = object.bias(&elf);
        if let Some(known) = self.cache.get_mut(&key) {
            known.used = self.round;
            return Ok(Looked::Sites(identity, base, Arc::clone(&known.sites)));
        }
        *scanned += 1;
        let sites = Arc::new(file_sites::scan(&elf, self.emulation)?);
        let known = CachedSites {
            identity: identity.clone(),
            segments: loaded(&elf.segments),
            sites: Arc::clone(&sites),
            used: self.round,
        };
        self.cache.insert(key, known);
        Ok(Looked::Sites(identity, base, sites))
    }

    /// If there are too many results: drops those of files that no process had in the last calls of `resolve`.
    fn forget(&mut self) {
        let mut age = 16;
        let names = |cache: &HashMap<_, CachedSites>| -> usize {
            cache.values().map(|known| known.sites.names()).sum()
        };
        while self.cache.len() > MAX_CACHED || names(&self.cache) > MAX_CACHED_NAMES {
            let oldest = self.round.saturating_sub(age);
            self.cache.retain(|_, known| known.used > oldest);
            if age == 0 {
                self.cache.clear();
            }
            age /= 2;
        }
    }
}

/// The segments by which a file's place in memory is found, if they are few enough to be kept.
fn loaded(segments: &[Segment]) -> Option<Vec<Segment>> {
    let loads = segments.iter();
    let loads = loads.filter(|segment| segment.kind == object::elf::PT_LOAD.0);
    let loads: Vec<Segment> = loads.copied().collect();
    (loads.len() <= KEPT_SEGMENTS).then_some(loads)
}

fn executable(mapped: &Mapped) -> Vec<MappedObject> {
    mapped
        .objects
        .iter()
        .filter(|object| object.is_executable())
        .cloned()
        .collect()
}
