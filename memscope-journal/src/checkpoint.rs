//! Checkpoints: the state of the fold at a place of the log, so that what follows can be read without what came before.
//!
//! Owns: how a state is written and read. Refuses: to trust one: it is read within bounds of memory, and its parts have
//! check sums of their own.
//!
//! A checkpoint is the decoder and the ledger in MessagePack, with the names of their fields, compressed by zstd, in pieces that
//! are batches of their own. A field that a newer memscope has added reads as its default where its type says so.

use crate::error::{JournalError, RecordingError};
use crate::format::{ALIGN, BATCH_HEADER, BatchHeader, Packing, SEGMENT_HEADER};
use crate::window::Window;
use memscope_decode::Decoder;
use memscope_ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a checkpoint in one batch.
const PIECE: usize = 1 << 20;
/// See [`crate::pack`].
const LEVEL: i32 = 1;
/// A state takes at most so many times the bytes that it takes on disk, and [`ROOM`] bytes besides: what claims to be more is no checkpoint.
const LARGEST_RATIO: u64 = 512;
const ROOM: u64 = 16 << 20;

/// The state that a checkpoint is made of.
#[derive(Clone, Copy, Serialize)]
pub struct Folded<'a> {
    /// What decodes the records that follow.
    pub decoder: &'a Decoder,
    /// What they are applied to.
    pub ledger: &'a Ledger,
}

/// The state that was read from a checkpoint.
#[derive(Debug, Deserialize)]
pub struct Restored {
    /// What decodes the records that follow.
    pub decoder: Decoder,
    /// What they are applied to.
    pub ledger: Ledger,
}

/// Where a checkpoint stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPlace {
    pub(crate) path: PathBuf,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Writes the state; gives the bytes that it took.
pub(crate) fn write(state: Folded<'_>, out: impl Write) -> Result<u64, JournalError> {
    let mut compressed =
        zstd::Encoder::new(Pieces::new(out), LEVEL).map_err(JournalError::checkpoint)?;
    rmp_serde::encode::write_named(&mut compressed, &state)
        .map_err(|error| JournalError::checkpoint(io::Error::other(error)))?;
    compressed
        .finish()
        .and_then(Pieces::finish)
        .map_err(JournalError::checkpoint)
}

/// Reads the state.
pub(crate) fn read(place: &CheckpointPlace) -> Result<Restored, RecordingError> {
    let failed = |error| RecordingError::of("read", &place.path, error);
    let bad = |error| RecordingError::Checkpoint {
        path: place.path.clone(),
        source: error,
    };
    let file = File::open(&place.path).map_err(failed)?;
    let stored = Stored {
        window: Window::new(file),
        at: place.at,
        end: place.at.saturating_add(place.bytes),
        piece: Vec::new(),
        taken: 0,
    };
    let most = place
        .bytes
        .saturating_mul(LARGEST_RATIO)
        .saturating_add(ROOM);
    let plain = zstd::Decoder::new(stored).map_err(bad)?.take(most);
    let restored: Restored = rmp_serde::from_read(BufReader::with_capacity(1 << 16, plain))
        .map_err(|error| bad(io::Error::other(error)))?;
    Ok(Restored {
        ledger: restored.ledger.restored(),
        ..restored
    })
}

/// Where the checkpoint of a segment stands whose header stands at `at`.
pub(crate) fn place(path: &Path, at: u64, bytes: u64) -> Option<CheckpointPlace> {
    (bytes > 0).then(|| CheckpointPlace {
        path: path.to_owned(),
        at: at + SEGMENT_HEADER as u64,
        bytes,
    })
}

/// Cuts what is written into batches.
struct Pieces<W> {
    out: W,
    piece: Vec<u8>,
    framed: Vec<u8>,
    written: u64,
}

impl<W: Write> Pieces<W> {
    fn new(out: W) -> Self {
        Self {
            out,
            piece: Vec::with_capacity(PIECE),
            framed: Vec::new(),
            written: 0,
        }
    }

    fn put(&mut self) -> io::Result<()> {
        // At most `PIECE`.
        let len = self.piece.len() as u32;
        self.piece
            .resize(self.piece.len().next_multiple_of(ALIGN), 0);
        let header = BatchHeader {
            header_len: BATCH_HEADER,
            stored: self.piece.len() as u32,
            len,
            count: 0,
            first_sequence: 0,
            ring_position: 0,
            packing: Packing::Checkpoint,
        };
        self.framed.clear();
        header.encode(&self.piece, &mut self.framed);
        self.out.write_all(&self.framed)?;
        self.written += self.framed.len() as u64;
        self.piece.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<u64> {
        if !self.piece.is_empty() {
            self.put()?;
        }
        Ok(self.written)
    }
}

impl<W: Write> Write for Pieces<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece
            .extend_from_slice(bytes.get(..taken).unwrap_or_default());
        if self.piece.len() == PIECE {
            self.put()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The pieces of a checkpoint, one behind the other.
struct Stored {
    window: Window,
    at: u64,
    end: u64,
    piece: Vec<u8>,
    taken: usize,
}

impl Stored {
    /// Reads the next piece. False at the end.
    fn next(&mut self) -> io::Result<bool> {
        if self.at >= self.end {
            return Ok(false);
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a part of it is damaged");
        let head = self.window.get(self.at, BATCH_HEADER)?;
        let (header, crc) = BatchHeader::decode(head).ok_or_else(damaged)?;
        let whole = header.header_len + header.stored as usize;
        let bytes = self.window.get(self.at, whole)?;
        let stored = bytes.get(header.header_len..whole).ok_or_else(damaged)?;
        if header.packing != Packing::Checkpoint || header.crc(stored) != crc {
            return Err(damaged());
        }
        self.piece.clear();
        self.piece
            .extend_from_slice(stored.get(..header.len as usize).ok_or_else(damaged)?);
        self.taken = 0;
        self.at += whole as u64;
        Ok(true)
    }
}

impl Read for Stored {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let rest = self.piece.get(self.taken..).unwrap_or_default();
            if !rest.is_empty() {
                let count = rest.len().min(into.len());
                if let (Some(to), Some(from)) = (into.get_mut(..count), rest.get(..count)) {
                    to.copy_from_slice(from);
                }
                self.taken += count;
                return Ok(count);
            }
            if !self.next()? {
                return Ok(0);
            }
        }
    }
}
