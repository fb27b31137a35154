//! x86-64: which instructions the kernel emulates, and the proof that a place is correct.
//!
//! The kernel's rules are in arch/x86/kernel/uprobes.c
//! (<https://github.com/torvalds/linux/blob/master/arch/x86/kernel/uprobes.c>):
//! `branch_setup_xol_ops` (nop, jmp, call and conditional jumps with a relative target are emulated),
//! `push_setup_xol_ops` (push of a 64-bit register is emulated), `is_prefix_bad` (instructions that are refused).

use iced_x86::{
    Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use super::{Code, Emulation, PlaceError, Placement, Wants};

/// Number of bytes of the entry block that are searched.
const MAX_BYTES: u64 = 128;
/// Registers that carry arguments (System V ABI).
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// The kernel's own nops of 2 to 9 bytes (arch/x86/include/asm/nops.h). Longer ones begin with a
/// prefix on which the kernel refuses a probe.
const LONG_NOPS: [&[u8]; 8] = [
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

impl Emulation {
    fn covers(self, bytes: &[u8]) -> Option<&'static str> {
        match bytes {
            // 66 90 is emulated by older kernels, too, unlike the other long nops: it is a prefix and opcode 90.
            [0x90] | [0x66, 0x90] => Some("nop"),
            [0x50..=0x57] | [0x41, 0x50..=0x57] if self.push => Some("push"),
            [0xeb, _] | [0xe9, _, _, _, _] => Some("jmp"),
            [0xe8, _, _, _, _] => Some("call"),
            [0x70..=0x7f, _] | [0x0f, 0x80..=0x8f, _, _, _, _] => Some("conditional jump"),
            long if self.long_nop && LONG_NOPS.contains(&long) => Some("nop"),
            _ => None,
        }
    }
}

/// Prefixes on which the kernel refuses a probe: LOCK and segments other than FS and GS.
fn forbidden_prefix(bytes: &[u8]) -> Option<&'static str> {
    bytes
        .iter()
        .take_while(|byte| {
            matches!(
                byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3
            )
        })
        .find_map(|byte| match byte {
            0xf0 => Some("a LOCK prefix"),
            0x26 | 0x2e | 0x36 | 0x3e => Some("a segment prefix"),
            _ => None,
        })
}

pub(super) fn place(
    code: &Code<'_>,
    wants: Wants,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    search(code, wants, emulation).map(|(placement, _)| placement)
}

/// The same, with the number of instructions that were decoded.
fn search(
    code: &Code<'_>,
    wants: Wants,
    emulation: Emulation,
) -> Result<(Placement, u64), PlaceError> {
    check_first(code)?;
    let mut decoded = 1;
    let mut decoder = Decoder::with_ip(64, code.bytes, code.address, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut instruction = Instruction::default();
    let mut walk = Walk {
        pushed: Some(0),
        wants,
    };
    // The whole function is read once at most, when a place behind its entry is the first to need it.
    let mut ways: Option<WaysIn> = None;
    let mut why_not = "no emulated instruction stands in the entry block before the arguments move";
    while decoder.can_decode() && decoder.position() as u64 <= MAX_BYTES {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        decoded += 1;
        if instruction.is_invalid() {
            break;
        }
        let bytes = &code.bytes[at..decoder.position()];
        let (Some(pushed), true) = (walk.pushed, walk.stack_is_fit()) else {
            break;
        };
        if let Some(word) = emulation.covers(bytes) {
            let at = at as u64;
            let proven = match at {
                0 => Ok(()),
                _ => ways
                    .get_or_insert_with(|| WaysIn::of(code, &mut decoded))
                    .only_from_above(at, word),
            };
            match proven {
                Ok(()) => return Ok((found(at, pushed, wants, word), decoded)),
                Err(why) => why_not = why,
            }
        }
        if instruction.flow_control() != FlowControl::Next || !walk.step(&mut factory, &instruction)
        {
            break;
        }
    }
    let placement = Placement {
        entry_offset: 0,
        return_offset: wants.returns.then_some(0),
        emulated: false,
        pushed: 0,
        reason: format!("on the first instruction, single-stepped: {why_not}"),
    };
    Ok((placement, decoded))
}

fn found(at: u64, pushed: u32, wants: Wants, word: &str) -> Placement {
    let reason = match at {
        0 => format!("on the first instruction, {word}, emulated"),
        _ => format!("on {word} at +{at}, emulated, arguments untouched until there"),
    };
    Placement {
        entry_offset: at,
        return_offset: wants.returns.then_some(at),
        emulated: true,
        pushed,
        reason,
    }
}

fn check_first(code: &Code<'_>) -> Result<(), PlaceError> {
    let mut decoder = Decoder::with_ip(64, code.bytes, code.address, DecoderOptions::NONE);
    let first = decoder.decode();
    if first.is_invalid() {
        return Err(PlaceError::NotCode);
    }
    if first.code() == Op::Int3 {
        return Err(PlaceError::Breakpoint);
    }
    let bytes = &code.bytes[..first.len()];
    if let Some(prefix) = forbidden_prefix(bytes) {
        return Err(PlaceError::Forbidden(prefix.to_owned()));
    }
    if bytes == [0xf4] || first.is_privileged() {
        return Err(PlaceError::Forbidden("a privileged instruction".to_owned()));
    }
    Ok(())
}

/// State of the walk through the entry block.
struct Walk {
    /// Bytes pushed on the stack so far; `None` if that is no longer known.
    pushed: Option<u32>,
    wants: Wants,
}

impl Walk {
    fn stack_is_fit(&self) -> bool {
        !self.wants.stack_kept() || self.pushed == Some(0)
    }

    /// Steps over an instruction; false if no place behind it can be correct.
    fn step(&mut self, factory: &mut InstructionInfoFactory, instruction: &Instruction) -> bool {
        let info = factory.info_options(instruction, InstructionInfoOptions::NONE);
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        let mut stack_pointer = false;
        for used in info.used_registers() {
            if !writes(used.access()) {
                continue;
            }
            let register = used.register().full_register();
            if ARGUMENTS.contains(&register) {
                return false;
            }
            stack_pointer |= register == Register::RSP;
        }
        let memory = info.used_memory().iter().any(|used| writes(used.access()));
        if memory && self.wants.stack_kept() {
            // The instruction could write to the part of the stack that we want to read.
            return false;
        }
        if stack_pointer {
            self.pushed = self
                .pushed
                .and_then(|pushed| pushed.checked_add_signed(grown(instruction)?));
        }
        true
    }
}

/// Number of bytes by which the instruction makes the stack longer, if that is known.
fn grown(instruction: &Instruction) -> Option<i32> {
    if instruction.is_stack_instruction() {
        return instruction.stack_pointer_increment().checked_neg();
    }
    let immediate = matches!(
        instruction.op1_kind(),
        OpKind::Immediate8to64 | OpKind::Immediate32to64
    );
    if instruction.op0_register() != Register::RSP || !immediate {
        return None;
    }
    let by = i32::try_from(instruction.immediate(1) as i64).ok()?;
    match instruction.mnemonic() {
        Mnemonic::Sub => Some(by),
        Mnemonic::Add => by.checked_neg(),
        _ => None,
    }
}

/// Something in a function that spoils the proof for some places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoils {
    /// A jump or call to this offset in the entry block.
    JumpTo(u64),
    /// A jump through a table.
    Table,
    /// Bytes that are no instruction.
    NoCode,
}

