//! 64-bit Arm and its procedure call standard (AAPCS64): there are eight argument registers, and the return address is
//! in a register, too.

use aya_ebpf::bindings::user_pt_regs;
use aya_ebpf::programs::ProbeContext;
use memscope_common::{CALIBRATION_REGISTERS, PLACE_STACK};

/// Numbers of the frame pointer and the link register.
const FP: usize = 29;
const LR: usize = 30;
/// Number of the first register whose value functions preserve for their callers.
const KEPT: usize = 19;
/// Mask of the bits of an address. The bits above may hold a signature of the address, if the code was compiled to sign
/// the addresses that it stores.
const ADDRESS: u64 = (1 << 48) - 1;

/// A general register. It is read as volatile, since the compiler might otherwise load through a computed address,
/// which the verifier refuses for the context.
#[inline(always)]
fn register(ctx: &ProbeContext, number: usize) -> u64 {
    let regs = ctx.regs as *const user_pt_regs;
    // SAFETY: the kernel passes user_pt_regs to uprobe programs; the callers' numbers are constants below 31.
    unsafe { core::ptr::read_volatile((&raw const (*regs).regs as *const u64).add(number)) }
}

/// The first six integer arguments.
#[inline(always)]
pub fn args(ctx: &ProbeContext) -> [u64; 6] {
    [
        register(ctx, 0),
        register(ctx, 1),
        register(ctx, 2),
        register(ctx, 3),
        register(ctx, 4),
        register(ctx, 5),
    ]
}

/// Registers that may still hold the caller's values, in the order of the calibration record.
#[inline(always)]
pub fn left_over(ctx: &ProbeContext) -> [u64; CALIBRATION_REGISTERS] {
    [
        register(ctx, KEPT),
        register(ctx, KEPT + 1),
        register(ctx, KEPT + 2),
        register(ctx, KEPT + 3),
        register(ctx, KEPT + 4),
        register(ctx, KEPT + 5),
        register(ctx, KEPT + 6),
        register(ctx, KEPT + 7),
        register(ctx, KEPT + 8),
    ]
}

/// The value at a place: a register or a word of the stack (see `memscope_common::PLACE_STACK`). `frame` is the stack
/// pointer at the entry of the function.
#[inline(always)]
pub fn place(ctx: &ProbeContext, frame: u64, place: u8) -> Option<u64> {
    if place >= PLACE_STACK {
        return super::user::<u64>(frame.wrapping_add((place - PLACE_STACK) as u64 * 8));
    }
    let all = left_over(ctx);
    let mut value = None;
    for (index, register) in all.iter().enumerate() {
        if place as usize == index {
            value = Some(*register);
        }
    }
    value
}

/// The instruction pointer, the stack pointer and the frame pointer.
#[inline(always)]
pub fn place_in_code(ctx: &ProbeContext) -> (u64, u64, u64) {
    let regs = ctx.regs as *const user_pt_regs;
    // SAFETY: the kernel passes user_pt_regs to uprobe programs.
    let pc = unsafe { (*regs).pc };
    (pc, sp(ctx), register(ctx, FP))
}

/// The stack pointer. A call does not change it on this architecture.
#[inline(always)]
pub fn sp(ctx: &ProbeContext) -> u64 {
    let regs = ctx.regs as *const user_pt_regs;
    // SAFETY: the kernel passes user_pt_regs to uprobe programs.
    unsafe { (*regs).sp }
}

/// The stack pointer at the entry of the function that is about to be called: the call does not change it.
#[inline(always)]
pub fn callee_sp(ctx: &ProbeContext) -> u64 {
    sp(ctx)
}

/// The address to which the function will return that the instruction under the probe calls.
#[inline(always)]
pub fn behind_call(ctx: &ProbeContext) -> u64 {
    let regs = ctx.regs as *const user_pt_regs;
    // SAFETY: the kernel passes user_pt_regs to uprobe programs.
    unsafe { (*regs).pc }.wrapping_add(4)
}

/// The stack pointer at the entry, computed in a return probe: it is the same.
#[inline(always)]
pub fn entry_sp(ctx: &ProbeContext) -> u64 {
    sp(ctx)
}

/// The result of a C function that returns an integer.
#[inline(always)]
pub fn result(ctx: &ProbeContext) -> u64 {
    register(ctx, 0)
}

/// A structure of 24 bytes that is passed by value as the second argument: the caller makes a copy and passes its
/// address in a register.
#[inline(always)]
pub fn second_by_value(ctx: &ProbeContext) -> Option<[u64; 3]> {
    super::user::<[u64; 3]>(register(ctx, 1))
}

/// A pair of words that is passed by value after six arguments: it is in the last two argument registers.
#[inline(always)]
pub fn seventh_pair(ctx: &ProbeContext, _frame: u64) -> Option<[u64; 2]> {
    Some([register(ctx, 6), register(ctx, 7)])
}

/// The address that the function will return to.
#[inline(always)]
pub fn caller(ctx: &ProbeContext) -> u64 {
    register(ctx, LR)
}

/// The link register, which [`entered_from`] needs beside the stack pointer.
#[inline(always)]
pub fn link(ctx: &ProbeContext) -> u64 {
    register(ctx, LR)
}

/// Address to which a function that is just entered will return, and the stack pointer there.
#[inline(always)]
pub fn entered_from(sp: u64, link: u64) -> (u64, u64) {
    (plain(link), sp)
}

/// Whether rules say where the frame record lies: see `memscope_common::Rule`.
pub const RULES_NAME_RECORDS: bool = true;

/// A stored address without its signature.
#[inline(always)]
pub fn plain(address: u64) -> u64 {
    address & ADDRESS
}
