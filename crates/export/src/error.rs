//! Why an export failed.

use std::io;

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The output cannot be written to.
    #[error("cannot write the export")]
    Write {
        /// Error of the output.
        #[from]
        source: io::Error,
    },
    /// A trace entry has a device ordinal that the list of traces, which is indexed by ordinal, has no place for.
    #[error("a trace entry of device {device}: ordinals go from 0 to {most}")]
    Device {
        /// Device ordinal of the entry.
        device: i32,
        /// Largest ordinal that the list has a place for.
        most: i32,
    },
    /// Growth was asked for, but the report has no earlier moment to compare with.
    #[error("growth is since an earlier moment, and none was given")]
    NoEarlier,
    /// A number or a sum is larger than the format can hold.
    #[error("the numbers are too large for this format")]
    TooMuch,
}

impl From<ExportError> for io::Error {
    fn from(error: ExportError) -> io::Error {
        match error {
            ExportError::Write { source } => source,
            other => io::Error::other(other),
        }
    }
}
