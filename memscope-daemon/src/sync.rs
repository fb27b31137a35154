//! Flushes the state directory to the disk, so that a power cut costs at most the last second.
//!
//! What is written stays in the page cache when memscoped is killed, so only a power cut or a crash of the machine needs this. Each second
//! the files are flushed that have changed since they were flushed last: the journal's newest segments with their
//! checkpoints, and the small files beside it. A thread of its own does it, because a slow disk takes its time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Time between two flushes.
const PAUSE: Duration = Duration::from_secs(1);

/// More than the steps in which file systems tell time.
const TICK: Duration = Duration::from_millis(20);

/// Starts the thread. `folders`: the folders whose files are flushed. It ends with the process.
pub fn start(folders: Vec<PathBuf>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("sync".to_owned())
        .spawn(move || {
            let mut flushed = BTreeMap::new();
            let mut failed = false;
            loop {
                for folder in &folders {
                    match flush(folder, &mut flushed) {
                        Ok(()) => failed = false,
                        Err(error) => {
                            if !failed {
                                tracing::warn!(
                                    %error,
                                    folder = %folder.display(),
                                    "could not be flushed to the disk: a power cut would cost more than the last second"
                                );
                            }
                            failed = true;
                        }
                    }
                }
                flushed.retain(|path: &PathBuf, _| path.exists());
                std::thread::sleep(PAUSE);
            }
        })
        .map(drop)
}

/// Flushes the files of a folder that have changed.
fn flush(folder: &Path, flushed: &mut BTreeMap<PathBuf, SystemTime>) -> io::Result<()> {
    let mut changed = false;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = match File::open(&path) {
            Ok(file) => file,
            // The journal removes its oldest segments.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let facts = file.metadata()?;
        if !facts.is_file() {
            continue;
        }
        let modified = facts.modified()?;
        if flushed.get(&path) == Some(&modified) {
            continue;
        }
        file.sync_data()?;
        // A write that came just behind may have the same time, so such a file is flushed once more.
        if modified.elapsed().is_ok_and(|age| age > TICK) {
            flushed.insert(path, modified);
        }
        changed = true;
    }
    if changed {
        // Names of new files.
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_flushed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let file = File::create(&path).unwrap();
        let written = SystemTime::now() - Duration::from_secs(60);
        file.set_modified(written).unwrap();
        let mut flushed = BTreeMap::new();
        flush(folder.path(), &mut flushed).unwrap();
        assert_eq!(flushed.get(&path), Some(&written));
        let later = written + Duration::from_secs(1);
        file.set_modified(later).unwrap();
        flush(folder.path(), &mut flushed).unwrap();
        assert_eq!(flushed.get(&path), Some(&later));
        // Who knows what else was written in that moment.
        file.set_modified(SystemTime::now() + Duration::from_secs(60))
            .unwrap();
        flush(folder.path(), &mut flushed).unwrap();
        assert_eq!(flushed.get(&path), Some(&later));
    }
}
