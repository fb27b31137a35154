//! Decodes instructions of x86-64, with the crate `iced_x86`.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::step::{Decoded, Effect, Flow, Value};

/// Numbers that stand for the registers in this module.
const RSI: u8 = 1;
const RBP: u8 = 2;
const RSP: u8 = 3;

pub(super) fn decode(bytes: &[u8], address: u64) -> Option<Decoded> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let flow = match instruction.flow_control() {
        FlowControl::Call if instruction.is_call_near() => {
            Flow::Call(instruction.near_branch_target())
        }
        FlowControl::Call | FlowControl::IndirectCall => Flow::OtherCall,
        FlowControl::ConditionalBranch => Flow::MayJump(instruction.near_branch_target()),
        FlowControl::UnconditionalBranch => Flow::Jump(instruction.near_branch_target()),
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Exception => Flow::End,
        _ => Flow::Next,
    };
    Some(Decoded {
        bytes: instruction.len(),
        flow,
        effect: effect(&instruction),
        second: RSI,
        // The only register whose value is followed here is the second argument, which a call may change.
        kept_from: u8::MAX,
    })
}

fn effect(instruction: &Instruction) -> Effect {
    use Mnemonic::{Cmp, Push, Test};
    if matches!(instruction.mnemonic(), Cmp | Test | Push) {
        return Effect::None;
    }
    match instruction.op0_kind() {
        OpKind::Register if instruction.op0_register().full_register() == Register::RSI => {
            Effect::Set {
                register: RSI,
                value: constant(instruction),
            }
        }
        OpKind::Memory if instruction.memory_index() == Register::None => {
            let base = match instruction.memory_base() {
                Register::RBP => RBP,
                Register::RSP => RSP,
                _ => return Effect::None,
            };
            let value = if is_immediate(instruction.op1_kind()) {
                Value::Constant(instruction.immediate(1))
            } else {
                Value::Unknown
            };
            Effect::Store {
                base,
                at: instruction.memory_displacement64() as i64,
                bytes: instruction.memory_size().size() as i64,
                value,
            }
        }
        _ => Effect::None,
    }
}

/// The constant that the instruction writes to its register, if it writes one.
fn constant(instruction: &Instruction) -> Value {
    match instruction.mnemonic() {
        Mnemonic::Mov if is_immediate(instruction.op1_kind()) => {
            Value::Constant(instruction.immediate(1))
        }
        Mnemonic::Xor if instruction.op0_register() == instruction.op1_register() => {
            Value::Constant(0)
        }
        _ => Value::Unknown,
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

/// Finds the calls of a function in a piece of code. A call is the byte 0xe8, then the distance from the next
/// instruction to the function. The code is not disassembled for this: that four other bytes equal just this distance
/// happens once in a few thousand million cases.
pub(super) fn callers(bytes: &[u8], address: u64, function: u64, found: &mut Vec<u64>) {
    const CALL: u8 = 0xe8;
    const LENGTH: usize = 5;
    for at in memchr::memchr_iter(CALL, bytes) {
        let distance = bytes
            .get(at + 1..at + LENGTH)
            .and_then(|four| four.try_into().ok())
            .map(i32::from_le_bytes);
        let Some(distance) = distance else {
            continue;
        };
        let call = address.wrapping_add(at as u64);
        let next = call.wrapping_add(LENGTH as u64);
        if next.wrapping_add_signed(i64::from(distance)) == function {
            found.push(call);
        }
    }
}
