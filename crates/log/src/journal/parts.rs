//! The parts of a checkpoint: one for what all processes share, and one for each process.
//!
//! Each part is a stream of its own (MessagePack, compressed by zstd), cut into pieces that are stored as batches. The
//! header of a piece says which process it belongs to, so a checkpoint can be copied without some processes, and
//! nothing needs to be decoded for that.

use crate::journal::format::{ALIGN, BATCH_HEADER, BatchHeader, Packing};
use crate::journal::window::Window;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::sync::Arc;

/// Bytes of a part in one batch.
const PIECE: usize = 1 << 20;
/// A fast level (see `pack`).
const LEVEL: i32 = 1;
/// A part may unpack to at most this many times its size on disk, plus [`ROOM`] bytes. Reading stops there, so that a
/// damaged or forged file cannot use up the memory.
const LARGEST_RATIO: u64 = 512;
const ROOM: u64 = 16 << 20;

/// A process that was traced at the time of a segment, but whose records are not in it, because others needed the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// The daemon's handle of the process.
    pub process: u32,
    /// Process id; 0 if it is not known.
    pub pid: u32,
}

impl LeftOut {
    /// Bytes of a list with `count` entries in the file.
    pub(crate) fn list_bytes(count: usize) -> u64 {
        match count {
            0 => 0,
            count => (BATCH_HEADER + count * 8) as u64,
        }
    }

    /// Encodes the list as a batch. An empty list takes no bytes.
    pub(crate) fn encode(list: &[LeftOut]) -> Vec<u8> {
        let mut framed = Vec::new();
        if !list.is_empty() {
            let words = list.iter().flat_map(|one| [one.process, one.pid]);
            let stored: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
            piece(Packing::LeftOut, (0, 0), &stored, &mut framed);
        }
        framed
    }

    /// Reads a list with `count` entries.
    pub(crate) fn read(file: &Arc<File>, at: u64, count: u64) -> io::Result<Vec<LeftOut>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (header, stored) = whole(&mut Window::new(Arc::clone(file)), at)?;
        let list: Vec<LeftOut> = stored
            .chunks_exact(8)
            .filter_map(|entry| {
                let (process, pid) = entry.split_first_chunk::<4>()?;
                Some(LeftOut {
                    process: u32::from_ne_bytes(*process),
                    pid: u32::from_ne_bytes(*pid.first_chunk()?),
                })
            })
            .collect();
        if header.packing == Packing::LeftOut && list.len() as u64 == count {
            Ok(list)
        } else {
            Err(damaged())
        }
    }
}

/// The processes that are left out at the place where a reader is.
#[derive(Clone, Debug, Default)]
pub struct Absent(BTreeSet<LeftOut>);

impl Absent {
    /// Call this when a segment begins. Returns the processes that are no longer left out; their state must be taken
    /// from the segment's checkpoint. Without a checkpoint nothing can be taken up again, so the result is empty.
    pub fn segment(&mut self, left_out: &[LeftOut], has_checkpoint: bool) -> Vec<LeftOut> {
        let here: BTreeSet<LeftOut> = left_out.iter().copied().collect();
        if !has_checkpoint {
            self.0.extend(here);
            return Vec::new();
        }
        let back = self.0.difference(&here).copied().collect();
        self.0 = here;
        back
    }

    /// The processes that are left out here.
    pub fn all(&self) -> impl Iterator<Item = &LeftOut> {
        self.0.iter()
    }
}

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartPlace {
    /// Handle of the process that the part belongs to; 0: the part that all processes share.
    pub(crate) process: u32,
    pub(crate) pid: u32,
    at: u64,
    pub(crate) bytes: u64,
}

impl PartPlace {
    /// Finds the parts between two offsets of a file, in order. Reads only the headers of the pieces.
    pub(crate) fn all(file: &Arc<File>, at: u64, end: u64) -> io::Result<Vec<PartPlace>> {
        let mut window = Window::new(Arc::clone(file));
        let mut parts: Vec<PartPlace> = Vec::new();
        let mut place = at;
        while place < end {
            let (header, _) =
                BatchHeader::decode(window.get(place, BATCH_HEADER)?).ok_or_else(damaged)?;
            let bytes = header.header_len as u64 + u64::from(header.stored);
            let (process, pid) = owner(&header).ok_or_else(damaged)?;
            match parts.last_mut().filter(|part| part.process == process) {
                Some(part) => part.bytes += bytes,
                None => parts.push(PartPlace {
                    process,
                    pid,
                    at: place,
                    bytes,
                }),
            }
            place += bytes;
        }
        Ok(parts)
    }

