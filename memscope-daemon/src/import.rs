//! Makes a recording of a dump of msMemScope's or of a snapshot of PyTorch's: `memscoped --import FILE --output DIR`.
//!
//! The dump's rows or the snapshot's blocks and trace become events, the events become records, and the records become a journal of one
//! epoch, which is what a recording is. The journal is moved to its place when it is complete.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use memscope_dump::events::{FUNCTIONS, import as import_rows};
use memscope_dump::{DumpError, Reader};
use memscope_ledger::event::{Body, Call, CallOp, Event, Layer, ProcessHandle, Vendor};
use memscope_log::records::{DaemonRecord, EncodeError, SiteDefined, Stamp, encode, held_parts};
use memscope_log::{ClockPair, Config, Journal, JournalError};
use memscope_pickle::events::About;
use memscope_pickle::{NotASnapshot, Pickle, PickleError};
use serde::Serialize;

/// Number of bytes of records that are appended together.
const BATCH: usize = 1 << 20;
/// Size of a segment in bytes. Nothing of an import may be dropped, so the journal as a whole has no bound.
const SEGMENT: u64 = 16 << 20;

/// First byte of a pickle.
const PICKLE: u8 = 0x80;

/// What [`import`] has written.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    /// Folder of the recording.
    pub recording: PathBuf,
    /// Number of rows in the dump, or of entries in the snapshot's traces.
    pub rows: u64,
    /// Number of these rows that are not in the recording; its coverage says which.
    pub rows_left_out: u64,
    /// Number of events in the recording.
    pub events: u64,
    /// Number of processes in the recording.
    pub processes: u64,
}

