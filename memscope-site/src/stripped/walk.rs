//! Reads the code that some functions reach by direct calls, and notes how each call passes what matters here.

use std::collections::{HashMap, HashSet, VecDeque};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::elf::{Elf, ElfError, ReadAt};

/// Calls are followed so deep from the functions of the table.
const DEPTH: u32 = 3;
/// No more functions are read than this.
const MOST_FUNCTIONS: usize = 6000;
/// Of one function no more instructions are read than this.
const MOST_INSTRUCTIONS: usize = 20_000;
/// Code is read in pieces of this many bytes.
const PIECE: u64 = 64 << 10;
/// All code is searched in pieces of this many bytes.
const SCAN: u64 = 4 << 20;
/// Longest instruction.
const LONGEST: usize = 15;

/// `c10::DeviceType::PrivateUse1`.
const PRIVATE_USE: u64 = 20;
/// Bytes of torch_npu's `MemoryUsage`.
const USAGE: i64 = 56;

/// A structure on the caller's stack that looks like torch_npu's `MemoryUsage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Five bytes come before the address, not four: it says which allocator it is of.
    pub component: bool,
}

/// A direct call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Where.
    pub at: u64,
    /// The function that it is in.
    pub caller: u64,
    /// The function that is called.
    pub target: u64,
    /// The second argument, where the caller sets a constant.
    pub second: Option<u32>,
    /// What the caller wrote on its stack since the last call.
    pub usage: Option<Usage>,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub calls: Vec<Call>,
    /// Functions.
    pub functions: usize,
}

/// All direct calls in the functions at `from` and in what they call.
pub(super) fn calls<R: ReadAt + ?Sized>(elf: &Elf<'_, R>, from: &[u64]) -> Result<Seen, ElfError> {
    let mut code = Pieces {
        elf,
        pieces: HashMap::new(),
    };
    let mut seen = Seen::default();
    let mut known: HashSet<u64> = from.iter().copied().collect();
    let mut waiting: VecDeque<(u64, u32)> = known.iter().map(|entry| (*entry, 0)).collect();
    // The same answer each time: sets have no order.
    waiting.make_contiguous().sort_unstable();
    while let Some((entry, depth)) = waiting.pop_front() {
        if seen.functions == MOST_FUNCTIONS {
            break;
        }
        seen.functions += 1;
        let first = seen.calls.len();
        read_function(&mut code, entry, &mut seen.calls)?;
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

/// Addresses of all instructions of the file that call a function directly: one byte, and the distance from the next
/// instruction to the function. That four bytes of anything else hold just that distance happens once in a few thousand
/// million.
pub(super) fn callers<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    function: u64,
) -> Result<Vec<u64>, ElfError> {
    const CALL: u8 = 0xe8;
    const LENGTH: usize = 5;
    let mut found = Vec::new();
    let code = elf.segments.iter().filter(|segment| {
        segment.kind == object::elf::PT_LOAD.0 && segment.flags & object::elf::PF_X.0 != 0
    });
    for segment in code {
        let mut inside = 0;
        while inside < segment.file_size {
            let size = (SCAN + LENGTH as u64 - 1).min(segment.file_size - inside);
            let bytes = elf.bytes_at(segment.offset + inside, size)?;
            for at in memchr::memchr_iter(CALL, &bytes) {
                let distance = bytes
                    .get(at + 1..at + LENGTH)
                    .and_then(|four| four.try_into().ok());
                let Some(distance) = distance.map(i32::from_le_bytes) else {
                    continue;
                };
                let address = segment.address + inside + at as u64;
                let next = address.wrapping_add(LENGTH as u64);
                if next.wrapping_add_signed(i64::from(distance)) == function {
                    found.push(address);
                }
            }
            inside += SCAN;
        }
    }
    Ok(found)
}

/// Code of the file, as it is asked for.
struct Pieces<'a, 'b, R: ReadAt + ?Sized> {
    elf: &'a Elf<'b, R>,
    pieces: HashMap<u64, Vec<u8>>,
}

impl<R: ReadAt + ?Sized> Pieces<'_, '_, R> {
    /// Bytes from an address to the end of its piece and a little more; empty where there is no code.
    fn from(&mut self, address: u64) -> Result<&[u8], ElfError> {
        let start = address - address % PIECE;
        if !self.pieces.contains_key(&start) {
            let mut at = start;
            let mut bytes = Vec::new();
            // A piece may begin before the code does.
            if self.elf.code_offset_of(start).is_none() {
                at = address;
            }
            if let Some((offset, available)) = self.elf.code_offset_of(at) {
                let size = (start + PIECE + LONGEST as u64 - at).min(available);
                bytes = vec![0; (at - start) as usize];
                bytes.extend(self.elf.bytes_at(offset, size)?);
            }
            self.pieces.insert(start, bytes);
        }
        let piece = self.pieces.get(&start).map_or(&[][..], Vec::as_slice);
        Ok(piece.get((address - start) as usize..).unwrap_or(&[]))
    }
}

/// What the code before a call did, as far as it matters.
#[derive(Default)]
struct Before {
    second: Option<u32>,
    /// Stores on the stack: base register, displacement, bytes, and the constant, if it is one.
    stores: Vec<(Register, i64, i64, Option<u64>)>,
}

fn read_function<R: ReadAt + ?Sized>(
    code: &mut Pieces<'_, '_, R>,
    entry: u64,
    calls: &mut Vec<Call>,
) -> Result<(), ElfError> {
    let mut waiting = vec![entry];
    let mut visited: HashSet<u64> = HashSet::new();
    let mut instruction = Instruction::default();
    'blocks: while let Some(start) = waiting.pop() {
        let mut at = start;
        let mut before = Before::default();
        // Piece by piece; an instruction that a piece cuts off is read again with the next one.
        loop {
            let bytes = code.from(at)?;
            let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
            let fits = bytes.len().saturating_sub(LONGEST);
            if bytes.is_empty() {
                continue 'blocks;
            }
            while decoder.position() <= fits {
                if visited.len() == MOST_INSTRUCTIONS || !visited.insert(at) {
                    continue 'blocks;
                }
                decoder.decode_out(&mut instruction);
                if instruction.is_invalid() {
                    continue 'blocks;
                }
                match instruction.flow_control() {
                    FlowControl::Call if instruction.is_call_near() => {
                        calls.push(Call {
                            at,
                            caller: entry,
                            target: instruction.near_branch_target(),
                            second: before.second,
                            usage: before.usage(),
                        });
                        before = Before::default();
                    }
                    FlowControl::Call | FlowControl::IndirectCall => before = Before::default(),
                    FlowControl::ConditionalBranch => {
                        waiting.push(instruction.near_branch_target());
                    }
                    FlowControl::UnconditionalBranch => {
                        waiting.push(instruction.near_branch_target());
                        continue 'blocks;
                    }
                    FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Exception => {
                        continue 'blocks;
                    }
                    _ => before.step(&instruction),
                }
                at = instruction.next_ip();
            }
            if bytes.len() < LONGEST {
                // The end of the code.
                continue 'blocks;
            }
        }
    }
    Ok(())
}

