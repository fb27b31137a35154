//! Flushes the state directory to the disk, so that a power cut costs at most the last second.
//!
//! What is written stays in the page cache when memscoped is killed, so only a power cut or a crash of the machine needs this. Each second
//! the files are flushed that have changed since they were flushed last: the journal's newest segments with their
//! checkpoints, and the small files beside it. A thread of its own does it, because a slow disk takes its time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Time between two flushes.
const PAUSE: Duration = Duration::from_secs(1);

/// More than the steps in which file systems tell time.
const TICK: Duration = Duration::from_millis(20);

/// Whether what is written reaches the disk. Clones share one state.
#[derive(Clone, Default)]
pub struct Flushing(Arc<Mutex<Option<String>>>);

impl Flushing {
    /// Why the last flush failed, in words for `status`; `None` if it did not.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes in how a flush ended. What has changed is logged.
    fn ended(&self, result: io::Result<()>) {
        let problem = result.err().map(|error| {
            format!("could not be flushed to the disk, so that a power cut costs more than the last second: {error}")
        });
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*known, &problem) {
            (None, Some(problem)) => tracing::warn!("the journal {problem}"),
            (Some(_), None) => tracing::info!("the journal is flushed to the disk again"),
            _ => {}
        }
        *known = problem;
    }
}

/// Starts the thread. `folders`: the folders whose files are flushed. It ends with the process.
pub fn start(folders: Vec<PathBuf>) -> io::Result<Flushing> {
    let flushing = Flushing::default();
    let state = flushing.clone();
    std::thread::Builder::new()
        .name("sync".to_owned())
        .spawn(move || {
            let mut flushed = BTreeMap::new();
            loop {
                let flush = |folder: &PathBuf| flush(folder, &mut flushed, File::sync_data);
                state.ended(folders.iter().map(flush).fold(Ok(()), Result::and));
                std::thread::sleep(PAUSE);
            }
        })?;
    Ok(flushing)
}

/// Flushes the files of a folder that have changed, with `sync`. If one cannot be flushed the others are all the same, and that one is
/// tried again the next time.
fn flush(
    folder: &Path,
    flushed: &mut BTreeMap<PathBuf, SystemTime>,
    sync: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut result = Ok(());
    let mut changed = false;
    let entries = match std::fs::read_dir(folder) {
        // A journal that waits for room has no files yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let facts = match entry.metadata() {
            Ok(facts) => facts,
            // The journal removes its oldest segments.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let (path, modified) = (entry.path(), facts.modified()?);
        if !facts.is_file() || flushed.get(&path) == Some(&modified) {
            continue;
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        changed = true;
        if let Err(error) = sync(&file) {
            result = Err(error);
        } else if modified.elapsed().is_ok_and(|age| age > TICK) {
            // A write that came just behind may have the same time, so a newer file is flushed once more.
            flushed.insert(path, modified);
        }
    }
    if changed {
        // Names of new files.
        sync(&File::open(folder)?)?;
        // Old files go when new ones come.
        flushed.retain(|path, _| path.exists());
    }
    result
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_has_changed_is_flushed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let file = File::create(&path).unwrap();
        let written = SystemTime::now() - Duration::from_secs(60);
        file.set_modified(written).unwrap();
        let mut flushed = BTreeMap::new();
        flush(folder.path(), &mut flushed, File::sync_data).unwrap();
        assert_eq!(flushed.get(&path), Some(&written));
        let later = written + Duration::from_secs(1);
        file.set_modified(later).unwrap();
        flush(folder.path(), &mut flushed, File::sync_data).unwrap();
        assert_eq!(flushed.get(&path), Some(&later));
        // Who knows what else was written in that moment.
        file.set_modified(SystemTime::now() + Duration::from_secs(60))
            .unwrap();
        flush(folder.path(), &mut flushed, File::sync_data).unwrap();
        assert_eq!(flushed.get(&path), Some(&later));
    }

    #[test]
    fn what_cannot_be_flushed_is_told_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let [bad, good] = ["a", "b"].map(|name| folder.path().join(name));
        let written = SystemTime::now() - Duration::from_secs(60);
        for path in [&bad, &good] {
            let file = File::create(path).unwrap();
            file.set_modified(written).unwrap();
        }
        let failing = File::open(&bad).unwrap().metadata().unwrap();
        let fails = |file: &File| match file.metadata()?.ino() == failing.ino() {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        };
        let (mut flushed, flushing) = (BTreeMap::new(), Flushing::default());
        flushing.ended(flush(folder.path(), &mut flushed, fails));
        assert!(flushing.problem().unwrap().contains("os error 5"));
        assert_eq!(flushed.keys().collect::<Vec<_>>(), [&good]);
        flushing.ended(flush(folder.path(), &mut flushed, |_| Ok(())));
        assert_eq!(flushing.problem(), None);
        assert_eq!(flushed.keys().collect::<Vec<_>>(), [&bad, &good]);
        // The folder of a journal that waits for room.
        flush(&folder.path().join("none"), &mut flushed, fails).unwrap();
    }
}
