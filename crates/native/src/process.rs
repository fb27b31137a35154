//! The code that a process has mapped, and the unwinding of copied pieces of its stacks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memscope_common::{MOST_NATIVE, RULE_BP, RULE_BP_DEREF, RULE_END, RULE_SP, Rule, STACK_PAGE};
use memscope_site::SiteError;
use memscope_site::mapped;

use crate::image::{Image, Room, STOP};

/// Device (major and minor number) and inode of a file, as mappings show them.
type File = ((u32, u32), u64);

/// Files by device, inode, size and the time of their last change (seconds and nanoseconds). They are shared by all
/// processes that map them. `None`: the file could not be read as code.
type Images = HashMap<(File, u64, (i64, i64)), Option<Arc<Image>>>;

/// A range of addresses with code from one file.
#[derive(Debug)]
struct Code {
    start: u64,
    end: u64,
    file: File,
    /// Difference between an address in memory and the same address in the file's own numbering.
    bias: u64,
    image: Option<Arc<Image>>,
    name: Arc<str>,
}

impl Code {
    /// Whether this holds what the other range held. A library that was built again under the same path has the same name
    /// and mostly the same addresses, but is another file.
    fn holds(&self, was: &Code) -> bool {
        self.start <= was.start
            && self.end >= was.end
            && self.bias == was.bias
            && self.name == was.name
            && self.file == was.file
            && self.image.as_ref().map(Arc::as_ptr) == was.image.as_ref().map(Arc::as_ptr)
    }
}

/// The code of one process.
#[derive(Debug)]
pub struct ProcessCode {
    pid: u32,
    /// Sorted by address.
    code: Vec<Code>,
    /// Ranges that had other code before, and of which nobody was told yet.
    replaced: Vec<(u64, u64)>,
    read_at: Option<Instant>,
}

/// Mappings change rarely. They are read again when an address is not found in them, but at most once in this time.
const AGAIN: Duration = Duration::from_millis(200);

/// A copied piece of a stack, and the registers of the frame from which to unwind.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Address at which the frame goes on when the inner one returns.
    pub pc: u64,
    /// Stack pointer of the frame.
    pub sp: u64,
    /// Frame pointer of the frame.
    pub bp: u64,
    /// Address from which `bytes` was copied.
    pub base: u64,
    /// Contents of the stack from `base` on.
    pub bytes: &'a [u8],
}

impl Piece<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// The frames that were found in a piece of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// Return addresses, innermost first. The piece's own `pc` is not among them.
    pub frames: Vec<u64>,
    /// The rules that were used, for the BPF programs: the return address and its rule, for the piece's `pc` and then
    /// for each of `frames` that was reached.
    pub rules: Vec<(u64, Rule)>,
    /// Whether the outermost frame was reached.
    pub whole: bool,
}

impl ProcessCode {
    /// The code of the process with this pid. Nothing is read yet.
    pub fn new(pid: u32) -> ProcessCode {
        ProcessCode {
            pid,
            code: Vec::new(),
            replaced: Vec::new(),
            read_at: None,
        }
    }

    /// Reads which code the process has mapped. Fails if its mappings cannot be read; then what was known stays.
    pub fn read(&mut self, images: &mut Shared) -> Result<(), SiteError> {
        let is_first = self.read_at.replace(Instant::now()).is_none();
        let mapped = mapped::read(self.pid)?;
        let mut code = Vec::new();
        let known: HashSet<File> = self
            .code
            .iter()
            .filter(|code| code.image.is_some())
            .map(|code| code.file)
            .collect();
        let executable = mapped.objects.iter().filter(|one| one.is_executable());
        let mut objects: Vec<&mapped::MappedObject> = executable.collect();
        // What is open stays so. Of the rest the program itself comes first, and then what was mapped first: the kernel maps downwards.
        if let Some((_program, libraries)) = objects.split_first_mut() {
            libraries.reverse();
        }
        objects.sort_by_key(|one| !known.contains(&(one.device, one.inode)));
        for (number, object) in objects.into_iter().enumerate() {
            let (image, bias) = match number < images.most_of_process {
                true => images.open(self.pid, object),
                false => (None, 0),
            };
            for mapping in object.mappings.iter().filter(|mapping| mapping.execute) {
                code.push(Code {
                    start: mapping.start,
                    end: mapping.end,
                    file: (object.device, object.inode),
                    bias,
                    image: image.clone(),
                    name: object.display_path().into(),
                });
            }
        }
        code.sort_by_key(|code| code.start);
        let before = std::mem::replace(&mut self.code, code);
        // An address may have been met in new code before the mappings were read again. Nothing was known there then.
        for is in self.code.iter().filter(|_| !is_first) {
            let after = before.partition_point(|was| was.start <= is.start);
            let was = after.checked_sub(1).and_then(|at| before.get(at));
            let range = (is.start, is.end);
            if !was.is_some_and(|was| was.holds(is)) && !self.replaced.contains(&range) {
                self.replaced.push(range);
            }
        }
        for was in before {
            let is = self.index(was.start).and_then(|at| self.code.get(at));
            let range = (was.start, was.end);
            if !is.is_some_and(|is| is.holds(&was)) && !self.replaced.contains(&range) {
                self.replaced.push(range);
            }
        }
        Ok(())
    }

