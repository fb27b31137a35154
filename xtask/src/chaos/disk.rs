//! A disk that is full, fails, or is slow.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::process;

/// What is wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// It is full, and takes nothing that becomes free either.
    Full,
    /// Whatever is written fails (EIO).
    Errors,
    /// Each call takes so many milliseconds longer.
    Slow(u64),
}

impl Trouble {
    /// Begins the trouble on the disk at `disk`. The file `faults` is the one that [`build`]'s library looks at.
    pub fn begin(self, disk: &Path, faults: PathBuf) -> Result<Troubled> {
        let words = match self {
            Trouble::Full => return fill(disk.join("filler")),
            Trouble::Errors => "eio".to_owned(),
            Trouble::Slow(ms) => format!("slow {ms}"),
        };
        std::fs::write(&faults, words)?;
        Ok(Troubled {
            file: faults,
            stop: None,
            thread: None,
        })
    }
}

/// A disk in trouble, until this is dropped.
pub struct Troubled {
    /// With this file the trouble ends.
    file: PathBuf,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Troubled {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Fills the disk, and takes all that becomes free there.
fn fill(path: PathBuf) -> Result<Troubled> {
    let mut file = File::create(&path)?;
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (much, little) = (vec![1; 1 << 20], vec![1; 4096]);
        while stopped.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
            while file.write_all(&much).is_ok() {}
            while file.write_all(&little).is_ok() {}
        }
    });
    Ok(Troubled {
        file: path,
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Builds the library that makes calls fail, in `folder`.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let library = folder.join("faults.so");
    process::run(
        Command::new("cc")
            .args(["-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra"])
            .arg("-Werror")
            .arg("-o")
            .arg(&library)
            .arg(process::root().join("xtask/chaos/faults.c")),
    )?;
    Ok(library)
}
