//! Reads the memory of another process: at one address, or at many addresses in one call.
//!
//! Owns: the one way in which memscope reads the memory of a traced process. Refuses: to write, to stop the process,
//! and to know what lies at an address.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A range of addresses to be read.
#[derive(Debug, Default)]
pub struct Part {
    /// Address at which the range begins.
    pub address: u64,
    /// The buffer that is filled; its length says how many bytes are read.
    pub bytes: Vec<u8>,
}

/// Something that can be read at addresses.
pub trait Memory {
    /// Fills the whole `buffer` with what lies at `address`. Fails if not all of it can be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The word of 64 bits at `address`, in little-endian byte order.
    fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The NUL-terminated string at `address`, without the NUL. Fails if there is no NUL among the first `limit` bytes;
    /// bytes behind these are never read.
    fn read_string(&self, address: u64, limit: usize) -> io::Result<Vec<u8>> {
        const STEP: u64 = 64;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < limit {
            // Each step ends at a multiple of 64, so that it never reaches into the next page, which may not exist.
            let len = ((STEP - at % STEP) as usize).min(limit - text.len());
            let mut step = [0; STEP as usize];
            let step = &mut step[..len];
            self.read(at, step)?;
            if let Some(end) = memchr::memchr(0, step) {
                text.extend_from_slice(&step[..end]);
                return Ok(text);
            }
            text.extend_from_slice(step);
            at = at
                .checked_add(len as u64)
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no end of the string in reach",
        ))
    }

    /// Fills all parts; the first part is read first, the last one last. Fails if any part cannot be read.
    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        for part in parts {
            self.read(part.address, &mut part.bytes)?;
        }
        Ok(())
    }
}

/// Memory that perhaps could not be opened: with `None`, every read fails.
impl<M: Memory> Memory for Option<M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Some(memory) => memory.read(address, buffer),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Most ranges that one call of `process_vm_readv(2)` takes (`IOV_MAX`).
const MOST_RANGES: usize = 1024;

/// The memory of a live process. `/proc/<pid>/mem` stays tied to the memory image that the process had when the file
/// was opened, even if the pid is reused later. `process_vm_readv(2)` is used to read many ranges in one call.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process for reading. The process is not stopped. Fails where
    /// `ptrace(2)`'s access rules (`PTRACE_MODE_ATTACH`) forbid it.
    pub fn open(pid: u32) -> io::Result<ProcessMemory> {
        let number =
            libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(ProcessMemory { pid: number, file })
    }

    /// Reads the parts with one call of `process_vm_readv(2)`; returns the number of bytes that were read.
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
        for some in parts.chunks_mut(MOST_RANGES) {
            let whole: usize = some.iter().map(|part| part.bytes.len()).sum();
            match self.gather(some) {
                Ok(got) if got == whole => {}
                // Either some address is not mapped, or this call is not permitted, although opening the file was. So
                // the parts are read through the file, one by one; that fails only for a part that is really
                // unreadable.
                _ => {
                    for part in some.iter_mut() {
                        self.read(part.address, &mut part.bytes)?;
                    }
                }
            }
        }
        // By now the pid may belong to another process or another image. Reading the file fails once the image that was
        // opened is gone; then what `process_vm_readv` has read is not valid either.
        if let Some(part) = parts.first() {
            self.read(part.address, &mut [0])?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn this_process_reads_itself() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let text = *b"a string\0 and more";
        let words = [7u64, 9];
        assert_eq!(
            memory.read_string(text.as_ptr() as u64, 64).unwrap(),
            b"a string"
        );
        assert!(memory.read_string(text.as_ptr() as u64, 0).is_err());
        let part = |address, len| Part {
            address,
            bytes: vec![0; len],
        };
        let mut parts = [
            part(text.as_ptr() as u64, text.len()),
            part(words.as_ptr() as u64 + 8, 8),
        ];
        memory.read_many(&mut parts).unwrap();
        assert_eq!(parts[0].bytes, text);
        assert_eq!(parts[1].bytes, 9u64.to_ne_bytes());
        assert_eq!(memory.read_u64(words.as_ptr() as u64).unwrap(), 7);
    }

    /// Memory that ends where its bytes end.
    struct Short(Vec<u8>);

    impl Memory for Short {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let bytes = self.0.get(address as usize..).unwrap_or(&[]);
            let bytes = bytes
                .get(..buffer.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn the_limit_of_a_string_is_exact() {
        // The NUL is byte number 100 of the string, which begins in the middle of a step.
        let mut bytes = vec![b'x'; 512];
        bytes[7 + 99] = 0;
        let memory = Short(bytes);
        assert_eq!(memory.read_string(7, 100).unwrap(), [b'x'; 99]);
        for limit in [0, 1, 57, 64, 98, 99] {
            assert!(memory.read_string(7, limit).is_err(), "{limit}");
        }
        // What lies behind the limit is not touched, even where the whole step would reach beyond the memory.
        let end = Short(b"name\0".to_vec());
        assert_eq!(end.read_string(0, 5).unwrap(), b"name");
    }

    #[test]
    fn where_nothing_is_mapped_all_fails() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let word = 1u64;
        let mut parts = [
            Part {
                address: &raw const word as u64,
                bytes: vec![0; 8],
            },
            Part {
                address: 8,
                bytes: vec![0; 8],
            },
        ];
        assert!(memory.read_many(&mut parts).is_err());
        assert!(memory.read(8, &mut [0]).is_err());
    }
}
