//! As much of ELF as is needed to find functions: program headers, section headers, symbol tables,
//! notes. Files are read with `pread` and never mapped, since access to a mapping whose file has
//! become shorter raises SIGBUS. A malformed file leads to an error, never to a panic or a huge allocation.

mod budget;
mod bytes;
mod error;
mod notes;
mod symbols;

use object::elf;

use bytes::{u16_at, u32_at, u64_at};

pub use budget::{
    Budget, MOST_OF_FILE, MOST_OF_PROCESS, MOST_TABLES, MOST_WORK_OF_FILE, MOST_WORK_OF_PROCESS,
};
pub use bytes::{FileBytes, ReadAt};
pub use error::{ElfError, Whole};
pub use notes::{Note, notes};
pub use symbols::{Symbol, SymbolTable};

/// Most program headers. Real files have about a dozen; each address that is looked up is compared with all of them.
const MAX_SEGMENTS: u64 = 256;
/// Most bytes of section headers: as many as there are without the extension for more than 65280 sections, which only
/// files before linking have.
const MAX_SECTIONS: u64 = 4 << 20;
/// Most bytes that are read of notes, of the sections' names and of the dynamic segment, which are all short.
const MAX_NOTES: u64 = 1 << 20;

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Type of the segment (`PT_*`).
    pub kind: u32,
    /// Access rights (`PF_*`).
    pub flags: u32,
    /// Offset of the segment in the file.
    pub offset: u64,
    /// Address of the segment in the file's own numbering.
    pub address: u64,
    /// Length of the segment in the file, in bytes.
    pub file_size: u64,
}

/// A section header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    name: u32,
    /// Type of the section (`SHT_*`).
    pub kind: u32,
    /// Attributes of the section (`SHF_*`).
    pub flags: u64,
    /// Address of the section in the file's own numbering; 0 if it is not loaded.
    pub address: u64,
    /// Offset of the section in the file.
    pub offset: u64,
    /// Length of the section in bytes.
    pub size: u64,
    /// Index of another section that belongs to it (`sh_link`).
    pub link: u32,
    /// Size in bytes of the entries that it consists of; 0 if it has no entries of one size.
    pub entry_size: u64,
}

/// The headers of one file.
#[derive(Debug)]
pub struct Elf<'a, R: ReadAt + ?Sized> {
    bytes: &'a R,
    /// What may still be read of the file, what of it may be held in memory, and what may be read of its process.
    file: Budget,
    tables: Budget,
    process: Option<&'a Budget>,
    /// Machine that the file is for (`EM_*`).
    pub machine: u16,
    /// The program headers.
    pub segments: Vec<Segment>,
    /// The section headers; empty if the file has none, or if only what is loaded was read.
    pub sections: Vec<Section>,
    names: Vec<u8>,
}

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;

impl<'a, R: ReadAt + ?Sized> Elf<'a, R> {
    /// Reads the program headers and section headers.
    pub fn read(bytes: &'a R) -> Result<Self, ElfError> {
        Elf::read_with(bytes, None)
    }

    /// The same, for one of the files of a process: all that is read is also taken from the process's budget.
    pub fn read_within(bytes: &'a R, process: &'a Budget) -> Result<Self, ElfError> {
        Elf::read_with(bytes, Some(process))
    }

    fn read_with(bytes: &'a R, process: Option<&'a Budget>) -> Result<Self, ElfError> {
        let mut elf = Elf::read_headers(bytes, process)?;
        let mut header = [0; HEADER];
        bytes.read_at(0, &mut header)?;
        elf.read_sections(&header)?;
        Ok(elf)
    }

    /// Reads only the program headers, which are also there when the file is read from a process's memory.
    pub fn read_loaded(bytes: &'a R) -> Result<Self, ElfError> {
        Elf::read_headers(bytes, None)
    }

