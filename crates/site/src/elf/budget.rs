//! How much may be read of files that a stranger has made.
//!
//! A sparse file of a few kilobytes can claim tables of any size, and a process can map tens of thousands of such files.
//! So all bytes that are read of a file are counted, and those that stay in memory once more; and all bytes that are read
//! of the files of one process. The limits are several times what the largest real files need: libtorch_cpu of PyTorch
//! 2.11 has 93 MB of symbols and their names, and 17 MB of unwinding tables.
//!
//! To decode code, and to compare names, takes much longer than to read them, and symbols can name the same megabyte of
//! code or the same long name thousands of times. So what is looked at in this way is counted by itself, each time.

use std::cell::Cell;

use super::error::{ElfError, Whole};

/// Most bytes of one file's tables that are held in memory at the same time.
pub const MOST_TABLES: u64 = 512 << 20;
/// Most bytes that are read of one file, also of what is searched piece by piece.
pub const MOST_OF_FILE: u64 = 2 << 30;
/// Most bytes that are read of all files of a process while it is examined once.
pub const MOST_OF_PROCESS: u64 = 8 << 30;
/// Most bytes of code that are decoded, and of names that are compared, of one file. Of torch_npu 2.11, which is stripped,
/// it is 10 million; of libtorch_cpu 1.4 million, and 4.3 million when its operators are searched for.
pub const MOST_WORK_OF_FILE: u64 = 64 << 20;
/// Most such bytes of all files of a process while it is examined once. They take a few seconds.
pub const MOST_WORK_OF_PROCESS: u64 = 256 << 20;

/// What may still be read.
#[derive(Debug)]
pub struct Budget {
    whole: Whole,
    most: u64,
    left: Cell<u64>,
    most_work: u64,
    work_left: Cell<u64>,
}

impl Budget {
    /// For all files of one process, while it is examined once.
    pub fn of_process() -> Budget {
        Budget::new(Whole::Process, MOST_OF_PROCESS, MOST_WORK_OF_PROCESS)
    }

    pub(super) fn of_file() -> Budget {
        Budget::new(Whole::File, MOST_OF_FILE, MOST_WORK_OF_FILE)
    }

    pub(super) fn of_tables() -> Budget {
        Budget::new(Whole::Tables, MOST_TABLES, 0)
    }

    fn new(whole: Whole, most: u64, most_work: u64) -> Budget {
        Budget {
            whole,
            most,
            left: Cell::new(most),
            most_work,
            work_left: Cell::new(most_work),
        }
    }

    /// Number of bytes that were taken so far.
    pub fn taken(&self) -> u64 {
        self.most - self.left.get()
    }

    /// Number of bytes of code and names that were looked at so far.
    pub fn worked(&self) -> u64 {
        self.most_work - self.work_left.get()
    }

    /// Takes the bytes of a table. Fails if there are not that many left; then nothing is taken.
    pub(super) fn take(&self, table: &'static str, bytes: u64) -> Result<(), ElfError> {
        let left = self
            .left
            .get()
            .checked_sub(bytes)
            .ok_or(ElfError::TooLarge {
                table,
                bytes,
                whole: self.whole,
                most: self.most,
            })?;
        self.left.set(left);
        Ok(())
    }

    /// Takes bytes of code that are to be decoded, or of names that are to be compared. Fails if there are not that many
    /// left; then none are.
    pub(super) fn work(&self, bytes: u64) -> Result<(), ElfError> {
        let left = self.work_left.get().checked_sub(bytes);
        self.work_left.set(left.unwrap_or(0));
        match left {
            Some(_) => Ok(()),
            None => Err(ElfError::TooMany {
                what: "bytes of code and names to look at",
                whole: self.whole,
                most: self.most_work,
            }),
        }
    }
}
