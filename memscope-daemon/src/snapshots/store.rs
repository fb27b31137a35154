//! The kept snapshots: files on disk, known by their numbers.
//!
//! Beside each snapshot is a file that describes it (`….about.json`), which is written first. So after a restart it
//! is known what is kept and to whom it may be shown. A snapshot whose file somebody removes by hand is forgotten.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memscope_rpc::KeptSnapshot;
use serde::{Deserialize, Serialize};

use super::choose::{Candidate, to_remove};
use super::waiting::Waiting;

/// Ending of the name of a file that describes a snapshot.
const ABOUT: &str = ".about.json";
/// Ending of the name of a file that is not complete yet.
const PART: &str = ".part";

/// Limits of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most snapshots.
    pub count: usize,
    /// Most bytes of all snapshots together.
    pub bytes: u64,
}

/// Description of a kept snapshot, as it is written beside the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Name of its file in the directory.
    pub file: String,
    /// The moment that it describes, in nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Short name of the process.
    pub comm: String,
    /// Command line of the process.
    pub cmdline: Vec<String>,
    /// Every user id that the process had, the real one first.
    pub uids: Vec<u32>,
    /// Number of the trigger, in the run of the daemon that took the snapshot.
    pub trigger: u64,
    /// Condition of the trigger, in words.
    pub when: String,
    /// Why the trigger fired, in words.
    pub reason: String,
    /// Device for which the trigger fired; `None`: no single device.
    pub device: Option<i32>,
    /// Allocated bytes on that device, or on all devices if none is named.
    pub allocated_bytes: Option<u64>,
    /// Reserved bytes on the same devices.
    pub reserved_bytes: Option<u64>,
    /// Bytes in their segments that no block occupies.
    pub free_bytes: Option<u64>,
    /// Size in bytes of the largest piece of these free bytes.
    pub largest_free_bytes: Option<u64>,
    /// How often the trigger fired in this process since its last snapshot, too soon for another one.
    pub paused_before: u64,
    /// Whether the baseline was not known.
    pub without_baseline: bool,
    /// Code and text of each note that limits the snapshot's numbers.
    pub coverage: Vec<(String, String)>,
    /// Name of the file's format.
    pub format: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// The directory of kept snapshots, its limits, and the descriptions of what is in it.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limits: Limits,
    kept: Vec<About>,
    last: u64,
}

impl Store {
    /// Takes over what an earlier run of the daemon left in the directory, within the limits. Files that are not
    /// complete are removed. The store can be used even if this returns an error.
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
        // What cannot be read or removed does not keep the others from being taken over: their numbers are not given again.
        let mut result = Ok(());
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.ends_with(PART) {
                result = result.and(fs::remove_file(entry.path()));
            } else if name.ends_with(ABOUT) {
                let text = match fs::read(entry.path()) {
                    Ok(text) => text,
                    Err(error) => {
                        result = result.and(Err(error));
                        continue;
                    }
                };
                match serde_json::from_slice::<About>(&text) {
                    Ok(about) if is_plain(&about.file) => self.kept.push(about),
                    // Not ours, or of a version with another form: it is left alone.
                    _ => tracing::warn!(file = name, "does not say what a snapshot is"),
                }
            }
        }
        self.kept.sort_by_key(|about| about.snapshot);
        self.kept.dedup_by_key(|about| about.snapshot);
        self.last = self.kept.last().map_or(0, |about| about.snapshot);
        self.forget_missing();
        while self.kept.len() > self.limits.count || self.bytes() > self.limits.bytes {
            // Treat the newest one as if it came now.
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
        result
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

    /// Directory of the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Limits of what is kept.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the snapshot of this firing is kept.
    pub(super) fn has(&self, one: &Waiting) -> bool {
        self.kept.iter().any(|about| {
            let is_its = (about.pid, about.start_ticks) == (one.pid, one.start_ticks);
            let is_of = (about.trigger, about.device) == (one.firing.trigger, one.firing.device);
            is_its && is_of && about.time_unix_ns == one.as_of.unix_ns
        })
    }

    /// Returns the number for a new snapshot.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Forgets the snapshots whose files somebody has removed.
    fn forget_missing(&mut self) {
        let dir = &self.dir;
        self.kept.retain(|about| {
            let is_there = dir.join(&about.file).is_file();
            if !is_there {
                // The description may have been removed as well.
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

    /// Removes what has to go for a new snapshot. Returns false if the new one alone exceeds the limits.
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

    /// Creates the file into which a new snapshot is written until it is complete.
    pub fn begin(&self, file: &str) -> io::Result<(PathBuf, File)> {
        self.make_directory()?;
        let path = self.dir.join(format!(".{file}{PART}"));
        let opened = new_file(&path)?;
        Ok((path, opened))
    }

    /// Takes over a snapshot whose file `part` is complete, and returns its final path.
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
            // What was written so far is of no use. If it cannot be removed, the first error is still the one to
            // report.
            let _ = fs::remove_file(&beside_part);
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        self.kept.push(about);
        Ok(path)
    }

    /// All kept snapshots, oldest first.
    pub fn list(&mut self) -> Vec<KeptSnapshot> {
        self.forget_missing();
        self.kept.iter().map(|about| self.shown(about)).collect()
    }

    /// A kept snapshot and its file, open for reading. `None` if it is not kept any more.
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

/// Whether this is the name of a file in the directory, and not a path to another place.
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
