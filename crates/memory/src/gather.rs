//! Reads memory of a process by `process_vm_readv(2)`.
//!
//! `/proc/<pid>/mem` could be read as well, but the kernel holds a lock of the process while it waits for a page there. As long as that
//! one is held, the kernel can neither place nor remove a probe in any file that the process has mapped, and while it tries to, no
//! program on the machine can start another one. So that file only tells whether the process still has the memory image that it had
//! when the file was opened, even if the pid is reused later.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::part::Part;

/// Most ranges that one call takes (`IOV_MAX`).
const MOST_RANGES: usize = 1024;

/// An address at which no process has anything, beyond all that a process can have.
const NOWHERE: u64 = 0x7fff_ffff_ffff_f000;

/// Reads the parts of a process's memory, whose memory file this is.
pub(crate) fn gather(pid: libc::pid_t, file: &File, parts: &mut [Part]) -> io::Result<()> {
    for some in parts.chunks_mut(MOST_RANGES) {
        gather_some(pid, some)?;
    }
    still_the_same(file)
}

/// Fills the buffer with what the process has at the address.
pub(crate) fn gather_one(
    pid: libc::pid_t,
    file: &File,
    address: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: the local range is a live, exclusively borrowed buffer, which outlives the call.
    let got = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    all_of(got, buffer.len())?;
    still_the_same(file)
}

fn gather_some(pid: libc::pid_t, parts: &mut [Part]) -> io::Result<()> {
    let whole: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let mut local = Vec::with_capacity(parts.len());
    let mut remote = Vec::with_capacity(parts.len());
    for part in parts.iter_mut() {
        local.push(libc::iovec {
            iov_base: part.bytes.as_mut_ptr().cast(),
            iov_len: part.bytes.len(),
        });
        remote.push(libc::iovec {
            iov_base: part.address as *mut libc::c_void,
            iov_len: part.bytes.len(),
        });
    }
    // SAFETY: each local entry is a live, exclusively borrowed buffer with its length, and
    // `parts` outlives the call; the remote entries are only addresses in the other process.
    let got = unsafe {
        libc::process_vm_readv(
            pid,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    all_of(got, whole)
}

/// Fails if the call, which returned `got`, did not read all of the bytes.
fn all_of(got: isize, whole: usize) -> io::Result<()> {
    match usize::try_from(got) {
        Ok(got) if got == whole => Ok(()),
        // The call ends where something is not mapped.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Fails if the process no longer has the image that it had when its memory was opened. By then the pid may belong to
/// another process or another image, and what was read is not valid.
fn still_the_same(file: &File) -> io::Result<()> {
    match file.read_at(&mut [0], NOWHERE) {
        // There is an image, and nothing at this address in it.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}
