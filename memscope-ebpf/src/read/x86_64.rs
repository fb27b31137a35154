//! x86-64 and the System V calling convention.

use aya_ebpf::programs::ProbeContext;
use memscope_common::{CALIBRATION_REGISTERS, PLACE_STACK};

/// The six integer arguments of the System V calling convention.
#[inline(always)]
pub fn args(ctx: &ProbeContext) -> [u64; 6] {
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    let r = unsafe { &*ctx.regs };
    [
        r.rdi as u64,
        r.rsi as u64,
        r.rdx as u64,
        r.rcx as u64,
        r.r8 as u64,
        r.r9 as u64,
    ]
}

/// Registers that may still hold the caller's values, in the order of the calibration record.
#[inline(always)]
pub fn left_over(ctx: &ProbeContext) -> [u64; CALIBRATION_REGISTERS] {
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    let r = unsafe { &*ctx.regs };
    [
        r.rbx as u64,
        r.rbp as u64,
        r.r12 as u64,
        r.r13 as u64,
        r.r14 as u64,
        r.r15 as u64,
        r.rax as u64,
        r.r10 as u64,
        r.r11 as u64,
    ]
}

/// The value at a place: a register or a word of the stack (see `memscope_common::PLACE_STACK`). `frame` is the stack
/// pointer at the entry of the function.
#[inline(always)]
pub fn place(ctx: &ProbeContext, frame: u64, place: u8) -> Option<u64> {
    if place >= PLACE_STACK {
        return super::user::<u64>(frame.wrapping_add((place - PLACE_STACK) as u64 * 8));
    }
    // The registers are read as volatile, since the compiler might otherwise load through a computed address, which the
    // verifier refuses for the context.
    macro_rules! register {
        ($name:ident) => {
            // SAFETY: the kernel passes pt_regs to uprobe programs.
            unsafe { core::ptr::read_volatile(&raw const (*ctx.regs).$name) as u64 }
        };
    }
    let all = [
        register!(rbx),
        register!(rbp),
        register!(r12),
        register!(r13),
        register!(r14),
        register!(r15),
        register!(rax),
        register!(r10),
        register!(r11),
    ];
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
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    let r = unsafe { &*ctx.regs };
    (r.rip as u64, r.rsp as u64, r.rbp as u64)
}

/// The stack pointer. At a function's entry it points to the return address.
#[inline(always)]
pub fn sp(ctx: &ProbeContext) -> u64 {
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    unsafe { (*ctx.regs).rsp as u64 }
}

/// The stack pointer at the entry of the function that is about to be called, for a probe on the call, which will push
/// the return address.
#[inline(always)]
pub fn callee_sp(ctx: &ProbeContext) -> u64 {
    sp(ctx).wrapping_sub(8)
}

/// The address to which the function will return that the instruction under the probe calls: a near call has 5 bytes.
#[inline(always)]
pub fn behind_call(ctx: &ProbeContext) -> u64 {
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    unsafe { (*ctx.regs).rip as u64 }.wrapping_add(5)
}

/// The stack pointer at the entry, computed in a return probe, where the return address has been popped.
#[inline(always)]
pub fn entry_sp(ctx: &ProbeContext) -> u64 {
    sp(ctx).wrapping_sub(8)
}

/// The result of a C function that returns an integer.
#[inline(always)]
pub fn result(ctx: &ProbeContext) -> u64 {
    // SAFETY: the kernel passes pt_regs to uprobe programs.
    unsafe { (*ctx.regs).rax as u64 }
}

/// A structure of 24 bytes that is passed by value as the second argument: it lies on the stack.
#[inline(always)]
pub fn second_by_value(ctx: &ProbeContext) -> Option<[u64; 3]> {
    super::user::<[u64; 3]>(sp(ctx).wrapping_add(8))
}

/// A pair of words that is passed by value after six arguments: it lies on the stack. `frame` is the stack pointer at
/// the entry of the function.
#[inline(always)]
pub fn seventh_pair(_ctx: &ProbeContext, frame: u64) -> Option<[u64; 2]> {
    super::user::<[u64; 2]>(frame.wrapping_add(8))
}

/// The address that the function will return to.
#[inline(always)]
pub fn caller(ctx: &ProbeContext) -> u64 {
    super::user::<u64>(sp(ctx)).unwrap_or(0)
}

/// What [`entered_from`] needs beside the stack pointer: nothing on this architecture.
#[inline(always)]
pub fn link(_ctx: &ProbeContext) -> u64 {
    0
}

/// Address to which a function that is just entered will return (0 if it cannot be read), and the stack pointer there.
#[inline(always)]
pub fn entered_from(sp: u64, _link: u64) -> (u64, u64) {
    (super::user::<u64>(sp).unwrap_or(0), sp.wrapping_add(8))
}

/// Whether rules say where the frame record lies: see `memscope_common::Rule`.
pub const RULES_NAME_RECORDS: bool = false;

/// A stored address without its signature. On this architecture addresses are not signed.
#[inline(always)]
pub fn plain(address: u64) -> u64 {
    address
}
