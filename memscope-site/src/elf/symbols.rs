//! Symbol tables, once they are read.

use object::elf;

use super::bytes::{u16_at, u32_at, u64_at};

/// Bytes of one symbol.
pub(super) const SYMBOL: usize = 24;

/// One symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Name, without its version.
    pub name: &'a [u8],
    /// `STT_*`.
    pub kind: u8,
    /// Not `STB_LOCAL`.
    pub global: bool,
    /// Address in the file's own numbering.
    pub address: u64,
    /// Bytes, 0 where not known.
    pub size: u64,
}

/// A symbol table that was read: defined symbols only are shown.
#[derive(Debug, Default)]
pub struct SymbolTable {
    pub(super) symbols: Vec<u8>,
    pub(super) strings: Vec<u8>,
}

impl SymbolTable {
    /// The symbols that the file defines.
    pub fn defined(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.symbols.chunks_exact(SYMBOL).filter_map(|raw| {
            // st_shndx 0 is "not here", from 0xff00 on are no places in the file (0xffff: the
            // number lies elsewhere, the symbol is defined).
            let section = u16_at(raw, 6);
            if section == 0 || (0xff00..0xffff).contains(&section) {
                return None;
            }
            let rest = self.strings.get(u32_at(raw, 0) as usize..)?;
            let end = memchr::memchr(0, rest)?;
            Some(Symbol {
                name: &rest[..end],
                kind: raw[4] & 15,
                global: raw[4] >> 4 != 0,
                address: u64_at(raw, 8),
                size: u64_at(raw, 16),
            })
        })
    }

    /// Addresses of functions and of labels in code (`STT_NOTYPE`).
    pub fn entries(&self) -> impl Iterator<Item = u64> {
        self.symbols.chunks_exact(SYMBOL).filter_map(|raw| {
            let kind = raw[4] & 15;
            let code = kind == elf::STT_FUNC.0 || kind == elf::STT_NOTYPE.0;
            (code && u16_at(raw, 6) != 0).then(|| u64_at(raw, 8))
        })
    }
}
