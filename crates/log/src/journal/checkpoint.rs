//! Checkpoints: the state of the fold at a place in the log, so that later records can be read without the earlier
//! ones.
//!
//! Owns: how a state is written and read. Refuses: to trust a checkpoint. It is read within bounds of memory, and its
//! parts have check sums of their own.
//!
//! A checkpoint is the decoder and the ledger in MessagePack, with the names of their fields; the ledger has its long lists as
//! columns of numbers. It consists of parts (see
//! `parts`): one for what all processes share, and one for each process. A field that a newer memscope has added is
//! missing in an older checkpoint; it gets its default where its type says so.
//!
//! Writing the state of a process that holds a million blocks takes seconds. So the caller only copies the state, which
//! takes a hundredth of that time, and another thread writes the copy to a file beside the segment.

use crate::journal::error::{JournalError, RecordingError};
use crate::journal::format::{SEGMENT_HEADER, SegmentHeader};
use crate::journal::parts::{LeftOut, PartPlace, copy};
use crate::journal::segment::{CHECKPOINT, Space, create_anew};
use crate::records::Decoder;
use memscope_ledger::{Ledger, RestoredPart};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long whoever needs a checkpoint waits for it, counted from its beginning.
const PATIENCE: Duration = Duration::from_millis(100);

/// The state that a checkpoint is written from.
#[derive(Clone, Copy, Serialize)]
pub struct Folded<'a> {
    /// Decoder for the records that follow.
    pub decoder: &'a Decoder,
    /// Ledger to which the events that follow are applied.
    pub ledger: &'a Ledger,
}

/// The state that was read from a checkpoint.
#[derive(Debug, Deserialize)]
pub struct Restored {
    /// Decoder for the records that follow.
    pub decoder: Decoder,
    /// Ledger to which the events that follow are applied.
    pub ledger: Ledger,
}

/// Where a checkpoint is. The file stays open, because a journal that is being written may remove it in the meantime.
#[derive(Clone, Debug)]
pub struct CheckpointPlace {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl CheckpointPlace {
    /// Size of the checkpoint in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the checkpoint without decoding it, and returns its size in bytes.
    pub(crate) fn copy_to(&self, out: &mut dyn Write) -> Result<u64, RecordingError> {
        copy(&self.file, self.at, self.bytes, out)
            .map_err(|error| RecordingError::of("copy", &self.path, error))?;
        Ok(self.bytes)
    }

