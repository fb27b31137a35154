//! The log: what a record says, and where records are kept.
//!
//! Owns: the reading and writing of records ([`records`]), and the journal on disk, which is the format of recordings, too. Refuses:
//! what events mean (that is the ledger's).

mod journal;
pub mod records;

pub use journal::*;
