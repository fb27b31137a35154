//! The few operations on the disk of which the spool is made. Tests have one of them fail, and all after it, as if the program had been killed
//! there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// The disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// Operations that still go well. `None`: all.
    #[cfg(test)]
    pub left: Option<std::cell::Cell<u64>>,
}

impl Disk {
    /// Whether this operation may go well.
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(left) = &self.left {
            if left.get() == 0 {
                return Err(io::Error::other("the test has the disk fail here"));
            }
            left.set(left.get() - 1);
        }
        Ok(())
    }

    /// Writes a file and waits until it is on the disk.
    pub fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = File::create(path)?;
        // A program that is killed may have written a part.
        let (first, second) = content.split_at(content.len() / 2);
        file.write_all(first)?;
        self.step()?;
        file.write_all(second)?;
        file.sync_all()
    }

    /// Makes a folder.
    pub fn make(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        fs::create_dir(path)
    }

    /// Waits until the entries of a folder are on the disk.
    pub fn settle(&self, folder: &Path) -> io::Result<()> {
        self.step()?;
        File::open(folder)?.sync_all()
    }

    /// Gives a file or folder another name, at one stroke.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        fs::rename(from, to)
    }

    /// Removes a file. It is no error if it is not there.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes a folder with all that is in it.
    pub fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}
