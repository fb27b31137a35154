//! The vendors' functions in one file: which symbol belongs to which row, and where the probes stand.
//! Nothing here depends on a process, so the result is kept and used again for other processes that map the file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;

use object::elf::{STT_FUNC, STT_GNU_IFUNC};

use crate::calls::{self, NoCalls, TraceCalls};
use crate::elf::{Elf, ElfError, ReadAt, SymbolTable, Whole};
use crate::place::{self, Code, Emulation, Machine, PlaceError, Placement, Wants};
use crate::stripped::{self, NotFound};
use memscope_vendors::pytorch::{self, Reading};
use memscope_vendors::{Match, Purpose, Row, Variant, torch_npu};

/// Size in bytes of the largest function that is read to its end.
const MAX_FUNCTION: u64 = 1 << 20;
/// Number of bytes that are read of a function whose end is not known.
const SOME: u64 = 256;

/// Most names of functions in one file that are looked at. The vendors' tables have a few hundred functions, and the
/// libraries of one vendor define each of them once or twice.
pub(crate) const MOST_NAMES: usize = 4096;

/// Why a function has no probe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// The file defines no such symbol.
    #[error("it is not defined there")]
    NotDefined,
    /// The symbol is local, and the file's symbol table was stripped.
    #[error("the file was stripped of its symbol table, so local functions cannot be found")]
    Stripped,
    /// The file was stripped, and the function was not found by its code either.
    #[error("{0}")]
    NotFound(#[from] NotFound),
    /// The symbol is an indirect function (IFUNC): a function of the program chooses its code at run time.
    #[error("it is an indirect function (IFUNC), whose code is chosen at run time")]
    Ifunc,
    /// The symbol is a variant of the function that is not known. The text is the reason, for users.
    #[error("{0}")]
    Variant(String),
    /// The function has pointers of 32 bits.
    #[error("it has 32-bit pointers (the driver API of CUDA 3.1 and older)")]
    Narrow,
    /// Two functions that do different things share the same code. The text is the symbol of the other one.
    #[error("it shares its code with {0}, so calls of the two cannot be told apart")]
    Folded(String),
    /// The symbol does not lie in code of the file.
    #[error("its symbol does not lie in code")]
    NotCode,
    /// The process has not mapped the function's code as executable.
    #[error("its code is not mapped")]
    NotMapped,
    /// No probe may stand in the function.
    #[error("{0}")]
    Place(#[from] PlaceError),
    /// A user could keep the kernel waiting for the file. The text says how.
    #[error(
        "{0}, and a probe is not placed where a user could keep the kernel waiting for the file; if you trust that user, start memscoped with --probe-user-mounts"
    )]
    UserMount(&'static str),
    /// The file cannot be opened or read. The text is the reason, for users.
    #[error("{0}")]
    File(String),
}

/// A function that a probe can be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSite {
    pub row: &'static Row,
    pub variant: Variant,
    pub symbol: String,
    pub aliases: Vec<String>,
    /// Address of the function in the file's own numbering.
    pub address: u64,
    /// The function's offset in the file.
    pub offset: u64,
    pub placement: Placement,
    /// For PyTorch's `record_trace`: where it is called, or why that cannot be used.
    pub calls: Option<Result<TraceCalls, NoCalls>>,
}

/// A function that is in the file but gets no probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub row: &'static Row,
    pub symbol: String,
    pub why: Why,
}

/// What was found in one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSites {
    pub sites: Vec<FileSite>,
    pub refused: Vec<Refusal>,
    /// Address of the framework's pointer to its allocator, in the file's own numbering.
    pub allocator: Option<u64>,
    /// Whether the file is torch_npu's library, which exports that pointer under torch_npu's name.
    pub torch_npu: bool,
    /// Address of PyTorch's number of devices, in the file's own numbering.
    pub device_count: Option<u64>,
    /// Addresses of PyTorch's allocator settings, and of a pointer to them, in the file's own numbering.
    pub settings: (Option<u64>, Option<u64>),
    pub stripped: bool,
}

