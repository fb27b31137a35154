//! Bytes at offsets, and little-endian numbers in them.

use std::fs::File;
use std::io;

use memscope_memory::file::OpenFile;

/// Bytes that can be read at offsets.
pub trait ReadAt {
    /// Total number of bytes.
    fn length(&self) -> u64;
    /// Fills the whole buffer with the bytes from `offset` on. Fails if not all of them can be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// An open file, with the length that it had when it was opened.
#[derive(Debug)]
pub struct FileBytes(OpenFile);

impl FileBytes {
    /// The bytes of a file of our own. Fails if the file's metadata cannot be read.
    pub fn new(file: File) -> io::Result<FileBytes> {
        Ok(FileBytes(OpenFile::given(file)?))
    }
    /// The open file.
    pub fn file(&self) -> &OpenFile {
        &self.0
    }
}

impl From<OpenFile> for FileBytes {
    fn from(file: OpenFile) -> FileBytes {
        FileBytes(file)
    }
}

impl ReadAt for FileBytes {
    fn length(&self) -> u64 {
        self.0.facts().size
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, buffer)
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
