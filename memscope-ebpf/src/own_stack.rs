//! Keeps a program's variables on the stack of the thread that runs into the probe.

use core::arch::asm;

/// Must be called by each program for uprobes, in its own function.
///
/// From 6.13 on, the kernel gives a tracing program one stack for each processor, where nothing else should run the same
/// program meanwhile. For uprobes nothing ensures that: where the kernel may preempt a program, another thread runs
/// into the probe on the same processor, both write over each other's variables, and the kernel reads from wild
/// addresses. A program with a tail call keeps its variables on the thread's stack. The one that is written here is never made, and the
/// kernel removes it: the register is always 0.
#[inline(always)]
pub fn keep() {
    // SAFETY: only this register changes, and the call to the helper with the number 12 (a tail call) is jumped over.
    unsafe {
        asm!("r0 = 0", "if r0 == 0 goto +1", "call 12", out("r0") _);
    }
}
