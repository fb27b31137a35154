//! Bytes at offsets, and little-endian numbers in them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at offsets.
pub trait ReadAt {
    /// Total number of bytes.
    fn length(&self) -> u64;
    /// Fills the whole buffer with the bytes from `offset` on. Fails if not all of them can be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// An open file and its length.
#[derive(Debug)]
pub struct FileBytes {
    file: File,
    len: u64,
}

impl FileBytes {
    /// Notes the length that the file has now. Fails if the file's metadata cannot be read.
    pub fn new(file: File) -> io::Result<FileBytes> {
        let len = file.metadata()?.len();
        Ok(FileBytes { file, len })
    }
    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileBytes {
    fn length(&self) -> u64 {
        self.len
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..)?.get(..buffer.len()))
            .map(|bytes| buffer.copy_from_slice(bytes))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => u16::from_le_bytes([a, b]),
        _ => 0,
    }
}
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
