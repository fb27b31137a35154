//! Checkpoints: the state of the fold at a place of the log, so that what follows can be read without what came before.
//!
//! Owns: how a state is written and read. Refuses: to trust one: it is read within bounds of memory, and its parts have
//! check sums of their own.
//!
//! A checkpoint is the decoder and the ledger in MessagePack, with the names of their fields, compressed by zstd, in pieces that
//! are batches of their own. A field that a newer memscope has added reads as its default where its type says so.
//!
//! It takes seconds to write the state of a process that holds a million blocks. So a copy of the state is made, which takes a
//! hundredth of that, and another thread writes it, into a file beside the segment.

use crate::error::{JournalError, RecordingError};
use crate::format::{ALIGN, BATCH_HEADER, BatchHeader, Packing, SEGMENT_HEADER, SegmentHeader};
use crate::segment::CHECKPOINT;
use crate::window::Window;
use memscope_decode::Decoder;
use memscope_ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

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

/// Where a checkpoint stands. The file stays open: a journal that is being written may remove it meanwhile.
#[derive(Clone, Debug)]
pub struct CheckpointPlace {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl CheckpointPlace {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes it as it is; gives its bytes.
    pub(crate) fn copy_to(&self, out: &mut dyn Write) -> Result<u64, RecordingError> {
        let failed = |error| RecordingError::of("copy", &self.path, error);
        let mut window = Window::new(Arc::clone(&self.file));
        let mut at = self.at;
        let end = self.at.saturating_add(self.bytes);
        while at < end {
            let wanted = (end - at).min(PIECE as u64);
            let bytes = window.get(at, wanted as usize).map_err(failed)?;
            if bytes.is_empty() {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            out.write_all(bytes).map_err(failed)?;
            at += bytes.len() as u64;
        }
        Ok(self.bytes)
    }
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
    let bad = |error| RecordingError::Checkpoint {
        path: place.path.clone(),
        source: error,
    };
    let stored = Stored {
        window: Window::new(Arc::clone(&place.file)),
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

/// A checkpoint that another thread writes.
pub(crate) struct Writing {
    /// Number of its segment.
    pub(crate) index: u64,
    /// Its file, under the name that says that it is not whole yet.
    pub(crate) new: PathBuf,
    thread: JoinHandle<Result<u64, JournalError>>,
}

impl Writing {
    /// Begins to write a copy of the state.
    pub(crate) fn begin(
        state: Folded<'_>,
        index: u64,
        new: PathBuf,
    ) -> Result<Writing, JournalError> {
        let (decoder, ledger) = (state.decoder.clone(), state.ledger.clone());
        let path = new.clone();
        let write_all = move || {
            let failed = |error| JournalError::of("write", &path, 0, error);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed)?;
            let mut out = BufWriter::new(&file);
            let state = Folded {
                decoder: &decoder,
                ledger: &ledger,
            };
            let bytes = write(state, &mut out).map_err(|error| match error {
                // The disk is what fails, if anything does.
                JournalError::Checkpoint { source } => failed(source),
                other => other,
            })?;
            out.flush().map_err(failed)?;
            Ok(bytes)
        };
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(write_all)
            .map_err(JournalError::checkpoint)?;
        Ok(Writing { index, new, thread })
    }

    /// Whether [`Writing::finish`] does not wait.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for it; gives its bytes. The file is removed if it is not whole.
    pub(crate) fn finish(self) -> Result<u64, JournalError> {
        let panicked = || JournalError::checkpoint(io::Error::other("the thread panicked"));
        let written = self.thread.join().unwrap_or_else(|_| Err(panicked()));
        if written.is_err() {
            // The error that counts is the first one.
            let _ = std::fs::remove_file(&self.new);
        }
        written
    }
}

/// Where the checkpoint of a segment stands: behind its header, or in a file beside it.
pub(crate) fn place(
    segment: &SegmentFile,
    at: u64,
    header: &SegmentHeader,
) -> Option<CheckpointPlace> {
    let inside = CheckpointPlace {
        path: segment.path.clone(),
        file: Arc::clone(&segment.file),
        at: at + SEGMENT_HEADER as u64,
        bytes: header.checkpoint_bytes,
    };
    match &segment.beside {
        _ if header.checkpoint_bytes > 0 => Some(inside),
        Some((file, bytes)) if at == 0 => Some(CheckpointPlace {
            path: segment.path.with_extension(CHECKPOINT),
            file: Arc::clone(file),
            at: 0,
            bytes: *bytes,
        }),
        _ => None,
    }
}

/// A file of a recording, opened.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    /// The checkpoint beside it, and its bytes.
    beside: Option<(Arc<File>, u64)>,
}

impl SegmentFile {
    pub(crate) fn open(path: &Path) -> io::Result<SegmentFile> {
        let file = Arc::new(File::open(path)?);
        let beside = File::open(path.with_extension(CHECKPOINT))
            .and_then(|file| Ok((file.metadata()?.len(), file)));
        Ok(SegmentFile {
            path: path.to_owned(),
            file,
            beside: match beside {
                Ok((bytes, file)) => Some((Arc::new(file), bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        })
    }
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
