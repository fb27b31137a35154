//! The BPF programs, which run in the kernel: they read arguments and results at the probes and
//! send records. Nothing here decides what the numbers mean.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![feature(core_intrinsics)]
#![allow(internal_features)]

mod emit;
mod identity;
mod inflight;
mod native;
mod own_stack;
mod probes;
mod python;
mod read;
mod scratch;
mod stack;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel allows the helpers for tracing only to GPL-compatible programs. This source is offered under
/// GPL-2.0 in addition to the project's licences.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
