//! Reads registers and memory of the traced process. What depends on the architecture is in `read/` and
//! nowhere else: registers, how arguments are passed, where a return address is.

use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_probe_read_user};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use memscope_common::Cookie;

/// Reads `T` (integers only) from user memory.
#[inline(always)]
pub fn user<T: Copy>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes size_of::<T>() bytes, or fails and sets them to zero.
    let failed = unsafe {
        bpf_probe_read_user(
            value.as_mut_ptr() as *mut c_void,
            size_of::<T>() as u32,
            address as *const c_void,
        )
    };
    if failed != 0 {
        return None;
    }
    // SAFETY: the helper has written the whole value, and T consists of plain integers.
    Some(unsafe { value.assume_init() })
}

/// Reads `T` from user memory directly into `to`. If that fails, `to` is set to zero.
#[inline(always)]
pub fn user_into<T>(to: *mut T, address: u64) {
    // SAFETY: the caller's `to` is a T in a map or a reservation; the helper fills it or sets it to zero.
    unsafe {
        bpf_probe_read_user(
            to as *mut c_void,
            size_of::<T>() as u32,
            address as *const c_void,
        );
    }
}

/// The cookie of the link that this probe was attached with.
#[inline(always)]
pub fn cookie(ctx: &ProbeContext) -> Cookie {
    // SAFETY: this is the context of a uprobe program, as the helper needs it.
    Cookie(unsafe { bpf_get_attach_cookie(ctx.regs as *mut c_void) })
}

#[cfg(bpf_target_arch = "aarch64")]
#[path = "read/aarch64.rs"]
mod arch;
#[cfg(bpf_target_arch = "x86_64")]
#[path = "read/x86_64.rs"]
mod arch;

pub use arch::*;