/// How the entry block of a function can be entered.
#[derive(Debug)]
struct WaysIn {
    /// Whether the whole function was read.
    whole: bool,
    /// The first offset behind the entry at which another symbol lies.
    symbol: Option<u64>,
    /// What spoils proofs, in the order of the code, each once.
    spoils: Vec<Spoils>,
}

impl WaysIn {
    /// Reads a function to its end, and adds the instructions that this decodes.
    fn of(code: &Code<'_>, decoded: &mut u64) -> WaysIn {
        let inside = |address: u64| address.checked_sub(code.address).filter(|at| *at > 0);
        let mut ways = WaysIn {
            whole: code.whole,
            symbol: code.entries.iter().filter_map(|at| inside(*at)).min(),
            spoils: Vec::new(),
        };
        if !code.whole {
            return ways;
        }
        let mut decoder = Decoder::with_ip(64, code.bytes, code.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            *decoded += 1;
            if instruction.is_invalid() {
                ways.spoils.push(Spoils::NoCode);
                break;
            }
            let spoils = match instruction.flow_control() {
                FlowControl::IndirectBranch => Some(Spoils::Table),
                FlowControl::UnconditionalBranch
                | FlowControl::ConditionalBranch
                | FlowControl::Call
                | FlowControl::XbeginXabortXend => {
                    let near = matches!(
                        instruction.op0_kind(),
                        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
                    );
                    let to = near.then(|| inside(instruction.near_branch_target()));
                    let to = to.flatten().filter(|to| *to <= MAX_BYTES);
                    to.map(Spoils::JumpTo)
                }
                _ => None,
            };
            if let Some(one) = spoils
                && !ways.spoils.contains(&one)
            {
                ways.spoils.push(one);
            }
        }
        ways
    }

    /// Proves that the instruction at `at`, which is not the first one, runs once for each call: no jump enters the
    /// block between the entry and that instruction.
    ///
    /// Jumps through a table cannot be followed. For a `push` that is not necessary, since code that jumps
    /// back to a `push` would leave its frame unbalanced.
    fn only_from_above(&self, at: u64, word: &str) -> Result<(), &'static str> {
        if !self.whole {
            return Err(
                "how far the function reaches is not known, so jumps back cannot be ruled out",
            );
        }
        if self.symbol.is_some_and(|symbol| symbol <= at) {
            return Err("another symbol lies inside the entry block");
        }
        let mut spoils = self.spoils.iter();
        let why = spoils.find_map(|one| match one {
            Spoils::NoCode => Some("the function cannot be disassembled to its end"),
            Spoils::Table if word != "push" => {
                Some("the function jumps through a table, which cannot be followed")
            }
            Spoils::JumpTo(to) if *to <= at => Some("the function jumps back into its entry block"),
            Spoils::Table | Spoils::JumpTo(_) => None,
        });
        why.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many places there are in the entry block, the function is read to its end once.
    #[test]
    fn a_function_is_read_once() {
        // xor eax,eax; many nops; half an instruction, which spoils the proof for each of them
        let mut bytes = vec![0x90; 10_000];
        bytes[..2].copy_from_slice(&[0x31, 0xc0]);
        bytes.push(0xe9);
        let code = Code {
            bytes: &bytes,
            whole: true,
            address: 0x1000,
            entries: &[],
        };
        let wants = Wants {
            returns: true,
            stack: false,
        };
        let emulation = Emulation::of_kernel(6, 18);
        let (placement, decoded) = search(&code, wants, emulation).unwrap();
        assert!(
            placement.reason.contains("disassembled"),
            "{}",
            placement.reason
        );
        assert!(decoded < 10_200, "{decoded}");
    }
}
