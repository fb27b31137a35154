//! The bound of the journal: which segments there are, and which are removed first.

use crate::journal::error::JournalError;
use crate::journal::segment::{CHECKPOINT, ENDING, UNFINISHED, remove_if_there};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long an earlier run of the daemon keeps its share of the journal, counted from its last write.
pub const EARLIER_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Earlier runs together may keep one part in `EARLIER_SHARE` of the journal's bytes.
pub const EARLIER_SHARE: u64 = 4;

/// A segment file of some epoch, found by a scan of the directory.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(crate) index: u64,
    pub(crate) path: PathBuf,
    /// Size of the segment and of its checkpoint together, in bytes.
    pub(crate) bytes: u64,
}

/// Removes a segment, and its checkpoint if it has one. The checkpoint goes first: whoever is killed in between leaves a segment, which is
/// found again, and no checkpoint that nobody would count or remove.
pub(crate) fn remove(segment: &Path) -> io::Result<()> {
    remove_if_there(&segment.with_extension(CHECKPOINT))?;
    fs::remove_file(segment)
}

/// Bytes of segments and checkpoints: those of the current epoch, those that earlier epochs keep as their share, and
/// those of earlier epochs that are removed first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) own: u64,
    pub(crate) earlier_kept: u64,
    pub(crate) earlier: u64,
}

/// Adds up the files of a journal whose total size may be `most` bytes.
pub(crate) fn bytes(journal: &Path, epoch_dir: &Path, most: u64) -> io::Result<Bytes> {
    let epochs = scan(journal)?;
    let kept = kept_of_earlier(&epochs, epoch_dir, most);
    let mut sums = Bytes::default();
    for epoch in &epochs {
        for segment in &epoch.segments {
            if epoch.path == epoch_dir {
                sums.own += segment.bytes;
            } else if kept.contains(&segment.path) {
                sums.earlier_kept += segment.bytes;
            } else {
                sums.earlier += segment.bytes;
            }
        }
    }
    Ok(sums)
}

/// The segments of earlier epochs that stay as long as there is anything else to remove: the newest ones, up to the
/// share of earlier epochs, of epochs that ended not long ago. Once a segment does not fit, those before it are not
/// kept either: they are of no use without it.
fn kept_of_earlier(epochs: &[Epoch], current: &Path, most: u64) -> BTreeSet<PathBuf> {
    let mut left = most / EARLIER_SHARE;
    let mut kept = BTreeSet::new();
    for epoch in epochs.iter().rev().filter(|epoch| epoch.path != current) {
        if epoch.newest.elapsed().is_ok_and(|age| age > EARLIER_KEPT) {
            break;
        }
        for segment in epoch.segments.iter().rev() {
            let Some(rest) = left.checked_sub(segment.bytes) else {
                return kept;
            };
            left = rest;
            kept.insert(segment.path.clone());
        }
    }
    kept
}

#[derive(Debug)]
struct Epoch {
    path: PathBuf,
    segments: Vec<SegmentFile>,
    /// Time of the last write. Epochs are boot times, so their numbers do not order them across boots.
    newest: SystemTime,
}

/// The segments of an epoch, oldest first. Other files are ignored.
pub(crate) fn segments(dir: &Path) -> io::Result<Vec<SegmentFile>> {
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
            epoch.segments.push(SegmentFile {
                index,
                path: entry.path(),
                bytes: facts.len() + checkpoint_bytes(&entry.path()),
            });
        }
    }
    epoch.segments.sort_by_key(|segment| segment.index);
    Ok(epoch)
}

/// Size of the checkpoint beside a segment in bytes; 0 if there is none.
fn checkpoint_bytes(segment: &Path) -> u64 {
    fs::metadata(segment.with_extension(CHECKPOINT)).map_or(0, |facts| facts.len())
}

/// The number in a file name that consists of digits and this extension.
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

/// Directories of the epochs in a journal's directory that have segments. The one that was written last comes last.
pub fn epochs(journal: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(scan(journal)?
        .into_iter()
        .filter(|epoch| !epoch.segments.is_empty())
        .map(|epoch| epoch.path)
        .collect())
}

/// What is removed first, if something has to go: the segments of earlier epochs beyond their share, the epoch that was
/// written longest ago first; then those of the current epoch with a number below `kept`; then the share of the earlier
/// epochs. Each with whether it is of the current epoch.
fn removable<'a>(
    epochs: &'a [Epoch],
    (current, kept): (&'a Path, u64),
    most: u64,
) -> impl Iterator<Item = (bool, &'a SegmentFile)> {
    let kept_of_earlier = kept_of_earlier(epochs, current, most);
    let (share, beyond): (Vec<_>, Vec<_>) = all(epochs, current)
        .filter(|(is_current, _)| !is_current)
        .partition(|(_, segment)| kept_of_earlier.contains(&segment.path));
    let own = all(epochs, current)
        .filter(move |(is_current, segment)| *is_current && segment.index < kept);
    beyond.into_iter().chain(own).chain(share)
}

