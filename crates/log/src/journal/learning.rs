//! What the segments hold that an earlier writer has left: the bytes of each process, by which room is shared out.
//!
//! It takes as long as reading the journal, so another thread does it. Until it is done, the oldest segments go whole.

use crate::journal::batches::{Batches, Item};
use crate::journal::checkpoint::{Beginning, SegmentFile};
use crate::journal::error::RecordingError;
use crate::journal::recording::read_header;
use crate::journal::share::Content;
use crate::journal::tally::tally;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What the segments from before hold of each process, which another thread finds out.
pub(crate) struct Learning {
    thread: JoinHandle<Vec<(u64, PathBuf, Content)>>,
    stop: Arc<AtomicBool>,
}

impl Learning {
    /// Begins to read these segments: number and path.
    pub(crate) fn begin(segments: Vec<(u64, PathBuf)>) -> std::io::Result<Learning> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let learn = move || {
            let mut learnt = Vec::new();
            for (index, path) in segments {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                // One that cannot be read, or has been removed meanwhile, is not counted: it goes when the room is needed.
                if let Ok(content) = content(&path) {
                    learnt.push((index, path, content));
                }
            }
            learnt
        };
        let thread = std::thread::Builder::new()
            .name("journal share".to_owned())
            .spawn(learn)?;
        Ok(Learning { thread, stop })
    }

    /// Whether [`Learning::finish`] does not wait.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// What was learnt of each segment, by its number.
    pub(crate) fn finish(self) -> Vec<(u64, Content)> {
        // A thread that panicked has learnt nothing; the oldest segments then go whole.
        let learnt = self.thread.join().unwrap_or_default().into_iter();
        // The bound may have removed some meanwhile.
        learnt
            .filter(|(_, path, _)| path.exists())
            .map(|(index, _, content)| (index, content))
            .collect()
    }

    /// Ends it without its result.
    pub(crate) fn give_up(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

/// What a segment has of each process.
fn content(path: &Path) -> Result<Content, RecordingError> {
    let (file, header) = read_header(path)?;
    let beginning = Beginning::read(&file, 0, &header)?;
    let mut content = Content {
        left_out: beginning.left_out.iter().map(|one| one.process).collect(),
        ..Content::default()
    };
    if let Some(place) = &beginning.checkpoint {
        for part in place.parts()? {
            *content.checkpoint.entry(part.process).or_default() += part.bytes;
        }
    }
    let files: Arc<[SegmentFile]> = [file].into();
    let mut batches = Batches::new(files, (0, 0), header.epoch, Vec::new());
    while let Some(item) = batches.next()? {
        if let Item::Batch(batch) = item
            && let Ok(tally) = tally(&batch.records)
        {
            content.add(batch.header.first_sequence, &tally, batch.stored_bytes());
        }
    }
    Ok(content)
}