/// Why no recording could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The dump cannot be read.
    #[error("the dump cannot be imported ({})", source.hint())]
    Dump {
        /// Error of reading or converting the dump.
        #[source]
        source: DumpError,
    },
    /// The dump has no row.
    #[error("{path} has a header and no rows: there is nothing to import")]
    NoRows {
        /// Path of the dump.
        path: PathBuf,
    },
    /// The output exists already and is no empty folder.
    #[error("{path} is there already and is no empty folder: choose another with --output")]
    Taken {
        /// Path of the output.
        path: PathBuf,
    },
    /// What is to be imported is a pipe or a directory.
    #[error("{path} is no file that can be read again: save it as one first")]
    NotAFile {
        /// Path of the pipe or directory.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The output folder cannot be made.
    #[error("{path} cannot be written")]
    Write {
        /// Path of the output.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The journal cannot be written.
    #[error("the recording cannot be written")]
    Journal(#[from] JournalError),
    /// The file is no pickle that can be read.
    #[error("the snapshot cannot be imported (is it the whole file that PyTorch wrote?)")]
    Pickle(#[from] PickleError),
    /// The pickle holds no snapshot.
    #[error("the snapshot cannot be imported (is it what torch.cuda.memory._dump_snapshot wrote?)")]
    NotASnapshot(#[from] NotASnapshot),
    /// An event cannot be written as a record.
    #[error("an event cannot be written")]
    Encode(#[from] EncodeError),
}

/// Makes a recording of the dump or snapshot `file` in the folder `output`.
///
/// # Errors
/// The file cannot be read or a dump has no row, the output exists already, or the recording cannot be written.
pub fn import(file: &Path, output: &Path) -> Result<Made, ImportError> {
    if fs::metadata(file).is_ok_and(|facts| !facts.is_file()) {
        return Err(ImportError::NotAFile {
            path: file.to_owned(),
        });
    }
    // Check the output first, because reading a dump may take minutes.
    let cannot = |source| ImportError::Write {
        path: output.to_owned(),
        source,
    };
    match fs::read_dir(output).map(|mut entries| entries.next().is_some()) {
        Ok(false) => {}
        Ok(true) => {
            return Err(ImportError::Taken {
                path: output.to_owned(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(ImportError::Taken {
                path: output.to_owned(),
            });
        }
        Err(error) => return Err(cannot(error)),
    }
    let beside = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let work = tempfile::Builder::new()
        .prefix(".memscope-import-")
        .tempdir_in(beside)
        .map_err(cannot)?;
    let (epoch_dir, made) = match is_pickle(file) {
        true => of_snapshot(file, work.path())?,
        false => of_dump(file, work.path())?,
    };
    fs::rename(&epoch_dir, output).map_err(cannot)?;
    Ok(Made {
        recording: output.to_owned(),
        ..made
    })
}

/// Whether a file begins as a pickle does. Of a pipe nothing is read: that might wait for ever, and take what another one needs.
pub fn is_pickle(file: &Path) -> bool {
    if !fs::metadata(file).is_ok_and(|facts| facts.is_file()) {
        return false;
    }
    let mut first = [0];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == [PICKLE]
}

/// Makes a recording of a snapshot in a folder of its own.
///
/// # Errors
/// The snapshot cannot be read, or the recording cannot be written.
pub fn of_snapshot(file: &Path, dir: &Path) -> Result<(PathBuf, Made), ImportError> {
    let cannot = |source| ImportError::Read {
        path: file.to_owned(),
        source,
    };
    let opened = File::open(file).map_err(cannot)?;
    let written = opened.metadata().and_then(|facts| facts.modified());
    let written = written.map_err(cannot)?.duration_since(UNIX_EPOCH);
    let written_ns = written.map_or(0, |since| since.as_nanos());
    let pickle = Pickle::read(BufReader::with_capacity(1 << 20, opened))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let about = About {
        name: &name,
        written_ns: u64::try_from(written_ns).unwrap_or(0),
    };
    let mut writing: Option<Writing> = None;
    let mut take = |event: Event| -> Result<(), ImportError> {
        let writing = match &mut writing {
            Some(writing) => writing,
            None => writing.insert(Writing::begin(dir, event.id.epoch, event.time_ns)?),
        };
        match event.body {
            Body::Held(reading) => {
                for part in held_parts(*reading) {
                    let body = Body::Held(Box::new(part));
                    writing.add(&Event {
                        body,
                        stack: event.stack,
                        ..event
                    })?;
                }
                Ok(())
            }
            _ => writing.add(&event),
        }
    };
    let counts = memscope_pickle::events::import(&pickle, &about, &mut take)?;
    let Some(writing) = writing else {
        return Err(ImportError::NoRows {
            path: file.to_owned(),
        });
    };
    let (epoch_dir, events) = writing.end()?;
    let made = Made {
        recording: epoch_dir.clone(),
        rows: counts.entries,
        rows_left_out: counts.left_out,
        events,
        processes: 1,
    };
    Ok((epoch_dir, made))
}

fn of_dump(file: &Path, dir: &Path) -> Result<(PathBuf, Made), ImportError> {
    let dump = |source| ImportError::Dump { source };
    let imported = import_rows(Reader::open(file).map_err(dump)?).map_err(dump)?;
    if imported.rows == 0 {
        return Err(ImportError::NoRows {
            path: file.to_owned(),
        });
    }
    let epoch = imported.events.first().map_or(1, |event| event.id.epoch);
    let mut writing = Writing::begin(dir, epoch, imported.begun_unix_ns)?;
    for event in &imported.events {
        writing.add(event)?;
    }
    let (epoch_dir, events) = writing.end()?;
    let attached = |event: &&Event| matches!(event.body, Body::Attached(_));
    let made = Made {
        recording: epoch_dir.clone(),
        rows: imported.rows,
        rows_left_out: imported.left_out,
        events,
        processes: imported.events.iter().filter(attached).count() as u64,
    };
    Ok((epoch_dir, made))
}

/// A journal that is being written. Nothing of an import is ever removed, so it is always read from its beginning and needs no
/// checkpoint.
struct Writing {
    journal: Journal,
    batch: Vec<u8>,
    written: u64,
}

impl Writing {
    fn begin(dir: &Path, epoch: u64, begun_ns: u64) -> Result<Writing, ImportError> {
        let clock = ClockPair {
            boot_ns: begun_ns,
            unix_ns: begun_ns,
        };
        let mut config = Config::new(epoch, [0; 16], clock);
        config.segment_bytes = SEGMENT;
        config.total_bytes = u64::MAX;
        Ok(Writing {
            journal: Journal::create(dir, config)?,
            batch: sites(begun_ns)?.concat(),
            written: 0,
        })
    }

    fn add(&mut self, event: &Event) -> Result<(), ImportError> {
        if let Some(record) = encode(event, site(&event.body))? {
            self.batch.extend_from_slice(&record);
            self.written += 1;
        }
        if self.batch.len() >= BATCH {
            self.journal.append(&self.batch, 0, None)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// The folder of the journal's epoch, and the number of events in it.
    fn end(mut self) -> Result<(PathBuf, u64), ImportError> {
        self.journal.append(&self.batch, 0, None)?;
        Ok((self.journal.epoch_dir().to_owned(), self.written))
    }
}

/// Records that define the functions which calls name.
fn sites(time_ns: u64) -> Result<Vec<Vec<u8>>, EncodeError> {
    let ops = [
        CallOp::Alloc,
        CallOp::Free,
        CallOp::HostAlloc,
        CallOp::HostFree,
    ];
    let stamp = Stamp {
        process: ProcessHandle(0),
        tid: 0,
        time_ns,
        lost_before: 0,
    };
    (1..)
        .zip(FUNCTIONS)
        .zip(ops)
        .map(|((site, function), op)| {
            DaemonRecord::SiteDefined(SiteDefined {
                site,
                function: function.to_owned(),
                layer: Some(Layer::Driver),
                vendor: Some(Vendor::Ascend),
                op: Some(op),
                library: "msMemScope".to_owned(),
                offset: 0,
            })
            .encode(stamp)
        })
        .collect()
}

/// Number of the site that stands for a call's function; 0 for other events.
fn site(body: &Body) -> u32 {
    match body {
        Body::Call(Call { function, .. }) => (1..)
            .zip(FUNCTIONS)
            .find(|(_, own)| **own == **function)
            .map_or(0, |(site, _)| site),
        _ => 0,
    }
}