    fn read_headers(bytes: &'a R, process: Option<&'a Budget>) -> Result<Self, ElfError> {
        let mut header = [0; HEADER];
        if bytes.length() < HEADER as u64 {
            return Err(ElfError::NotElf);
        }
        bytes.read_at(0, &mut header)?;
        if header[..4] != elf::ELFMAG {
            return Err(ElfError::NotElf);
        }
        if header[4] != 2 {
            return Err(ElfError::Kind("32 bits"));
        }
        if header[5] != 1 {
            return Err(ElfError::Kind("big endian"));
        }
        let mut read = Elf {
            bytes,
            file: Budget::of_file(),
            tables: Budget::of_tables(),
            process,
            machine: u16_at(&header, 18),
            segments: Vec::new(),
            sections: Vec::new(),
            names: Vec::new(),
        };
        let count = u64::from(u16_at(&header, 56));
        if count > 0 && usize::from(u16_at(&header, 54)) != PROGRAM_HEADER {
            return Err(ElfError::Damaged("program headers of another size"));
        }
        let table = read.range(
            u64_at(&header, 32),
            count * PROGRAM_HEADER as u64,
            MAX_SEGMENTS * PROGRAM_HEADER as u64,
            "the table of program headers",
        )?;
        read.segments = table
            .chunks_exact(PROGRAM_HEADER)
            .map(|raw| Segment {
                kind: u32_at(raw, 0),
                flags: u32_at(raw, 4),
                offset: u64_at(raw, 8),
                address: u64_at(raw, 16),
                file_size: u64_at(raw, 32),
            })
            .collect();
        Ok(read)
    }

    fn read_sections(&mut self, header: &[u8]) -> Result<(), ElfError> {
        let offset = u64_at(header, 40);
        if offset == 0 {
            return Ok(());
        }
        if usize::from(u16_at(header, 58)) != SECTION_HEADER {
            return Err(ElfError::Damaged("section headers of another size"));
        }
        const TABLE: &str = "the table of section headers";
        let mut count = u64::from(u16_at(header, 60));
        let mut names = u32::from(u16_at(header, 62));
        if count == 0 || names == u32::from(u16::MAX) {
            // The file has too many sections for these fields: the first section header has the numbers.
            let first = self.range(offset, SECTION_HEADER as u64, MAX_SECTIONS, TABLE)?;
            if count == 0 {
                count = u64_at(&first, 32);
            }
            if names == u32::from(u16::MAX) {
                names = u32_at(&first, 40);
            }
        }
        let size = count
            .checked_mul(SECTION_HEADER as u64)
            .ok_or(ElfError::Outside(TABLE))?;
        let table = self.range(offset, size, MAX_SECTIONS, TABLE)?;
        self.sections = table
            .chunks_exact(SECTION_HEADER)
            .map(|raw| Section {
                name: u32_at(raw, 0),
                kind: u32_at(raw, 4),
                flags: u64_at(raw, 8),
                address: u64_at(raw, 16),
                offset: u64_at(raw, 24),
                size: u64_at(raw, 32),
                link: u32_at(raw, 40),
                entry_size: u64_at(raw, 56),
            })
            .collect();
        if let Some(names) = self.sections.get(names as usize).copied() {
            self.names =
                self.section_bytes(&names, MAX_NOTES, "the table of the sections' names")?;
        }
        Ok(())
    }

    /// Reads a table that has at most `most` bytes.
    fn range(
        &self,
        offset: u64,
        size: u64,
        most: u64,
        table: &'static str,
    ) -> Result<Vec<u8>, ElfError> {
        let end = offset.checked_add(size).ok_or(ElfError::Outside(table))?;
        if end > self.bytes.length() {
            return Err(ElfError::Outside(table));
        }
        if size > most {
            return Err(ElfError::TooLarge {
                table,
                bytes: size,
                whole: Whole::Table,
                most,
            });
        }
        self.file.take(table, size)?;
        if let Some(process) = self.process {
            process.take(table, size)?;
        }
        let mut buffer = vec![0; size as usize];
        self.bytes.read_at(offset, &mut buffer)?;
        Ok(buffer)
    }

