//! Symbol tables, once they are read.

use object::elf;

use super::bytes::{u16_at, u64_at};

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
        self.defined_like(|_| true)
    }

    /// As [`SymbolTable::defined`], for names that may be of interest: `like` sees the name and
    /// all names behind it, so that the end of a name is sought only where the beginning is right.
    /// (Large libraries have half a million symbols.)
    pub fn defined_like<'a>(
        &'a self,
        like: impl Fn(&[u8]) -> bool + 'a,
    ) -> impl Iterator<Item = Symbol<'a>> {
        self.symbols
            .as_chunks::<SYMBOL>()
            .0
            .iter()
            .filter_map(move |raw| {
                // st_shndx 0 is "not here", from 0xff00 on are no places in the file (0xffff: the
                // number lies elsewhere, the symbol is defined).
                let section = u16::from_le_bytes([raw[6], raw[7]]);
                if section == 0 || (0xff00..0xffff).contains(&section) {
                    return None;
                }
                let name = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
                let rest = self.strings.get(name as usize..)?;
                if !like(rest) {
                    return None;
                }
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
