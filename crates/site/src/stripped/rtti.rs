//! Finds a class's table of virtual functions in a file by the name of the class. It uses the Itanium C++ ABI's
//! `type_info` (2.9.5: the address of a table, then that of the name) and virtual table (2.5.2: offset to top, address
//! of the `type_info`, functions). All of these addresses depend on where the file is loaded, so the file's relocations
//! say where they are stored.

use std::collections::BTreeMap;

use memchr::memmem;
use object::elf;

use crate::elf::{Elf, ElfError, ReadAt};

const SHT_RELR: u32 = 19;
const R_X86_64_RELATIVE: u32 = 8;
const R_AARCH64_RELATIVE: u32 = 1027;
/// Bytes of an entry of a relocation table with addends.
const RELA: usize = 24;
/// The file is searched in pieces of this many bytes.
const PIECE: u64 = 4 << 20;
/// Most entries of a table that are read.
const MOST_SLOTS: u64 = 256;
/// Smallest number of functions with which a table is accepted. The allocator's class has more.
const FEWEST_SLOTS: usize = 8;

/// Words that the dynamic linker fills in, by their addresses. The value is the address that it stores there, in the
/// file's own numbering; `None` if it stores the address of a symbol.
pub(super) struct Words(BTreeMap<u64, Option<u64>>);

impl Words {
    /// Reads the relocations of the file.
    pub(super) fn read<R: ReadAt + ?Sized>(file: &Elf<'_, R>) -> Result<Words, ElfError> {
        let mut words = BTreeMap::new();
        for section in &file.sections {
            if section.kind == elf::SHT_RELA.0 {
                let bytes = file.bytes_at(section.offset, section.size)?;
                for entry in bytes.chunks_exact(RELA) {
                    let field = |at: usize| word(entry, at);
                    let relative =
                        matches!(field(8) as u32, R_X86_64_RELATIVE | R_AARCH64_RELATIVE);
                    words.insert(field(0), relative.then(|| field(16)));
                }
            } else if section.kind == SHT_RELR {
                let bytes = file.bytes_at(section.offset, section.size)?;
                for address in relr(&bytes) {
                    words.insert(address, stored(file, address));
                }
            }
        }
        Ok(Words(words))
    }

    /// Addresses of the functions in the table of the class whose name lies at `name`. Empty if there is not exactly
    /// one such table.
    pub(super) fn functions_of<R: ReadAt + ?Sized>(
        &self,
        file: &Elf<'_, R>,
        name: u64,
    ) -> Vec<u64> {
        // The compiler writes a star before names that are compared by their addresses.
        let types = self.holding(|value| value == name || value.wrapping_add(1) == name);
        let tables: Vec<Vec<u64>> = types
            .iter()
            .filter_map(|at| at.checked_sub(8))
            .flat_map(|class| self.holding(move |value| value == class))
            .map(|at| {
                (1..=MOST_SLOTS)
                    .map_while(|slot| self.0.get(&at.checked_add(slot * 8)?).copied())
                    .take_while(|value| {
                        value.is_none_or(|function| file.code_offset_of(function).is_some())
                    })
                    .flatten()
                    .collect::<Vec<u64>>()
            })
            .filter(|slots| slots.len() >= FEWEST_SLOTS)
            .collect();
        match <[Vec<u64>; 1]>::try_from(tables) {
            Ok([slots]) => slots,
            Err(_) => Vec::new(),
        }
    }

    /// Addresses of the words whose value is wanted.
    fn holding(&self, wanted: impl Fn(u64) -> bool) -> Vec<u64> {
        self.0
            .iter()
            .filter(|(_, value)| value.is_some_and(&wanted))
            .map(|(at, _)| *at)
            .collect()
    }
}

/// Address of the first place in the loaded parts of the file where this whole name lies, ended by NUL.
pub(super) fn name_of<R: ReadAt + ?Sized>(
    file: &Elf<'_, R>,
    name: &[u8],
) -> Result<Option<u64>, ElfError> {
    let mut wanted = name.to_vec();
    wanted.push(0);
    let finder = memmem::Finder::new(&wanted);
    // Code comes last: it is the largest part of the file, and seldom contains names.
    let mut loaded: Vec<_> = file
        .segments
        .iter()
        .filter(|segment| segment.kind == elf::PT_LOAD.0)
        .collect();
    loaded.sort_by_key(|segment| segment.flags & elf::PF_X.0);
    for segment in loaded {
        let mut at = 0;
        while at < segment.file_size {
            let size = (PIECE + wanted.len() as u64).min(segment.file_size - at);
            let bytes = file.bytes_at(segment.offset + at, size)?;
            for place in finder.find_iter(&bytes) {
                // With another byte before it, this is the end of the longer name of another class.
                let before = place.checked_sub(1).and_then(|at| bytes.get(at).copied());
                if matches!(before, None | Some(0 | b'*')) {
                    return Ok(Some(segment.address + at + place as u64));
                }
            }
            at += PIECE;
        }
    }
    Ok(None)
}

/// The addresses in a table of packed relative relocations (RELR). An even word is an address; an odd word is a bitmap
/// for the next 63 words (<https://maskray.me/blog/2021-10-31-relative-relocations-and-relr>).
fn relr(bytes: &[u8]) -> Vec<u64> {
    let mut addresses = Vec::new();
    let mut next = 0u64;
    for entry in bytes.chunks_exact(8) {
        let entry = word(entry, 0);
        if entry & 1 == 0 {
            addresses.push(entry);
            next = entry.wrapping_add(8);
        } else {
            for bit in 0..63 {
                if entry >> (bit + 1) & 1 == 1 {
                    addresses.push(next.wrapping_add(bit * 8));
                }
            }
            next = next.wrapping_add(63 * 8);
        }
    }
    addresses
}

fn stored<R: ReadAt + ?Sized>(file: &Elf<'_, R>, address: u64) -> Option<u64> {
    let bytes = file.bytes_at(file.offset_of(address)?, 8).ok()?;
    Some(word(&bytes, 0))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_relocations() {
        let words: [u64; 4] = [0x1000, 0b1011, 0x2000, 1 << 63 | 1];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            relr(&bytes),
            [0x1000, 0x1008, 0x1018, 0x2000, 0x2008 + 62 * 8]
        );
    }
}