    /// The parts of the checkpoint. The part that all processes share comes first.
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

/// Bytes of a checkpoint by process handle. Key 0: the part that all processes share.
pub(crate) type Shares = BTreeMap<u32, u64>;

/// Writes the state, and returns the bytes of each part.
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

/// Reads the state of all processes, or only of those with the given pid.
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

/// A copy of a state.
struct Copied {
    decoder: Decoder,
    ledger: Ledger,
}

/// A file that a checkpoint is written to.
struct Out<'a> {
    file: &'a File,
    space: &'a dyn Space,
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.space.write_state(self.file, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A checkpoint that another thread is writing.
pub(crate) struct Writing {
    /// Number of the segment that the checkpoint belongs to.
    pub(crate) index: u64,
    /// Path of the file, under a name that marks it as unfinished.
    pub(crate) new: PathBuf,
    space: Arc<dyn Space>,
    /// What could not be written comes back for another try. What was written is freed there: that takes long for a large state.
    thread: JoinHandle<Result<Shares, (JournalError, Box<Copied>)>>,
    /// Nothing comes here. The thread's end of the channel goes when the thread ends.
    ended: Receiver<()>,
    began: Instant,
}

impl Writing {
    /// Starts a thread that writes a copy of the state.
    pub(crate) fn begin(
        state: Folded<'_>,
        index: u64,
        new: PathBuf,
        space: Arc<dyn Space>,
    ) -> Result<Writing, JournalError> {
        let state = Copied {
            decoder: state.decoder.clone(),
            ledger: state.ledger.clone(),
        };
        Writing::of(Box::new(state), index, new, space)
    }

    fn of(
        state: Box<Copied>,
        index: u64,
        new: PathBuf,
        space: Arc<dyn Space>,
    ) -> Result<Writing, JournalError> {
        let path = new.clone();
        let (ends, ended) = mpsc::channel();
        let disk = Arc::clone(&space);
        let write_all = move |copied: &Copied| {
            let failed = |error| JournalError::of("write", &path, 0, error);
            let file = create_anew(&path).map_err(failed)?;
            let mut out = BufWriter::new(Out {
                file: &file,
                space: disk.as_ref(),
            });
            let state = Folded {
                decoder: &copied.decoder,
                ledger: &copied.ledger,
            };
            let shares = write(state, &mut out).map_err(|error| match error {
                // Encoding fails only if the disk does, so this is an error of the file.
                JournalError::Checkpoint { source } => failed(source),
                other => other,
            })?;
            out.flush().map_err(failed)?;
            Ok(shares)
        };
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || {
                let _ends = ends;
                write_all(&state).map_err(|error| (error, state))
            })
            .map_err(JournalError::checkpoint)?;
        Ok(Writing {
            index,
            new,
            space,
            thread,
            ended,
            began: Instant::now(),
        })
    }

    /// The same, done only when the other end of `until` has gone: for tests, a disk that is as slow as they need it.
    #[cfg(test)]
    pub(crate) fn held_up(self, until: Receiver<()>) -> Writing {
        let (ends, ended) = mpsc::channel();
        let inner = self.thread;
        let thread = std::thread::spawn(move || {
            let _ends = ends;
            let _ = until.recv();
            inner
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        Writing {
            thread,
            ended,
            ..self
        }
    }

    /// Whether [`Writing::finish`] returns without waiting.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread for a short time, so that a slow disk holds nobody up. Returns whether it has ended.
    pub(crate) fn finishes_soon(&self) -> bool {
        let left = PATIENCE.saturating_sub(self.began.elapsed());
        self.is_finished() || self.ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }

    /// Waits for the thread, and returns the bytes of each part. The file is removed if it is not complete.
    pub(crate) fn finish(self) -> Result<Shares, Unwritten> {
        let panicked = || JournalError::checkpoint(io::Error::other("the thread panicked"));
        let written = match self.thread.join() {
            Ok(written) => written.map_err(|(error, state)| (error, Some(state))),
            Err(_) => Err((panicked(), None)),
        };
        written.map_err(|(error, state)| {
            let bytes = std::fs::metadata(&self.new).map_or(0, |facts| facts.len());
            // Return the first error, whether or not this removal succeeds.
            let _ = std::fs::remove_file(&self.new);
            Unwritten {
                error,
                bytes,
                index: self.index,
                new: self.new,
                state,
                space: self.space,
            }
        })
    }
}

/// A checkpoint that could not be written.
pub(crate) struct Unwritten {
    pub(crate) error: JournalError,
    /// Bytes that had room.
    pub(crate) bytes: u64,
    index: u64,
    new: PathBuf,
    /// `None`: the thread has panicked.
    state: Option<Box<Copied>>,
    space: Arc<dyn Space>,
}

impl Unwritten {
    /// Starts a thread that writes the same state again.
    pub(crate) fn again(self) -> Result<Writing, JournalError> {
        match self.state {
            Some(state) => Writing::of(state, self.index, self.new, self.space),
            None => Err(self.error),
        }
    }
}

/// What belongs to the beginning of a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beginning {
    /// The checkpoint, if it is there.
    pub(crate) checkpoint: Option<CheckpointPlace>,
    /// Processes that are left out of the segment.
    pub(crate) left_out: Arc<[LeftOut]>,
}

impl Beginning {
    /// Reads the list after a segment's header, and finds the checkpoint after it or in the file beside the segment.
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
        // A file that was cut off inside the state has no state there, and one without bytes was never written.
        let is_there = segment.len()? >= inside.at.saturating_add(inside.bytes);
        let checkpoint = match &segment.beside {
            _ if inside.bytes > 0 => is_there.then_some(inside),
            Some((file, bytes)) if at == SEGMENT_HEADER as u64 && list == 0 && *bytes > 0 => {
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

/// An open file of a recording.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    /// The checkpoint file beside the segment, and its size in bytes.
    beside: Option<(Arc<File>, u64)>,
}

impl SegmentFile {
    /// Bytes of the file now.
    pub(crate) fn len(&self) -> Result<u64, RecordingError> {
        let facts = self.file.metadata();
        let facts = facts.map_err(|error| RecordingError::of("read", &self.path, error))?;
        Ok(facts.len())
    }

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
