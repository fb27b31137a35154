//! The mark library: names moments of a program for whoever follows it.
//!
//! Owns: one function, [`memscope_event`], which does nothing. A probe of memscope stands on its first
//! instruction and reads its arguments; while nobody listens, a mark is a call and a return. The other
//! functions are ways to call it. Refuses: allocating, locking, and to know whether anybody listens.
//!
//! The functions are exported with C's calling convention; `include/memscope_mark.h` declares them.

#![no_std]

// Nothing of it is used but its handler of panics, which a library must have although it cannot panic.
extern crate std as _;

use core::arch::naked_asm;
use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

/// Kind of [`memscope_event`]: a moment.
pub const INSTANT: u32 = 0;
/// Kind of [`memscope_event`]: a range begins.
pub const BEGIN: u32 = 1;
/// Kind of [`memscope_event`]: a range ends.
pub const END: u32 = 2;
/// Kind of [`memscope_event`]: a step ends, and the next one begins.
pub const STEP: u32 = 3;

/// Ranges begun so far. Its address also tells this copy of the library from others in the process.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Tells that something happens, to whoever has a probe here.
///
/// `kind` is [`INSTANT`], [`BEGIN`], [`END`] or [`STEP`]; others are for later and ignored by those who
/// do not know them. `range` is the number of the range that begins or ends, 0 for none. `name` is UTF-8 of
/// `length` bytes, without a NUL at its end, and may be NULL with length 0; a reader takes at most 128 bytes.
///
/// # Safety
///
/// Nothing is read here, so that nothing can go wrong in the caller. A reader looks at the `length` bytes at
/// `name` from the kernel, where memory that is not there is a name that is not known.
// On x86-64 the five bytes are one instruction: newer kernels emulate it, and turn a probe on it into a call, without
// a trap. Older ones (before Linux 6.16) would single-step it, which takes twelve times as long; they emulate
// the nop of one byte behind it, and there the probe stands then.
// The alignment is the section's: the function is all that is in it, so that nothing is inserted here.
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

/// Names this moment.
///
/// # Safety
///
/// `name` is NULL, for a moment without a name, or points to bytes that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memscope_mark(name: *const c_char) {
    // SAFETY: the caller's promise is the one that is asked for.
    unsafe { tell(INSTANT, 0, name) }
}

/// Begins a range, and returns its number for [`memscope_range_end`]. Ranges need not be nested, and may end
/// in another thread. The number is never 0, and no other range of the process has it, not even one of
/// another copy of this library.
///
/// # Safety
///
/// `name` is NULL, for a range without a name, or points to bytes that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memscope_range_begin(name: *const c_char) -> u64 {
    let range = next_range();
    // SAFETY: the caller's promise is the one that is asked for.
    unsafe { tell(BEGIN, range, name) }
    range
}

/// Ends the range with this number; 0 means the innermost one of the thread.
#[unsafe(no_mangle)]
pub extern "C" fn memscope_range_end(range: u64) {
    // SAFETY: there is no name to be read.
    unsafe { memscope_event(END, range, ptr::null(), 0) }
}

/// Ends a step and begins the next one.
#[unsafe(no_mangle)]
pub extern "C" fn memscope_step() {
    // SAFETY: there is no name to be read.
    unsafe { memscope_event(STEP, 0, ptr::null(), 0) }
}

/// A number that no other range has. A process may have two copies of this library, one that a program was
/// linked with and one in a Python package; they lie at least a page apart, which is 2^28 numbers.
fn next_range() -> u64 {
    let first = (ptr::from_ref(&BEGUN).addr() as u64) << 16;
    loop {
        let range = first.wrapping_add(BEGUN.fetch_add(1, Ordering::Relaxed));
        if range != 0 {
            return range;
        }
    }
}

/// # Safety
///
/// `name` is NULL or points to bytes that end with a NUL.
unsafe fn tell(kind: u32, range: u64, name: *const c_char) {
    let length = if name.is_null() {
        0
    } else {
        // SAFETY: not NULL, so it ends with a NUL, as the caller promises.
        unsafe { CStr::from_ptr(name) }.count_bytes()
    };
    // SAFETY: `length` bytes were just looked at.
    unsafe { memscope_event(kind, range, name, length) }
}
