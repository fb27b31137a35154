//! Checkpoints: the state of the fold at a place of the log, so that what follows can be read without what came before.
//!
//! Owns: how a state is written and read. Refuses: to trust one: it is read within bounds of memory, and its parts have
//! check sums of their own.
//!
//! A checkpoint is the decoder and the ledger in MessagePack, with the names of their fields, in parts (see `parts`): what is common to
//! all processes, and one for each process. A field that a newer memscope has added reads as its default where its type says so.
//!
//! It takes seconds to write the state of a process that holds a million blocks. So a copy of the state is made, which takes a
//! hundredth of that, and another thread writes it, into a file beside the segment.

use crate::journal::error::{JournalError, RecordingError};
use crate::journal::format::{SEGMENT_HEADER, SegmentHeader};
use crate::journal::parts::{LeftOut, PartPlace, copy};
use crate::journal::segment::CHECKPOINT;
use crate::records::Decoder;
use memscope_ledger::{Ledger, RestoredPart};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

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
        copy(&self.file, self.at, self.bytes, out)
            .map_err(|error| RecordingError::of("copy", &self.path, error))?;
        Ok(self.bytes)
    }

    /// Its parts, what is common to all processes first.
    pub(crate) fn parts(&self) -> Result<Vec<PartPlace>, RecordingError> {
        let end = self.at.saturating_add(self.bytes);
        PartPlace::all(&self.file, self.at, end).map_err(|error| self.bad(error))
    }

    fn bad(&self, error: io::Error) -> RecordingError {
        RecordingError::Checkpoint {
            path: self.path.clone(),
            source: error,
        }
    }
}

/// Bytes of a checkpoint by process; 0: what is common to all.
pub(crate) type Shares = BTreeMap<u32, u64>;

/// Writes the state; gives the bytes that it took.
pub(crate) fn write(state: Folded<'_>, mut out: impl Write) -> Result<Shares, JournalError> {
    let failed = JournalError::checkpoint;
    let mut shares = Shares::new();
    let common = PartPlace::write(&mut out, (0, 0), &state).map_err(failed)?;
    shares.insert(0, common);
    for part in state.ledger.parts() {
        let owner = (part.handle.0, part.pid);
        let bytes = PartPlace::write(&mut out, owner, &part).map_err(failed)?;
        shares.insert(part.handle.0, bytes);
    }
    Ok(shares)
}

/// Reads the state: of all processes, or of those with this number in the system.
pub(crate) fn read(place: &CheckpointPlace, pid: Option<u32>) -> Result<Restored, RecordingError> {
    let bad = |error| place.bad(error);
    let parts = place.parts()?;
    let (common, processes) = parts
        .split_first()
        .ok_or_else(|| bad(io::ErrorKind::UnexpectedEof.into()))?;
    let restored: Restored = common.read(&place.file).map_err(bad)?;
    let mut ledger = restored.ledger.restored();
    for part in processes
        .iter()
        .filter(|part| pid.is_none_or(|pid| part.pid == pid))
    {
        let process: RestoredPart = part.read(&place.file).map_err(bad)?;
        ledger.put(process);
    }
    Ok(Restored { ledger, ..restored })
}

/// A checkpoint that another thread writes.
pub(crate) struct Writing {
    /// Number of its segment.
    pub(crate) index: u64,
    /// Its file, under the name that says that it is not whole yet.
    pub(crate) new: PathBuf,
    thread: JoinHandle<Result<Shares, JournalError>>,
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
            let shares = write(state, &mut out).map_err(|error| match error {
                // The disk is what fails, if anything does.
                JournalError::Checkpoint { source } => failed(source),
                other => other,
            })?;
            out.flush().map_err(failed)?;
            Ok(shares)
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
    pub(crate) fn finish(self) -> Result<Shares, JournalError> {
        let panicked = || JournalError::checkpoint(io::Error::other("the thread panicked"));
        let written = self.thread.join().unwrap_or_else(|_| Err(panicked()));
        if written.is_err() {
            // The error that counts is the first one.
            let _ = std::fs::remove_file(&self.new);
        }
        written
    }
}

/// What a segment begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beginning {
    /// The state, if it is there.
    pub(crate) checkpoint: Option<CheckpointPlace>,
    /// Of whom there is nothing in the segment.
    pub(crate) left_out: Arc<[LeftOut]>,
}

impl Beginning {
    /// Reads what stands behind a segment's header, or in a file beside it.
    pub(crate) fn read(
        segment: &SegmentFile,
        at: u64,
        header: &SegmentHeader,
    ) -> Result<Beginning, RecordingError> {
        let at = at.saturating_add(SEGMENT_HEADER as u64);
        let list = LeftOut::read(&segment.file, at, header.left_out);
        let left_out = list.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => RecordingError::DamagedHeader {
                path: segment.path.clone(),
            },
            _ => RecordingError::of("read", &segment.path, error),
        })?;
        let list = LeftOut::list_bytes(left_out.len());
        let inside = CheckpointPlace {
            path: segment.path.clone(),
            file: Arc::clone(&segment.file),
            at: at.saturating_add(list),
            bytes: header.checkpoint_bytes.saturating_sub(list),
        };
        let checkpoint = match &segment.beside {
            _ if inside.bytes > 0 => Some(inside),
            Some((file, bytes)) if at == SEGMENT_HEADER as u64 && list == 0 => {
                Some(CheckpointPlace {
                    path: segment.path.with_extension(CHECKPOINT),
                    file: Arc::clone(file),
                    at: 0,
                    bytes: *bytes,
                })
            }
            _ => None,
        };
        Ok(Beginning {
            checkpoint,
            left_out: left_out.into(),
        })
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
