//! Snapshots in files: PyTorch's pickles and ours, JSON, and recordings, all read into one form.
//!
//! Owns: telling the kinds apart, and reading them without trust. Refuses: assuming that two files are of one process
//! where they do not say so.

mod compare;
mod error;
mod json;
mod kept;
#[cfg(feature = "report")]
mod picture;
mod recorded;
#[cfg(test)]
mod tests;
mod viz;

pub(crate) use compare::{BY_PLACE, compare, limits};
pub(crate) use error::FileError;
pub(crate) use kept::SnapshotFile;

use crate::apart::apart;
use crate::failure::Failure;
use memscope_pickle::Pickle;
use memscope_proto::v1::CoverageNote;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// First bytes of each file of a recording.
const RECORDING: &[u8] = b"memscope";

/// Reads a file of any kind. `pid` chooses a process of a recording.
pub(crate) async fn read(
    path: &Path,
    pid: Option<u32>,
    timeout: Duration,
) -> Result<SnapshotFile, Failure> {
    if path.is_dir() {
        return recorded::read(path, pid, timeout).await;
    }
    match in_a_thread(path, read_file).await? {
        Some(kept) => Ok(kept),
        None => recorded::read(path, pid, timeout).await,
    }
}

/// Reads a pickle with all that a report needs, and what limits its numbers.
#[cfg(feature = "report")]
pub(crate) async fn picture(
    path: &Path,
) -> Result<(memscope_report::Picture, Vec<CoverageNote>), Failure> {
    in_a_thread(path, |_, mut from| match from.fill_buf()?.first() {
        Some(0x80) => picture::of_pickle(&Pickle::read(from)?),
        Some(_) => Err(FileError::NoPickle),
        None => Err(FileError::Empty),
    })
    .await
}

/// Reads a file in a thread of its own.
async fn in_a_thread<T: Send + 'static>(
    path: &Path,
    read: fn(&Path, BufReader<File>) -> Result<T, FileError>,
) -> Result<T, Failure> {
    let owned = path.to_owned();
    let work = move || {
        let file = File::open(&owned)?;
        read(&owned, BufReader::with_capacity(1 << 20, file))
    };
    let read = apart(work).await.map_err(FileError::from);
    read.flatten().map_err(|source| Failure::NoSnapshot {
        path: path.to_owned(),
        source,
    })
}

/// Reads a file; `None` if it is a recording.
fn read_file(path: &Path, mut from: impl BufRead) -> Result<Option<SnapshotFile>, FileError> {
    let begin = from.fill_buf()?;
    if begin.starts_with(RECORDING) {
        return Ok(None);
    }
    let first = begin.iter().find(|byte| !byte.is_ascii_whitespace());
    match (begin.first(), first) {
        (Some(0x80), _) => viz::of_pickle(path, &Pickle::read(from)?).map(Some),
        (_, Some(b'{')) => json::document(path, from).map(Some),
        (_, Some(b'[')) => json::list(path, from).map(Some),
        (None, _) => Err(FileError::Empty),
        _ => Err(FileError::Kind),
    }
}
