//! 64-bit Arm: which instructions the kernel emulates, and on which it refuses probes.
//!
//! The kernel's rules are in arch/arm64/kernel/probes/decode-insn.c
//! (<https://github.com/torvalds/linux/blob/master/arch/arm64/kernel/probes/decode-insn.c>). It emulates instructions
//! that read or change the program counter, and `nop` from Linux 6.13 on; functions usually begin with neither. So a
//! probe stands on the first instruction. There the arguments are in their registers, the return address is in the link
//! register (which is what a return probe replaces), and the stack pointer is the caller's.

use super::{Code, Emulation, PlaceError, Placement, Wants};

pub(super) fn place(
    code: &Code<'_>,
    wants: Wants,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    let Some([a, b, c, d]) = code.bytes.first_chunk::<4>() else {
        return Err(PlaceError::NotCode);
    };
    if !code.address.is_multiple_of(4) {
        return Err(PlaceError::Forbidden("at an odd address".to_owned()));
    }
    let word = u32::from_le_bytes([*a, *b, *c, *d]);
    let emulated = match kind(word)? {
        Kind::Emulated(name) => Some(name),
        Kind::Nop if emulation.arm_nop => Some("nop"),
        Kind::Nop | Kind::Stepped => None,
    };
    let reason = match emulated {
        Some(name) => format!("on the first instruction, {name}, emulated"),
        None => "on the first instruction, single-stepped: this kernel emulates few on aarch64"
            .to_owned(),
    };
    Ok(Placement {
        entry_offset: 0,
        return_offset: wants.returns.then_some(0),
        emulated: emulated.is_some(),
        pushed: 0,
        reason,
    })
}

/// What the kernel does with an instruction under a probe.
enum Kind {
    Stepped,
    Emulated(&'static str),
    Nop,
}

fn kind(word: u32) -> Result<Kind, PlaceError> {
    let is = |mask: u32, value: u32| word & mask == value;
    let refused = |what: &str| Err(PlaceError::Forbidden(what.to_owned()));
    if is(0xffff_0000, 0) {
        // `udf` is used for padding, and zeros that are not code read as this instruction.
        return Err(PlaceError::NotCode);
    }
    if is(0xffe0_001f, 0xd420_0000) {
        return Err(PlaceError::Breakpoint);
    }
    if is(0xff00_0000, 0xd400_0000) {
        return refused("one that makes an exception");
    }
    if is(0x7c00_0000, 0x1400_0000) || is(0xff00_0010, 0x5400_0000) {
        return Ok(Kind::Emulated("branch"));
    }
    if is(0x7c00_0000, 0x3400_0000) {
        return Ok(Kind::Emulated("compare and branch"));
    }
    if is(0x1f00_0000, 0x1000_0000) {
        return Ok(Kind::Emulated("adr"));
    }
    if is(0xfe00_0000, 0xd600_0000) {
        // br, blr and ret are emulated; their kinds that check a signature are refused.
        return match word & 0xffff_fc1f {
            0xd61f_0000 | 0xd63f_0000 | 0xd65f_0000 => Ok(Kind::Emulated("branch")),
            _ => refused("a branch that checks a signature"),
        };
    }
    if is(0xffff_f01f, 0xd503_201f) {
        return match (word >> 5) & 0x7f {
            0 => Ok(Kind::Nop),
            // xpaclri, pacia1716, pacib1716, paciaz, paciasp, pacibz, pacibsp, and the four of bti.
            0x07 | 0x08 | 0x0a | 0x18..=0x1b | 0x20 | 0x22 | 0x24 | 0x26 => Ok(Kind::Stepped),
            _ => refused("a hint"),
        };
    }
    if is(0xfff0_0000, 0xd510_0000) || is(0xfff8_f01f, 0xd500_401f) {
        return refused("a write to a system register");
    }
    if is(0x3b00_0000, 0x1800_0000) {
        // Kernels before 6.12 accept the probe but read the literal in a wrong way.
        return refused("a load of a literal");
    }
    if is(0x3f80_0000, 0x0800_0000) {
        return refused("an exclusive load or store");
    }
    Ok(Kind::Stepped)
}
