//! Why an export failed.

use std::io;

/// An export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The output does not take it.
    #[error("cannot write the export")]
    Write {
        /// Why.
        #[from]
        source: io::Error,
    },
    /// A device ordinal for which there is no place among the traces, which are a list by ordinal.
    #[error("a trace entry of device {device}: ordinals go from 0 to {most}")]
    Device {
        /// The ordinal.
        device: i32,
        /// The largest.
        most: i32,
    },
    /// Growth of a report that was compared with nothing.
    #[error("growth is since an earlier moment, and none was given")]
    NoEarlier,
    /// Sums that the format cannot hold.
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
