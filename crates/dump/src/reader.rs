//! Reads rows from a file.

use crate::csv_file::CsvRows;
use crate::error::DumpError;
use crate::row::Row;
use crate::sqlite::TableRows;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Largest file that is read, in bytes. msMemScope's own analyses have the same limit.
pub const LARGEST_BYTES: u64 = 8 << 30;
/// Longest path of a file, in bytes. msMemScope's own analyses have the same limit.
pub const LONGEST_PATH: usize = 4096;

/// First bytes of an SQLite file (<https://www.sqlite.org/fileformat.html#magic_header_string>).
const SQLITE: &[u8] = b"SQLite format 3\0";

/// The rows of a dump, CSV or SQLite, in the order of the file. It holds one row, or one page of a table, in memory.
///
/// The iterator ends after its first error.
#[derive(Debug)]
pub struct Reader {
    rows: Rows,
    ended: bool,
}

#[derive(Debug)]
enum Rows {
    Csv(Box<CsvRows>),
    Table(Box<TableRows>),
}

impl Reader {
    /// Opens a file. Its first bytes decide whether it is read as SQLite or as CSV.
    ///
    /// # Errors
    /// The path, the kind of file, its size, its header or its table is not that of a dump.
    pub fn open(path: &Path) -> Result<Reader, DumpError> {
        let length = path.as_os_str().len();
        if length > LONGEST_PATH {
            return Err(DumpError::PathTooLong { length });
        }
        let cannot = |source| DumpError::Read {
            path: path.to_owned(),
            source,
        };
        // Checked before the file is opened, because opening a pipe waits for its writer.
        let about = std::fs::metadata(path).map_err(cannot)?;
        if !about.is_file() {
            return Err(DumpError::NotAFile {
                path: path.to_owned(),
                found: kind(about.is_dir()),
            });
        }
        if about.len() == 0 {
            return Err(DumpError::Empty {
                path: path.to_owned(),
            });
        }
        if about.len() > LARGEST_BYTES {
            return Err(DumpError::TooLarge {
                path: path.to_owned(),
                bytes: about.len(),
            });
        }
        let mut file = File::open(path).map_err(cannot)?;
        let mut first = Vec::new();
        (&mut file)
            .take(SQLITE.len() as u64)
            .read_to_end(&mut first)
            .map_err(cannot)?;
        let rows = if first == SQLITE {
            Rows::Table(Box::new(TableRows::open(path)?))
        } else if path.extension().is_some_and(|ext| ext == "db") {
            return Err(DumpError::NotSqlite {
                path: path.to_owned(),
            });
        } else {
            file.seek(SeekFrom::Start(0)).map_err(cannot)?;
            Rows::Csv(Box::new(CsvRows::open(path, file)?))
        };
        Ok(Reader { rows, ended: false })
    }
}

/// Words for what a path leads to, where it is no regular file.
pub(crate) const fn kind(is_folder: bool) -> &'static str {
    if is_folder {
        "a folder"
    } else {
        "a pipe, socket or device"
    }
}

impl Iterator for Reader {
    type Item = Result<Row, DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = match &mut self.rows {
            Rows::Csv(rows) => rows.next_row(),
            Rows::Table(rows) => rows.next_row(),
        };
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}