impl Before {
    fn step(&mut self, instruction: &Instruction) {
        use Mnemonic::{Cmp, Push, Test};
        if matches!(instruction.mnemonic(), Cmp | Test | Push) {
            return;
        }
        match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().full_register() == Register::RSI => {
                self.second = constant(instruction);
            }
            OpKind::Memory => {
                let base = instruction.memory_base();
                let on_stack = matches!(base, Register::RBP | Register::RSP)
                    && instruction.memory_index() == Register::None;
                if on_stack {
                    let value =
                        is_immediate(instruction.op1_kind()).then(|| instruction.immediate(1));
                    self.stores.push((
                        base,
                        instruction.memory_displacement64() as i64,
                        instruction.memory_size().size() as i64,
                        value,
                    ));
                }
            }
            _ => {}
        }
    }

    /// The structure, if each of its fields was written: type (the constant 20), index, component or data type, data
    /// type or allocator, [allocator,] and from 8 on six words.
    fn usage(&self) -> Option<Usage> {
        self.stores
            .iter()
            .filter(|(_, _, size, value)| *size == 1 && *value == Some(PRIVATE_USE))
            .find_map(|(base, start, _, _)| {
                let mut written = 0u64;
                for (other, at, size, _) in &self.stores {
                    let from = at.saturating_sub(*start);
                    if other == base && (0..USAGE).contains(&from) {
                        for byte in from..from.saturating_add(*size).min(USAGE) {
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

/// The constant that the instruction puts into its register.
fn constant(instruction: &Instruction) -> Option<u32> {
    match instruction.mnemonic() {
        Mnemonic::Mov if is_immediate(instruction.op1_kind()) => {
            u32::try_from(instruction.immediate(1)).ok()
        }
        Mnemonic::Xor if instruction.op0_register() == instruction.op1_register() => Some(0),
        _ => None,
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}
