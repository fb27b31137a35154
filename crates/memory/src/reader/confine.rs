//! What a reader may do: nothing but read.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Most memory of a reader. An answer has at most 16 MiB, and is there twice.
const MOST_MEMORY: u64 = 1 << 30;
/// What a reader must not ask for when it opens a file: to write, or to make one.
const NOT_TO_READ: u64 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND | libc::O_TMPFILE) as u64
        & !(libc::O_DIRECTORY as u64);

/// Most open files: the socket, the standard streams, and what is read.
const MOST_FILES: u64 = 16;

/// The system calls that a reader makes. Memory is allocated by the last ones.
const ALLOWED: [libc::c_long; 30] = [
    libc::SYS_process_vm_readv,
    libc::SYS_pread64,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_sigaltstack,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
];

/// Gives up everything but reading what the other side of the socket hands over.
pub(super) fn give_up_rights() -> io::Result<()> {
    for (resource, most) in [
        (Resource::As, MOST_MEMORY),
        (Resource::Nofile, MOST_FILES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
    ] {
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    rustix::thread::set_no_new_privs(true)?;
    // Memory and mappings of other users' processes; the files that these have mapped, by any path and with any owner.
    let reads = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    let has = rustix::thread::capabilities(None)?;
    // Who is not root reads with the rights of a user, and has none to give up.
    let keeps = has.permitted & reads;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: keeps,
            permitted: keeps,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    let mut rules: BTreeMap<_, _> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let only_to_read = SeccompCondition::new(
        2,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(NOT_TO_READ),
        libc::O_RDONLY as u64,
    )
    .and_then(|flags| SeccompRule::new(vec![flags]))
    .map_err(io::Error::other)?;
    rules.insert(libc::SYS_openat, vec![only_to_read]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH
            .try_into()
            .map_err(io::Error::other)?,
    )
    .map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}
