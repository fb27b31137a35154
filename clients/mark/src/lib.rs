//! The mark library: with it a program names moments, which memscope sees while it traces the program.
//!
//! Owns: one function, [`memscope_event`], which does nothing. memscope places a probe on its first instruction, and
//! the probe reads the arguments. While the program is not traced, a mark is just a call and a return. The other
//! functions call this one, but for [`memscope_checksum`], which the Python package's watcher needs. Refuses: to
//! allocate, to lock, and to know whether the program is traced.
//!
//! The functions are exported with C's calling convention; `include/memscope_mark.h` declares them.

#![no_std]

// Only its panic handler is used, which a library must have, although this one cannot panic.
extern crate std as _;

use core::arch::naked_asm;
use core::ffi::{CStr, c_char};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

use crc::{Algorithm, Crc, Table};

/// Kind of [`memscope_event`]: a mark at this moment.
pub const INSTANT: u32 = 0;
/// Kind of [`memscope_event`]: a range begins.
pub const BEGIN: u32 = 1;
/// Kind of [`memscope_event`]: a range ends.
pub const END: u32 = 2;
/// Kind of [`memscope_event`]: a step ends, and the next one begins.
pub const STEP: u32 = 3;

/// Number of ranges begun so far. The address of this variable distinguishes this copy of the library from other copies
/// in the process.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Reports a mark to the probe that may stand on this function.
///
/// `kind` is [`INSTANT`], [`BEGIN`], [`END`] or [`STEP`]; other values are reserved, and readers ignore the kinds that
/// they do not know. `range` is the number of the range that begins or ends, 0 for none. `name` is UTF-8 of `length`
/// bytes; it needs no NUL at its end, and may be NULL with length 0. A reader uses at most its first 128 bytes.
///
/// # Safety
///
/// The function itself reads no memory, so that no argument can harm the caller. The probe reads the `length` bytes at
/// `name` from within the kernel; if that memory cannot be read, the mark's name is not known.
// On x86-64 the first five bytes are one instruction. Newer kernels emulate it, and turn a probe on it into a call,
// without a trap. Older ones (before Linux 6.16) would single-step it, which takes twelve times as long. They emulate
// the nop of one byte behind it, so there the probe stands on that nop.
// `.balign` aligns the whole section: it contains only this function, so no padding is inserted here.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.memscope_event")]
pub unsafe extern "C" fn memscope_event(kind: u32, range: u64, name: *const c_char, length: usize) {
    naked_asm!(
        ".balign 16",
        #[cfg(target_arch = "x86_64")]
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x90",
        #[cfg(target_arch = "aarch64")]
        "nop",
        "ret"
    )
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("memscope has probes for x86-64 and aarch64 only");

/// Makes a mark at this moment.
///
/// # Safety
///
/// `name` is NULL, for a mark without a name, or points to bytes that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memscope_mark(name: *const c_char) {
    // SAFETY: `tell` requires of `name` what our caller promises.
    unsafe { tell(INSTANT, 0, name) }
}

/// Begins a range, and returns its number for [`memscope_range_end`]. Ranges need not be nested, and may end in another
/// thread. The number is never 0, and is unique in the process, even if the process has several copies of this library.
///
/// # Safety
///
/// `name` is NULL, for a range without a name, or points to bytes that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memscope_range_begin(name: *const c_char) -> u64 {
    let range = next_range();
    // SAFETY: `tell` requires of `name` what our caller promises.
    unsafe { tell(BEGIN, range, name) }
    range
}

/// Ends the range with this number; 0 means the innermost range of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn memscope_range_end(range: u64) {
    // SAFETY: the name is NULL with length 0, so no memory is read.
    unsafe { memscope_event(END, range, ptr::null(), 0) }
}

/// Ends a step and begins the next one.
#[unsafe(no_mangle)]
pub extern "C" fn memscope_step() {
    // SAFETY: the name is NULL with length 0, so no memory is read.
    unsafe { memscope_event(STEP, 0, ptr::null(), 0) }
}

/// The check sum of msMemScope's watch files: its table is made by shifting to the right, from the polynomial as it is
/// written for shifting to the left. In the terms of the `crc` crate, which turns the polynomial around for a register
/// that shifts to the right, that is a polynomial with its bits in reverse.
static WATCH: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&Algorithm {
    width: 64,
    poly: 0x42F0_E1EB_A9EA_3693_u64.reverse_bits(),
    init: u64::MAX,
    refin: true,
    refout: true,
    xorout: u64::MAX,
    check: 0xb868_83e6_fa71_0a9f,
    residue: 0,
});

/// A check sum of `length` bytes, the one that msMemScope writes of memory that is watched.
///
/// # Safety
///
/// `length` bytes at `data` can be read; `data` may be NULL with length 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memscope_checksum(data: *const u8, length: usize) -> u64 {
    let bytes: &[u8] = match length {
        0 => &[],
        // SAFETY: the caller says that so many bytes can be read.
        _ => unsafe { slice::from_raw_parts(data, length) },
    };
    WATCH.checksum(bytes)
}

/// A number that no other range of the process has. A process may have two copies of this library: one that the program
/// was linked with, and one in a Python package. The copies lie at least a page apart in memory, so each has 2^28
/// numbers of its own.
fn next_range() -> u64 {
    let first = (ptr::from_ref(&BEGUN).addr() as u64) << 16;
    loop {
        let range = first.wrapping_add(BEGUN.fetch_add(1, Ordering::Relaxed));
        if range != 0 {
            return range;
        }
    }
}

/// Calls [`memscope_event`] with the length of `name`.
///
/// # Safety
///
/// `name` is NULL or points to bytes that end with a NUL.
unsafe fn tell(kind: u32, range: u64, name: *const c_char) {
    let length = if name.is_null() {
        0
    } else {
        // SAFETY: `name` is not NULL here, so it ends with a NUL, as the caller promises.
        unsafe { CStr::from_ptr(name) }.count_bytes()
    };
    // SAFETY: `CStr` has just read these `length` bytes; for NULL the length is 0.
    unsafe { memscope_event(kind, range, name, length) }
}
