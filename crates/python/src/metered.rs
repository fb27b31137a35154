//! A bound for what one search reads of a process.

use std::cell::Cell;
use std::io;

use memscope_memory::Memory;

use crate::error::PythonError;

/// Most reads of a process's memory in the search for its interpreter. Each is a question to another process, and whoever
/// searches waits. A Python with 500 threads of ten frames takes 16,000.
pub(crate) const MOST_READS: u64 = 200_000;
/// A read counts once more for each so many bytes of it.
const PIECE: u64 = 4096;

/// Memory of which only [`MOST_READS`] reads are made. All further ones fail, so that whatever is done with it ends soon.
pub(crate) struct Metered<'a, M: ?Sized> {
    memory: &'a M,
    reads: Cell<u64>,
}

impl<'a, M: Memory + ?Sized> Metered<'a, M> {
    pub fn new(memory: &'a M) -> Metered<'a, M> {
        Metered {
            memory,
            reads: Cell::new(0),
        }
    }

    /// Fails if a read was refused. What was found since then is no proof of anything.
    pub fn check(&self) -> Result<(), PythonError> {
        match self.reads.get() {
            0..=MOST_READS => Ok(()),
            _ => Err(PythonError::TooManyReads { most: MOST_READS }),
        }
    }
}

impl<M: Memory + ?Sized> Memory for Metered<'_, M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let cost = 1 + buffer.len() as u64 / PIECE;
        let reads = self.reads.get().saturating_add(cost);
        self.reads.set(reads);
        if reads > MOST_READS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.memory.read(address, buffer)
    }
}
