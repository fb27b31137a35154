//! msMemScope's files: reading, writing, and the rules of its offline analyses.
//!
//! Owns: the rows of a `memscope_dump` ([`Row`]), their two formats on disk ([`Reader`], [`Writer`]), the tree of
//! folders that they lie in ([`Tree`]), and the questions that users of msMemScope ask of such files afterwards:
//! [`leaks`] between three marks, [`inefficient`] blocks, who [`uses`] a block, and the comparison of two runs ([`compare`]). With the
//! feature `events`, rows become the ledger's events (`events`), and those become rows (`rows`). And how a file is [`replaced`],
//! for whoever writes one.
//!
//! Refuses: clocks (times and limits are arguments), processes, the network, and trust in files: whatever is wrong with
//! a file is a [`DumpError`] that names the file, the place and the reason.
//!
//! Files have up to 8 GiB, so a reader holds only one row at a time, or one page of a table. The rules keep what they
//! need of each row.

pub mod attr;
pub mod compare;
mod csv_file;
mod error;
#[cfg(feature = "events")]
pub mod events;
mod float;
pub mod inefficient;
pub mod leaks;
mod myers;
mod reader;
pub mod replaced;
pub mod row;
#[cfg(feature = "events")]
pub mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(not(feature = "sqlite"))]
#[path = "without_sqlite.rs"]
mod sqlite;
mod texts;
mod tree;
pub mod uses;
mod writer;

pub use attr::Attr;
pub use error::{DumpError, RowError};
pub use reader::{LARGEST_BYTES, LONGEST_PATH, Reader};
pub use row::{COLUMNS, Device, Row};
pub use tree::{Settings, Tree};
pub use writer::{Format, Writer};
