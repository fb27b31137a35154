//! What can be wrong with a file.

use std::io;
use std::path::PathBuf;

/// Why a dump cannot be read or written. Each names the file; [`DumpError::hint`] is the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The path is longer than msMemScope itself takes.
    #[error(
        "a path of {length} bytes is too long: {} is the most",
        crate::LONGEST_PATH
    )]
    PathTooLong {
        /// Bytes of the path.
        length: usize,
    },
    /// A folder, a pipe, a device.
    #[error("{path} is no regular file but {found}")]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Nothing is in it.
    #[error("{path} is empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More than msMemScope writes.
    #[error(
        "{path} has {bytes} bytes, more than the {} that a dump has",
        crate::LARGEST_BYTES
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It cannot be opened or read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("{path} cannot be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is called `.db` and is none.
    #[error("{path} is called a database and is no SQLite file")]
    NotSqlite {
        /// The file.
        path: PathBuf,
    },
    /// The first line is not that of a dump.
    #[error(
        "{path} does not begin with the header of a memscope_dump: its first line is {found:?}, expected is {:?}",
        crate::row::header()
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// The beginning of the line.
        found: String,
    },
    /// Columns are missing or unknown.
    #[error(
        "{path} has other columns than a memscope_dump: {} missing, {} unknown; found are {}",
        list(missing),
        list(unknown),
        list(found)
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Those that are not there.
        missing: Vec<String>,
        /// Those that do not belong there.
        unknown: Vec<String>,
        /// All that are there.
        found: Vec<String>,
    },
    /// A database without the table.
    #[error(
        "{path} is a .db of another version: expected is a table memscope_dump (or leaks_dump, of older versions); found are {}",
        list(found)
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// Its tables.
        found: Vec<String>,
    },
    /// A database whose table has other columns.
    #[error("{path} is a .db of another version: its table {table} has the columns {}; expected are {}", list(found), list(&crate::COLUMNS.map(String::from)))]
    TableColumns {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// Its columns.
        found: Vec<String>,
    },
    /// One row.
    #[error("{path}: {} is wrong", place(*line, id.as_deref()))]
    Row {
        /// The file.
        path: PathBuf,
        /// Line of a CSV file, row of a table.
        line: u64,
        /// What stands in the column ID.
        id: Option<String>,
        /// What is wrong.
        source: RowError,
    },
    /// SQLite's own complaint.
    #[error("{path}: SQLite cannot {doing}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why not.
        source: rusqlite::Error,
    },
    /// There is a file at this place already.
    #[error("{path} is there already")]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// A number that the file's format has no room for.
    #[error("{path}: the {column} {number} of row {id} is larger than a database holds")]
    TooLargeNumber {
        /// The file.
        path: PathBuf,
        /// Which column.
        column: &'static str,
        /// The number.
        number: u64,
        /// The row's ID.
        id: u64,
    },
}

/// What is wrong with one row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// Not what the column holds.
    #[error("{column} is {text:?}, expected is {expected}")]
    Value {
        /// Which column.
        column: &'static str,
        /// The beginning of what it says.
        text: String,
        /// What it should say.
        expected: &'static str,
    },
    /// Too many or too few cells.
    #[error("it has {found} cells, expected are {expected}")]
    Cells {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A quote that is not closed, in all likelihood.
    #[error("it does not end within {bytes} bytes: is a quote left open?")]
    Endless {
        /// How far was read.
        bytes: u64,
    },
    /// An allocation that does not say how large it is.
    #[error("its Attr says no {name}")]
    NoAttr {
        /// Which is missing.
        name: &'static str,
    },
}

impl DumpError {
    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            DumpError::PathTooLong { .. } => "move the file to a shorter path",
            DumpError::NotAFile { .. } => {
                "name a memscope_dump_*.csv or .db; msMemScope puts them into device_N/dump"
            }
            DumpError::Empty { .. } => "did the traced program end before anything was written?",
            DumpError::TooLarge { .. } => "trace for a shorter time, or with fewer events",
            DumpError::Read { .. } => "check the path and its permissions",
            DumpError::Write { .. } => "is there room, and may this user write there?",
            DumpError::NotSqlite { .. } => "is it whole? a CSV file is to be called .csv",
            DumpError::Header { .. } | DumpError::Columns { .. } => {
                "give a memscope_dump_*.csv as msMemScope wrote it; other files of its tree have other columns"
            }
            DumpError::Table { .. } | DumpError::TableColumns { .. } => {
                "collect with --format csv, or convert it with the version that wrote it"
            }
            DumpError::Row { .. } => {
                "repair or remove that row; was the file cut off while it was written?"
            }
            DumpError::Sqlite { .. } => "is it whole, and does nobody write to it?",
            DumpError::Exists { .. } => "choose another place, or remove what is there",
            DumpError::TooLargeNumber { .. } => "write CSV instead",
        }
    }
}

fn list(words: &[String]) -> String {
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}

fn place(line: u64, id: Option<&str>) -> String {
    match id {
        Some(id) => format!("the row at line {line} (ID {id})"),
        None => format!("the row at line {line}"),
    }
}

/// The beginning of foreign text, for a message.
pub(crate) fn beginning(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}
