//! One file of code: turns its unwind tables into rules.

use memscope_memory::file::OpenFile;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, LittleEndian,
    Operation, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
};
use memscope_common::{RULE_BP, RULE_BP_DEREF, RULE_END, RULE_SP, RULE_STOP, Rule};
use memscope_site::elf::{Elf, ElfError, FileBytes};
use memscope_site::place::Machine;

/// `PT_LOAD` and `PT_GNU_EH_FRAME` of elf.h.
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// Most bytes of one file's tables that are read. The largest known tables (libtorch_cpu) have 20 MB.
pub(crate) const MOST: u64 = 128 << 20;
/// Most bytes of the tables of all files together.
pub(crate) const MOST_OF_ALL: u64 = 512 << 20;

/// How much room there still is for tables. All files of all processes share it.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<AtomicU64>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(AtomicU64::new(MOST_OF_ALL)))
    }
}

impl Room {
    /// Takes room; it is given back when the result is dropped. `None` if there is not enough.
    fn take(&self, bytes: u64) -> Option<Taken> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            })
            .ok()?;
        Some(Taken {
            room: self.clone(),
            bytes,
        })
    }
}

/// Room that was taken.
#[derive(Debug)]
struct Taken {
    room: Room,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// DWARF's numbers of a machine's registers.
#[derive(Clone, Copy, Debug)]
struct Registers {
    /// Frame pointer.
    bp: Register,
    /// Stack pointer.
    sp: Register,
    /// Return address.
    ra: Register,
    /// Whether rules say where the frame record lies (see [`Rule`]).
    records: bool,
}

const X86_64: Registers = Registers {
    bp: Register(6),
    sp: Register(7),
    ra: Register(16),
    records: false,
};
const AARCH64: Registers = Registers {
    bp: Register(29),
    sp: Register(31),
    ra: Register(30),
    records: true,
};

/// The rule for addresses about which nothing is known.
pub(crate) const STOP: Rule = Rule::new(RULE_STOP, 0, 0, false);

/// Why a file gives no rules.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file is not a readable ELF file.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The file is for a machine whose registers are not known. The number is `e_machine` of the ELF header.
    #[error("it is for a machine whose registers are not known ({0})")]
    Machine(u16),
    /// The file has no unwind tables that can be found.
    #[error("it has no .eh_frame_hdr")]
    NoTable,
    /// The unwind tables are larger than any real ones.
    #[error(
        "its unwind tables have {bytes} bytes, and at most {MOST} are read of one file: its frames end the stacks that \
         they are in; a file that was linked without so much code has smaller ones"
    )]
    TooLarge {
        /// Size of the tables by the file's headers.
        bytes: u64,
    },
    /// There is no room for the unwind tables beside those of other files.
    #[error(
        "its unwind tables have {bytes} bytes, for which the {MOST_OF_ALL} bytes for the tables of all files have no room \
         left; there is room again when processes with large files are no longer traced"
    )]
    NoRoom {
        /// Size of the tables by the file's headers.
        bytes: u64,
    },
    /// The unwind tables cannot be read.
    #[error("its .eh_frame_hdr cannot be read: {0}")]
    Table(gimli::Error),
}

/// One file of code.
#[derive(Debug)]
pub struct Image {
    /// Path in the process's mount namespace.
    pub path: PathBuf,
    /// Kept open, since the file may be deleted and the process may end.
    bytes: FileBytes,
    build_id: String,
    /// Read when the first rule is asked for, since most of the files that a process has mapped never appear in a
    /// stack.
    tables: OnceLock<Option<Tables>>,
    room: Room,
}

/// Contents of `.eh_frame` (`frames`) and of its index (`header`), each with its address in the file's own numbering.
#[derive(Debug)]
struct Tables {
    header: Vec<u8>,
    header_at: u64,
    frames: Vec<u8>,
    frames_at: u64,
    registers: Registers,
    _taken: Option<Taken>,
}

impl Image {
    /// Makes an image of an open file. Fails if its ELF header cannot be read.
    pub fn new(path: &Path, bytes: FileBytes) -> Result<Image, ImageError> {
        Image::beside(path, bytes, Room::default())
    }