    /// Reads the mappings again, and returns what [`ProcessCode::replaced`] does.
    pub fn read_again(&mut self, images: &mut Shared) -> Result<Vec<(u64, u64)>, SiteError> {
        self.read(images)?;
        Ok(self.replaced())
    }

    /// The address ranges that had other code before, or none, since this was asked last. Rules for addresses in them are no
    /// longer valid. Whatever meets an unknown address reads the mappings again, so there may be some after it.
    pub fn replaced(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.replaced)
    }

    fn at(&mut self, address: u64, images: &mut Shared) -> Option<&Code> {
        if self.index(address).is_none() && self.read_at.is_none_or(|at| at.elapsed() >= AGAIN) {
            // Reading fails if the process has ended; then what was known stays.
            let _ = self.read(images);
        }
        self.code.get(self.index(address)?)
    }

    fn index(&self, address: u64) -> Option<usize> {
        let after = self.code.partition_point(|code| code.start <= address);
        let at = after.checked_sub(1)?;
        (self.code.get(at)?.end > address).then_some(at)
    }

    /// The file that an address lies in: its path, the file itself if it could be read, and the address in the file's
    /// own numbering. `None` where the process has no code mapped.
    pub fn place(
        &mut self,
        address: u64,
        images: &mut Shared,
    ) -> Option<(Arc<str>, Option<Arc<Image>>, u64)> {
        let code = self.at(address, images)?;
        Some((
            Arc::clone(&code.name),
            code.image.clone(),
            address.wrapping_sub(code.bias),
        ))
    }

    /// The rule for a return address; one of kind `RULE_STOP` where nothing is known about it.
    pub fn rule(&mut self, address: u64, images: &mut Shared) -> Rule {
        // The call instruction lies before the return address, and may be the last instruction of its function. So the
        // return address itself may already belong to the next function.
        let call = address.wrapping_sub(1);
        match self.at(call, images) {
            Some(Code {
                image: Some(image),
                bias,
                ..
            }) => image.rule(call.wrapping_sub(*bias)),
            _ => STOP,
        }
    }

    /// Unwinds a copied piece of a stack, in the same way as the BPF programs do with the same rules.
    pub fn unwind(&mut self, piece: &Piece<'_>, images: &mut Shared) -> Unwound {
        let mut unwound = Unwound::default();
        let (mut pc, mut sp, mut bp) = (piece.pc, piece.sp, piece.bp);
        for _ in 0..MOST_NATIVE {
            let rule = self.rule(pc, images);
            unwound.rules.push((pc, rule));
            if rule.kind() == RULE_END {
                unwound.whole = true;
                break;
            }
            let Some((caller, at, frame_pointer)) = step(rule, sp, bp, piece) else {
                break;
            };
            (pc, sp, bp) = (caller, at, frame_pointer);
            unwound.frames.push(pc);
        }
        unwound
    }
}

/// Whether rules say where the frame record lies (see [`Rule`]). Traced processes run on this machine, so its
/// architecture decides.
const RECORDS: bool = cfg!(target_arch = "aarch64");
/// On aarch64: mask of the bits of an address. The bits above may hold a signature of the address.
const ADDRESS: u64 = (1 << 48) - 1;

/// Steps to the caller: its return address, stack pointer and frame pointer. `None` if the walk must end here.
fn step(rule: Rule, sp: u64, bp: u64, piece: &Piece<'_>) -> Option<(u64, u64, u64)> {
    if RECORDS {
        step_record(rule, sp, bp, piece)
    } else {
        step_below(rule, sp, bp, piece)
    }
}

/// The step where the return address lies in a frame record, whose place the rule gives.
fn step_record(rule: Rule, sp: u64, bp: u64, piece: &Piece<'_>) -> Option<(u64, u64, u64)> {
    let from = match rule.kind() {
        RULE_SP => sp,
        RULE_BP => bp,
        _ => return None,
    };
    let frame = from.wrapping_add_signed(rule.offset());
    let record = frame.wrapping_add_signed(rule.bp());
    if frame <= sp || rule.bp() >= 0 || record < sp {
        return None;
    }
    let first = piece.word(record)?;
    if rule.return_only() {
        return Some((first & ADDRESS, frame, bp));
    }
    Some((piece.word(record.wrapping_add(8))? & ADDRESS, frame, first))
}

