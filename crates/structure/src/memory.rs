//! Memory of another process, read only, many places at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// One place to be read.
#[derive(Debug, Default)]
pub struct Part {
    /// Where.
    pub address: u64,
    /// What is filled; its length says how much.
    pub bytes: Vec<u8>,
}

/// Something that can be read at addresses.
pub trait Memory {
    /// Fills `buffer` from `address` on, or fails; never half.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills all parts, in their order: what stands first is read first. Fails if one of them fails.
    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        for part in parts {
            self.read(part.address, &mut part.bytes)?;
        }
        Ok(())
    }
}

/// Most places that one call of `process_vm_readv(2)` takes (`IOV_MAX`).
const PLACES: usize = 1024;

/// A live process: `process_vm_readv(2)`, tied to one memory image by `/proc/<pid>/mem`.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process. Nothing is stopped, nothing can be written. Fails where
    /// `ptrace(2)`'s access rules (`PTRACE_MODE_ATTACH`) refuse it.
    pub fn open(pid: u32) -> io::Result<ProcessMemory> {
        let number =
            libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(ProcessMemory { pid: number, file })
    }

    /// One call; says how many bytes came.
    fn gather(&self, parts: &mut [Part]) -> io::Result<usize> {
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
                self.pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, address)
    }

    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        for some in parts.chunks_mut(PLACES) {
            let whole: usize = some.iter().map(|part| part.bytes.len()).sum();
            match self.gather(some) {
                Ok(got) if got == whole => {}
                // A hole: the file says which place it is. Not permitted here: the file was.
                _ => {
                    for part in some.iter_mut() {
                        self.read(part.address, &mut part.bytes)?;
                    }
                }
            }
        }
        // The number may by now name another process or another image. The file is the image that
        // was opened, and refuses once that is gone; then what came above is refused too.
        if let Some(part) = parts.first() {
            self.read(part.address, &mut [0])?;
        }
        Ok(())
    }
}
