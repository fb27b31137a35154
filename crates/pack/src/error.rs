//! Why something could not be written or read.

use std::fmt::Display;
use std::io;

/// Why something could not be written or read. It is kept small, because each function that reads or writes hands it on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Kind>);

#[derive(Debug, thiserror::Error)]
enum Kind {
    #[error("the bytes could not be read or written")]
    Io(#[source] io::Error),
    #[error("{wanted} was expected, and there is {found}")]
    Other {
        wanted: &'static str,
        found: &'static str,
    },
    #[error("{0}")]
    Said(String),
}

impl Error {
    #[cold]
    pub(crate) fn io(error: io::Error) -> Error {
        Error(Box::new(Kind::Io(error)))
    }

    #[cold]
    pub(crate) fn other(wanted: &'static str, found: &'static str) -> Error {
        Error(Box::new(Kind::Other { wanted, found }))
    }

    #[cold]
    pub(crate) fn said(what: String) -> Error {
        Error(Box::new(Kind::Said(what)))
    }
}

impl serde::de::Error for Error {
    #[cold]
    fn custom<T: Display>(what: T) -> Error {
        Error::said(what.to_string())
    }
}

impl serde::ser::Error for Error {
    #[cold]
    fn custom<T: Display>(what: T) -> Error {
        Error::said(what.to_string())
    }
}
