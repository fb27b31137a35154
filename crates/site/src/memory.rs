//! Memory of a live process, read only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::SiteError;

/// Something that can be read at addresses.
pub trait Memory {
    /// Fills `buffer` from `address` on, or fails; never half.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The word at `address`.
    fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The NUL-terminated string at `address`, without the NUL; an error if none ends within
    /// `limit` bytes.
    fn read_string(&self, address: u64, limit: usize) -> io::Result<Vec<u8>> {
        const STEP: u64 = 64;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < limit {
            // Steps end at multiples of 64, so that none reaches into a page that may not exist.
            let len = STEP - at % STEP;
            let mut step = [0; STEP as usize];
            let step = &mut step[..len as usize];
            self.read(at, step)?;
            if let Some(end) = memchr::memchr(0, step) {
                text.extend_from_slice(&step[..end]);
                return Ok(text);
            }
            text.extend_from_slice(step);
            at = at
                .checked_add(len)
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no end of the string in reach",
        ))
    }
}

/// `/proc/<pid>/mem`.
#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process. It stays that memory image's, whatever the pid names later.
    pub fn open(pid: u32) -> Result<ProcessMemory, SiteError> {
        let path = PathBuf::from(format!("/proc/{pid}/mem"));
        let file = File::open(&path).map_err(|source| SiteError::proc_read(pid, path, source))?;
        Ok(ProcessMemory { file })
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, address)
    }
}
