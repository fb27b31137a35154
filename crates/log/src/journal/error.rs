//! Errors of journals and recordings.

use crate::records::Malformed;
use std::io;
use std::path::{Path, PathBuf};

/// Why the journal cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A setting has a value that is not allowed.
    #[error("{setting} cannot be {value}: {rule}")]
    Config {
        /// Name of the setting, in words for the message.
        setting: &'static str,
        /// The value that was given.
        value: u64,
        /// Rule that the value violates, as a sentence.
        rule: &'static str,
    },
    /// Another daemon writes a journal in this directory.
    #[error("another memscoped writes the journal in {}; stop it, or use another state directory", path.display())]
    InUse {
        /// The journal's directory.
        path: PathBuf,
    },
    /// There is already a journal with this epoch.
    #[error("there is a journal in {} already", path.display())]
    EpochTaken {
        /// The epoch's directory.
        path: PathBuf,
    },
    /// Nothing of the epoch is left that was to be gone on with.
    #[error("there is nothing left of the journal in {}", path.display())]
    NoEpoch {
        /// The epoch's directory.
        path: PathBuf,
    },
    /// The disk or the quota is full.
    #[error("no space for {}: {needed} bytes are needed; free them there, lower the journal's bounds, or use another state directory", path.display())]
    NoSpace {
        /// Path of the file that needs the space.
        path: PathBuf,
        /// Number of bytes that were to be allocated or written.
        needed: u64,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// The user has no right to write here, or the file system is read-only.
    #[error("not permitted to {doing} {}; the state directory must be writable for this user", path.display())]
    NotPermitted {
        /// Operation that failed, as a verb for the message.
        doing: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// Any other error of the system.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// Operation that failed, as a verb for the message.
        doing: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// The bytes to append are not whole records. Nothing was written, and the journal goes on.
    #[error("the bytes at {at} are no record")]
    NotRecords {
        /// Offset of the first bytes that are not a record.
        at: usize,
        /// Why these bytes are not a record.
        #[source]
        source: Malformed,
    },
    /// One call brought more records than fit into a segment.
    #[error("{bytes} bytes of records came at once, and at most {most} can be written")]
    TooMany {
        /// Bytes of the records in this call.
        bytes: u64,
        /// Maximum number of bytes for one call: [`crate::journal::Journal::most_bytes`].
        most: u64,
    },
    /// A checkpoint could not be written.
    #[error("a checkpoint could not be made")]
    Checkpoint {
        /// Error that ended the writing.
        #[source]
        source: io::Error,
    },
}

impl JournalError {
    /// Whether there would be room if something else were removed from the disk.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Self::NoSpace { source, .. } => matches!(source.kind(), StorageFull | QuotaExceeded),
            _ => false,
        }
    }

    pub(crate) fn checkpoint(source: io::Error) -> Self {
        Self::Checkpoint { source }
    }

    /// Chooses the variant by the kind of the system's error. `needed` is the number of bytes that were to be written,
    /// or 0.
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
    /// There is nothing at the path.
    #[error("there is no {}", path.display())]
    NotFound {
        /// Path that does not exist.
        path: PathBuf,
    },
    /// The user has no right to read the recording.
    #[error("not permitted to read {}", path.display())]
    NotPermitted {
        /// Path of the recording or of a file in it.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// Any other error of the system.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// Operation that failed, as a verb for the message.
        doing: &'static str,
        /// Path of the recording or of a file in it.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// The daemon joins and removes segments faster than they can be opened.
    #[error("{} changes all the time; ask again", path.display())]
    Changing {
        /// Directory of the epoch.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The path is not a memscope recording.
    #[error("{} is not a memscope recording: it {looks}", path.display())]
    NotARecording {
        /// Path that was to be opened.
        path: PathBuf,
        /// What it seems to be instead, as the end of the sentence "it …".
        looks: &'static str,
    },
    /// The directory has no segments.
    #[error("{} holds no journal segments (*.msj)", path.display())]
    NoSegments {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The file ends inside its header.
    #[error("{} ends after {len} bytes, inside its header", path.display())]
    ShortHeader {
        /// Path of the file.
        path: PathBuf,
        /// Length of the file in bytes.
        len: u64,
    },
    /// The header's check sum is wrong.
    #[error("the header of {} is damaged", path.display())]
    DamagedHeader {
        /// Path of the file.
        path: PathBuf,
    },
    /// The recording was written by a newer memscope.
    #[error("{} has {what} version {found}, this memscope reads up to {known}; use a newer one", path.display())]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Which version is too new: `format` or `record`.
        what: &'static str,
        /// Version of the file.
        found: u32,
        /// Newest version that this build can read.
        known: u32,
    },
    /// The recording was written by an older memscope, whose records had other layouts.
    #[error("{} has record version {found}, this memscope reads {known}; ask it with the memscope that wrote it", path.display())]
    Older {
        /// Path of the file.
        path: PathBuf,
        /// Record version of the file.
        found: u32,
        /// Record version of this build.
        known: u32,
    },
    /// The recording was written on a machine of the other byte order.
    #[error("{} was written on a machine of the other byte order", path.display())]
    ForeignByteOrder {
        /// Path of the file.
        path: PathBuf,
    },
    /// The recording was written on another architecture.
    #[error("{} was written on {found}, this is {here}", path.display())]
    ForeignArchitecture {
        /// Path of the file.
        path: PathBuf,
        /// Architecture of the writer.
        found: String,
        /// Architecture of this machine.
        here: &'static str,
    },
    /// A checkpoint cannot be read.
    #[error("the state that {} begins with cannot be read: it is damaged, or was written by another version of memscope", path.display())]
    Checkpoint {
        /// Path of the file with the checkpoint: the recording, a segment, or the file beside a segment.
        path: PathBuf,
        /// Why the checkpoint cannot be read.
        #[source]
        source: io::Error,
    },
    /// The beginning of the journal is gone, and no segment that is left has a checkpoint to begin with.
    #[error("{} has no checkpoint: its first part is gone, and what is left of it cannot be understood alone", path.display())]
    NoBeginning {
        /// Path of the recording.
        path: PathBuf,
    },
    /// The recording contains segments of another epoch.
    #[error("{} belongs to another recording (epoch {found}, not {epoch})", path.display())]
    MixedEpochs {
        /// Path of the file with the foreign segment.
        path: PathBuf,
        /// The recording's epoch.
        epoch: u64,
        /// The epoch of the foreign segment.
        found: u64,
    },
    /// The file to export to exists already. Exports never overwrite a file.
    #[error("{} is there already", path.display())]
    ExportExists {
        /// Path of the file to export to.
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
