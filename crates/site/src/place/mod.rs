//! Finds the instruction of a function on which a probe may stand.
//!
//! A probe on an instruction that the kernel emulates costs a twelfth of one on an instruction that
//! it must single-step. So the probe stands on the first emulated instruction of the entry block, if
//! it is proved that the arguments are still in their registers there and that nothing jumps to it a
//! second time. Where that proof fails, the probe stands on the function's first instruction, which
//! is always correct but sometimes slow. On aarch64 this is always so: see `aarch64`.
//!
//! A return probe replaces the word at the stack pointer, so it may stand only where that is the
//! return address, which is where nothing was pushed yet. (On aarch64 it replaces the link register.)

mod aarch64;
mod code;
mod placement;
mod x86_64;

pub use code::{Code, Emulation, Machine, Wants};
pub(crate) use placement::on_call;
pub use placement::{PlaceError, Placement};

/// Finds the place for the probes of a function. Fails if no probe may stand even on its first instruction.
pub fn place(
    machine: Machine,
    code: &Code<'_>,
    wants: Wants,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    match machine {
        Machine::X86_64 => x86_64::place(code, wants, emulation),
        Machine::Aarch64 => aarch64::place(code, wants, emulation),
        Machine::Other(_) => Err(PlaceError::Unsupported("neither x86-64 nor aarch64")),
    }
}
