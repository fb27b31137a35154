//! The spool: batches that are closed and not uploaded yet, and the cursor.
//!
//! A batch is a folder with its files and a manifest, which has the cursor of after this batch. It is written under another name and renamed when
//! all of it is on the disk, so that a batch and its cursor are there together or not at all. A file that is uploaded is removed; the newest
//! batch's folder stays for the sake of its cursor. So whatever the program is killed in, what a batch has is uploaded, under the same name
//! with the same bytes, at least once; and what the cursor says is written is in a batch, or was.
//!
//! If there is no room, files of the table that may be dropped go, the oldest first. They are named in the manifest of the batch that tells of it,
//! and removed after that is on the disk.

use crate::disk::Disk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// The table whose files are dropped when there is no room.
pub const MAY_BE_DROPPED: &str = "events";
/// Version of the manifest's form.
const FORM: u32 = 1;
const MANIFEST: &str = "manifest.json";

/// Why the spool does not work.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The disk takes or gives nothing.
    #[error("{path} in the spool")]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another program works with it.
    #[error(
        "{path} is the spool of a memscope-archive that runs already — give this one another folder with --spool"
    )]
    Taken {
        /// The spool.
        path: PathBuf,
    },
    /// A manifest is none.
    #[error(
        "{path} is not what this version writes — move the spool away, and the archive begins anew"
    )]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        source: Box<serde_json::Error>,
    },
    /// There is no room for a batch, even without what may be dropped.
    #[error(
        "the spool is full: {needed} bytes do not fit into what --spool-mib allows, {limit} bytes, of which {used} are taken"
    )]
    Full {
        /// Bytes of the batch.
        needed: u64,
        /// Bytes that wait already.
        used: u64,
        /// Most bytes.
        limit: u64,
    },
}

/// A file of a batch before it is written.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its path within the archive.
    pub object: String,
    /// Name of the table that its rows belong to.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// Its content.
    pub content: Vec<u8>,
}

/// A file of a batch as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name within the batch's folder.
    pub file: String,
    /// Its path within the archive.
    pub object: String,
    /// Name of the table that its rows belong to.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
}

/// A file of the spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Number of its batch.
    pub batch: u64,
    /// The file.
    pub entry: Entry,
}

#[derive(Serialize, Deserialize)]
struct Manifest<C> {
    form: u32,
    cursor: C,
    files: Vec<Entry>,
    dropped: Vec<Waiting>,
}

/// The spool; `C` is the cursor.
#[derive(Debug)]
pub struct Spool<C> {
    folder: PathBuf,
    limit: u64,
    disk: Disk,
    name: String,
    /// Files that wait, by batch, in their order.
    waiting: BTreeMap<u64, Vec<Entry>>,
    newest: u64,
    /// The file that is being uploaded.
    under_way: Option<Waiting>,
    _lock: File,
    _cursor: PhantomData<C>,
}

fn folder_of(batch: u64) -> String {
    format!("batch-{batch:010}")
}

