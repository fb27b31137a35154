//! The bound: which segments there are, and which go first.

use crate::error::JournalError;
use crate::segment::{CHECKPOINT, ENDING, UNFINISHED};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A segment file of some epoch.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) index: u64,
    pub(crate) path: PathBuf,
    /// Of the segment and of its checkpoint.
    pub(crate) bytes: u64,
}

/// Removes a segment, and its checkpoint if it has one.
pub(crate) fn remove(segment: &Path) -> io::Result<()> {
    fs::remove_file(segment)?;
    remove_if_there(&segment.with_extension(CHECKPOINT))
}

/// Removes a file.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes of an epoch's segments and checkpoints, and of those of the other epochs.
pub(crate) fn bytes(journal: &Path, epoch_dir: &Path) -> io::Result<(u64, u64)> {
    let (mut own, mut others) = (0, 0);
    for epoch in scan(journal)? {
        let bytes: u64 = epoch.segments.iter().map(|segment| segment.bytes).sum();
        if epoch.path == epoch_dir {
            own += bytes;
        } else {
            others += bytes;
        }
    }
    Ok((own, others))
}

#[derive(Debug)]
struct Epoch {
    path: PathBuf,
    segments: Vec<Found>,
    /// Last write. Epochs are boot times, so their numbers do not order them across boots.
    newest: SystemTime,
}

/// The segments of an epoch, oldest first. Other files are not ours and not looked at.
pub(crate) fn segments(dir: &Path) -> io::Result<Vec<Found>> {
    Ok(scan_epoch(dir)?.segments)
}

fn scan_epoch(dir: &Path) -> io::Result<Epoch> {
    let mut epoch = Epoch {
        path: dir.to_path_buf(),
        segments: Vec::new(),
        newest: SystemTime::UNIX_EPOCH,
    };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some(index) = numbered(&entry.path(), ENDING) else {
            continue;
        };
        let facts = match entry.metadata() {
            Ok(facts) => facts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if facts.is_file() {
            epoch.newest = epoch.newest.max(facts.modified()?);
            epoch.segments.push(Found {
                index,
                path: entry.path(),
                bytes: facts.len() + checkpoint_bytes(&entry.path()),
            });
        }
    }
    epoch.segments.sort_by_key(|segment| segment.index);
    Ok(epoch)
}

/// Bytes of the checkpoint beside a segment; 0 where there is none.
fn checkpoint_bytes(segment: &Path) -> u64 {
    fs::metadata(segment.with_extension(CHECKPOINT)).map_or(0, |facts| facts.len())
}

/// The number in a file name of digits and this ending.
fn numbered(path: &Path, ending: &str) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    digits(name.strip_suffix(ending)?.strip_suffix('.')?)
}

fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

fn scan(journal: &Path) -> io::Result<Vec<Epoch>> {
    let mut epochs = Vec::new();
    for entry in fs::read_dir(journal)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().and_then(digits).is_some() && entry.file_type()?.is_dir() {
            epochs.push(scan_epoch(&entry.path())?);
        }
    }
    epochs.sort_by_key(|epoch| epoch.newest);
    Ok(epochs)
}

/// Directories of the epochs under a journal's directory that hold segments, the one written last
/// at the end.
pub fn epochs(journal: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(scan(journal)?
        .into_iter()
        .filter(|epoch| !epoch.segments.is_empty())
        .map(|epoch| epoch.path)
        .collect())
}

/// Removes the oldest segments until `needed` bytes fit under `most`: first those of other epochs,
/// the one written longest ago first, then those of the current epoch before the one with the number `kept`. Gives the numbers of those
/// that went of the current epoch. Only the holder of the lock may call this.
pub(crate) fn make_room(
    journal: &Path,
    (current, kept): (&Path, u64),
    needed: u64,
    most: u64,
) -> Result<Vec<u64>, JournalError> {
    let fail = |error| JournalError::of("read", journal, needed, error);
    let mut gone = Vec::new();
    let mut epochs = scan(journal).map_err(fail)?;
    epochs.sort_by_key(|epoch| epoch.path == current);
    let mut total: u64 = epochs
        .iter()
        .flat_map(|epoch| &epoch.segments)
        .map(|segment| segment.bytes)
        .sum();
    for epoch in epochs {
        for segment in &epoch.segments {
            let is_kept = epoch.path == current && segment.index >= kept;
            if is_kept || total.saturating_add(needed) <= most {
                return Ok(gone);
            }
            remove(&segment.path)
                .map_err(|error| JournalError::of("remove", &segment.path, needed, error))?;
            total -= segment.bytes;
            if epoch.path == current {
                gone.push(segment.index);
            }
        }
        if epoch.path != current {
            // Fails where there is something that is not ours; then it stays.
            let _ = fs::remove_dir(&epoch.path);
        }
    }
    Ok(gone)
}

/// Removes segments and checkpoints that a killed daemon had begun to make.
pub(crate) fn clear_unfinished(journal: &Path) -> Result<(), JournalError> {
    let fail = |error| JournalError::of("read", journal, 0, error);
    for epoch in scan(journal).map_err(fail)? {
        for entry in fs::read_dir(&epoch.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let whole = path.with_extension("");
            let is_ours = [ENDING, CHECKPOINT]
                .iter()
                .any(|ending| numbered(&whole, ending).is_some());
            if is_ours && path.extension().is_some_and(|ending| ending == UNFINISHED) {
                fs::remove_file(&path)
                    .map_err(|error| JournalError::of("remove", &path, 0, error))?;
            }
        }
    }
    Ok(())
}
