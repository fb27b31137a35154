//! Memory of a process that lies: whatever the input says lies there.

use crate::pieces::Pieces;
use memscope_memory::Memory;
use std::cell::Cell;
use std::io;

/// Bytes of the memory. Pieces of it are given at multiples of 8 bytes.
pub(crate) const BYTES: usize = 1 << 19;

/// Zeros from an address on, in which the input has set some pieces. Nothing else can be read. Some reads find a bit changed,
/// as in a process that goes on.
#[derive(Debug)]
pub(crate) struct Lying {
    base: u64,
    bytes: Vec<u8>,
    /// Each read of this number (1: each, 2: each other one) finds something changed; 0: none.
    changes: u64,
    reads: Cell<u64>,
}

impl Lying {
    /// What is left of an input: how often something changes, then pieces, each with its place in words, its length and its bytes.
    pub(crate) fn new(base: u64, pieces: &mut Pieces<'_>) -> Lying {
        let changes = u64::from(pieces.byte());
        let mut bytes = vec![0; BYTES];
        while !pieces.0.is_empty() {
            let at = usize::from(pieces.u16()) * 8;
            let len = usize::from(pieces.u16());
            let piece = pieces.take(len);
            let room = &mut bytes[at..];
            let len = piece.len().min(room.len());
            room[..len].copy_from_slice(&piece[..len]);
        }
        Lying {
            base,
            bytes,
            changes,
            reads: Cell::new(0),
        }
    }
}

impl Memory for Lying {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = address
            .checked_sub(self.base)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.bytes.get(at..at.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::InvalidInput)?;
        buffer.copy_from_slice(found);
        let reads = self.reads.get() + 1;
        self.reads.set(reads);
        if self.changes > 0 && reads.is_multiple_of(self.changes) {
            let place = (reads.wrapping_mul(0x9e37_79b9) >> 7) as usize;
            let len = buffer.len().max(1);
            if let Some(byte) = buffer.get_mut(place % len) {
                *byte ^= 1 << (reads % 8);
            }
        }
        Ok(())
    }
}

/// Writes the words of a memory that are not zero, as [`Lying::new`] reads them.
pub(crate) fn write(bytes: &[u8], into: &mut Vec<u8>) {
    into.push(0);
    let words: Vec<&[u8]> = bytes[..bytes.len().min(BYTES)].chunks(8).collect();
    let is_zero = |word: &&[u8]| word.iter().all(|byte| *byte == 0);
    let mut at = 0;
    while at < words.len() {
        if is_zero(&words[at]) {
            at += 1;
            continue;
        }
        // A piece ends where it takes less to begin another one.
        let mut end = at + 1;
        while end < words.len() && !words[end..words.len().min(end + 2)].iter().all(is_zero) {
            end += 1;
        }
        into.extend_from_slice(&(at as u16).to_le_bytes());
        into.extend_from_slice(&((end - at) as u16 * 8).to_le_bytes());
        into.extend(words[at..end].concat());
        at = end;
    }
}

/// A memory that is made word by word.
#[derive(Debug)]
pub(crate) struct Made {
    base: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Made {
    pub(crate) fn new(base: u64) -> Made {
        Made {
            base,
            bytes: vec![0; BYTES],
        }
    }

    /// Sets bytes at an address of the memory.
    pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.base) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn word(&mut self, address: u64, value: u64) {
        self.put(address, &value.to_le_bytes());
    }
}
