//! The log: how records are decoded and encoded, and how they are kept on disk.
//!
//! Owns: the reading and writing of records ([`records`]), and the journal on disk, whose format is also the format of
//! recordings. Refuses: the meaning of events, which belongs to the ledger.

mod journal;
pub mod records;

pub use journal::*;
