//! The folder of a report: it is there as a whole, or not at all, and `latest` points to the newest.

use crate::failure::Failure;
use memscope_report::File;
use std::cell::Cell;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The link to the newest report.
const LATEST: &str = "latest";
/// How often another name is tried where a report of the same second and name is there.
const MOST_TRIES: u32 = 100;

/// A folder that is being filled. It is deleted if it is dropped.
pub(super) struct Folder {
    beside: TempDir,
    output: PathBuf,
    /// Bytes of all files that were written.
    bytes: Cell<u64>,
}

impl Folder {
    /// Makes an empty folder within `output`, which is made where it is not there.
    pub(super) fn make(output: &Path) -> Result<Folder, Failure> {
        let failed = |source| cannot(output, "no report can be written into", source);
        fs::create_dir_all(output).map_err(failed)?;
        let latest = output.join(LATEST);
        if fs::symlink_metadata(&latest).is_ok_and(|what| !what.is_symlink()) {
            return Err(Failure::Usage {
                what: format!(
                    "{} is there and is no symbolic link, so that it cannot point to the newest report",
                    latest.display()
                ),
                hint: "move it away, or choose another folder with -o DIR".to_owned(),
            });
        }
        let beside = tempfile::Builder::new()
            .prefix(".memscope-")
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(output)
            .map_err(failed)?;
        Ok(Folder {
            beside,
            output: output.to_owned(),
            bytes: Cell::default(),
        })
    }

    /// Writes one file.
    pub(super) fn write(&self, (name, content): &File) -> Result<(), Failure> {
        let path = self.beside.path().join(name);
        let write = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = fs::File::create_new(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(|source| cannot(&self.output.join(name), "cannot write", source))?;
        self.bytes.set(self.bytes.get() + content.len() as u64);
        Ok(())
    }

    /// Bytes of all files that were written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Gives the folder its name, and points `latest` to it. Returns its path.
    pub(super) fn finish(self, name: &str) -> Result<PathBuf, Failure> {
        let failed = |source| cannot(&self.output, "the report cannot be put into", source);
        let mut chosen = name.to_owned();
        for number in 2..MOST_TRIES {
            let path = self.output.join(&chosen);
            if fs::symlink_metadata(&path).is_err() {
                fs::rename(self.beside.path(), &path).map_err(failed)?;
                // What it was called before is gone: nothing is left to delete.
                let _ = self.beside.keep();
                point(&self.output, &chosen).map_err(failed)?;
                return Ok(path);
            }
            chosen = format!("{name}_{number}");
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }
}

/// Points `latest` to a folder beside it, in one step.
fn point(output: &Path, name: &str) -> io::Result<()> {
    let room = tempfile::Builder::new()
        .prefix(".memscope-")
        .tempdir_in(output)?;
    let link = room.path().join(LATEST);
    symlink(name, &link)?;
    fs::rename(&link, output.join(LATEST))?;
    fs::File::open(output)?.sync_all()
}

fn cannot(path: &Path, what: &str, source: io::Error) -> Failure {
    Failure::Output {
        what: format!("{what} {}", path.display()),
        source,
    }
}