/// The step where the return address lies right below the caller's frame.
fn step_below(rule: Rule, sp: u64, bp: u64, piece: &Piece<'_>) -> Option<(u64, u64, u64)> {
    let kind = rule.kind();
    if kind > RULE_BP_DEREF {
        return None;
    }
    let from = if kind == RULE_SP { sp } else { bp };
    let mut frame = from.wrapping_add_signed(rule.offset());
    if kind == RULE_BP_DEREF {
        frame = piece.word(frame)?;
    }
    if frame <= sp {
        return None;
    }
    let mut caller_bp = bp;
    if rule.bp() != 0 || rule.bp_from_bp() {
        let from = if rule.bp_from_bp() { bp } else { frame };
        caller_bp = piece.word(from.wrapping_add_signed(rule.bp()))?;
    }
    Some((piece.word(frame.wrapping_sub(8))?, frame, caller_bp))
}

/// Most files of code of one process that are kept open. Real processes have some hundred.
pub const MOST_OF_PROCESS: usize = 4096;
/// Most files of code that are kept open of all processes.
pub const MOST_FILES: usize = 16_384;

/// The files of code of all processes.
#[derive(Debug)]
pub struct Shared {
    images: Images,
    /// Room for the tables of all of them.
    room: Room,
    most_of_process: usize,
    most: usize,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::of_at_most(MOST_OF_PROCESS, MOST_FILES)
    }
}

impl Shared {
    /// Keeps at most so many files open of one process and of all. In code of a further file, stacks end.
    pub fn of_at_most(of_process: usize, of_all: usize) -> Shared {
        Shared {
            images: Images::default(),
            room: Room::default(),
            most_of_process: of_process,
            most: of_all,
        }
    }

    /// Opens a mapped file, and finds its bias in this process. Without the file (`None`), the bias may be 0.
    fn open(&mut self, pid: u32, object: &mapped::MappedObject) -> (Option<Arc<Image>>, u64) {
        let opened = match object.open(pid) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(path = object.display_path(), %error, "code that is not opened");
                return (None, 0);
            }
        };
        let bias = match memscope_site::elf::Elf::read(&opened.bytes) {
            Ok(elf) => object.bias(&elf),
            Err(_) => None,
        };
        let Some(bias) = bias else {
            return (None, 0);
        };
        let facts = opened.bytes.file().facts();
        let changed = (facts.modified_s, facts.modified_ns);
        let key = ((object.device, object.inode), facts.size, changed);
        if self.images.len() >= self.most && !self.images.contains_key(&key) {
            tracing::debug!(path = object.display_path(), "too many files of code");
            return (None, 0);
        }
        let image = self.images.entry(key).or_insert_with(|| {
            match Image::beside(object.path.as_ref(), opened.bytes, self.room.clone()) {
                Ok(image) => Some(Arc::new(image)),
                Err(error) => {
                    tracing::debug!(path = object.display_path(), %error, "code without rules");
                    None
                }
            }
        });
        (image.clone(), bias)
    }

    /// Number of files that are kept.
    pub fn files(&self) -> usize {
        self.images.len()
    }

    /// Forgets the files that no [`ProcessCode`] uses any more, and those that could not be read as code.
    pub fn sweep(&mut self) {
        self.images.retain(|_, image| {
            image
                .as_ref()
                .is_some_and(|image| Arc::strong_count(image) > 1)
        });
    }

    /// Size in bytes of all unwind tables that are held in memory.
    pub fn size(&self) -> u64 {
        let images = self.images.values().flatten();
        images.map(|image| image.size()).sum()
    }
}

const _: () = assert!(STACK_PAGE.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_record_leads_to_the_caller() {
        const BASE: u64 = 0xffff_0000_1000;
        let mut bytes = [0u8; 128];
        // At +32 lies a frame record whose return address is signed; at +80 lies a return address alone.
        bytes[32..40].copy_from_slice(&(BASE + 96).to_le_bytes());
        bytes[40..48].copy_from_slice(&0x0021_aaaa_0000_4444_u64.to_le_bytes());
        bytes[80..88].copy_from_slice(&0xaaaa_0000_5555_u64.to_le_bytes());
        let piece = Piece {
            pc: 0,
            sp: BASE,
            bp: BASE + 32,
            base: BASE,
            bytes: &bytes,
        };
        let step = |rule| step_record(rule, piece.sp, piece.bp, &piece);
        let caller = Some((0xaaaa_0000_4444, BASE + 64, BASE + 96));
        assert_eq!(step(Rule::new(RULE_SP, 64, -32, false)), caller);
        assert_eq!(step(Rule::new(RULE_BP, 32, -32, false)), caller);
        let alone = Some((0xaaaa_0000_5555, BASE + 96, BASE + 32));
        assert_eq!(step(Rule::new(RULE_SP, 96, -16, true)), alone);
        for refused in [
            Rule::new(RULE_SP, 64, 0, false),
            Rule::new(RULE_SP, 0, -32, false),
            Rule::new(RULE_SP, 64, -72, false),
            Rule::new(RULE_SP, 256, -32, false),
            Rule::new(RULE_BP_DEREF, 0, -32, false),
            STOP,
        ] {
            assert_eq!(step(refused), None);
        }
    }
}
