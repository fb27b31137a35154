//! Flushes the state directory to the disk, so that a power cut costs at most the last second.
//!
//! What is written stays in the page cache when memscoped is killed, so only a power cut or a crash of the machine needs this. The files
//! that have changed since they were flushed last are flushed at most once a second: the journal's newest segments with their
//! checkpoints, and the small files beside it. A thread of its own does it, because a slow disk takes its time. While nothing is written
//! it sleeps: the kernel wakes it with the next change (inotify).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Time between two flushes.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time between two looks, in seconds: a file system may tell nothing of a change.
const SLEEP_S: i64 = 10;

/// More than the steps in which file systems tell time.
const TICK: Duration = Duration::from_millis(20);

/// Writes a file that only this user may read, whatever was there. It is not flushed.
pub(crate) fn write_anew(path: &Path, bytes: &[u8]) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

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
            let changes = Changes::new();
            loop {
                // Before the files are looked at, so that no change comes between.
                let is_told = changes.watch(&folders);
                let flush = |folder: &PathBuf| flush(folder, &mut flushed, File::sync_data);
                let results: Vec<io::Result<bool>> = folders.iter().map(flush).collect();
                let nothing = results.iter().all(|result| matches!(result, Ok(false)));
                let failed = results.into_iter().find_map(Result::err);
                state.ended(failed.map_or(Ok(()), Err));
                std::thread::sleep(PAUSE);
                if let (true, Some(changes)) = (nothing, is_told) {
                    wait(changes);
                    // What is written just now would have to be flushed twice.
                    std::thread::sleep(2 * TICK);
                }
            }
        })?;
    Ok(flushing)
}

/// What the kernel tells of changes in folders.
struct Changes(Option<OwnedFd>);

impl Changes {
    /// Where the kernel has no room for another one, nothing is told.
    fn new() -> Changes {
        let told = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        if let Err(error) = &told {
            tracing::debug!(%error, "changes of the state directory are looked for each second");
        }
        Changes(told.ok())
    }

    /// Drops what was told so far, and has all changes in these folders told from now on. Returns where they are told, if all
    /// are: a folder may not be there yet, or may have been made anew.
    fn watch(&self, folders: &[PathBuf]) -> Option<&OwnedFd> {
        let told = self.0.as_ref()?;
        let mut dropped = [0; 4096];
        while rustix::io::read(told, &mut dropped).is_ok_and(|bytes| bytes > 0) {}
        let wanted = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut folders = folders.iter();
        folders
            .all(|folder| inotify::add_watch(told, folder, wanted).is_ok())
            .then_some(told)
    }
}

/// Waits for the next change.
fn wait(changes: &OwnedFd) {
    let most = Timespec {
        tv_sec: SLEEP_S,
        tv_nsec: 0,
    };
    // If it fails, files are only looked at earlier.
    let _ = rustix::event::poll(&mut [PollFd::new(changes, PollFlags::IN)], Some(&most));
}

/// Flushes the files of a folder that have changed, with `sync`, and returns whether there were any. If one cannot be flushed the others
/// are all the same, and that one is tried again the next time.
fn flush(
    folder: &Path,
    flushed: &mut BTreeMap<PathBuf, SystemTime>,
    sync: impl Fn(&File) -> io::Result<()>,
) -> io::Result<bool> {
    let mut result = Ok(());
    let mut changed = false;
    let entries = match std::fs::read_dir(folder) {
        // A journal that waits for room has no files yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
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
    result.map(|()| changed)
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
        let flush = |flushed: &mut _| flush(folder.path(), flushed, File::sync_data).unwrap();
        assert!(flush(&mut flushed));
        assert_eq!(flushed.get(&path), Some(&written));
        assert!(!flush(&mut flushed), "nothing has changed");
        let later = written + Duration::from_secs(1);
        file.set_modified(later).unwrap();
        assert!(flush(&mut flushed));
        assert_eq!(flushed.get(&path), Some(&later));
        // Who knows what else was written in that moment.
        file.set_modified(SystemTime::now() + Duration::from_secs(60))
            .unwrap();
        assert!(flush(&mut flushed));
        assert_eq!(flushed.get(&path), Some(&later));
        assert!(flush(&mut flushed), "it is flushed until its time is past");
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
        flushing.ended(flush(folder.path(), &mut flushed, fails).map(drop));
        assert!(flushing.problem().unwrap().contains("os error 5"));
        assert_eq!(flushed.keys().collect::<Vec<_>>(), [&good]);
        flushing.ended(flush(folder.path(), &mut flushed, |_| Ok(())).map(drop));
        assert_eq!(flushing.problem(), None);
        assert_eq!(flushed.keys().collect::<Vec<_>>(), [&bad, &good]);
        // The folder of a journal that waits for room.
        assert!(!flush(&folder.path().join("none"), &mut flushed, fails).unwrap());
    }

    #[test]
    fn each_change_wakes() {
        let parent = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| parent.path().join(name));
        let changes = Changes::new();
        std::fs::create_dir(&folders[0]).unwrap();
        assert!(changes.watch(&folders).is_none(), "one is not there yet");
        std::fs::create_dir(&folders[1]).unwrap();
        let has_come = |changes: &OwnedFd| {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let mut polled = [PollFd::new(changes, PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&now)).unwrap() > 0
        };
        let path = folders[1].join("file");
        let write: [&dyn Fn(); 6] = [
            &|| drop(File::create(&path).unwrap()),
            &|| {
                let file = File::options().write(true).open(&path).unwrap();
                rustix::io::pwrite(&file, b"x", 0).unwrap();
            },
            &|| {
                let file = File::options().write(true).open(&path).unwrap();
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4096).unwrap();
            },
            &|| std::fs::rename(&path, folders[0].join("file")).unwrap(),
            &|| std::fs::remove_dir_all(&folders[0]).unwrap(),
            &|| drop(File::create(folders[0].join("again")).unwrap()),
        ];
        for (number, write) in write.iter().enumerate() {
            if number == 5 {
                std::fs::create_dir(&folders[0]).unwrap();
            }
            let told = changes.watch(&folders).unwrap();
            assert!(!has_come(told), "{number}");
            write();
            assert!(has_come(told), "{number}");
            // It is woken at once.
            wait(told);
        }
    }
}
