//! The programs that run in the kernel: they read arguments and results where the probes stand and
//! send records. Nothing here decides what the numbers mean.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features)]

mod emit;
mod identity;
mod inflight;
mod native;
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

/// The helpers for tracing are given to GPL-compatible programs only; this source is offered under
/// GPL-2.0 beside the project's licences.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
