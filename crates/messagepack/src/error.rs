//! Why a value could not be read.

use std::io;

/// Why a value could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source of the bytes failed.
    #[error("the bytes could not be read")]
    Read(#[source] io::Error),
    /// There are fewer bytes than the value needs.
    #[error("the bytes end within a value")]
    Ended,
    /// The bytes hold a value of another kind than the type has.
    #[error("there is {found} where {wanted} should be")]
    Kind {
        /// The kind that the bytes have.
        found: &'static str,
        /// The kind that the type asked for.
        wanted: &'static str,
    },
    /// A string is not UTF-8.
    #[error("a string is not valid UTF-8")]
    NotUtf8,
    /// A list or map has more entries than its type takes.
    #[error("a list or map has {left} entries too many")]
    TooMany {
        /// The entries that nobody took.
        left: u32,
    },
    /// Lists and maps contain one another more often than is allowed.
    #[error("lists and maps contain one another more than {0} times")]
    TooDeep(u32),
    /// What a type says of a value that it does not accept.
    #[error("{0}")]
    Invalid(String),
}

impl serde::de::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Error {
        Error::Invalid(message.to_string())
    }
}
