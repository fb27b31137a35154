//! memscope's archive: which tables there are, what their columns mean, and the rows that the daemon's answers make.
//!
//! Owns: tables, columns and their versions (`table`, `tables`), the rows that follow from answers (`rows`), where a file lies (`place`), and
//! Parquet (`file`). Refuses: I/O, and to compute anything that an answer has already.
//!
//! A number that is not known is null; it is never zero. A column is never removed and never gets another type within a version: the file
//! `columns.txt` of this crate remembers all that there were.

mod file;
mod place;
pub mod rows;
mod table;
mod tables;

pub use file::{FileError, parquet};
pub use place::{Place, encoded};
pub use table::{Cell, Column, Kind, Record, Row, Table, Time, VERSION};
pub use tables::{
    EventRow, FindingRow, GapRow, OomRow, PeakRow, SnapshotRow, StackRow, StepRow, TABLES, Whose,
};
