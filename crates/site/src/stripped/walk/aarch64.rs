//! Decodes the few kinds of instructions of 64-bit Arm that matter here (Arm Architecture Reference Manual, C4.1, "A64
//! instruction set encoding").

use super::step::{Decoded, Effect, Flow, Value};

/// Length of an instruction in bytes.
const LENGTH: usize = 4;
/// Number of the stack pointer where it is a base. As a value register this number means zero.
const SP: u8 = 31;
/// Number of the frame pointer.
const FP: u8 = 29;
/// Registers from this number on keep their values across a call.
const KEPT_FROM: u8 = 19;

pub(super) fn decode(bytes: &[u8], address: u64) -> Option<Decoded> {
    let word = u32::from_le_bytes(bytes.get(..LENGTH)?.try_into().ok()?);
    let flow = flow(word, address);
    Some(Decoded {
        bytes: LENGTH,
        flow,
        effect: if flow == Flow::Next {
            effect(word)
        } else {
            Effect::None
        },
        second: 1,
        kept_from: KEPT_FROM,
    })
}

/// A field of the word: `bits` bits from bit `at` on.
fn field(word: u32, at: u32, bits: u32) -> u32 {
    word >> at & ((1 << bits) - 1)
}

/// The same field as a signed number.
fn signed(word: u32, at: u32, bits: u32) -> i64 {
    i64::from((field(word, at, bits) << (32 - bits)) as i32 >> (32 - bits))
}

fn register(word: u32, at: u32) -> u8 {
    field(word, at, 5) as u8
}

fn flow(word: u32, address: u64) -> Flow {
    let to = |at, bits| address.wrapping_add_signed(signed(word, at, bits) * LENGTH as i64);
    match word {
        // udf
        _ if word >> 16 == 0 => Flow::End,
        _ if word >> 26 == 0b10_0101 => Flow::Call(to(0, 26)),
        _ if word >> 26 == 0b00_0101 => Flow::Jump(to(0, 26)),
        // b.cond, cbz and cbnz, tbz and tbnz
        _ if word & 0xff00_0000 == 0x5400_0000 => Flow::MayJump(to(5, 19)),
        _ if word & 0x7e00_0000 == 0x3400_0000 => Flow::MayJump(to(5, 19)),
        _ if word & 0x7e00_0000 == 0x3600_0000 => Flow::MayJump(to(5, 14)),
        // blr and its kinds that check a signature; else br, ret and similar instructions
        _ if word & 0xfe00_0000 == 0xd600_0000 => match field(word, 21, 4) {
            1 | 9 => Flow::OtherCall,
            _ => Flow::End,
        },
        // brk
        _ if word & 0xffe0_001f == 0xd420_0000 => Flow::End,
        _ => Flow::Next,
    }
}

/// The value of a value register: number 31 means zero.
fn value_of(register: u8) -> Value {
    match register {
        SP => Value::Constant(0),
        register => Value::Of(register),
    }
}

fn effect(word: u32) -> Effect {
    // movz
    if word & 0x7f80_0000 == 0x5280_0000 {
        let number = u64::from(field(word, 5, 16)) << (16 * field(word, 21, 2));
        return Effect::Set {
            register: register(word, 0),
            value: Value::Constant(number),
        };
    }
    // mov of a register, which is orr with zero
    if word & 0x7fe0_ffe0 == 0x2a00_03e0 {
        return Effect::Set {
            register: register(word, 0),
            value: value_of(register(word, 16)),
        };
    }
    let floating = field(word, 26, 1) == 1;
    let size = field(word, 30, 2);
    let on_stack = |base: u8| base == SP || base == FP;
    // Loads and stores of one register, with a scaled offset or an unscaled one.
    let scaled = word & 0x3b00_0000 == 0x3900_0000;
    if scaled || word & 0x3b20_0c00 == 0x3800_0000 {
        let operation = field(word, 22, 2);
        let bytes = match (floating, operation, size) {
            (_, 0, size) => 1i64 << size,
            (true, 2, 0) => 16,
            // This is a load.
            _ => {
                return Effect::Set {
                    register: if floating { u8::MAX } else { register(word, 0) },
                    value: Value::Unknown,
                };
            }
        };
        let at = if scaled {
            i64::from(field(word, 10, 12)) * bytes
        } else {
            signed(word, 12, 9)
        };
        let base = register(word, 5);
        if !on_stack(base) {
            return Effect::None;
        }
        return Effect::Store {
            base,
            at,
            bytes,
            value: if floating {
                Value::Unknown
            } else {
                value_of(register(word, 0))
            },
        };
    }
    // Loads and stores of pairs. Stores that change their base are ignored, since functions use them to save registers.
    if word & 0x3a00_0000 == 0x2800_0000 {
        if field(word, 22, 1) == 1 {
            return Effect::SetTwo(register(word, 0), register(word, 10));
        }
        let bytes = match (floating, size) {
            (false, 0) | (true, 0) => 4i64,
            (false, _) | (true, 1) => 8,
            (true, _) => 16,
        };
        let base = register(word, 5);
        if field(word, 23, 2) != 0b10 || !on_stack(base) {
            return Effect::None;
        }
        return Effect::Store {
            base,
            at: signed(word, 15, 7) * bytes,
            bytes: 2 * bytes,
            value: Value::Unknown,
        };
    }
    // Any other instruction may write the register that its lowest five bits name.
    Effect::Set {
        register: register(word, 0),
        value: Value::Unknown,
    }
}

