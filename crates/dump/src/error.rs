//! Errors of files and their rows.

use std::io;
use std::path::PathBuf;

/// Why a dump cannot be read or written. [`DumpError::hint`] says what the user can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The path is longer than msMemScope's own analyses accept.
    #[error(
        "a path of {length} bytes is too long: {} is the most",
        crate::LONGEST_PATH
    )]
    PathTooLong {
        /// Length of the path in bytes.
        length: usize,
    },
    /// The path leads to a folder, a pipe, a socket or a device.
    #[error("{path} is no regular file but {found}")]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
        /// What the path leads to, in words for the message.
        found: &'static str,
    },
    /// The file has no content.
    #[error("{path} is empty")]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is larger than the dumps that msMemScope writes.
    #[error(
        "{path} has {bytes} bytes, more than the {} that a dump has",
        crate::LARGEST_BYTES
    )]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The file cannot be opened or read.
    #[error("{path} cannot be read")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file or its folder cannot be written.
    #[error("{path} cannot be written")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file's name ends in `.db`, but it is no SQLite file.
    #[error("{path} is called a database and is no SQLite file")]
    NotSqlite {
        /// Path of the file.
        path: PathBuf,
    },
    /// The first line is not that of a dump.
    #[error(
        "{path} does not begin with the header of a memscope_dump: its first line is {found:?}, expected is {:?}",
        crate::row::header()
    )]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Beginning of the first line.
        found: String,
    },
    /// The file lacks columns of a dump, or has columns that a dump does not have.
    #[error(
        "{path} has other columns than a memscope_dump: {} missing, {} unknown; found are {}",
        list(missing),
        list(unknown),
        list(found)
    )]
    Columns {
        /// Path of the file.
        path: PathBuf,
        /// Columns that the file lacks.
        missing: Vec<String>,
        /// Columns that a dump does not have.
        unknown: Vec<String>,
        /// All columns of the file.
        found: Vec<String>,
    },
    /// The database has no table of a dump.
    #[error(
        "{path} is a .db of another version: expected is a table memscope_dump (or leaks_dump, of older versions); found are {}",
        list(found)
    )]
    Table {
        /// Path of the file.
        path: PathBuf,
        /// Names of the database's tables.
        found: Vec<String>,
    },
    /// The database's table has other columns than a dump.
    #[error("{path} is a .db of another version: its table {table} has the columns {}; expected are {}", list(found), list(&crate::COLUMNS.map(String::from)))]
    TableColumns {
        /// Path of the file.
        path: PathBuf,
        /// Name of the table.
        table: String,
        /// Columns of the table.
        found: Vec<String>,
    },
    /// A row cannot be read.
    #[error("{path}: {} is wrong", place(*line, id.as_deref()))]
    Row {
        /// Path of the file.
        path: PathBuf,
        /// Line of the row in a CSV file, or its row id in a table.
        line: u64,
        /// Beginning of the text in the column ID; `None` if it could not be read.
        id: Option<String>,
        /// What is wrong with the row.
        source: RowError,
    },
    /// The file is to be an SQLite file, and memscope was built without SQLite.
    #[error("{path}: this program was built without SQLite")]
    WithoutSqlite {
        /// Path of the file.
        path: PathBuf,
    },
    /// SQLite returned an error.
    #[cfg(feature = "sqlite")]
    #[error("{path}: SQLite cannot {doing}")]
    Sqlite {
        /// Path of the file.
        path: PathBuf,
        /// Operation that failed, in words for the message.
        doing: &'static str,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The folder that is to be made exists already.
    #[error("{path} is there already")]
    Exists {
        /// Path of the folder.
        path: PathBuf,
    },
    /// A number is larger than the file's format can hold.
    #[error("{path}: the {column} {number} of row {id} is larger than a database holds")]
    TooLargeNumber {
        /// Path of the file.
        path: PathBuf,
        /// Column of the number.
        column: &'static str,
        /// The number itself.
        number: u64,
        /// ID of the row.
        id: u64,
    },
}

/// What is wrong with one row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The text of a cell is not what its column holds.
    #[error("{column} is {text:?}, expected is {expected}")]
    Value {
        /// Column of the cell.
        column: &'static str,
        /// Beginning of the cell's text.
        text: String,
        /// What the column holds, in words for the message.
        expected: &'static str,
    },
    /// The row has too many or too few cells.
    #[error("it has {found} cells, expected are {expected}")]
    Cells {
        /// Number of cells in the row.
        found: usize,
        /// Number of cells in the header.
        expected: usize,
    },
    /// The row has no end; in all likelihood a quote is not closed.
    #[error("it does not end within {bytes} bytes: is a quote left open?")]
    Endless {
        /// Longest row that is allowed, in bytes.
        bytes: u64,
    },
    /// An attribute is missing: the row of an allocation does not say how large it is.
    #[error("its Attr says no {name}")]
    NoAttr {
        /// Name of the missing attribute.
        name: &'static str,
    },
}

impl DumpError {
    /// What the user can do about it, in words for the message.
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
            DumpError::WithoutSqlite { .. } => {
                "use CSV, or a program that was built with its default features"
            }
            #[cfg(feature = "sqlite")]
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

/// The beginning of a text from a file, for a message.
pub(crate) fn beginning(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}