    /// Counts bytes of code before they are decoded, and of names before they are compared. Fails if these are more than
    /// are looked at of one file, or of the files of one process.
    pub(crate) fn look_at(&self, bytes: u64) -> Result<(), ElfError> {
        self.file.work(bytes)?;
        self.process.map_or(Ok(()), |process| process.work(bytes))
    }

    /// Reads a table that stays in memory, and takes its bytes from the budget for these first.
    fn held(
        &self,
        offset: u64,
        size: u64,
        most: u64,
        table: &'static str,
    ) -> Result<Vec<u8>, ElfError> {
        self.tables.take(table, size)?;
        self.range(offset, size, most, table)
    }

    fn section_bytes(
        &self,
        section: &Section,
        most: u64,
        table: &'static str,
    ) -> Result<Vec<u8>, ElfError> {
        if section.kind == elf::SHT_NOBITS.0 {
            return Ok(Vec::new());
        }
        self.held(section.offset, section.size, most, table)
    }

    /// The section with this name, if there is one.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| self.is_named(section, name))
    }

    /// Whether a section of this file has this name.
    pub fn is_named(&self, section: &Section, name: &str) -> bool {
        self.names
            .get(section.name as usize..)
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| matches!(rest.first(), None | Some(0)))
    }

    /// Reads the first section of this kind as a symbol table.
    fn table(&self, kind: u32) -> Result<Option<SymbolTable>, ElfError> {
        let Some(section) = self.sections.iter().find(|section| section.kind == kind) else {
            return Ok(None);
        };
        if section.entry_size != symbols::SYMBOL as u64 {
            return Err(ElfError::Damaged("symbols of another size"));
        }
        let strings = self
            .sections
            .get(section.link as usize)
            .ok_or(ElfError::Damaged("a symbol table without names"))?;
        let (table, names) = match kind == elf::SHT_SYMTAB.0 {
            true => ("the symbol table", "the table of the symbols' names"),
            false => (
                "the table of exported symbols",
                "the table of the exported symbols' names",
            ),
        };
        Ok(Some(SymbolTable {
            symbols: self.section_bytes(section, MOST_TABLES, table)?,
            strings: self.section_bytes(strings, MOST_TABLES, names)?,
        }))
    }

    /// All symbols (`.symtab`); `None` if the file was stripped. Fails if the table is damaged or cannot be read.
    pub fn all_symbols(&self) -> Result<Option<SymbolTable>, ElfError> {
        self.table(elf::SHT_SYMTAB.0)
    }

    /// The symbols that the file exports (`.dynsym`). If there are no section headers, they are found through the
    /// dynamic segment. Fails if the table is damaged or cannot be read.
    pub fn exported_symbols(&self) -> Result<Option<SymbolTable>, ElfError> {
        match self.table(elf::SHT_DYNSYM.0)? {
            Some(table) => Ok(Some(table)),
            None if self.sections.is_empty() => self.dynamic_symbols(),
            None => Ok(None),
        }
    }

    fn dynamic_symbols(&self) -> Result<Option<SymbolTable>, ElfError> {
        let Some(dynamic) = self.segments.iter().find(|s| s.kind == elf::PT_DYNAMIC.0) else {
            return Ok(None);
        };
        let entries = self.range(
            dynamic.offset,
            dynamic.file_size,
            MAX_NOTES,
            "the dynamic segment",
        )?;
        let value = |tag: i64| {
            entries
                .chunks_exact(16)
                .map(|raw| (u64_at(raw, 0) as i64, u64_at(raw, 8)))
                .take_while(|(tag, _)| *tag != 0)
                .find(|(this, _)| *this == tag)
                .and_then(|(_, value)| self.offset_of(value).or(Some(value)))
        };
        // Tags 5 and 6 are DT_STRTAB and DT_SYMTAB. Tag 10 below is DT_STRSZ, which is a size and not an address.
        let (Some(strings), Some(symbols)) = (value(5), value(6)) else {
            return Ok(None);
        };
        let strings_size = entries
            .chunks_exact(16)
            .find(|raw| u64_at(raw, 0) == 10)
            .map_or(0, |raw| u64_at(raw, 8));
        // Nothing but a hash table of the old form says how many symbols there are, and it may be missing. But linkers
        // put the names right after the symbols.
        let size = strings
            .checked_sub(symbols)
            .ok_or(ElfError::Damaged("symbols of an unknown number"))?;
        Ok(Some(SymbolTable {
            symbols: self.held(symbols, size, MOST_TABLES, "the table of exported symbols")?,
            strings: self.held(
                strings,
                strings_size,
                MOST_TABLES,
                "the table of the exported symbols' names",
            )?,
        }))
    }

    /// Offset in the file of what lies at this address, if the file contains it.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.load_of(address)
            .and_then(|(segment, inside)| segment.offset.checked_add(inside))
    }

    /// The same as [`Elf::offset_of`], for code only. The second number says how many bytes of the segment there are
    /// from the address on.
    pub fn code_offset_of(&self, address: u64) -> Option<(u64, u64)> {
        let (segment, inside) = self.load_of(address)?;
        if segment.flags & elf::PF_X.0 == 0 {
            return None;
        }
        let offset = segment.offset.checked_add(inside)?;
        Some((offset, segment.file_size - inside))
    }

    /// Number of bytes of the segment that lie before this address; 0 if the address is in no segment.
    pub fn bytes_before(&self, address: u64) -> u64 {
        self.load_of(address).map_or(0, |(_, inside)| inside)
    }

    fn load_of(&self, address: u64) -> Option<(&Segment, u64)> {
        self.segments
            .iter()
            .filter(|segment| segment.kind == elf::PT_LOAD.0)
            .find_map(|segment| {
                let inside = address.checked_sub(segment.address)?;
                (inside < segment.file_size).then_some((segment, inside))
            })
    }

    /// Reads `size` bytes of the file at `offset`, which the caller does not keep for long. `what` names them. Fails if
    /// they lie outside the file or are too many.
    pub fn bytes_at(
        &self,
        offset: u64,
        size: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, ElfError> {
        self.range(offset, size, MOST_TABLES, what)
    }

    /// The same for a table that stays in memory and has at most `most` bytes.
    pub fn table_at(
        &self,
        offset: u64,
        size: u64,
        most: u64,
        table: &'static str,
    ) -> Result<Vec<u8>, ElfError> {
        self.held(offset, size, most, table)
    }

    /// The GNU build id, if the file has one.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let segments = self
            .segments
            .iter()
            .filter(|segment| segment.kind == elf::PT_NOTE.0)
            .map(|segment| (segment.offset, segment.file_size));
        // Some tools that move parts of a file correct the section header but not the segment, so the section is tried
        // first.
        let section = self
            .section(".note.gnu.build-id")
            .map(|section| (section.offset, section.size));
        for (offset, size) in section.into_iter().chain(segments) {
            let Ok(bytes) = self.range(offset, size, MAX_NOTES, "a segment of notes") else {
                continue;
            };
            for note in notes(&bytes) {
                if note.kind == elf::NT_GNU_BUILD_ID.0 && note.owner == b"GNU" {
                    return Some(note.content.to_vec());
                }
            }
        }
        None
    }

    /// The bytes of the section of notes with this name; empty if there is no such section.
    pub fn note_section(&self, name: &str) -> Result<Vec<u8>, ElfError> {
        match self.section(name).copied() {
            Some(section) => self.section_bytes(&section, MAX_NOTES, "a section of notes"),
            None => Ok(Vec::new()),
        }
    }
}
