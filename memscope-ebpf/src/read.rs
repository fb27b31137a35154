//! Reading the traced process: registers and memory. The register layout of each architecture is
//! here and nowhere else.

use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_probe_read_user};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use memscope_common::Cookie;

/// Reads `T` (integers only) from user memory.
#[inline(always)]
pub fn user<T: Copy>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes size_of::<T>() bytes or fails and zeroes them.
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
    // SAFETY: written in full by the helper; T is plain integers.
    Some(unsafe { value.assume_init() })
}

/// Reads `T` from user memory to where it is needed; zeroes it where that fails.
#[inline(always)]
pub fn user_into<T>(to: *mut T, address: u64) {
    // SAFETY: the caller's `to` is a T in a map or a reservation; the helper fills or zeroes it.
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
    // SAFETY: the context of a uprobe program.
    Cookie(unsafe { bpf_get_attach_cookie(ctx.regs as *mut c_void) })
}

#[cfg(bpf_target_arch = "x86_64")]
mod arch {
    use aya_ebpf::programs::ProbeContext;
    use memscope_common::{CALIBRATION_REGISTERS, PLACE_STACK};

    /// The six integer arguments of the System V calling convention.
    #[inline(always)]
    pub fn args(ctx: &ProbeContext) -> [u64; 6] {
        // SAFETY: the kernel hands pt_regs to uprobe programs.
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
        // SAFETY: as above.
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

    /// What lies at a place (see `memscope_common::PLACE_STACK`).
    #[inline(always)]
    pub fn place(ctx: &ProbeContext, place: u8) -> Option<u64> {
        if place >= PLACE_STACK {
            return super::user::<u64>(sp(ctx).wrapping_add((place - PLACE_STACK) as u64 * 8));
        }
        // Volatile: the compiler would otherwise load through one computed address, which the
        // verifier refuses for the context.
        macro_rules! register {
            ($name:ident) => {
                // SAFETY: as above.
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

    /// Instruction, stack and frame pointer.
    #[inline(always)]
    pub fn place_in_code(ctx: &ProbeContext) -> (u64, u64, u64) {
        // SAFETY: as above.
        let r = unsafe { &*ctx.regs };
        (r.rip as u64, r.rsp as u64, r.rbp as u64)
    }

    /// Stack pointer: at a function's entry it points to the return address.
    #[inline(always)]
    pub fn sp(ctx: &ProbeContext) -> u64 {
        // SAFETY: as above.
        unsafe { (*ctx.regs).rsp as u64 }
    }

    /// The stack pointer at the entry, as seen in a return probe (the address has been popped).
    #[inline(always)]
    pub fn entry_sp(ctx: &ProbeContext) -> u64 {
        sp(ctx).wrapping_sub(8)
    }

    /// The result of a C function that returns an integer.
    #[inline(always)]
    pub fn result(ctx: &ProbeContext) -> u64 {
        // SAFETY: as above.
        unsafe { (*ctx.regs).rax as u64 }
    }

    /// Where the first stack argument lies at the entry.
    #[inline(always)]
    pub fn stack_args(ctx: &ProbeContext) -> u64 {
        sp(ctx).wrapping_add(8)
    }

    /// The address that the function will return to.
    #[inline(always)]
    pub fn caller(ctx: &ProbeContext) -> u64 {
        super::user::<u64>(sp(ctx)).unwrap_or(0)
    }
}

pub use arch::*;
