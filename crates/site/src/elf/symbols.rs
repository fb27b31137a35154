//! Symbol tables that were read from a file.

use object::elf;

use super::bytes::{u16_at, u64_at};

/// Size in bytes of one symbol in the table.
pub(super) const SYMBOL: usize = 24;

/// Longest name in bytes. Names that are looked for are much shorter; longer ones are passed over, since all symbols of
/// a table may share one name that is as long as the table of names.
const LONGEST: usize = 4096;

/// One symbol of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Name, without its version.
    pub name: &'a [u8],
    /// Type of the symbol (`STT_*`).
    pub kind: u8,
    /// Whether the symbol is visible outside the file (its binding is not `STB_LOCAL`).
    pub global: bool,
    /// Address in the file's own numbering.
    pub address: u64,
    /// Size in bytes of the function or variable; 0: not known.
    pub size: u64,
}

/// A symbol table that was read. Only symbols that the file itself defines are returned.
#[derive(Debug, Default)]
pub struct SymbolTable {
    pub(super) symbols: Vec<u8>,
    pub(super) strings: Vec<u8>,
}

impl SymbolTable {
    /// Number of bytes of the symbols, without their names.
    pub(crate) fn bytes(&self) -> u64 {
        self.symbols.len() as u64
    }

    /// The symbols that the file defines. Those with names of more than 4096 bytes are left out.
    pub fn defined(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.defined_like(|_| true)
    }

    /// The same as [`SymbolTable::defined`], only for names that `like` accepts. `like` is given the name and
    /// all names behind it in the file, so that the end of a name is searched for only if its beginning fits.
    /// This saves time, since large libraries have half a million symbols.
    pub fn defined_like<'a>(
        &'a self,
        like: impl Fn(&[u8]) -> bool + 'a,
    ) -> impl Iterator<Item = Symbol<'a>> {
        self.symbols
            .as_chunks::<SYMBOL>()
            .0
            .iter()
            .filter_map(move |raw| {
                // With st_shndx 0 the symbol is not defined here. Numbers from 0xff00 on name no section of the file,
                // but with 0xffff the symbol is defined and its section's number is stored elsewhere.
                let section = u16::from_le_bytes([raw[6], raw[7]]);
                if section == 0 || (0xff00..0xffff).contains(&section) {
                    return None;
                }
                let name = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
                let rest = self.strings.get(name as usize..)?;
                if !like(rest) {
                    return None;
                }
                let end = memchr::memchr(0, rest.get(..=LONGEST).unwrap_or(rest))?;
                Some(Symbol {
                    name: &rest[..end],
                    kind: raw[4] & 15,
                    global: raw[4] >> 4 != 0,
                    address: u64_at(raw, 8),
                    size: u64_at(raw, 16),
                })
            })
    }

    /// Addresses of functions, and of labels without a type (`STT_NOTYPE`), which may be in code.
    pub fn entries(&self) -> impl Iterator<Item = u64> {
        self.symbols.chunks_exact(SYMBOL).filter_map(|raw| {
            let kind = raw[4] & 15;
            let code = kind == elf::STT_FUNC.0 || kind == elf::STT_NOTYPE.0;
            (code && u16_at(raw, 6) != 0).then(|| u64_at(raw, 8))
        })
    }
}