impl<C: Serialize + DeserializeOwned + Default> Spool<C> {
    /// Opens a spool, or begins one. Gives the cursor as well.
    ///
    /// # Errors
    /// If another program has it, or the disk or a manifest cannot be read.
    pub fn open(folder: &Path, limit: u64, disk: Disk) -> Result<(Spool<C>, C), SpoolError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| SpoolError::Disk { path, source }
        };
        fs::create_dir_all(folder).map_err(at(folder))?;
        let path = folder.join("lock");
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(at(&path))?;
        if lock.try_lock().is_err() {
            let path = folder.to_owned();
            return Err(SpoolError::Taken { path });
        }
        let name = name(folder, &disk)?;
        let mut spool = Spool {
            folder: folder.to_owned(),
            limit,
            disk,
            name,
            waiting: BTreeMap::new(),
            newest: 0,
            under_way: None,
            _lock: lock,
            _cursor: PhantomData,
        };
        let cursor = spool.read()?;
        Ok((spool, cursor))
    }

    fn at(&self, path: &Path) -> impl FnOnce(io::Error) -> SpoolError + use<C> {
        let path = path.to_owned();
        move |source| SpoolError::Disk { path, source }
    }

    /// Reads all batches, and finishes what was begun with the newest one.
    fn read(&mut self) -> Result<C, SpoolError> {
        let mut cursor = C::default();
        let mut dropped = Vec::new();
        let folder = self.folder.clone();
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(self.at(&folder))? {
            let path = entry.map_err(self.at(&folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("batch-").map(str::parse::<u64>);
            match number {
                Some(Ok(number)) => found.push((number, path)),
                // A batch that was not complete, or one that is not needed any more.
                _ if name.starts_with("new-") || name.starts_with("old-") => {
                    self.disk.remove_folder(&path).map_err(self.at(&path))?;
                }
                _ => {}
            }
        }
        found.sort();
        for (number, path) in found {
            let path = path.join(MANIFEST);
            let text = fs::read(&path).map_err(self.at(&path))?;
            let manifest: Manifest<C> =
                serde_json::from_slice(&text).map_err(|source| SpoolError::Manifest {
                    path: path.clone(),
                    source: Box::new(source),
                })?;
            let mut files = manifest.files;
            files.retain(|entry| path.with_file_name(&entry.file).exists());
            self.waiting.insert(number, files);
            self.newest = number;
            (cursor, dropped) = (manifest.cursor, manifest.dropped);
        }
        for file in &dropped {
            self.remove(file)?;
        }
        self.sweep()?;
        Ok(cursor)
    }

    /// The name of this spool, which no other one has.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the batch that comes next.
    #[must_use]
    pub fn next_batch(&self) -> u64 {
        self.newest + 1
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = self.waiting.values().flatten();
        files.map(|entry| entry.bytes).sum()
    }

    /// Files that wait.
    #[must_use]
    pub fn files(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    /// Chooses what has to go so that so many bytes more have room: the oldest files that may be dropped.
    ///
    /// # Errors
    /// If that is not enough.
    pub fn make_room(&self, needed: u64) -> Result<Vec<Waiting>, SpoolError> {
        let used = self.bytes();
        let mut over = (used + needed).saturating_sub(self.limit);
        let mut chosen = Vec::new();
        for (batch, files) in &self.waiting {
            for entry in files {
                if over == 0 {
                    return Ok(chosen);
                }
                let file = Waiting {
                    batch: *batch,
                    entry: entry.clone(),
                };
                if entry.table == MAY_BE_DROPPED && self.under_way.as_ref() != Some(&file) {
                    over = over.saturating_sub(entry.bytes);
                    chosen.push(file);
                }
            }
        }
        match over {
            0 => Ok(chosen),
            _ => Err(SpoolError::Full {
                needed,
                used,
                limit: self.limit,
            }),
        }
    }

    /// Writes a batch together with the cursor of after it. `dropped`, which the batch tells of, is removed.
    ///
    /// # Errors
    /// If the disk does not take it: then there is nothing of it, and the cursor is what it was.
    pub fn commit(
        &mut self,
        files: Vec<NewFile>,
        cursor: &C,
        dropped: Vec<Waiting>,
    ) -> Result<(), SpoolError> {
        let number = self.next_batch();
        let aside = self.folder.join(format!("new-{number:010}"));
        let result = self.write(&aside, number, files, cursor, &dropped);
        if result.is_err() {
            // What is left of it is removed at the next start at the latest.
            let _ = self.disk.remove_folder(&aside);
        }
        let entries = result?;
        self.waiting.insert(number, entries);
        self.newest = number;
        // The batch is there. If this fails, it is done at the next start.
        for file in &dropped {
            self.remove(file)?;
        }
        self.sweep()
    }

    fn write(
        &self,
        aside: &Path,
        number: u64,
        files: Vec<NewFile>,
        cursor: &C,
        dropped: &[Waiting],
    ) -> Result<Vec<Entry>, SpoolError> {
        self.disk.remove_folder(aside).map_err(self.at(aside))?;
        self.disk.make(aside).map_err(self.at(aside))?;
        let mut entries = Vec::new();
        for (file, place) in files.into_iter().zip(1..) {
            let name = format!("{place:05}.parquet");
            let path = aside.join(&name);
            self.disk
                .write(&path, &file.content)
                .map_err(self.at(&path))?;
            entries.push(Entry {
                file: name,
                object: file.object,
                table: file.table,
                rows: file.rows,
                bytes: file.content.len() as u64,
            });
        }
        let manifest = Manifest {
            form: FORM,
            cursor,
            files: entries.clone(),
            dropped: dropped.to_vec(),
        };
        let path = aside.join(MANIFEST);
        let text = serde_json::to_vec(&manifest).map_err(|source| SpoolError::Manifest {
            path: path.clone(),
            source: Box::new(source),
        })?;
        self.disk.write(&path, &text).map_err(self.at(&path))?;
        self.disk.settle(aside).map_err(self.at(aside))?;
        let path = self.folder.join(folder_of(number));
        self.disk.rename(aside, &path).map_err(self.at(&path))?;
        // The batch is there by now, whatever becomes of this: to report a failure would be to write the same rows again.
        if let Err(error) = self.disk.settle(&self.folder) {
            tracing::warn!(%error, "the spool's folder cannot be flushed");
        }
        Ok(entries)
    }

    /// The file to upload next, the oldest one, with its path in the spool. It is not dropped until it is given back.
    pub fn take(&mut self) -> Option<(Waiting, PathBuf)> {
        let (batch, entry) = self
            .waiting
            .iter()
            .find_map(|(batch, files)| Some((*batch, files.first()?.clone())))?;
        let path = self.folder.join(folder_of(batch)).join(&entry.file);
        let file = Waiting { batch, entry };
        self.under_way = Some(file.clone());
        Some((file, path))
    }

    /// The file that was taken is uploaded.
    ///
    /// # Errors
    /// If it cannot be removed: then it is uploaded again, which changes nothing.
    pub fn uploaded(&mut self, file: &Waiting) -> Result<(), SpoolError> {
        self.under_way = None;
        self.remove(file)?;
        self.sweep()
    }

    /// The file that was taken is not uploaded.
    pub fn not_uploaded(&mut self) {
        self.under_way = None;
    }

    fn remove(&mut self, file: &Waiting) -> Result<(), SpoolError> {
        let path = self
            .folder
            .join(folder_of(file.batch))
            .join(&file.entry.file);
        self.disk.remove(&path).map_err(self.at(&path))?;
        if let Some(files) = self.waiting.get_mut(&file.batch) {
            files.retain(|entry| *entry != file.entry);
        }
        Ok(())
    }

    /// Removes the folders of batches of which nothing waits; the newest one's has the cursor.
    fn sweep(&mut self) -> Result<(), SpoolError> {
        let empty = |(number, files): (&u64, &Vec<Entry>)| {
            (files.is_empty() && *number != self.newest).then_some(*number)
        };
        let done: Vec<u64> = self.waiting.iter().filter_map(empty).collect();
        for number in done {
            let path = self.folder.join(folder_of(number));
            let aside = self.folder.join(format!("old-{number:010}"));
            // At one stroke: a folder without its manifest could not be read.
            self.disk.rename(&path, &aside).map_err(self.at(&path))?;
            self.waiting.remove(&number);
            self.disk.remove_folder(&aside).map_err(self.at(&aside))?;
        }
        Ok(())
    }
}

/// The name of a spool: read, or made at random.
fn name(folder: &Path, disk: &Disk) -> Result<String, SpoolError> {
    let path = folder.join("name");
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| SpoolError::Disk { path, source }
    };
    match fs::read_to_string(&path) {
        Ok(name) => return Ok(name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(at(&path)(source)),
    }
    let mut random = [0; 8];
    let source = Path::new("/dev/urandom");
    let read = File::open(source).and_then(|mut file| io::Read::read_exact(&mut file, &mut random));
    read.map_err(at(source))?;
    let name = format!("{:016x}", u64::from_le_bytes(random));
    let aside = folder.join("name-new");
    disk.write(&aside, name.as_bytes()).map_err(at(&aside))?;
    disk.rename(&aside, &path).map_err(at(&path))?;
    Ok(name)
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