/// The rows by their symbols, and the beginnings of these symbols for a quick check.
struct Index {
    exact: HashMap<&'static [u8], &'static Row>,
    mangled: Vec<(&'static str, &'static Row)>,
    /// For each pair of bytes: whether a symbol of interest has them as its fourth and fifth byte.
    pairs: Vec<bool>,
    /// First bytes of the symbols of C functions.
    plain: HashSet<[u8; PLAIN]>,
    /// First bytes of mangled symbols.
    heads: HashSet<[u8; MANGLED]>,
}

/// Number of first bytes that are compared for C functions: no such name that we look for is shorter.
const PLAIN: usize = 6;
/// Number of first bytes that are compared for mangled names. It is larger, since many names begin with the same
/// namespaces.
const MANGLED: usize = 18;

/// Variables that we look for, in addition to the functions of the rows.
const VARIABLES: [&str; 5] = [
    pytorch::ALLOCATOR,
    pytorch::DEVICE_COUNT,
    pytorch::SETTINGS,
    pytorch::SETTINGS_POINTER,
    torch_npu::ALLOCATOR,
];

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut index = Index {
        exact: HashMap::new(),
        mangled: Vec::new(),
        pairs: vec![false; 1 << 16],
        plain: HashSet::new(),
        heads: HashSet::new(),
    };
    for row in memscope_vendors::rows() {
        match row.symbol {
            Match::Exact(name) => {
                index.exact.insert(name.as_bytes(), row);
                index.look_for(name);
            }
            Match::Mangled(prefix) => {
                index.mangled.push((prefix, row));
                index.look_for(prefix);
            }
            Match::Calls(_) => {}
        }
    }
    for name in VARIABLES {
        index.look_for(name);
    }
    index
});

/// Index in [`Index::pairs`] for the fourth and fifth byte of a name.
fn pair(name: &[u8]) -> Option<usize> {
    let (fourth, fifth) = (*name.get(3)?, *name.get(4)?);
    Some(usize::from(fourth) << 8 | usize::from(fifth))
}

impl Index {
    fn look_for(&mut self, name: &str) {
        let name = name.as_bytes();
        if let Some(place) = pair(name).and_then(|place| self.pairs.get_mut(place)) {
            *place = true;
        }
        match name.starts_with(b"_Z") {
            true => self.heads.extend(name.first_chunk()),
            false => self.plain.extend(name.first_chunk()),
        }
    }

    /// Whether a name with this beginning may be of interest. Must be quick: it is called for millions of names.
    fn may_be(name: &[u8]) -> bool {
        let index = &*INDEX;
        if pair(name).is_none_or(|place| index.pairs.get(place) != Some(&true)) {
            return false;
        }
        match name.starts_with(b"_Z") {
            true => name
                .first_chunk()
                .is_some_and(|head| index.heads.contains(head)),
            false => name
                .first_chunk()
                .is_some_and(|head| index.plain.contains(head)),
        }
    }

    /// The row that a symbol belongs to.
    fn find(&self, name: &[u8]) -> Option<(&'static Row, Reading)> {
        if let Some(row) = self.exact.get(name) {
            return Some((row, Reading::Is(Variant::Only)));
        }
        let name = std::str::from_utf8(name).ok()?;
        self.mangled.iter().find_map(|(prefix, row)| {
            let rest = name.strip_prefix(prefix)?;
            Some((*row, pytorch::read(prefix, row.purpose, rest)))
        })
    }
}

struct Candidate {
    row: &'static Row,
    variant: Variant,
    symbol: String,
    size: u64,
    global: bool,
}

