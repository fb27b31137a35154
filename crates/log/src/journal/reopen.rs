//! Going on with a journal whose writer was killed, or has handed it over.
//!
//! Owns: what has to be put in order before a journal can be appended to again. Refuses: how the state is restored (that is the
//! fold's, see `memscope-daemon`), and whether the journal is the right one.
//!
//! A killed writer leaves at most these things behind: a batch of which only a part was written, files under unfinished names, and a
//! newest segment that has no checkpoint yet. The torn batch is cut off, unfinished files are removed, and a new segment is
//! begun, with a checkpoint of the state that the caller has restored. Until that checkpoint is written, the segments are kept that a
//! reader needs in its place.

use crate::journal::batches::{Batches, Item};
use crate::journal::checkpoint::{Beginning, SegmentFile};
use crate::journal::config::Config;
use crate::journal::error::{JournalError, RecordingError};
use crate::journal::format::SEGMENT_HEADER;
use crate::journal::learning::Learning;
use crate::journal::recording::read_header;
use crate::journal::retain;
use crate::journal::segment::Disk;
use crate::journal::writer::Journal;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

/// A journal that another writer has left, put in order and locked. It is read with [`crate::journal::Recording`], and then gone on
/// with; a value that is dropped instead leaves it to its readers.
#[derive(Debug)]
pub struct LeftJournal {
    journal: Journal,
    segments: Vec<retain::SegmentFile>,
}

impl LeftJournal {
    /// Opens what is left of the epoch of `config` in `dir` (`<state-dir>/journal`), and takes the directory's lock.
    ///
    /// # Errors
    /// [`JournalError::NoEpoch`] if nothing of the epoch is left; else those of [`Journal::create`].
    pub fn open(dir: &Path, config: Config) -> Result<Self, JournalError> {
        let journal = Journal::prepare(dir, config, Box::new(Disk))?;
        let read = |error| JournalError::of("read", &journal.epoch_dir, 0, error);
        let segments = match retain::segments(&journal.epoch_dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            segments => segments.map_err(read)?,
        };
        let Some(last) = segments.last() else {
            return Err(JournalError::NoEpoch {
                path: journal.epoch_dir.clone(),
            });
        };
        cut_torn_batch(&last.path)?;
        Ok(LeftJournal { journal, segments })
    }

    /// Where its segments lie.
    pub fn epoch_dir(&self) -> &Path {
        self.journal.epoch_dir()
    }

    /// Goes on with it: the next record gets the number `next`, which is what a decoder of all its records gives next, or a later one
    /// ([`Journal::next_sequence`]) if the writer before had given more numbers than it could write records. That record begins a new
    /// segment, so it has to come with the state that all records before it have led to.
    pub fn reopen(self, next: u64) -> Result<Journal, JournalError> {
        let LeftJournal {
            mut journal,
            segments,
        } = self;
        journal.next = next.max(journal.noted);
        journal.next_index = segments.last().map_or(0, |last| last.index + 1);
        // The newest segment that can be read without those before it, and the size of the state that it begins with.
        let alone = segments.iter().rev().find_map(|segment| {
            let (file, header) = read_header(&segment.path).ok()?;
            let beginning = Beginning::read(&file, 0, &header).ok()?;
            let state = beginning.checkpoint.map(|place| place.bytes());
            let is_first = header.first_sequence <= 1;
            Some((segment.index, state.or(is_first.then_some(0))?))
        });
        let (index, bytes) = alone.unwrap_or_default();
        journal.checkpoint_index = index;
        journal.checkpoint_bytes = bytes;
        journal.keep_from = Some(journal.checkpoint_index);
        let files = segments.into_iter().map(|one| (one.index, one.path));
        let learning = Learning::begin(files.collect());
        journal.learning =
            Some(learning.map_err(|error| JournalError::of("read", &journal.epoch_dir, 0, error))?);
        Ok(journal)
    }
}

/// Cuts off what stands behind the last whole batch of a segment.
fn cut_torn_batch(path: &Path) -> Result<(), JournalError> {
    let unreadable =
        |error: RecordingError| JournalError::of("read", path, 0, std::io::Error::other(error));
    let (file, header) = match read_header(path) {
        Ok(read) => read,
        // A reader passes such a segment by and says so; so does the next one that is begun.
        Err(_) => return Ok(()),
    };
    let mut end = (SEGMENT_HEADER as u64).saturating_add(header.checkpoint_bytes);
    let files: Arc<[SegmentFile]> = [file].into();
    let mut batches = Batches::new(files, (0, 0), header.epoch, Vec::new());
    while let Some(item) = batches.next().map_err(unreadable)? {
        if let Item::Batch(_) = item {
            end = batches.place_of_next();
        }
    }
    // A disk that refuses may be well again later. Without the cut the journal goes on, too: mostly there are only zeros, and readers take
    // those for the end of the segment; of a torn batch they say that a part is damaged.
    let _ = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(end));
    Ok(())
}
