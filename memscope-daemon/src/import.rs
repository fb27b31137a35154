//! Makes a recording of a dump of msMemScope's: `memscoped --import FILE --output DIR`.
//!
//! The dump's rows become events, the events become records, and the records become a journal of one epoch, which is
//! what a recording is. The journal is moved to its place when it is complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use memscope_dump::events::{FUNCTIONS, Imported, import as import_rows};
use memscope_dump::{DumpError, Reader};
use memscope_ledger::event::{Body, Call, CallOp, Event, Layer, ProcessHandle, Vendor};
use memscope_log::records::{DaemonRecord, EncodeError, SiteDefined, Stamp, encode};
use memscope_log::{ClockPair, Config, Journal, JournalError};
use serde::Serialize;

/// Number of bytes of records that are appended together.
const BATCH: usize = 1 << 20;
/// Size of a segment in bytes. Nothing of an import may be dropped, so the journal as a whole has no bound.
const SEGMENT: u64 = 16 << 20;

/// What [`import`] has written.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    /// Folder of the recording.
    pub recording: PathBuf,
    /// Number of rows in the dump.
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
    /// An event cannot be written as a record.
    #[error("an event cannot be written")]
    Encode(#[from] EncodeError),
}

/// Makes a recording of the dump `file` in the folder `output`.
///
/// # Errors
/// The dump cannot be read or has no row, the output exists already, or the recording cannot be written.
pub fn import(file: &Path, output: &Path) -> Result<Made, ImportError> {
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
    let dump = |source| ImportError::Dump { source };
    let imported = import_rows(Reader::open(file).map_err(dump)?).map_err(dump)?;
    if imported.rows == 0 {
        return Err(ImportError::NoRows {
            path: file.to_owned(),
        });
    }
    let beside = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let work = tempfile::Builder::new()
        .prefix(".memscope-import-")
        .tempdir_in(beside)
        .map_err(cannot)?;
    let (epoch_dir, events) = write(work.path(), &imported)?;
    fs::rename(&epoch_dir, output).map_err(cannot)?;
    let attached = |event: &&Event| matches!(event.body, Body::Attached(_));
    Ok(Made {
        recording: output.to_owned(),
        rows: imported.rows,
        rows_left_out: imported.left_out,
        events,
        processes: imported.events.iter().filter(attached).count() as u64,
    })
}

/// Writes the journal. Returns the folder of its epoch, and the number of events in it.
fn write(dir: &Path, imported: &Imported) -> Result<(PathBuf, u64), ImportError> {
    let begun = imported.begun_unix_ns;
    let epoch = imported.events.first().map_or(1, |event| event.id.epoch);
    let clock = ClockPair {
        boot_ns: begun,
        unix_ns: begun,
    };
    let mut config = Config::new(epoch, [0; 16], clock);
    config.segment_bytes = SEGMENT;
    config.total_bytes = u64::MAX;
    let mut journal = Journal::create(dir, config)?;
    let mut batch: Vec<u8> = sites(begun)?.concat();
    let mut written = 0;
    for event in &imported.events {
        if let Some(record) = encode(event, site(&event.body))? {
            batch.extend_from_slice(&record);
            written += 1;
        }
        if batch.len() >= BATCH {
            // Nothing of an import is ever removed, so it is always read from its beginning and needs no checkpoint.
            journal.append(&batch, 0, None)?;
            batch.clear();
        }
    }
    journal.append(&batch, 0, None)?;
    Ok((journal.epoch_dir().to_owned(), written))
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
