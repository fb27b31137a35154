//! The probes' programs, with a file for each family.

mod call;
mod device;
mod launch;
mod mark;
mod npu;
mod operator;
mod process;
mod region;
mod torch;

use aya_ebpf::helpers::bpf_get_current_pid_tgid;

/// The tgid and tid of the current thread, in the initial pid namespace.
#[inline(always)]
pub fn ids() -> (u32, u32) {
    let both = bpf_get_current_pid_tgid();
    ((both >> 32) as u32, both as u32)
}
