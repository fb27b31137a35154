//! PyTorch's operators in a process, and what tells the memory of a tensor from anything else.

use std::path::PathBuf;
use std::sync::Arc;

use super::Resolver;
use memscope_common::{STORAGE_TABLES, StorageEntry};

use crate::SiteError;
use crate::elf::{Budget, Elf, ElfError};
use crate::identity::FileIdentity;
use crate::mapped::{self, MappedObject, OpenObject};
use crate::operators::{self, Operators};

/// Most libraries whose operators are kept. Searching one takes about a second.
const MOST_KEPT: usize = 4;
/// File name of the library with the operators.
const LIBRARY: &str = "libtorch_cpu.so";
/// Libraries that may have the class that holds the memory of a tensor.
const STORAGES: [&str; STORAGE_TABLES] = [
    "libc10.so",
    LIBRARY,
    "libtorch_python.so",
    "libtorch_cuda.so",
];
/// The symbol of that class's table of virtual functions.
const STORAGE: &[u8] = b"_ZTVN3c1011StorageImplE";
/// The library with a class of its own for that, whose table has no symbol.
const OF_NPU: &str = "libtorch_npu.so";
/// Bytes from the symbol of such a table to the address that objects have. Two words come before it: the offset to the whole
/// object, and what describes its type.
const TABLE: u64 = 16;

/// The operators of the PyTorch that a process has mapped.
#[derive(Clone, Debug)]
pub struct ProcessOperators {
    /// A path to the library, which can be used for an attach while the mapping exists.
    pub open_path: PathBuf,
    /// The library's path in the process's mount namespace, for users.
    pub display_path: String,
    /// Identity of the library.
    pub identity: FileIdentity,
    /// The operators in it.
    pub operators: Arc<Operators>,
    /// What the programs must know to find the memory of a tensor.
    pub storages: StorageEntry,
}

impl Resolver {
    /// Finds the operators of a process. `None` if it has not mapped PyTorch.
    ///
    /// # Errors
    /// The process has ended, or its mappings or PyTorch's libraries cannot be read.
    pub fn operators(&mut self, pid: u32) -> Result<Option<ProcessOperators>, SiteError> {
        let (found, storages) = self.of_pytorch(pid, true)?;
        Ok(found.map(|found| ProcessOperators { storages, ..found }))
    }

    /// Only what tells the memory of a tensor from anything else. Libraries that come after PyTorch's may change it.
    ///
    /// # Errors
    /// The process has ended, or its mappings or PyTorch's libraries cannot be read.
    pub fn storages(&mut self, pid: u32) -> Result<StorageEntry, SiteError> {
        self.of_pytorch(pid, false).map(|(_, storages)| storages)
    }

    /// What tells the memory of a tensor, and the operators if these are wanted.
    fn of_pytorch(
        &mut self,
        pid: u32,
        operators: bool,
    ) -> Result<(Option<ProcessOperators>, StorageEntry), SiteError> {
        let mapped = mapped::read(pid)?;
        let budget = Budget::of_process();
        let mut found = None;
        let mut storages = StorageEntry::default();
        for object in super::executable(&mapped) {
            let name = object.file_name();
            if name == OF_NPU {
                let last = object.mappings.last().map(|mapping| mapping.end);
                let first = object.mappings.first().map(|mapping| mapping.start);
                storages.npu = first.zip(last).map_or([0, 0], |(from, to)| [from, to]);
            }
            let Some(place) = STORAGES.iter().position(|library| name == *library) else {
                continue;
            };
            // What cannot be opened has gone since.
            let Ok(open) = object.open(pid) else {
                continue;
            };
            let bad = |source| SiteError::Library {
                path: object.display_path(),
                source,
            };
            let elf = Elf::read_within(&open.bytes, &budget).map_err(bad)?;
            if name == LIBRARY && operators {
                found = Some(self.of_library(&object, &open, &elf).map_err(bad)?);
            }
            let at = self.table_in(&open, &elf).map_err(bad)?;
            if let (Some((at, base)), Some(table)) =
                (at.zip(object.bias(&elf)), storages.tables.get_mut(place))
            {
                *table = at.wrapping_add(base).wrapping_add(TABLE);
            }
        }
        Ok((found, storages))
    }

    /// Address of the table of virtual functions in a library, in the file's own numbering. It is searched for once in each file, since
    /// PyTorch's libraries have hundreds of thousands of symbols.
    fn table_in(
        &mut self,
        open: &OpenObject,
        elf: &Elf<'_, crate::elf::FileBytes>,
    ) -> Result<Option<u64>, ElfError> {
        let identity = FileIdentity::new(open.bytes.file().facts(), None);
        let mut known = self.tables.iter();
        if let Some((_, table)) = known.find(|(known, _)| *known == identity) {
            return Ok(*table);
        }
        let table = table_of(elf, STORAGE)?;
        if self.tables.len() >= MOST_KEPT * STORAGE_TABLES {
            self.tables.remove(0);
        }
        self.tables.push((identity, table));
        Ok(table)
    }

    fn of_library(
        &mut self,
        object: &MappedObject,
        open: &OpenObject,
        elf: &Elf<'_, crate::elf::FileBytes>,
    ) -> Result<ProcessOperators, ElfError> {
        let identity = FileIdentity::new(open.bytes.file().facts(), elf.build_id());
        let kept = self.operators.iter().find(|(known, _)| *known == identity);
        let operators = match kept {
            Some((_, operators)) => Arc::clone(operators),
            None => {
                let operators = Arc::new(operators::find(elf, self.emulation)?);
                if self.operators.len() >= MOST_KEPT {
                    self.operators.remove(0);
                }
                self.operators
                    .push((identity.clone(), Arc::clone(&operators)));
                operators
            }
        };
        Ok(ProcessOperators {
            open_path: open.open_path.clone(),
            display_path: object.display_path(),
            identity,
            operators,
            storages: StorageEntry::default(),
        })
    }
}

/// Address of a symbol, in the file's own numbering.
fn table_of(elf: &Elf<'_, crate::elf::FileBytes>, wanted: &[u8]) -> Result<Option<u64>, ElfError> {
    let Some(symbols) = elf.exported_symbols()? else {
        return Ok(None);
    };
    let mut found = symbols.defined_like(|name| {
        name.strip_prefix(wanted)
            .is_some_and(|rest| rest.first() == Some(&0))
    });
    Ok(found.next().map(|symbol| symbol.address))
}