/// Finds the calls of a function in a piece of code, whose address must be a multiple of an instruction's length.
pub(super) fn callers(bytes: &[u8], address: u64, function: u64, found: &mut Vec<u64>) {
    for (place, word) in bytes.chunks_exact(LENGTH).enumerate() {
        let at = address.wrapping_add((place * LENGTH) as u64);
        let word = u32::from_le_bytes(word.try_into().unwrap_or_default());
        if word >> 26 == 0b10_0101 && flow(word, at) == Flow::Call(function) {
            found.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions as the assembler encodes them, read with `objdump`.
    #[test]
    fn words() {
        let at = 0x1000;
        let step = |word: u32| decode(&word.to_le_bytes(), at).unwrap();
        // bl +8; b -4; b.ne +16; cbz x0, +8; tbnz w0, #0, -4
        assert_eq!(step(0x9400_0002).flow, Flow::Call(0x1008));
        assert_eq!(step(0x17ff_ffff).flow, Flow::Jump(0x0ffc));
        assert_eq!(step(0x5400_0081).flow, Flow::MayJump(0x1010));
        assert_eq!(step(0xb400_0040).flow, Flow::MayJump(0x1008));
        assert_eq!(step(0x3707_ffe0).flow, Flow::MayJump(0x0ffc));
        // blr x2; ret; br x16; brk #1; udf #0
        assert_eq!(step(0xd63f_0040).flow, Flow::OtherCall);
        for word in [0xd65f_03c0, 0xd61f_0200, 0xd420_0020, 0] {
            assert_eq!(step(word).flow, Flow::End, "{word:#x}");
        }
        let set = |register, value| Effect::Set { register, value };
        // mov w1, #3; mov x0, x24; mov w1, wzr
        assert_eq!(step(0x5280_0061).effect, set(1, Value::Constant(3)));
        assert_eq!(step(0xaa18_03e0).effect, set(0, Value::Of(24)));
        assert_eq!(step(0x2a1f_03e1).effect, set(1, Value::Constant(0)));
        let store = |base, at, bytes, value| Effect::Store {
            base,
            at,
            bytes,
            value,
        };
        // strb w2, [sp, #56]; strh wzr, [sp, #82]; str x2, [sp, #120]; stp x6, x4, [sp, #64]
        assert_eq!(step(0x3900_e3e2).effect, store(31, 56, 1, Value::Of(2)));
        assert_eq!(
            step(0x7900_a7ff).effect,
            store(31, 82, 2, Value::Constant(0))
        );
        assert_eq!(step(0xf900_3fe2).effect, store(31, 120, 8, Value::Of(2)));
        assert_eq!(step(0xa904_13e6).effect, store(31, 64, 16, Value::Unknown));
        // stur x0, [x29, #-8]; str q0, [sp, #32]; stp q0, q1, [sp, #32]
        assert_eq!(step(0xf81f_83a0).effect, store(29, -8, 8, Value::Of(0)));
        assert_eq!(step(0x3d80_0be0).effect, store(31, 32, 16, Value::Unknown));
        assert_eq!(step(0xad01_07e0).effect, store(31, 32, 32, Value::Unknown));
        // ldr x1, [x27, #8]; ldp x29, x30, [sp, #192]; add x0, x0, #1; stp x29, x30, [sp, #-16]!
        assert_eq!(step(0xf940_0761).effect, set(1, Value::Unknown));
        assert_eq!(step(0xa94c_7bfd).effect, Effect::SetTwo(29, 30));
        assert_eq!(step(0x9100_0400).effect, set(0, Value::Unknown));
        assert_eq!(step(0xa9bf_7bfd).effect, Effect::None);
        assert!(decode(&[0; 3], at).is_none());
    }
}
