//! The snapshots that are kept, on disk and by number.
//!
//! Each is a file with one beside it that says what it is (`….about.json`), written first; so what is kept
//! is known again after a restart, and to whom it may be shown. What somebody removes by hand is gone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memscope_rpc::KeptSnapshot;
use serde::{Deserialize, Serialize};

use super::choose::{Candidate, to_remove};

/// How the name of what says what a snapshot is ends.
const ABOUT: &str = ".about.json";
/// How the name of a file ends that is not yet whole.
const PART: &str = ".part";

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many snapshots.
    pub count: usize,
    /// So many bytes of them together.
    pub bytes: u64,
}

/// What a kept snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Its number.
    pub snapshot: u64,
    /// Name of its file.
    pub file: String,
    /// The moment that it describes, nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// Process id.
    pub pid: u32,
    /// When the process started, clock ticks since boot.
    pub start_ticks: u64,
    /// Short name.
    pub comm: String,
    /// Command line.
    pub cmdline: Vec<String>,
    /// Every user id that the process had, the real one first.
    pub uids: Vec<u32>,
    /// Number of the trigger, in that run of the daemon.
    pub trigger: u64,
    /// The trigger in words.
    pub when: String,
    /// What happened.
    pub reason: String,
    /// On which device.
    pub device: Option<i32>,
    /// Bytes handed out on that device.
    pub allocated_bytes: Option<u64>,
    /// Bytes held from the driver.
    pub reserved_bytes: Option<u64>,
    /// Bytes in segments that no block has, and the largest piece of them.
    pub free_bytes: Option<u64>,
    /// See `free_bytes`.
    pub largest_free_bytes: Option<u64>,
    /// How often the trigger fired in this process since its last snapshot there, too soon for another.
    pub paused_before: u64,
    /// What was there before the attach was not known.
    pub without_baseline: bool,
    /// What limits the snapshot: code and text.
    pub coverage: Vec<(String, String)>,
    /// Format of the file.
    pub format: String,
    /// Size of the file.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limits: Limits,
    kept: Vec<About>,
    last: u64,
}

impl Store {
    /// What an earlier run of the daemon left, within the limits. What is not whole is removed.
    pub fn open(dir: PathBuf, limits: Limits) -> (Store, io::Result<()>) {
        let mut store = Store {
            dir,
            limits,
            kept: Vec::new(),
            last: 0,
        };
        let result = store.recover();
        (store, result)
    }

    fn recover(&mut self) -> io::Result<()> {
        self.make_directory()?;
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.ends_with(PART) {
                fs::remove_file(entry.path())?;
            } else if name.ends_with(ABOUT) {
                let text = fs::read(entry.path())?;
                match serde_json::from_slice::<About>(&text) {
                    Ok(about) if is_plain(&about.file) => self.kept.push(about),
                    // Not ours, or of a version that wrote something else: it is left alone.
                    _ => tracing::warn!(file = name, "does not say what a snapshot is"),
                }
            }
        }
        self.kept.sort_by_key(|about| about.snapshot);
        self.kept.dedup_by_key(|about| about.snapshot);
        self.last = self.kept.last().map_or(0, |about| about.snapshot);
        self.forget_missing();
        while self.kept.len() > self.limits.count || self.bytes() > self.limits.bytes {
            // As if the newest one came now.
            let Some(new) = self.kept.pop() else {
                break;
            };
            let fits = self.make_room(&new);
            match fits {
                Ok(true) => self.kept.push(new),
                Ok(false) => self.remove(&new)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.kept
            .iter()
            .fold(0, |sum, about| sum.saturating_add(about.bytes))
    }

    fn make_directory(&self) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A number for a new snapshot.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Forgets those whose file somebody has removed.
    fn forget_missing(&mut self) {
        let dir = &self.dir;
        self.kept.retain(|about| {
            let is_there = dir.join(&about.file).is_file();
            if !is_there {
                // There may be no such file either.
                let _ = fs::remove_file(dir.join(about_name(&about.file)));
            }
            is_there
        });
    }

    fn remove(&self, about: &About) -> io::Result<()> {
        for name in [about.file.clone(), about_name(&about.file)] {
            match fs::remove_file(self.dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what has to go for a new one; false if that alone is too much.
    fn make_room(&mut self, new: &About) -> io::Result<bool> {
        if self.limits.count == 0 || new.bytes > self.limits.bytes {
            return Ok(false);
        }
        let kept: Vec<Candidate> = self.kept.iter().map(candidate).collect();
        for number in to_remove(&kept, &candidate(new), self.limits.count, self.limits.bytes) {
            if let Some(place) = self.kept.iter().position(|about| about.snapshot == number) {
                let about = self.kept.remove(place);
                self.remove(&about)?;
            }
        }
        Ok(true)
    }

    /// A file beside the place of a new snapshot, to be written.
    pub fn begin(&self, file: &str) -> io::Result<(PathBuf, File)> {
        self.make_directory()?;
        let path = self.dir.join(format!(".{file}{PART}"));
        let opened = new_file(&path)?;
        Ok((path, opened))
    }

    /// Takes over a snapshot that is whole; gives its path.
    pub fn keep(&mut self, part: &Path, about: About) -> io::Result<PathBuf> {
        self.forget_missing();
        if !self.make_room(&about)? {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let path = self.dir.join(&about.file);
        let beside = self.dir.join(about_name(&about.file));
        let beside_part = self.dir.join(format!(".{}{PART}", about_name(&about.file)));
        let mut text = serde_json::to_vec_pretty(&about).map_err(io::Error::other)?;
        text.push(b'\n');
        let placed = new_file(&beside_part)
            .and_then(|mut file| {
                file.write_all(&text)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&beside_part, &beside))
            .and_then(|()| fs::rename(part, &path));
        if let Err(error) = placed {
            // What was written of it helps nobody; the first cause is the one to tell.
            let _ = fs::remove_file(&beside_part);
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        self.kept.push(about);
        Ok(path)
    }

    /// All that is kept, oldest first.
    pub fn list(&mut self) -> Vec<KeptSnapshot> {
        self.forget_missing();
        self.kept.iter().map(|about| self.shown(about)).collect()
    }

    /// The file of one.
    pub fn read(&self, snapshot: u64) -> io::Result<Option<(KeptSnapshot, File)>> {
        let Some(about) = self.kept.iter().find(|about| about.snapshot == snapshot) else {
            return Ok(None);
        };
        match File::open(self.dir.join(&about.file)) {
            Ok(file) => Ok(Some((self.shown(about), file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn shown(&self, about: &About) -> KeptSnapshot {
        KeptSnapshot {
            snapshot: about.snapshot,
            unix_ns: about.time_unix_ns,
            pid: about.pid,
            comm: about.comm.clone(),
            uids: about.uids.clone(),
            when: about.when.clone(),
            reason: about.reason.clone(),
            device: about.device,
            format: about.format.clone(),
            bytes: about.bytes,
            path: self.dir.join(&about.file),
            without_baseline: about.without_baseline,
        }
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// A name and no way to another place.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

fn about_name(file: &str) -> String {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    format!("{stem}{ABOUT}")
}

fn candidate(about: &About) -> Candidate {
    Candidate {
        number: about.snapshot,
        bytes: about.bytes,
        uid: about.uids.first().copied().unwrap_or(0),
        process: (about.pid, about.start_ticks),
        when: about.when.clone(),
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