/// All segments, each with whether it is of the current epoch.
fn all<'a>(
    epochs: &'a [Epoch],
    current: &'a Path,
) -> impl Iterator<Item = (bool, &'a SegmentFile)> {
    epochs.iter().flat_map(move |epoch| {
        let is_current = epoch.path == current;
        epoch.segments.iter().map(move |one| (is_current, one))
    })
}

/// Removes segments until `needed` more bytes fit under `most`, in the order of [`removable`]. Returns the numbers of
/// the removed segments of the current epoch. Only the holder of the lock may call this.
pub(crate) fn make_room(
    journal: &Path,
    (current, kept): (&Path, u64),
    needed: u64,
    most: u64,
) -> Result<Vec<u64>, JournalError> {
    let fail = |error| JournalError::of("read", journal, needed, error);
    let epochs = scan(journal).map_err(fail)?;
    let mut total: u64 = all(&epochs, current)
        .map(|(_, segment)| segment.bytes)
        .sum();
    let mut gone = Vec::new();
    for (is_current, segment) in removable(&epochs, (current, kept), most) {
        if total.saturating_add(needed) <= most {
            break;
        }
        remove(&segment.path)
            .map_err(|error| JournalError::of("remove", &segment.path, needed, error))?;
        total -= segment.bytes;
        if is_current {
            gone.push(segment.index);
        }
    }
    for epoch in epochs.iter().filter(|epoch| epoch.path != current) {
        // A directory that is not empty cannot be removed, and stays.
        let _ = fs::remove_dir(&epoch.path);
    }
    Ok(gone)
}

/// Removes the segment that goes first. Returns its number if it is of the current epoch, and `None` if all segments
/// are needed. Only the holder of the lock may call this.
pub(crate) fn remove_first(
    journal: &Path,
    (current, kept): (&Path, u64),
) -> Result<Option<Vec<u64>>, JournalError> {
    let epochs = scan(journal).map_err(|error| JournalError::of("read", journal, 0, error))?;
    // Earlier epochs have no share of a disk that is full.
    let Some((is_current, segment)) = removable(&epochs, (current, kept), 0).next() else {
        return Ok(None);
    };
    remove(&segment.path).map_err(|error| JournalError::of("remove", &segment.path, 0, error))?;
    Ok(Some(
        is_current.then_some(segment.index).into_iter().collect(),
    ))
}

/// Removes unfinished segments and checkpoints that a killed daemon has left, and checkpoints whose segment is gone.
pub(crate) fn clear_unfinished(journal: &Path) -> Result<(), JournalError> {
    let fail = |error| JournalError::of("read", journal, 0, error);
    for epoch in scan(journal).map_err(fail)? {
        for entry in fs::read_dir(&epoch.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let whole = path.with_extension("");
            let is_ours = [ENDING, CHECKPOINT]
                .iter()
                .any(|ending| numbered(&whole, ending).is_some());
            let is_unfinished =
                is_ours && path.extension().is_some_and(|ending| ending == UNFINISHED);
            let is_left =
                numbered(&path, CHECKPOINT).is_some() && !path.with_extension(ENDING).exists();
            if is_unfinished || is_left {
                fs::remove_file(&path)
                    .map_err(|error| JournalError::of("remove", &path, 0, error))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Whoever is killed in between leaves a segment, which the next one finds, and no checkpoint that nobody looks for.
    #[test]
    fn a_checkpoint_goes_before_its_segment() {
        let dir = tempfile::tempdir().unwrap();
        let segment = dir.path().join("000001.msj");
        let checkpoint = segment.with_extension(CHECKPOINT);
        fs::write(&checkpoint, b"state").unwrap();
        // What cannot be removed, like what the killed one did not come to.
        fs::create_dir(&segment).unwrap();
        assert!(remove(&segment).is_err());
        assert!(!checkpoint.exists());
    }

    #[test]
    fn checkpoints_without_a_segment_are_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let epoch = dir.path().join("00000000000000000005");
        fs::create_dir(&epoch).unwrap();
        let files = [
            ("000001.msc", false),
            ("000002.msc", true),
            ("000002.msj", true),
            ("000003.msj", true),
            ("000004.msc.new", false),
            ("notes.msc", true),
        ];
        for (name, _) in files {
            fs::write(epoch.join(name), b"bytes").unwrap();
        }
        clear_unfinished(dir.path()).unwrap();
        for (name, stays) in files {
            assert_eq!(epoch.join(name).exists(), stays, "{name}");
        }
    }
}
