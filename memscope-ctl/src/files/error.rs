//! Why a file is no snapshot.

use memscope_pickle::{NotASnapshot, PickleError};
use std::io;

/// Why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error("it is no snapshot as JSON")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Snapshot(#[from] NotASnapshot),
    #[error("it holds no snapshot: {0}")]
    Shape(String),
    #[error("a report is made of pickles of protocol 2 to 5, and it does not begin as one does")]
    NoPickle,
    #[error("it is empty")]
    Empty,
    #[error("it begins neither as a pickle of protocol 2 to 5 nor as JSON nor as a recording")]
    Kind,
}
