//! What can go wrong with journals and recordings.

use crate::records::Malformed;
use std::io;
use std::path::{Path, PathBuf};

/// Why the journal cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A setting that cannot be.
    #[error("{setting} cannot be {value}: {rule}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// What holds for it.
        rule: &'static str,
    },
    /// Another daemon writes here.
    #[error("another memscoped writes the journal in {}; stop it, or use another state directory", path.display())]
    InUse {
        /// The journal's directory.
        path: PathBuf,
    },
    /// There is a journal with this epoch.
    #[error("there is a journal in {} already", path.display())]
    EpochTaken {
        /// The epoch's directory.
        path: PathBuf,
    },
    /// The disk or the quota is full.
    #[error("no space for {}: {needed} bytes are needed; free them there, lower the journal's bounds, or use another state directory", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes.
        needed: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No right to write here, or a read-only file system.
    #[error("not permitted to {doing} {}; the state directory must be writable for this user", path.display())]
    NotPermitted {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Anything else from the system.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The bytes to append are not whole records. Nothing was written; the journal goes on.
    #[error("the bytes at {at} are no record")]
    NotRecords {
        /// Offset in the bytes.
        at: usize,
        /// Why.
        #[source]
        source: Malformed,
    },
    /// More records at once than fit into a segment.
    #[error("{bytes} bytes of records came at once, and at most {most} can be written")]
    TooMany {
        /// Bytes of the records.
        bytes: u64,
        /// See [`crate::journal::Journal::most_bytes`].
        most: u64,
    },
    /// A checkpoint cannot be written.
    #[error("a checkpoint could not be made")]
    Checkpoint {
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

impl JournalError {
    pub(crate) fn checkpoint(source: io::Error) -> Self {
        Self::Checkpoint { source }
    }

    /// Sorts what the system said. `needed` are the bytes that were to be written, if any were.
    pub(crate) fn of(doing: &'static str, path: &Path, needed: u64, source: io::Error) -> Self {
        use io::ErrorKind::{
            FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
        };
        let path = path.to_path_buf();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::NoSpace {
                path,
                needed,
                source,
            },
            PermissionDenied | ReadOnlyFilesystem => Self::NotPermitted {
                doing,
                path,
                source,
            },
            _ => Self::Io {
                doing,
                path,
                source,
            },
        }
    }
}

/// Why a recording cannot be read or exported.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Nothing there.
    #[error("there is no {}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// No right to read it.
    #[error("not permitted to read {}", path.display())]
    NotPermitted {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Anything else from the system.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Segments come and go faster than they can be opened.
    #[error("{} changes all the time; ask again", path.display())]
    Changing {
        /// The directory of the epoch.
        path: PathBuf,
    },
    /// A file of zero bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// Something else.
    #[error("{} is not a memscope recording: it {looks}", path.display())]
    NotARecording {
        /// The path.
        path: PathBuf,
        /// What it is instead, as far as one can see.
        looks: &'static str,
    },
    /// A directory without segments.
    #[error("{} holds no journal segments (*.msj)", path.display())]
    NoSegments {
        /// The directory.
        path: PathBuf,
    },
    /// The file ends inside its header.
    #[error("{} ends after {len} bytes, inside its header", path.display())]
    ShortHeader {
        /// The path.
        path: PathBuf,
        /// Bytes there.
        len: u64,
    },
    /// The header's check sum is wrong.
    #[error("the header of {} is damaged", path.display())]
    DamagedHeader {
        /// The path.
        path: PathBuf,
    },
    /// Written by a newer memscope.
    #[error("{} has {what} version {found}, this memscope reads up to {known}; use a newer one", path.display())]
    Newer {
        /// The path.
        path: PathBuf,
        /// `format` or `record`.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The newest that we know.
        known: u32,
    },
    /// Written by an older memscope, whose records were laid out differently.
    #[error("{} has record version {found}, this memscope reads {known}; ask it with the memscope that wrote it", path.display())]
    Older {
        /// The path.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The one that we know.
        known: u32,
    },
    /// Written on a machine of the other byte order.
    #[error("{} was written on a machine of the other byte order", path.display())]
    ForeignByteOrder {
        /// The path.
        path: PathBuf,
    },
    /// Written on another architecture.
    #[error("{} was written on {found}, this is {here}", path.display())]
    ForeignArchitecture {
        /// The path.
        path: PathBuf,
        /// Architecture of the writer.
        found: String,
        /// Architecture of this machine.
        here: &'static str,
    },
    /// A checkpoint that cannot be read.
    #[error("the state that {} begins with cannot be read: it is damaged, or was written by another version of memscope", path.display())]
    Checkpoint {
        /// The recording, or the segment file in it.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The beginning of the journal is gone, and nothing in what is left says what was before.
    #[error("{} has no checkpoint: its first part is gone, and what is left of it cannot be understood alone", path.display())]
    NoBeginning {
        /// The recording, or the segment file in it.
        path: PathBuf,
    },
    /// Parts of two recordings in one.
    #[error("{} belongs to another recording (epoch {found}, not {epoch})", path.display())]
    MixedEpochs {
        /// The path.
        path: PathBuf,
        /// The recording's epoch.
        epoch: u64,
        /// The epoch found.
        found: u64,
    },
    /// The file to export to is there. Exports overwrite nothing.
    #[error("{} is there already", path.display())]
    ExportExists {
        /// The path.
        path: PathBuf,
    },
}

impl RecordingError {
    pub(crate) fn of(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::NotPermitted { path, source },
            _ => Self::Io {
                doing,
                path,
                source,
            },
        }
    }
}
