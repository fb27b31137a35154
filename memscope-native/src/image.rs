//! One file of code: its tables, as rules.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Operation, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
};
use memscope_common::{RULE_BP, RULE_BP_DEREF, RULE_END, RULE_SP, RULE_STOP, Rule};
use memscope_site::elf::{Elf, ElfError, FileBytes};
use memscope_site::place::Machine;

/// `PT_LOAD` and `PT_GNU_EH_FRAME` of elf.h.
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// No table is read beyond this; the largest known (libtorch_cpu) has 18 MB.
const MOST: u64 = 512 << 20;
/// DWARF's numbers of a machine's registers.
#[derive(Clone, Copy, Debug)]
struct Registers {
    /// Frame pointer.
    bp: Register,
    /// Stack pointer.
    sp: Register,
    /// Return address.
    ra: Register,
    /// Rules tell where the frame record lies (see [`Rule`]).
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

/// The rule where nothing is known.
pub(crate) const STOP: Rule = Rule::new(RULE_STOP, 0, 0, false);

/// Why a file gives no rules.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its bytes.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its machine.
    #[error("it is for a machine whose registers are not known ({0})")]
    Machine(u16),
    /// No tables.
    #[error("it has no .eh_frame_hdr")]
    NoTable,
    /// Tables that cannot be read.
    #[error("its .eh_frame_hdr cannot be read: {0}")]
    Table(gimli::Error),
}

/// One file of code.
#[derive(Debug)]
pub struct Image {
    /// Path in the process's mount namespace.
    pub path: PathBuf,
    /// Kept open: the file may be deleted, and the process may end.
    bytes: FileBytes,
    build_id: String,
    /// Read when the first rule is asked for: most of what a process has mapped is in no stack.
    tables: OnceLock<Option<Tables>>,
}

/// What `.eh_frame` and its index hold, and where they lie in the file's own numbering.
#[derive(Debug)]
struct Tables {
    header: Vec<u8>,
    header_at: u64,
    frames: Vec<u8>,
    frames_at: u64,
    registers: Registers,
}

impl Image {
    /// Of an open file.
    pub fn new(path: &Path, bytes: FileBytes) -> Result<Image, ImageError> {
        let build_id = Elf::read(&bytes)?.build_id().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Image {
            path: path.to_owned(),
            bytes,
            build_id,
            tables: OnceLock::new(),
        })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        self.bytes.file()
    }

    /// Its build id in hexadecimal digits, empty for none.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// The rule for an instruction, by its address in the file's own numbering. [`RULE_STOP`] where the tables do not
    /// tell, or tell what a rule cannot say.
    pub fn rule(&self, address: u64) -> Rule {
        let tables = self.tables.get_or_init(|| match Tables::read(&self.bytes) {
            Ok(tables) => Some(tables),
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "code without rules");
                None
            }
        });
        let rule = tables.as_ref().and_then(|tables| tables.find(address));
        rule.unwrap_or(STOP)
    }

    /// Bytes of its tables that are held.
    pub fn size(&self) -> u64 {
        let tables = self.tables.get().and_then(Option::as_ref);
        tables.map_or(0, |tables| {
            (tables.header.len() + tables.frames.len()) as u64
        })
    }
}

impl Tables {
    fn read(bytes: &FileBytes) -> Result<Tables, ImageError> {
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
        let header = elf.bytes_at(segment.offset, segment.file_size.min(MOST))?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header_at);
        let parsed = EhFrameHdr::new(&header, LittleEndian)
            .parse(&bases, 8)
            .map_err(ImageError::Table)?;
        let gimli::Pointer::Direct(frames_at) = parsed.eh_frame_ptr() else {
            return Err(ImageError::NoTable);
        };
        // The section's length, or where there are no sections, the rest of what is loaded with it.
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
        let len = section
            .unwrap_or(load.file_size - inside)
            .min(load.file_size - inside)
            .min(MOST);
        let frames = elf.bytes_at(load.offset + inside, len)?;
        Ok(Tables {
            header,
            header_at,
            frames,
            frames_at,
            registers,
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
            // Its tables say by an instruction of their own where return addresses are signed.
            frames.set_vendor(gimli::Vendor::AArch64);
        }
        let entry = parsed
            .table()?
            .fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset)
            .ok()?;
        if entry.cie().is_signal_trampoline() {
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
            // So is the outermost frame of a thread marked.
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
            // Functions that align their stack keep what the frame pointer was at the frame pointer itself.
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

    /// An expression that is the frame pointer plus an offset, and whether the word there is meant.
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
