//! Reads the code that some functions reach by direct calls, and notes for each call the arguments that matter here.

mod aarch64;
mod step;
mod x86_64;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::elf::{Elf, ElfError, ReadAt, Whole};
use crate::place::Machine;
pub(crate) use step::Flow;
use step::{Decoded, Effect, Value};

/// Depth to which calls are followed, counted from the functions of the table.
const DEPTH: u32 = 3;
/// Most functions that are read.
const MOST_FUNCTIONS: usize = 6000;
/// Most instructions that are read of one function.
const MOST_INSTRUCTIONS: usize = 20_000;
/// Most calls that are noted. The allocator's functions make a few ten thousand.
const MOST_CALLS: usize = 1 << 20;
/// Most calls of one function that are looked for in the whole file. There are a few hundred.
const MOST_CALLERS: usize = 1 << 14;
/// Most stores before a call that are compared with the structure, which takes less than 20.
const MOST_STORES: usize = 256;
/// Most pieces of code that are kept at the same time.
const MOST_PIECES: usize = 1024;
/// Code is read in pieces of this many bytes.
const PIECE: u64 = 64 << 10;
/// When all code of the file is searched, it is read in pieces of this many bytes.
const SCAN: u64 = 4 << 20;
/// Length in bytes of the longest instruction of any machine.
const LONGEST: usize = 15;

/// `c10::DeviceType::PrivateUse1`.
const PRIVATE_USE: u64 = 20;
/// Bytes of torch_npu's `MemoryUsage`.
const USAGE: i64 = 56;

/// A structure on the caller's stack that looks like torch_npu's `MemoryUsage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Whether five bytes come before the address, not four: then the structure says which allocator reports.
    pub component: bool,
}

/// A direct call of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Address of the call instruction.
    pub at: u64,
    /// Entry of the function that contains the call.
    pub caller: u64,
    /// Entry of the function that is called.
    pub target: u64,
    /// The second argument, if the caller sets it to a constant.
    pub second: Option<u32>,
    /// The structure that the caller wrote on its stack since its last call, if it is a `MemoryUsage`.
    pub usage: Option<Usage>,
}

/// The calls that were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub calls: Vec<Call>,
    /// Number of functions whose code was read.
    pub functions: usize,
    /// Whether there were more calls than are noted. Then nothing can be said about them.
    pub too_many: bool,
}

/// Decodes the first instruction of some bytes, given its address; `None` if they are no instruction.
pub(crate) type Decode = fn(&[u8], u64) -> Option<Decoded>;

/// What decodes the code of a machine; `None` if nothing does.
pub(crate) fn decoder(machine: Machine) -> Option<Decode> {
    match machine {
        Machine::X86_64 => Some(x86_64::decode),
        Machine::Aarch64 => Some(aarch64::decode),
        Machine::Other(_) => None,
    }
}

/// Finds all direct calls in the functions at `from`, and in the functions that these call.
pub(super) fn calls<R: ReadAt + ?Sized>(elf: &Elf<'_, R>, from: &[u64]) -> Result<Seen, ElfError> {
    let Some(decode) = decoder(Machine::from_elf(elf.machine)) else {
        return Ok(Seen::default());
    };
    let mut code = Pieces {
        elf,
        pieces: HashMap::new(),
    };
    let mut seen = Seen::default();
    let mut known: HashSet<u64> = from.iter().copied().collect();
    let mut waiting: VecDeque<(u64, u32)> = known.iter().map(|entry| (*entry, 0)).collect();
    // Sorted, since sets have no order and the result must always be the same.
    waiting.make_contiguous().sort_unstable();
    while let Some((entry, depth)) = waiting.pop_front() {
        if seen.functions == MOST_FUNCTIONS {
            break;
        }
        seen.functions += 1;
        let first = seen.calls.len();
        read_function(&mut code, decode, entry, &mut seen.calls)?;
        if seen.calls.len() > MOST_CALLS {
            seen.calls.clear();
            seen.too_many = true;
            break;
        }
        if depth == DEPTH {
            continue;
        }
        for call in seen.calls.iter().skip(first) {
            if known.insert(call.target) {
                waiting.push_back((call.target, depth + 1));
            }
        }
    }
    Ok(seen)
}

