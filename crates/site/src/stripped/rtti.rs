//! Finds a class's table of virtual functions in a file by the name of the class. It uses the Itanium C++ ABI's
//! `type_info` (2.9.5: the address of a table, then that of the name) and virtual table (2.5.2: offset to top, address
//! of the `type_info`, functions). All of these addresses depend on where the file is loaded, so the file's relocations
//! say where they are stored.

use std::collections::BTreeMap;

use memchr::memmem;
use object::elf;

use crate::elf::{Elf, ElfError, MOST_TABLES, ReadAt, Whole};

const SHT_RELR: u32 = 19;
const R_X86_64_RELATIVE: u32 = 8;
const R_AARCH64_RELATIVE: u32 = 1027;
/// Bytes of an entry of a relocation table with addends.
const RELA: usize = 24;
/// The file is searched in pieces of this many bytes.
const PIECE: u64 = 4 << 20;
/// Most entries of a table that are read.
const MOST_SLOTS: u64 = 256;
/// Most words that relocations may fill in. Real libraries have up to a million; a packed table (RELR) names 63 in each
/// of its own words.
const MOST_WORDS: usize = 4 << 20;
/// Most classes that may have the name. There is one, and some compilers leave a copy of it in each part of a library.
const MOST_CLASSES: usize = 64;
/// Smallest number of functions with which a table is accepted. The allocator's class has more.
const FEWEST_SLOTS: usize = 8;

/// Words that the dynamic linker fills in, by their addresses. The value is the address that it stores there, in the
/// file's own numbering; `None` if it stores the address of a symbol.
pub(super) struct Words(BTreeMap<u64, Option<u64>>);

impl Words {
    /// Reads the relocations of the file.
    pub(super) fn read<R: ReadAt + ?Sized>(file: &Elf<'_, R>) -> Result<Words, ElfError> {
        let mut words = BTreeMap::new();
        let mut put = |address: u64, value: Option<u64>| {
            words.insert(address, value);
            match words.len() <= MOST_WORDS {
                true => Ok(()),
                false => Err(ElfError::TooMany {
                    what: "relocations",
                    whole: Whole::File,
                    most: MOST_WORDS as u64,
                }),
            }
        };
        for section in &file.sections {
            if section.kind != elf::SHT_RELA.0 && section.kind != SHT_RELR {
                continue;
            }
            let (offset, size) = (section.offset, section.size);
            let bytes = file.table_at(offset, size, MOST_TABLES, "a table of relocations")?;
            if section.kind == elf::SHT_RELA.0 {
                for entry in bytes.chunks_exact(RELA) {
                    let field = |at: usize| word(entry, at);
                    let relative =
                        matches!(field(8) as u32, R_X86_64_RELATIVE | R_AARCH64_RELATIVE);
                    put(field(0), relative.then(|| field(16)))?;
                }
            } else {
                for address in relr(&bytes) {
                    put(address, stored(file, address)?)?;
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
        if types.len() > MOST_CLASSES {
            return Vec::new();
        }
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
            // A second one is enough to know that there is not exactly one.
            .take(2)
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
            let offset = segment.offset.saturating_add(at);
            let bytes = file.bytes_at(offset, size, "a loaded segment")?;
            for place in finder.find_iter(&bytes) {
                // With another byte before it, this is the end of the longer name of another class.
                let before = place.checked_sub(1).and_then(|at| bytes.get(at).copied());
                if matches!(before, None | Some(0 | b'*')) {
                    return Ok(Some(segment.address.wrapping_add(at + place as u64)));
                }
            }
            at += PIECE;
        }
    }
    Ok(None)
}

/// The addresses in a table of packed relative relocations (RELR). An even word is an address; an odd word is a bitmap
/// for the next 63 words (<https://maskray.me/blog/2021-10-31-relative-relocations-and-relr>).
fn relr(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let mut next = 0u64;
    // One after the other, since all of them together are up to 63 times as large as the table.
    bytes.chunks_exact(8).flat_map(move |entry| {
        let entry = word(entry, 0);
        let (first, map) = if entry & 1 == 0 {
            next = entry.wrapping_add(8);
            (entry, 1)
        } else {
            let first = next;
            next = next.wrapping_add(63 * 8);
            (first, entry >> 1)
        };
        (0..63)
            .filter(move |bit| map >> bit & 1 == 1)
            .map(move |bit| first.wrapping_add(bit * 8))
    })
}

/// The word that the file has at this address; `None` if it has none there.
fn stored<R: ReadAt + ?Sized>(file: &Elf<'_, R>, address: u64) -> Result<Option<u64>, ElfError> {
    let Some(offset) = file.offset_of(address) else {
        return Ok(None);
    };
    match file.bytes_at(offset, 8, "a relocated word") {
        Ok(bytes) => Ok(Some(word(&bytes, 0))),
        Err(ElfError::Outside(_)) => Ok(None),
        Err(error) => Err(error),
    }
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
            relr(&bytes).collect::<Vec<u64>>(),
            [0x1000, 0x1008, 0x1018, 0x2000, 0x2008 + 62 * 8]
        );
    }
}
