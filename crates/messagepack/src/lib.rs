//! Reads MessagePack, as `rmp-serde` writes it, into types that implement serde's `Deserialize`.
//!
//! Owns: the way from bytes to values. Refuses: writing (that is `rmp-serde`), and what the values mean.
//!
//! `rmp-serde` can read as well, but for each type it generates code for everything that MessagePack can hold, about 4 KiB. A checkpoint
//! has hundreds of types, and so this code was half of the ledger's in a build for tests, and a tenth of memscoped.
//! Here the functions that read bytes exist once, and a type has code only for what it asks for.

mod error;
mod read;
mod values;

pub use error::Error;

use read::Reader;
use serde::de::DeserializeOwned;
use std::io::Read;

/// Reads one value. It asks `from` for up to 64 KiB at a time, so it may read more bytes than the value has.
///
/// # Errors
///
/// [`Error`] says what is wrong with the bytes, or why they could not be read.
pub fn from_read<T: DeserializeOwned>(from: &mut dyn Read) -> Result<T, Error> {
    T::deserialize(&mut Reader::new(from, 1 << 16))
}

/// Reads one value from the beginning of `bytes`.
///
/// # Errors
///
/// As [`from_read`].
pub fn from_slice<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, Error> {
    let ahead = bytes.len().clamp(1, 1 << 12);
    T::deserialize(&mut Reader::new(&mut bytes, ahead))
}