    /// Decodes the part.
    pub(crate) fn read<T: DeserializeOwned>(&self, file: &Arc<File>) -> io::Result<T> {
        let stored = Stored {
            window: Window::new(Arc::clone(file)),
            at: self.at,
            end: self.at.saturating_add(self.bytes),
            piece: Vec::new(),
            taken: 0,
        };
        let most = self
            .bytes
            .saturating_mul(LARGEST_RATIO)
            .saturating_add(ROOM);
        let mut plain = zstd::Decoder::new(stored)?.take(most);
        memscope_messagepack::from_read(&mut plain).map_err(io::Error::other)
    }

    /// Copies the part without decoding it.
    pub(crate) fn copy_to(&self, file: &Arc<File>, out: &mut dyn Write) -> io::Result<()> {
        copy(file, self.at, self.bytes, out)
    }

    /// Writes a part that holds `what`, and returns its size in bytes.
    pub(crate) fn write(
        out: impl Write,
        (process, pid): (u32, u32),
        what: &impl Serialize,
    ) -> io::Result<u64> {
        let pieces = Pieces {
            out,
            owner: (process, pid),
            piece: Vec::with_capacity(PIECE),
            framed: Vec::new(),
            written: 0,
        };
        // The encoder writes a few bytes at a time, and each call of the compression costs more than these.
        let compressed = zstd::Encoder::new(pieces, LEVEL)?;
        let mut plain = Apart(BufWriter::with_capacity(PIECE, compressed));
        rmp_serde::encode::write_named(&mut plain, what).map_err(io::Error::other)?;
        let compressed = plain.0.into_inner();
        let compressed = compressed.map_err(io::IntoInnerError::into_error)?;
        compressed.finish()?.finish()
    }
}

/// A writer whose functions are not copied into each place that calls them. What is generated for the hundreds of types in a
/// checkpoint has thousands of such places. Long lists pass in large pieces, so that a call for each piece costs nothing.
struct Apart<T>(T);

impl<W: Write> Write for Apart<W> {
    #[inline(never)]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    #[inline(never)]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Copies `bytes` bytes of a file.
pub(crate) fn copy(file: &Arc<File>, at: u64, bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut window = Window::new(Arc::clone(file));
    let mut at = at;
    let end = at.saturating_add(bytes);
    while at < end {
        let wanted = (end - at).min(PIECE as u64);
        let bytes = window.get(at, wanted as usize)?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a part of it is damaged")
}

/// The process that a piece belongs to. In checkpoints of format 2 these fields are zero.
fn owner(header: &BatchHeader) -> Option<(u32, u32)> {
    let process = u32::try_from(header.first_sequence).ok()?;
    let pid = u32::try_from(header.ring_position).ok()?;
    (header.packing == Packing::Checkpoint).then_some((process, pid))
}

/// Appends a batch that holds a piece to `framed`.
fn piece(packing: Packing, (process, pid): (u32, u32), bytes: &[u8], framed: &mut Vec<u8>) {
    let mut stored = bytes.to_vec();
    stored.resize(stored.len().next_multiple_of(ALIGN), 0);
    let header = BatchHeader {
        header_len: BATCH_HEADER,
        // `stored` and `len` fit: a piece has at most `PIECE` bytes, and a list has as many entries as there are
        // processes.
        stored: stored.len() as u32,
        len: bytes.len() as u32,
        count: 0,
        first_sequence: u64::from(process),
        ring_position: u64::from(pid),
        packing,
    };
    header.encode(&stored, framed);
}

/// Reads the piece at an offset, checks it, and returns its header and content.
fn whole(window: &mut Window, at: u64) -> io::Result<(BatchHeader, Vec<u8>)> {
    let (header, crc) = BatchHeader::decode(window.get(at, BATCH_HEADER)?).ok_or_else(damaged)?;
    let end = header.header_len + header.stored as usize;
    let bytes = window.get(at, end)?;
    let stored = bytes.get(header.header_len..end).ok_or_else(damaged)?;
    if header.crc(stored) != crc {
        return Err(damaged());
    }
    let content = stored.get(..header.len as usize).ok_or_else(damaged)?;
    Ok((header, content.to_vec()))
}

/// Cuts the written bytes into batches.
struct Pieces<W> {
    out: W,
    owner: (u32, u32),
    piece: Vec<u8>,
    framed: Vec<u8>,
    written: u64,
}

impl<W: Write> Pieces<W> {
    fn put(&mut self) -> io::Result<()> {
        self.framed.clear();
        piece(
            Packing::Checkpoint,
            self.owner,
            &self.piece,
            &mut self.framed,
        );
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

/// Reads the pieces of a part one after the other.
struct Stored {
    window: Window,
    at: u64,
    end: u64,
    piece: Vec<u8>,
    taken: usize,
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
            if self.at >= self.end {
                return Ok(0);
            }
            let (header, content) = whole(&mut self.window, self.at)?;
            owner(&header).ok_or_else(damaged)?;
            self.piece = content;
            self.taken = 0;
            self.at += header.header_len as u64 + u64::from(header.stored);
        }
    }
}
