//! Dumps as tables of SQLite files.

mod rows;
mod writer;

pub(crate) use rows::TableRows;
pub(crate) use writer::TableWriter;

/// Name of the table, and its name in files of older versions.
const TABLES: [&str; 2] = ["memscope_dump", "leaks_dump"];
