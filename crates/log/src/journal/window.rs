//! Reads a file piece by piece. The file is never mapped: it may belong to anybody, and it may shrink.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const AHEAD: usize = 64 << 10;

/// A window on a file. It is meant to move forward.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<File>,
    buffer: Vec<u8>,
    start: u64,
}

impl Window {
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self {
            file,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Returns `len` bytes from offset `at`, or fewer if the file ends before.
    pub(crate) fn get(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let offset = match at.checked_sub(self.start).map(usize::try_from) {
            Some(Ok(offset)) if offset.saturating_add(len) <= self.buffer.len() => offset,
            _ => {
                self.fill(at, len.max(AHEAD))?;
                0
            }
        };
        let rest = self.buffer.get(offset..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest))
    }

    fn fill(&mut self, at: u64, len: usize) -> io::Result<()> {
        self.start = at;
        self.buffer.resize(len, 0);
        let mut filled = 0;
        while let Some(space) = self.buffer.get_mut(filled..) {
            if space.is_empty() {
                break;
            }
            match self.file.read_at(space, at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.buffer.clear();
                    return Err(error);
                }
            }
        }
        self.buffer.truncate(filled);
        Ok(())
    }
}