#[derive(Default)]
struct Candidates {
    by_address: BTreeMap<u64, Vec<Candidate>>,
    refused: Vec<Refusal>,
    /// The row, the symbol and the reason of each refusal.
    refusals: HashSet<(&'static str, String, String)>,
    /// Number of names that were taken in.
    names: usize,
    allocator: Option<u64>,
    torch_npu: bool,
    device_count: Option<u64>,
    settings: (Option<u64>, Option<u64>),
}

impl Candidates {
    /// Counts one more name. Fails if there are too many in the file.
    fn count(&mut self) -> Result<(), ElfError> {
        self.names += 1;
        match self.names <= MOST_NAMES {
            true => Ok(()),
            false => Err(ElfError::TooMany {
                what: "names of allocators' functions",
                whole: Whole::File,
                most: MOST_NAMES as u64,
            }),
        }
    }

    fn has(&self, name: &str) -> bool {
        let found = self.by_address.values().flatten();
        let mut rows = found
            .map(|c| c.row)
            .chain(self.refused.iter().map(|r| r.row));
        rows.any(|row| row.name == name)
    }

    /// Adds a function or an instruction that has no symbol of its own.
    fn add(&mut self, address: u64, row: &'static Row, variant: Variant) -> Result<(), ElfError> {
        self.count()?;
        self.by_address.entry(address).or_default().push(Candidate {
            row,
            variant,
            symbol: row.name.to_owned(),
            size: 0,
            global: false,
        });
        Ok(())
    }

    /// In torch_npu's library: finds the functions if there are no symbols for them, and the calls by which other
    /// allocators report.
    fn search<R: ReadAt + ?Sized>(&mut self, elf: &Elf<'_, R>) -> Result<(), ElfError> {
        let (true, Some(report), Some(trace), Some(workspace)) = (
            self.torch_npu,
            memscope_vendors::row(torch_npu::REPORT),
            memscope_vendors::row(torch_npu::TRACE),
            memscope_vendors::row(torch_npu::WORKSPACE),
        ) else {
            return Ok(());
        };
        if self.has(torch_npu::REPORT) || self.has(torch_npu::TRACE) {
            let component = true;
            let named = self.by_address.iter().find_map(|(address, here)| {
                let is = |c: &Candidate| c.variant == Variant::Usage { component };
                here.iter().any(is).then_some(*address)
            });
            if let Some(address) = named {
                // All calls of the report get a probe here, since the structure says which allocator calls.
                for at in stripped::report_calls(elf, address)? {
                    self.add(at, workspace, Variant::Usage { component })?;
                }
            }
            return Ok(());
        }
        match stripped::find(elf)? {
            Ok(found) => {
                let component = found.component;
                for (address, row, variant) in [
                    (found.report, report, Variant::Usage { component }),
                    (found.trace, trace, Variant::Trace(torch_npu::TRACE_ABI)),
                ] {
                    self.add(address, row, variant)?;
                }
                for at in found.others {
                    self.add(at, workspace, Variant::Usage { component })?;
                }
            }
            Err(why) => {
                for row in [report, trace] {
                    self.refuse(row, row.name.to_owned(), Why::NotFound(why.clone()))?;
                }
            }
        }
        Ok(())
    }

