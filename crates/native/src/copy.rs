//! A copy of the part of a file in which names are looked up.
//!
//! The library that finds names (`blazesym`) maps files, opens other files that a file names (debug links, and a package
//! of debugging information beside it), and expects that nothing changes meanwhile. The files of traced processes are
//! none of its business then: whoever owns one can cut it off while it is mapped, which ends the daemon with SIGBUS, or
//! have it name a FIFO or a device, which would be opened as root. So it gets a copy in memory that nobody else can
//! reach, with the sections that it needs and no section that leads to another file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memscope_site::elf::{Elf, ElfError, FileBytes, Section};
use rustix::fs::MemfdFlags;

/// Most bytes of one file that are copied. Debugging information that makes a copy larger is left out of it.
pub(crate) const MOST: u64 = 384 << 20;
/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;
/// Sections from this number on cannot be counted in the header (`SHN_LORESERVE`).
const MOST_SECTIONS: usize = 0xff00 - 1;
/// `SHT_STRTAB`, `SHT_NOBITS` and `SHF_COMPRESSED` of elf.h.
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
const COMPRESSED: u64 = 1 << 11;
/// Size in bytes of the file's header, and of that of a section.
const HEADER: usize = 64;

/// Sections with symbols and their names.
const SYMBOLS: [&str; 4] = [".symtab", ".strtab", ".dynsym", ".dynstr"];
/// Sections with debugging information.
const LINES: [&str; 13] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];
/// Sections that say that debugging information refers to another file.
const ELSEWHERE: [&str; 2] = [".gnu_debugaltlink", ".debug_sup"];

/// Why there is no copy of a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error("it has {0} sections, more than a copy can have")]
    Sections(usize),
    #[error(
        "its symbols have {0} bytes, and at most {MOST} are read of one file: its functions get no names; a file that was \
         stripped of local symbols has fewer"
    )]
    TooLarge(u64),
    #[error("memory for a copy of its symbols cannot be had")]
    Memory(#[source] io::Error),
}

/// A copy.
#[derive(Debug)]
pub(crate) struct Copy {
    pub file: File,
    /// Number of bytes of memory that it takes.
    pub bytes: u64,
}

/// The name of a section in this list.
fn named(
    elf: &Elf<'_, FileBytes>,
    section: &Section,
    names: &[&'static str],
) -> Option<&'static str> {
    if section.kind == NOBITS {
        return None;
    }
    let mut names = names.iter();
    names.find(|name| elf.is_named(section, name)).copied()
}

/// Whether debugging information in this file is compressed, so that only a copy without it can be read.
pub(crate) fn is_compressed(bytes: &FileBytes) -> bool {
    Elf::read(bytes).is_ok_and(|elf| {
        let mut sections = elf.sections.iter();
        sections.any(|section| section.flags & COMPRESSED != 0)
    })
}

/// Copies symbols and debugging information of a file.
pub(crate) fn copy(bytes: &FileBytes) -> Result<Copy, CopyError> {
    let elf = Elf::read(bytes)?;
    if elf.sections.len() >= MOST_SECTIONS {
        return Err(CopyError::Sections(elf.sections.len()));
    }
    let size = |names: &[&'static str]| {
        let of = elf
            .sections
            .iter()
            .filter(|s| named(&elf, s, names).is_some());
        of.fold(0u64, |sum, section| sum.saturating_add(section.size))
    };
    let symbols = size(&SYMBOLS);
    if symbols > MOST {
        return Err(CopyError::TooLarge(symbols));
    }
    // What is compressed cannot be read, and what refers to another file is incomplete here. The symbols are of use
    // without it.
    let unusable = elf.sections.iter().any(|section| {
        section.flags & COMPRESSED != 0 && named(&elf, section, &LINES).is_some()
            || named(&elf, section, &ELSEWHERE).is_some()
    });
    let lines = !unusable && symbols.saturating_add(size(&LINES)) <= MOST;
    let kept = |section: &Section| {
        named(&elf, section, &SYMBOLS).or_else(|| named(&elf, section, &LINES).filter(|_| lines))
    };

    let memory = rustix::fs::memfd_create("memscope-symbols", MemfdFlags::CLOEXEC)
        .map_err(|error| CopyError::Memory(error.into()))?;
    let file = File::from(memory);
    let write = |bytes: &[u8], at: u64| file.write_all_at(bytes, at).map_err(CopyError::Memory);
    let count = elf.sections.len() + 1;
    let mut names = vec![0];
    let mut headers = Vec::with_capacity(count * HEADER);
    // Tables must lie at addresses that fit to their words.
    let mut end = (HEADER + count * HEADER) as u64;
    for section in &elf.sections {
        // Symbols and links name sections by their numbers, so a section that is left out leaves a header without
        // contents.
        let (name, kind, at) = match kept(section) {
            Some(name) => {
                let at = end.next_multiple_of(16);
                let mut copied = 0;
                while copied < section.size {
                    let size = PIECE.min(section.size - copied);
                    let from = section.offset.saturating_add(copied);
                    write(&elf.bytes_at(from, size, name)?, at + copied)?;
                    copied += size;
                }
                end = at + section.size;
                let place = names.len() as u32;
                names.extend_from_slice(name.as_bytes());
                names.push(0);
                (place, section.kind, at)
            }
            None => (0, NOBITS, 0),
        };
        let flags = section.flags & !COMPRESSED;
        let link = (section.link, section.entry_size);
        let place = (section.address, at, section.size);
        headers.extend(header(name, kind, flags, place, link));
    }
    headers.extend(header(0, STRTAB, 0, (0, end, names.len() as u64), (0, 0)));
    write(&names, end)?;
    write(&headers, HEADER as u64)?;
    let mut first = [0; HEADER];
    first[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // A shared object of this machine, in version 1 of the format.
    first[16] = 3;
    first[18..20].copy_from_slice(&elf.machine.to_le_bytes());
    first[20] = 1;
    first[40] = HEADER as u8;
    first[52] = HEADER as u8;
    first[54] = 56;
    first[58] = HEADER as u8;
    first[60..62].copy_from_slice(&(count as u16).to_le_bytes());
    first[62..64].copy_from_slice(&((count - 1) as u16).to_le_bytes());
    write(&first, 0)?;
    let bytes = end + names.len() as u64;
    Ok(Copy { file, bytes })
}

/// A section's header. `place` is its address, its offset and its size; `link` the section that belongs to it and the size of
/// its entries.
fn header(
    name: u32,
    kind: u32,
    flags: u64,
    place: (u64, u64, u64),
    link: (u32, u64),
) -> [u8; HEADER] {
    let mut raw = [0; HEADER];
    raw[0..4].copy_from_slice(&name.to_le_bytes());
    raw[4..8].copy_from_slice(&kind.to_le_bytes());
    raw[8..16].copy_from_slice(&flags.to_le_bytes());
    raw[16..24].copy_from_slice(&place.0.to_le_bytes());
    raw[24..32].copy_from_slice(&place.1.to_le_bytes());
    raw[32..40].copy_from_slice(&place.2.to_le_bytes());
    raw[40..44].copy_from_slice(&link.0.to_le_bytes());
    raw[48] = 1;
    raw[56..64].copy_from_slice(&link.1.to_le_bytes());
    raw
}