    /// The same, with the room that other images use, too.
    pub(crate) fn beside(path: &Path, bytes: FileBytes, room: Room) -> Result<Image, ImageError> {
        let build_id = Elf::read(&bytes)?.build_id().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Image {
            path: path.to_owned(),
            bytes,
            build_id,
            tables: OnceLock::new(),
            room,
        })
    }

    /// The open file.
    pub fn file(&self) -> &OpenFile {
        self.bytes.file()
    }

    /// The open file's bytes.
    pub(crate) fn bytes(&self) -> &FileBytes {
        &self.bytes
    }

    /// Build id of the file in hexadecimal digits; empty if it has none.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// The rule for an instruction, given by its address in the file's own numbering. Its kind is [`RULE_STOP`] where
    /// the tables say nothing, or something that a rule cannot express.
    pub fn rule(&self, address: u64) -> Rule {
        let rule = self.tables().and_then(|tables| tables.find(address));
        rule.unwrap_or(STOP)
    }

    fn tables(&self) -> Option<&Tables> {
        if let Some(tables) = self.tables.get() {
            return tables.as_ref();
        }
        let tables = Tables::read(&self.bytes, &self.room).inspect_err(|error| {
            tracing::debug!(path = %self.path.display(), %error, "code without rules");
        });
        match tables {
            // There may be room later.
            Err(ImageError::NoRoom { .. }) => None,
            tables => self.tables.get_or_init(|| tables.ok()).as_ref(),
        }
    }

    /// Size in bytes of its unwind tables that are held in memory.
    pub fn size(&self) -> u64 {
        let tables = self.tables.get().and_then(Option::as_ref);
        tables.map_or(0, |tables| {
            (tables.header.len() + tables.frames.len()) as u64
        })
    }
}