/// Addresses of all instructions of the file that call a function directly.
pub(super) fn callers<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    function: u64,
) -> Result<Vec<u64>, ElfError> {
    let scan: fn(&[u8], u64, u64, &mut Vec<u64>) = match Machine::from_elf(elf.machine) {
        Machine::X86_64 => x86_64::callers,
        Machine::Aarch64 => aarch64::callers,
        Machine::Other(_) => return Ok(Vec::new()),
    };
    let mut found = Vec::new();
    let code = elf.segments.iter().filter(|segment| {
        segment.kind == object::elf::PT_LOAD.0 && segment.flags & object::elf::PF_X.0 != 0
    });
    for segment in code {
        let mut inside = 0;
        while inside < segment.file_size {
            // A little more than a piece is read, since a call may lie across its end.
            let size = (SCAN + LONGEST as u64).min(segment.file_size - inside);
            let offset = segment.offset.saturating_add(inside);
            let bytes = elf.bytes_at(offset, size, "code")?;
            let address = segment.address.wrapping_add(inside);
            scan(&bytes, address, function, &mut found);
            if found.len() > MOST_CALLERS {
                return Err(ElfError::TooMany {
                    what: "calls of the reporting function",
                    whole: Whole::File,
                    most: MOST_CALLERS as u64,
                });
            }
            inside += SCAN;
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Code of the file, read in pieces when it is needed.
struct Pieces<'a, 'b, R: ReadAt + ?Sized> {
    elf: &'a Elf<'b, R>,
    pieces: HashMap<u64, Vec<u8>>,
}

impl<R: ReadAt + ?Sized> Pieces<'_, '_, R> {
    /// Bytes from an address to a little more than the end of its piece; empty if there is no code.
    fn from(&mut self, address: u64) -> Result<&[u8], ElfError> {
        let start = address - address % PIECE;
        if !self.pieces.contains_key(&start) {
            let Some((offset, available)) = self.elf.code_offset_of(address) else {
                return Ok(&[]);
            };
            // A piece may begin before the code does.
            let before = (address - start).min(self.elf.bytes_before(address));
            let at = address - before;
            let size =
                (PIECE + LONGEST as u64 - (at - start)).min(available.saturating_add(before));
            let mut bytes = vec![0; (at - start) as usize];
            bytes.extend(self.elf.bytes_at(offset - before, size, "code")?);
            if self.pieces.len() >= MOST_PIECES {
                // What is needed again is read again.
                self.pieces.clear();
            }
            self.pieces.insert(start, bytes);
        }
        let piece = self.pieces.get(&start).map_or(&[][..], Vec::as_slice);
        Ok(piece.get((address - start) as usize..).unwrap_or(&[]))
    }
}

/// What is known about registers and the stack from the code before a call.
#[derive(Default)]
struct Before {
    constants: [Option<u64>; 32],
    /// Stores on the stack since the last call: base register, displacement, number of bytes, and the value, if it is a
    /// constant.
    stores: Vec<(u8, i64, i64, Option<u64>)>,
}

fn read_function<R: ReadAt + ?Sized>(
    code: &mut Pieces<'_, '_, R>,
    decode: Decode,
    entry: u64,
    calls: &mut Vec<Call>,
) -> Result<(), ElfError> {
    let elf = code.elf;
    let mut waiting = vec![entry];
    let mut visited: HashSet<u64> = HashSet::new();
    'blocks: while let Some(start) = waiting.pop() {
        let mut at = start;
        let mut before = Before::default();
        // An instruction that is cut off at the end of a piece is read again with the next piece.
        loop {
            let bytes = code.from(at)?;
            let fits = bytes.len().saturating_sub(LONGEST);
            let mut place = 0;
            while place <= fits {
                if visited.len() == MOST_INSTRUCTIONS || !visited.insert(at) {
                    continue 'blocks;
                }
                let Some(step) = decode(bytes.get(place..).unwrap_or(&[]), at) else {
                    continue 'blocks;
                };
                elf.look_at(step.bytes as u64)?;
                match step.flow {
                    Flow::Call(target) => {
                        elf.look_at(before.comparisons())?;
                        calls.push(Call {
                            at,
                            caller: entry,
                            target,
                            second: before.second(step.second),
                            usage: before.usage(),
                        });
                        before.call(step.kept_from);
                    }
                    Flow::OtherCall => before.call(step.kept_from),
                    Flow::MayJump(target) => waiting.push(target),
                    Flow::Jump(target) => {
                        waiting.push(target);
                        continue 'blocks;
                    }
                    Flow::End => continue 'blocks,
                    Flow::Next => before.take(step.effect),
                }
                place += step.bytes;
                at = at.wrapping_add(step.bytes as u64);
            }
            if bytes.len() < LONGEST {
                // This is the end of the code.
                continue 'blocks;
            }
        }
    }
    Ok(())
}

/// Whether a store may be that of the structure's first field.
fn is_device_type(bytes: i64, value: Option<u64>) -> bool {
    bytes == 1 && value == Some(PRIVATE_USE)
}

impl Before {
    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Set { register, value } => self.set(register, self.value(value)),
            Effect::SetTwo(one, other) => {
                self.set(one, None);
                self.set(other, None);
            }
            Effect::Store {
                base,
                at,
                bytes,
                value,
            } => {
                if self.stores.len() >= MOST_STORES {
                    self.stores.remove(0);
                }
                self.stores.push((base, at, bytes, self.value(value)));
            }
        }
    }

    fn value(&self, value: Value) -> Option<u64> {
        match value {
            Value::Unknown => None,
            Value::Constant(number) => Some(number),
            Value::Of(register) => self.constants.get(usize::from(register)).copied()?,
        }
    }

    fn set(&mut self, register: u8, value: Option<u64>) {
        if let Some(place) = self.constants.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// Forgets what is no longer true after a call: the stores, and the registers that a call may change.
    fn call(&mut self, kept_from: u8) {
        for register in self.constants.iter_mut().take(usize::from(kept_from)) {
            *register = None;
        }
        self.stores.clear();
    }

    fn second(&self, register: u8) -> Option<u32> {
        u32::try_from(self.value(Value::Of(register))?).ok()
    }

    /// Number of stores that [`Before::usage`] compares.
    fn comparisons(&self) -> u64 {
        let begins = self.stores.iter();
        let begins = begins.filter(|(_, _, bytes, value)| is_device_type(*bytes, *value));
        (begins.count() * self.stores.len()) as u64
    }

    /// The structure on the stack, if each of its fields was written. The fields are bytes for the device's type (the
    /// constant 20), the device's index, the component (only in newer versions), the data's type and the allocator's
    /// type, and from offset 8 on six words.
    fn usage(&self) -> Option<Usage> {
        self.stores
            .iter()
            .filter(|(_, _, bytes, value)| is_device_type(*bytes, *value))
            .find_map(|(base, start, _, _)| {
                let mut written = 0u64;
                for (other, at, bytes, _) in &self.stores {
                    let from = at.saturating_sub(*start);
                    if other == base && (0..USAGE).contains(&from) {
                        for byte in from..from.saturating_add(*bytes).min(USAGE) {
                            written |= 1 << byte;
                        }
                    }
                }
                const ALWAYS: u64 = 0x00ff_ffff_ffff_ff0f;
                (written & ALWAYS == ALWAYS).then_some(Usage {
                    component: written >> 4 & 1 == 1,
                })
            })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    /// Code that consists of calls only: there is a limit of what is noted of them, and no part of them counts as all.
    #[test]
    fn what_is_noted_of_calls_is_bounded() {
        let mut file = vec![0; 64 + 56];
        file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = object::elf::PT_LOAD.0 as u8;
        file[68] = object::elf::PF_X.0 as u8;
        let functions = MOST_CALLS / MOST_INSTRUCTIONS + 2;
        let bytes = functions * MOST_INSTRUCTIONS * 5;
        file[64 + 32..64 + 40].copy_from_slice(&((120 + bytes) as u64).to_le_bytes());
        // Each calls a place outside the file.
        file.extend([0xe8, 0, 0, 0, 0x40].repeat(functions * MOST_INSTRUCTIONS));
        let elf = Elf::read(&file[..]).unwrap();
        let entries: Vec<u64> = (0..functions)
            .map(|i| (120 + i * MOST_INSTRUCTIONS * 5) as u64)
            .collect();
        let few = calls(&elf, &entries[..1]).unwrap();
        assert!(!few.too_many && few.calls.len() == MOST_INSTRUCTIONS);
        let many = calls(&elf, &entries).unwrap();
        assert!(many.too_many && many.calls.is_empty());
        assert!(many.functions <= functions);
        Met {
            what: "calls that are noted of a stripped library",
            most: constant("crates/site/src/stripped/walk/mod.rs", "MOST_CALLS"),
            beyond: "none counts, because a part would mislead",
            told: "the search says that nothing was found",
            test: "what_is_noted_of_calls_is_bounded",
        }
        .is_told();
    }

    #[test]
    fn what_is_noted_of_stores_is_bounded() {
        let mut before = Before::default();
        let store = |at, value| Effect::Store {
            base: 4,
            at,
            bytes: 1,
            value: Value::Constant(value),
        };
        for _ in 0..2 * MOST_STORES {
            before.take(store(0, 7));
        }
        assert_eq!(before.stores.len(), MOST_STORES);
        // The last ones count: they are the structure that the next call gets.
        before.take(store(0, PRIVATE_USE));
        for at in 1..USAGE {
            before.take(store(at, 1));
        }
        assert_eq!(before.usage(), Some(Usage { component: true }));
    }

    /// The first piece of a file's code begins in the middle of the piece's addresses. Its bytes must be the same
    /// whichever of its addresses is asked for first.
    #[test]
    fn code_is_the_same_whatever_was_read_before() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::read(&file[..]).unwrap();
        let segment = elf
            .segments
            .iter()
            .find(|s| s.kind == object::elf::PT_LOAD.0 && s.flags & object::elf::PF_X.0 != 0)
            .unwrap();
        let (first, place) = (segment.address, segment.offset as usize);
        let to_end = PIECE - first % PIECE;
        assert!(first % PIECE != 0 && to_end > 64 && segment.file_size > to_end);
        for order in [[0, 48], [48, 0]] {
            let mut code = Pieces {
                elf: &elf,
                pieces: HashMap::new(),
            };
            for inside in order {
                let wanted = &file[place + inside as usize..][..16];
                let read = code.from(first + inside).unwrap();
                assert_eq!(&read[..16], wanted, "{inside} of {order:?}");
            }
        }
        // Before the first address there is no code.
        let mut code = Pieces {
            elf: &elf,
            pieces: HashMap::new(),
        };
        assert!(code.from(first - first % PIECE).unwrap().is_empty());
        assert_eq!(code.from(first).unwrap()[..16], file[place..][..16]);
    }
}
