//! The parts of a checkpoint: what is common to all processes, and what is known of each one.
//!
//! Each part is a stream of its own (MessagePack, compressed by zstd), cut into pieces that are batches. The header of a piece
//! says of which process it is, so that a checkpoint can be copied without some of them, and nothing has to be understood for that.

use crate::journal::format::{ALIGN, BATCH_HEADER, BatchHeader, Packing};
use crate::journal::window::Window;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;

/// Bytes of a part in one batch.
const PIECE: usize = 1 << 20;
/// Fast: see `pack`.
const LEVEL: i32 = 1;
/// A part takes at most so many times the bytes that it takes on disk, and [`ROOM`] bytes besides: what claims to be more is none.
const LARGEST_RATIO: u64 = 512;
const ROOM: u64 = 16 << 20;

/// A process whose records are not in a segment, though it was traced then: others needed the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// The daemon's handle of it.
    pub process: u32,
    /// Its number in the system; 0 if it is not known.
    pub pid: u32,
}

impl LeftOut {
    /// Bytes of the list of so many.
    pub(crate) fn list_bytes(count: usize) -> u64 {
        match count {
            0 => 0,
            count => (BATCH_HEADER + count * 8) as u64,
        }
    }

    /// A batch that holds the list; nothing if it is empty.
    pub(crate) fn encode(list: &[LeftOut]) -> Vec<u8> {
        let mut framed = Vec::new();
        if !list.is_empty() {
            let words = list.iter().flat_map(|one| [one.process, one.pid]);
            let stored: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
            piece(Packing::LeftOut, (0, 0), &stored, &mut framed);
        }
        framed
    }

    /// Reads the list of so many.
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

/// Who is left out where a reader stands.
#[derive(Clone, Debug, Default)]
pub struct Absent(BTreeSet<LeftOut>);

impl Absent {
    /// A segment begins, with a checkpoint or without. Gives who is there again, and has to be taken from that checkpoint.
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

    /// Who it is.
    pub fn all(&self) -> impl Iterator<Item = &LeftOut> {
        self.0.iter()
    }
}

/// Where a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartPlace {
    /// Of which process; 0: what is common to all.
    pub(crate) process: u32,
    pub(crate) pid: u32,
    at: u64,
    pub(crate) bytes: u64,
}

impl PartPlace {
    /// The parts between two places of a file, in order. Looks at the headers of the pieces only.
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

    /// Reads what is in it.
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
        let plain = zstd::Decoder::new(stored)?.take(most);
        rmp_serde::from_read(BufReader::with_capacity(1 << 16, plain)).map_err(io::Error::other)
    }

    /// Writes it as it is.
    pub(crate) fn copy_to(&self, file: &Arc<File>, out: &mut dyn Write) -> io::Result<()> {
        copy(file, self.at, self.bytes, out)
    }

    /// Writes a part that holds `what`; gives its bytes.
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
        let mut compressed = zstd::Encoder::new(pieces, LEVEL)?;
        rmp_serde::encode::write_named(&mut compressed, what).map_err(io::Error::other)?;
        compressed.finish()?.finish()
    }
}

/// Writes so many bytes of a file as they are.
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

/// Of which process a piece is. Checkpoints of format 2 have zeros there.
fn owner(header: &BatchHeader) -> Option<(u32, u32)> {
    let process = u32::try_from(header.first_sequence).ok()?;
    let pid = u32::try_from(header.ring_position).ok()?;
    (header.packing == Packing::Checkpoint).then_some((process, pid))
}

/// Adds a batch that holds a piece to `framed`.
fn piece(packing: Packing, (process, pid): (u32, u32), bytes: &[u8], framed: &mut Vec<u8>) {
    let mut stored = bytes.to_vec();
    stored.resize(stored.len().next_multiple_of(ALIGN), 0);
    let header = BatchHeader {
        header_len: BATCH_HEADER,
        // Both are at most `PIECE`; a list has as many entries as there are processes.
        stored: stored.len() as u32,
        len: bytes.len() as u32,
        count: 0,
        first_sequence: u64::from(process),
        ring_position: u64::from(pid),
        packing,
    };
    header.encode(&stored, framed);
}

/// The piece at a place, checked, and what is in it.
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

/// Cuts what is written into batches.
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

/// The pieces of a part, one behind the other.
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
