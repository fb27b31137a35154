//! USDT probes: the notes that a program's author left in it. Exposed; nothing uses them by default,
//! since they fire only while their semaphore is raised, and not on every path.

use crate::elf::{self, Elf, ElfError, ReadAt};

/// One place of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Who defined it (`pytorch`).
    pub provider: String,
    /// Its name (`malloc`).
    pub name: String,
    /// Where its arguments are, as the note says it (`-8@%rax -1@%dl …`).
    pub arguments: String,
    /// Offset of the instruction in the file.
    pub offset: u64,
    /// Offset of the semaphore in the file, 0 for none.
    pub semaphore_offset: u64,
}

const NT_STAPSDT: u32 = 3;
/// Whose probes are kept: many libraries have hundreds that nobody here asks for.
const PROVIDERS: &[&str] = &["pytorch"];

/// The probes of a file. Notes that make no sense are passed over.
pub fn read<R: ReadAt + ?Sized>(file: &Elf<'_, R>) -> Result<Vec<UsdtProbe>, ElfError> {
    let bytes = file.note_section(".note.stapsdt")?;
    // Tools that move a file's parts (prelink) do not touch the notes; the section tells by how much.
    let base = file.section(".stapsdt.base").map(|section| section.address);
    let mut probes = Vec::new();
    for note in elf::notes(&bytes) {
        if note.owner == b"stapsdt" && note.kind == NT_STAPSDT {
            let found = probe(file, note.content, base);
            probes.extend(found.filter(|probe| PROVIDERS.contains(&probe.provider.as_str())));
        }
    }
    Ok(probes)
}

fn probe<R: ReadAt + ?Sized>(
    file: &Elf<'_, R>,
    content: &[u8],
    base: Option<u64>,
) -> Option<UsdtProbe> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(
            content.get(at..at + 8)?.try_into().ok()?,
        ))
    };
    let (address, noted_base, semaphore) = (word(0)?, word(8)?, word(16)?);
    let moved = match base {
        Some(base) if noted_base != 0 => base.wrapping_sub(noted_base),
        _ => 0,
    };
    let mut texts = content
        .get(24..)?
        .split(|byte| *byte == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned());
    let (provider, name, arguments) = (texts.next()?, texts.next()?, texts.next()?);
    let (offset, _) = file.code_offset_of(address.wrapping_add(moved))?;
    let semaphore_offset = match semaphore {
        0 => 0,
        at => file.offset_of(at.wrapping_add(moved))?,
    };
    Some(UsdtProbe {
        provider,
        name,
        arguments,
        offset,
        semaphore_offset,
    })
}
