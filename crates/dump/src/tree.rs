//! The folders that msMemScope puts its files into.

use crate::error::DumpError;
use crate::row::{Device, Row};
use crate::writer::{Format, Writer};
use memscope_units::in_utc;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What a tree's name and its `config.json` are made from, and the format of its dumps.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Id of the process whose events are in the tree.
    pub pid: u32,
    /// Time at which the collection began, in nanoseconds since 1970.
    pub begun_unix_ns: u64,
    /// Format of the dumps.
    pub format: Format,
    /// Entries of `config.json` about how the events were collected: names and values.
    pub config: Vec<(String, String)>,
}

/// Writes `msmemscope_{pid}_{time}_ascend`: `config.json`, and for each device its `dump`. The time is UTC.
///
/// Rows of no device (`N/A`) go to device 0, rows of the host to `device_cpu`. The folder has a hidden name until
/// [`Tree::finish`], so that a tree is whole or not there. What an export that was killed has left of it is
/// deleted by the next one of the same tree; nobody writes one tree twice at a time.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Where the tree is until it is whole. It is deleted when this is dropped.
    work: TempDir,
    file: String,
    format: Format,
    dumps: BTreeMap<String, Writer>,
}

impl Tree {
    /// Makes the folder and `config.json`.
    ///
    /// # Errors
    /// The folder is there already, or cannot be made.
    pub fn create(output: &Path, settings: &Settings) -> Result<Tree, DumpError> {
        let stamp = in_utc(settings.begun_unix_ns, "%Y%m%d%H%M%S");
        let root = output.join(format!("msmemscope_{}_{stamp}_ascend", settings.pid));
        let cannot = |path: &Path, source| DumpError::Write {
            path: path.to_owned(),
            source,
        };
        std::fs::create_dir_all(output).map_err(|source| cannot(output, source))?;
        absent(&root)?;
        // An export of this tree that was killed has left its folder.
        let prefix = format!(".msmemscope_{}_{stamp}_ascend-", settings.pid);
        let entries = std::fs::read_dir(output).map_err(|source| cannot(output, source))?;
        for old in entries.flatten() {
            if old.file_name().to_string_lossy().starts_with(&prefix) {
                std::fs::remove_dir_all(old.path())
                    .map_err(|source| cannot(&old.path(), source))?;
            }
        }
        let work = tempfile::Builder::new()
            .prefix(&prefix)
            // The umask decides, as of any folder.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(output)
            .map_err(|source| cannot(output, source))?;
        let mut config = crate::Attr::new().with("format", settings.format.extension());
        for (name, value) in &settings.config {
            config.set(name, value.as_str());
        }
        let path = work.path().join("config.json");
        std::fs::write(&path, config.to_json() + "\n").map_err(|source| cannot(&path, source))?;
        Ok(Tree {
            root,
            work,
            file: format!("memscope_dump_{stamp}.{}", settings.format.extension()),
            format: settings.format,
            dumps: BTreeMap::new(),
        })
    }

    /// Adds a row to its device's dump.
    ///
    /// # Errors
    /// The errors of [`Writer::create`] and [`Writer::write`].
    pub fn write(&mut self, row: &Row) -> Result<(), DumpError> {
        let folder = match row.device {
            Device::Number(number) => format!("device_{number}"),
            Device::None => "device_0".to_owned(),
            Device::Cpu | Device::Host => "device_cpu".to_owned(),
        };
        let writer = match self.dumps.entry(folder) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let folder = self.work.path().join(entry.key()).join("dump");
                std::fs::create_dir_all(&folder).map_err(|source| DumpError::Write {
                    path: folder.clone(),
                    source,
                })?;
                entry.insert(Writer::create(&folder.join(&self.file), self.format)?)
            }
        };
        writer.write(row)
    }

    /// Moves all dumps and the tree to their places and returns the tree's folder.
    ///
    /// # Errors
    /// The errors of [`Writer::finish`]; another tree came to the place meanwhile, or the folder cannot be moved.
    pub fn finish(self) -> Result<PathBuf, DumpError> {
        for writer in self.dumps.into_values() {
            writer.finish()?;
        }
        absent(&self.root)?;
        let work = self.work.keep();
        std::fs::rename(&work, &self.root).map_err(|source| {
            let _ = std::fs::remove_dir_all(&work);
            DumpError::Write {
                path: self.root.clone(),
                source,
            }
        })?;
        Ok(self.root)
    }
}

/// Fails if something is at a tree's place.
fn absent(root: &Path) -> Result<(), DumpError> {
    match root.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(DumpError::Exists {
            path: root.to_owned(),
        }),
    }
}
