//! The memory of a live process.

use std::fs::File;
use std::io;

use crate::ask::{AskBack, Patience};
use crate::gather::{gather, gather_one};
use crate::owner::Owner;
use crate::part::{Memory, Part};
use crate::place::MOST_BYTES;
use crate::reader::{self, MOST_TOLD, Question};

/// Something that is done with a process's memory where it is read, instead of asking for each byte of it.
///
/// What it is told and what it answers are bytes, of which both sides make sense together. An error ends in the reader: the other side
/// gets its number only.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The number by which the other side asks for it.
    pub number: u32,
    /// Does it, with what it is told, and can ask back.
    pub run: fn(&ProcessMemory, &[u8], &mut AskBack<'_>) -> io::Result<Vec<u8>>,
}

/// The memory of a live process. It stays tied to the memory image that the process had when it
/// was opened, even if the pid is reused later.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
    file: File,
    /// For whom readers read for us; `None`: we read ourselves.
    reader: Option<Owner>,
}

impl ProcessMemory {
    /// Opens the memory of a process for reading. The process is not stopped. Fails where
    /// `ptrace(2)`'s access rules (`PTRACE_MODE_ATTACH`) forbid it.
    pub fn open(pid: u32) -> io::Result<ProcessMemory> {
        let number =
            libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let reader = match reader::readers() {
            Some(_) => Some(Owner::process(pid)?),
            None => None,
        };
        // Opening it touches no page of the process.
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(ProcessMemory {
            pid: number,
            file,
            reader,
        })
    }

    /// The memory that this memory file is of, read by ourselves.
    pub(crate) fn of_file(pid: libc::pid_t, file: File) -> ProcessMemory {
        ProcessMemory {
            pid,
            file,
            reader: None,
        }
    }

    /// Has work done on this memory: in a reader process if there are any. `reply` answers what the work asks back.
    ///
    /// # Errors
    /// The work's own, the reader's end, [`io::ErrorKind::FileTooLarge`] if the work is told or answers too much, and
    /// [`io::ErrorKind::TimedOut`] if the reader took longer than `patience` allows.
    pub fn work(
        &self,
        work: &Work,
        told: &[u8],
        patience: Patience,
        reply: &mut AskBack<'_>,
    ) -> io::Result<Vec<u8>> {
        if told.len() > MOST_TOLD {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let Some(owner) = self.reader else {
            return (work.run)(self, told, reply);
        };
        let readers = reader::readers().ok_or(io::ErrorKind::NotConnected)?;
        let question = Question::Work {
            pid: self.pid,
            number: work.number,
            told: told.to_vec(),
        };
        readers.work(owner, &self.file, &question, patience, reply)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.reader.is_none() {
            return gather_one(self.pid, &self.file, address, buffer);
        }
        let mut at = address;
        for piece in buffer.chunks_mut(MOST_BYTES as usize) {
            let mut part = [Part {
                address: at,
                bytes: vec![0; piece.len()],
            }];
            self.read_many(&mut part)?;
            let [part] = part;
            piece.copy_from_slice(&part.bytes);
            at = at.wrapping_add(piece.len() as u64);
        }
        Ok(())
    }

    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        let Some(owner) = self.reader else {
            return gather(self.pid, &self.file, parts);
        };
        let readers = reader::readers().ok_or(io::ErrorKind::NotConnected)?;
        if parts
            .iter()
            .all(|part| part.bytes.len() as u64 <= MOST_BYTES)
        {
            return readers.read_memory(owner, self.pid, &self.file, parts);
        }
        for part in parts {
            self.read(part.address, &mut part.bytes)?;
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