    fn collect<R: ReadAt + ?Sized>(
        &mut self,
        elf: &Elf<'_, R>,
        table: &SymbolTable,
    ) -> Result<(), ElfError> {
        for symbol in table.defined_like(Index::may_be) {
            elf.look_at(symbol.name.len() as u64)?;
            if symbol.name == pytorch::ALLOCATOR.as_bytes() {
                self.allocator = Some(symbol.address);
                continue;
            }
            if symbol.name == torch_npu::ALLOCATOR.as_bytes() {
                self.allocator = Some(symbol.address);
                self.torch_npu = true;
                continue;
            }
            if symbol.name == pytorch::DEVICE_COUNT.as_bytes() {
                self.device_count = Some(symbol.address);
                continue;
            }
            if symbol.name == pytorch::SETTINGS.as_bytes() {
                self.settings.0 = Some(symbol.address);
                continue;
            }
            if symbol.name == pytorch::SETTINGS_POINTER.as_bytes() {
                self.settings.1 = Some(symbol.address);
                continue;
            }
            let kind = symbol.kind;
            let ifunc = kind == STT_GNU_IFUNC.0;
            if kind != STT_FUNC.0 && !ifunc {
                continue;
            }
            let Some((row, reading)) = INDEX.find(symbol.name) else {
                continue;
            };
            let name = String::from_utf8_lossy(symbol.name).into_owned();
            match reading {
                Reading::Piece => {}
                Reading::Refused(why) => self.refuse(row, name, Why::Variant(why))?,
                Reading::Is(_) if ifunc => self.refuse(row, name, Why::Ifunc)?,
                Reading::Is(variant) => {
                    let here = self.by_address.entry(symbol.address).or_default();
                    if !here.iter().any(|known| known.symbol == name) {
                        here.push(Candidate {
                            row,
                            variant,
                            symbol: name,
                            size: symbol.size,
                            global: symbol.global,
                        });
                        self.count()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, row: &'static Row, symbol: String, why: Why) -> Result<(), ElfError> {
        let key = (row.name, symbol.clone(), why.to_string());
        if self.refusals.insert(key) {
            self.count()?;
            self.refused.push(Refusal { row, symbol, why });
        }
        Ok(())
    }
}

/// Finds all functions in a file, and the places of their probes.
pub(crate) fn scan<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    emulation: Emulation,
) -> Result<FileSites, ElfError> {
    let exported = elf.exported_symbols()?;
    let all = elf.all_symbols()?;
    let tables: Vec<&SymbolTable> = exported.iter().chain(all.iter()).collect();
    let mut candidates = Candidates::default();
    for table in &tables {
        candidates.collect(elf, table)?;
    }
    candidates.search(elf)?;
    let mut entries: Vec<u64> = Vec::new();
    if !candidates.by_address.is_empty() {
        entries.extend(tables.iter().flat_map(|table| table.entries()));
        entries.sort_unstable();
        entries.dedup();
    }
    let mut found = FileSites {
        refused: std::mem::take(&mut candidates.refused),
        allocator: candidates.allocator,
        torch_npu: candidates.torch_npu,
        device_count: candidates.device_count,
        settings: candidates.settings,
        stripped: all.is_none(),
        sites: Vec::new(),
    };
    for (address, here) in candidates.by_address {
        match choose(here) {
            Ok((chosen, aliases)) => {
                let row = chosen.row;
                let symbol = chosen.symbol.clone();
                match site(elf, emulation, address, chosen, aliases, &entries)? {
                    Ok(mut site) => {
                        if row.purpose == Purpose::Trace && !candidates.torch_npu {
                            site.calls = Some(calls::find(elf, &tables, address)?);
                        }
                        found.sites.push(site);
                    }
                    Err(why) => found.refused.push(Refusal { row, symbol, why }),
                }
            }
            Err(refused) => found.refused.extend(refused),
        }
    }
    Ok(found)
}

/// Chooses among several names of one address: the result is the name whose row is probed, and the other names. If the
/// names belong to functions that do different things, all of them are refused.
fn choose(mut here: Vec<Candidate>) -> Result<(Candidate, Vec<String>), Vec<Refusal>> {
    here.sort_by_key(|c| (c.row.narrow, c.row.per_thread_stream, !c.global));
    let first = here
        .first()
        .map(|c| (c.row.purpose, c.row.abi, c.row.narrow));
    if let Some((_, _, true)) = first {
        return Err(refuse_all(here, |_| Why::Narrow));
    }
    let differs = here
        .iter()
        .find(|c| !c.row.narrow && Some((c.row.purpose, c.row.abi, false)) != first)
        .map(|c| c.symbol.clone());
    if let Some(other) = differs {
        let name = here[0].symbol.clone();
        return Err(refuse_all(here, |c| {
            Why::Folded(if c.symbol == name {
                other.clone()
            } else {
                name.clone()
            })
        }));
    }
    let mut rest = here.into_iter();
    match rest.next() {
        Some(chosen) => Ok((chosen, rest.map(|c| c.symbol).collect())),
        None => Err(Vec::new()),
    }
}

fn refuse_all(here: Vec<Candidate>, why: impl Fn(&Candidate) -> Why) -> Vec<Refusal> {
    here.into_iter()
        .map(|candidate| Refusal {
            row: candidate.row,
            why: why(&candidate),
            symbol: candidate.symbol,
        })
        .collect()
}

fn site<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    emulation: Emulation,
    address: u64,
    chosen: Candidate,
    aliases: Vec<String>,
    entries: &[u64],
) -> Result<Result<FileSite, Why>, ElfError> {
    let Some((offset, available)) = elf.code_offset_of(address) else {
        return Ok(Err(Why::NotCode));
    };
    let whole = (1..=MAX_FUNCTION.min(available)).contains(&chosen.size);
    let size = if whole {
        chosen.size
    } else {
        SOME.min(available)
    };
    // Functions may lie over one another, so the same code may be decoded many times.
    elf.look_at(size)?;
    let bytes = elf.bytes_at(offset, size, "the code of a function")?;
    let first = entries.partition_point(|entry| *entry <= address);
    let end = entries.partition_point(|entry| *entry < address.saturating_add(size));
    // Only what the nearest one is matters.
    let end = end.min(first.saturating_add(1));
    let code = Code {
        bytes: &bytes,
        whole,
        address,
        entries: entries.get(first..end).unwrap_or(&[]),
    };
    let stack = match chosen.variant {
        // The pool's id is an argument on the stack.
        Variant::Trace(abi) => abi.pool,
        Variant::Only | Variant::OldString | Variant::Usage { .. } => chosen.row.abi.stack,
    };
    let wants = Wants {
        returns: chosen.row.returns,
        stack,
    };
    let machine = Machine::from_elf(elf.machine);
    let placement = match chosen.row.purpose {
        Purpose::Workspace => place::on_call(),
        _ => match place::place(machine, &code, wants, emulation) {
            Ok(placement) => placement,
            Err(refused) => return Ok(Err(Why::Place(refused))),
        },
    };
    Ok(Ok(FileSite {
        row: chosen.row,
        variant: chosen.variant,
        symbol: chosen.symbol,
        aliases,
        address,
        offset,
        placement,
        calls: None,
    }))
}

impl FileSites {
    /// Number of names that are kept.
    pub fn names(&self) -> usize {
        let aliases: usize = self.sites.iter().map(|site| site.aliases.len()).sum();
        self.sites.len() + self.refused.len() + aliases
    }

    /// The functions that a file with this name should have but does not have, with the reasons.
    pub fn lacking(&self, file_name: &str) -> Vec<(&'static Row, Why)> {
        memscope_vendors::rows()
            .iter()
            .filter(|row| row.essential && file_name.starts_with(row.library))
            .filter(|row| !self.sites.iter().any(|site| same(site.row, row)))
            .filter(|row| !self.refused.iter().any(|refusal| same(refusal.row, row)))
            .map(|row| {
                let local = row.purpose == Purpose::Trace;
                let why = if local && self.stripped {
                    Why::Stripped
                } else {
                    Why::NotDefined
                };
                (row, why)
            })
            .collect()
    }
}

fn same(one: &Row, other: &Row) -> bool {
    one.name == other.name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_turned_away_by_its_first_letters() {
        for row in memscope_vendors::rows() {
            let (Match::Exact(name) | Match::Mangled(name)) = row.symbol else {
                continue;
            };
            assert!(Index::may_be(name.as_bytes()), "{name}");
        }
        for variable in VARIABLES {
            // `may_be` also sees the names that come after it in the file's table.
            assert!(Index::may_be(format!("{variable}\0other\0").as_bytes()));
        }
        for other in [
            "",
            "_ZN3c10",
            "_ZN5torch3jit",
            "cudnn",
            "malloc",
            "_ZNSt6vector",
        ] {
            assert!(!Index::may_be(other.as_bytes()), "{other}");
        }
    }
}