impl Tables {
    fn read(bytes: &FileBytes, room: &Room) -> Result<Tables, ImageError> {
        let elf = Elf::read(bytes)?;
        let registers = match Machine::from_elf(elf.machine) {
            Machine::X86_64 => X86_64,
            Machine::Aarch64 => AARCH64,
            Machine::Other(number) => return Err(ImageError::Machine(number)),
        };
        let segment = elf
            .segments
            .iter()
            .find(|segment| segment.kind == PT_GNU_EH_FRAME)
            .ok_or(ImageError::NoTable)?;
        let header_at = segment.address;
        let index_size = segment.file_size;
        let header = elf.table_at(segment.offset, index_size, MOST, "the index .eh_frame_hdr")?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header_at);
        let parsed = EhFrameHdr::new(&header, LittleEndian)
            .parse(&bases, 8)
            .map_err(ImageError::Table)?;
        let gimli::Pointer::Direct(frames_at) = parsed.eh_frame_ptr() else {
            return Err(ImageError::NoTable);
        };
        // The length is that of the section, or where there are no sections, up to the end of the loaded segment.
        let section = elf
            .section(".eh_frame")
            .filter(|section| section.address == frames_at)
            .map(|section| section.size);
        let load = elf
            .segments
            .iter()
            .filter(|segment| segment.kind == PT_LOAD)
            .find(|segment| {
                frames_at
                    .checked_sub(segment.address)
                    .is_some_and(|inside| inside < segment.file_size)
            })
            .ok_or(ImageError::NoTable)?;
        let inside = frames_at - load.address;
        let most = MOST.saturating_sub(index_size);
        let to_end = load.file_size - inside;
        let len = match section {
            Some(size) => size.min(to_end),
            // What follows the table is cut off here, and it is no loss where it is cut.
            None => to_end.min(most),
        };
        let whole = index_size.saturating_add(len);
        if len > most {
            return Err(ImageError::TooLarge { bytes: whole });
        }
        let taken = room
            .take(whole)
            .ok_or(ImageError::NoRoom { bytes: whole })?;
        let offset = load.offset.saturating_add(inside);
        let frames = elf.table_at(offset, len, MOST, "the table .eh_frame")?;
        Ok(Tables {
            header,
            header_at,
            frames,
            frames_at,
            registers,
            _taken: Some(taken),
        })
    }

    fn find(&self, address: u64) -> Option<Rule> {
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(self.header_at)
            .set_eh_frame(self.frames_at);
        let parsed = EhFrameHdr::new(&self.header, LittleEndian)
            .parse(&bases, 8)
            .ok()?;
        let mut frames = EhFrame::new(&self.frames, LittleEndian);
        if self.registers.records {
            // Tables of aarch64 have an instruction of their own that says where return addresses are signed.
            frames.set_vendor(gimli::Vendor::AArch64);
        }
        // Step by step, because `fde_for_address` subtracts without a check: an index may lead to a place before the table.
        let found = parsed.table()?.lookup(address, &bases).ok()?;
        let inside = found.direct().ok()?.checked_sub(self.frames_at)?;
        let offset = EhFrameOffset(usize::try_from(inside).ok()?);
        let entry = frames
            .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
            .ok()?;
        if !entry.contains(address) || entry.cie().is_signal_trampoline() {
            return None;
        }
        let mut context = UnwindContext::new();
        let row = entry
            .unwind_info_for_address(&frames, &bases, &mut context, address)
            .ok()?;
        let simple =
            |expression: &UnwindExpression<usize>| self.simple(&frames, &entry, expression);
        let return_at = match row.register(self.registers.ra) {
            Some(RegisterRule::Offset(at)) => at,
            // The outermost frame of a thread is marked like this.
            Some(RegisterRule::Undefined) => return Some(Rule::new(RULE_END, 0, 0, false)),
            _ => return None,
        };
        let saved = |at: i64| i16::try_from(at).ok().filter(|at| *at != 0);
        let (bp, flag) = match row.register(self.registers.bp) {
            Some(RegisterRule::Offset(at)) => {
                let together = return_at == if self.registers.records { at + 8 } else { -8 };
                (together.then(|| saved(at)).flatten()?, false)
            }
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => {
                match (self.registers.records, return_at) {
                    (true, at) => (saved(at)?, true),
                    (false, -8) => (0, false),
                    (false, _) => return None,
                }
            }
            // Functions that align their stack store the caller's frame pointer at the frame pointer itself.
            Some(RegisterRule::Expression(expression))
                if !self.registers.records && return_at == -8 =>
            {
                match simple(&expression)? {
                    (offset, false) => (i16::try_from(offset).ok()?, true),
                    (_, true) => return None,
                }
            }
            _ => return None,
        };
        let (kind, offset) = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if *register == self.registers.sp => {
                (RULE_SP, i32::try_from(*offset).ok()?)
            }
            CfaRule::RegisterAndOffset { register, offset } if *register == self.registers.bp => {
                (RULE_BP, i32::try_from(*offset).ok()?)
            }
            CfaRule::Expression(expression) if !self.registers.records => match simple(expression)?
            {
                (offset, true) => (RULE_BP_DEREF, i32::try_from(offset).ok()?),
                (_, false) => return None,
            },
            _ => return None,
        };
        Some(Rule::new(kind, offset, bp, flag))
    }

    /// Reads an expression that is the frame pointer plus an offset: the offset, and whether the value is the word
    /// stored there. `None` for any other expression.
    fn simple(
        &self,
        frames: &EhFrame<EndianSlice<'_, LittleEndian>>,
        entry: &gimli::FrameDescriptionEntry<EndianSlice<'_, LittleEndian>>,
        expression: &UnwindExpression<usize>,
    ) -> Option<(i64, bool)> {
        let expression = expression.get(frames).ok()?;
        let mut operations = expression.operations(entry.cie().encoding());
        let offset = match operations.next().ok()?? {
            Operation::RegisterOffset {
                register, offset, ..
            } if register == self.registers.bp => offset,
            _ => return None,
        };
        match operations.next().ok()? {
            None => Some((offset, false)),
            Some(Operation::Deref { .. }) => match operations.next().ok()? {
                None => Some((offset, true)),
                Some(_) => None,
            },
            Some(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEADER: u64 = 0x1000;
    const FRAMES: u64 = 0x2000;
    const FUNCTION: u64 = 0x8000;

    /// An entry of the table: its length, then its body, padded to words with instructions that do nothing.
    fn entry(mut body: Vec<u8>) -> Vec<u8> {
        body.resize(body.len().next_multiple_of(4), 0);
        [(body.len() as u32).to_le_bytes().to_vec(), body].concat()
    }

    /// The tables of one function of 64 bytes with these instructions, for a machine with these registers. Code counts
    /// in units of 4, data in units of -8; at the entry the frame is at the stack pointer.
    fn tables(registers: Registers, instructions: &[u8]) -> Tables {
        let relative = |to: u64, from: u64| (to.wrapping_sub(from) as u32).to_le_bytes();
        let (sp, ra) = (registers.sp.0 as u8, registers.ra.0 as u8);
        // Version 1, "zR", addresses of four bytes, relative to their own place; def_cfa sp, 0.
        let cie = [
            &[0, 0, 0, 0, 1][..],
            b"zR\0",
            &[4, 0x78, ra, 1, 0x1b],
            &[0x0c, sp, 0],
        ];
        let mut frames = entry(cie.concat());
        let at = FRAMES + frames.len() as u64;
        let fde = [
            &relative(at + 4, FRAMES)[..],
            &relative(FUNCTION, at + 8),
            &64u32.to_le_bytes(),
            &[0],
            instructions,
        ];
        frames.extend(entry(fde.concat()));
        frames.extend([0; 4]);
        let header = [
            &[1, 0x1b, 0x03, 0x3b][..],
            &relative(FRAMES, HEADER + 4),
            &1u32.to_le_bytes(),
            &relative(FUNCTION, HEADER),
            &relative(at, HEADER),
        ];
        Tables {
            header: header.concat(),
            header_at: HEADER,
            frames,
            frames_at: FRAMES,
            registers,
            _taken: None,
        }
    }

    #[test]
    fn an_index_that_leads_before_the_table_gives_no_rule() {
        let mut tables = tables(X86_64, &[0x0c, 7, 8, 0x90, 1]);
        assert!(tables.find(FUNCTION).is_some());
        let place = tables.header.len() - 4;
        tables.header.truncate(place);
        tables
            .header
            .extend((FRAMES - HEADER - 8).to_le_bytes()[..4].iter());
        assert_eq!(tables.find(FUNCTION), None);
    }

    #[test]
    fn frame_records_of_aarch64() {
        // stp x29, x30, [sp, #-32]!; mov x29, sp; then both are restored.
        let usual = [
            0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, // after 4 bytes: cfa = sp + 32, both saved
            0x41, 0x0d, 29, // after 8: cfa = x29 + 32
            0x42, 0xdd, 0xde, 0x0c, 31, 0, // after 16: all is back
        ];
        let tables = tables(AARCH64, &usual);
        let rule = |at| tables.find(FUNCTION + at);
        // The return address is in its register only; no function that has called another one is in this state.
        assert_eq!(rule(0), None);
        assert_eq!(rule(4), Some(Rule::new(RULE_SP, 32, -32, false)));
        assert_eq!(rule(12), Some(Rule::new(RULE_BP, 32, -32, false)));
        assert_eq!(rule(16), None);
        assert_eq!(rule(64), None);
    }

    #[test]
    fn what_else_functions_of_aarch64_do() {
        let found = |instructions: &[u8]| tables(AARCH64, instructions).find(FUNCTION + 8);
        // With paciasp before it, for which the tables have an instruction of their own.
        let signed = [0x41, 0x2d, 0x41, 0x0e, 16, 0x9d, 2, 0x9e, 1];
        assert_eq!(
            found(&signed),
            Some(Rule::new(RULE_SP, 16, -16, false)),
            "signed"
        );
        // str x30, [sp, #-16]!: the return address is stored alone, without a frame record.
        let alone = Rule::new(RULE_SP, 16, -16, true);
        assert!(alone.return_only());
        assert_eq!(found(&[0x41, 0x0e, 16, 0x9e, 2]), Some(alone));
        // Both are saved, but not next to each other; then: further away than a rule can express.
        assert_eq!(found(&[0x41, 0x0e, 48, 0x9d, 6, 0x9e, 1]), None);
        let far = [0x41, 0x0e, 0x90, 0x80, 0x04, 0x9d, 0x82, 0x80, 0x01];
        assert_eq!(found(&[&far[..], &[0x9e, 0x81, 0x80, 0x01]].concat()), None);
        // In the outermost function x30 is undefined.
        assert_eq!(
            found(&[0x07, 30]).map(Rule::kind),
            Some(RULE_END),
            "outermost"
        );
    }

    /// A file of code that is a hole of 1 GiB but for its headers: the index is at [`HEADER`] with this size, and the
    /// table behind it, at [`FRAMES`], has the size that its section says.
    fn hole(index_size: u64, section: Option<u64>) -> FileBytes {
        use std::os::unix::fs::FileExt;

        const LEN: u64 = 1 << 30;
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let mut head = vec![0; 64];
        head[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        head[18] = 62;
        head[32] = 64;
        head[54] = 56;
        head[56] = 2;
        head[58] = 64;
        for (kind, at, size) in [(PT_LOAD, 0, LEN), (PT_GNU_EH_FRAME, HEADER, index_size)] {
            let mut raw = [0; 56];
            raw[..4].copy_from_slice(&kind.to_le_bytes());
            raw[8..16].copy_from_slice(&at.to_le_bytes());
            raw[16..24].copy_from_slice(&at.to_le_bytes());
            raw[32..40].copy_from_slice(&size.to_le_bytes());
            head.extend(raw);
        }
        if let Some(size) = section {
            let at = head.len() as u64;
            head[40..48].copy_from_slice(&at.to_le_bytes());
            head[60] = 2;
            head[62] = 1;
            let names = at + 128;
            for (place, size) in [(FRAMES, size), (names, 10)] {
                let mut raw = [0; 64];
                raw[4] = 1;
                raw[16..24].copy_from_slice(&place.to_le_bytes());
                raw[24..32].copy_from_slice(&place.to_le_bytes());
                raw[32..40].copy_from_slice(&size.to_le_bytes());
                head.extend(raw);
            }
            head.extend(b".eh_frame\0");
        }
        file.write_all_at(&head, 0).unwrap();
        let relative = (FRAMES - HEADER - 4) as u32;
        file.write_all_at(&[1, 0x1b, 0x03, 0x3b], HEADER).unwrap();
        file.write_all_at(&relative.to_le_bytes(), HEADER + 4)
            .unwrap();
        FileBytes::new(file).unwrap()
    }

    #[test]
    fn tables_of_any_size_are_not_read() {
        let room = Room::default();
        let read = |index, section| Tables::read(&hole(index, section), &room);
        let index = read(MOST + 1, None).unwrap_err();
        assert!(index.to_string().contains(".eh_frame_hdr"), "{index}");
        for (index, frames) in [(64, MOST), (MOST - 64, 100), (64, 900 << 20)] {
            let error = read(index, Some(frames)).unwrap_err();
            let bytes = index + frames;
            assert!(
                matches!(error, ImageError::TooLarge { bytes: told } if told == bytes),
                "{error}"
            );
        }
        let largest = read(64, Some(MOST - 64)).unwrap();
        assert_eq!((largest.header.len() + largest.frames.len()) as u64, MOST);
        // Without sections the table is cut off.
        let cut = read(64, None).unwrap();
        assert_eq!((cut.header.len() + cut.frames.len()) as u64, MOST);
        drop((largest, cut));
        assert_eq!(room.0.load(Ordering::Relaxed), MOST_OF_ALL);
    }

    #[test]
    fn all_files_share_the_room_and_wait_for_it() {
        let room = Room(Arc::new(AtomicU64::new(10 << 20)));
        let image = || {
            let bytes = hole(64, Some(6 << 20));
            Image::beside("hole".as_ref(), bytes, room.clone()).unwrap()
        };
        let (first, second) = (image(), image());
        assert!(first.tables().is_some());
        assert_eq!(second.rule(0x8000), STOP);
        assert_eq!((second.size(), first.size()), (0, (6 << 20) + 64));
        drop(first);
        assert!(second.tables().is_some());
    }

    #[test]
    fn x86_64_is_as_before() {
        // push rbp; mov rbp, rsp: the return address at cfa - 8, rbp at cfa - 16.
        let usual = [0x0c, 7, 8, 0x90, 1, 0x41, 0x0e, 16, 0x86, 2, 0x41, 0x0d, 6];
        let tables = tables(X86_64, &usual);
        let rule = |at| tables.find(FUNCTION + at);
        assert_eq!(rule(0), Some(Rule::new(RULE_SP, 8, 0, false)));
        assert_eq!(rule(4), Some(Rule::new(RULE_SP, 16, -16, false)));
        assert_eq!(rule(8), Some(Rule::new(RULE_BP, 16, -16, false)));
    }
}
