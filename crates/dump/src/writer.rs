//! Writes rows into a file.

use crate::error::DumpError;
use crate::replaced;
use crate::row::{COLUMNS, NOTHING, Row, header};
use crate::sqlite::TABLES;
use rusqlite::Connection;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempPath};

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated text.
    Csv,
    /// An SQLite database.
    Db,
}

impl Format {
    /// File extension of the format, without a dot.
    pub const fn extension(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Db => "db",
        }
    }

    /// The format that a file's name asks for: SQLite for `.db`, CSV otherwise.
    pub fn of(path: &Path) -> Format {
        if path.extension().is_some_and(|ext| ext == "db") {
            Format::Db
        } else {
            Format::Csv
        }
    }
}

/// Writes a file, whole or not at all: the file appears at its path only in [`Writer::finish`].
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    out: Out,
}

#[derive(Debug)]
enum Out {
    Csv(BufWriter<NamedTempFile>),
    Db(Connection, TempPath),
}

/// The statement that adds a row.
fn insert() -> String {
    let places: Vec<String> = (1..=COLUMNS.len()).map(|n| format!("?{n}")).collect();
    format!("INSERT INTO {} VALUES ({})", TABLES[0], places.join(", "))
}

/// The statement that makes the table as msMemScope does.
fn schema() -> String {
    let columns = COLUMNS.map(|column| {
        let kind = match column {
            "ID" | "Timestamp(ns)" | "Process Id" | "Thread Id" => "INTEGER",
            _ => "TEXT",
        };
        format!("\"{column}\" {kind}")
    });
    format!("CREATE TABLE {} ({})", TABLES[0], columns.join(", "))
}

impl Writer {
    /// Begins a file, with a temporary file in the same folder.
    ///
    /// # Errors
    /// The folder cannot be written to, or there is something at `path` that is no regular file.
    pub fn create(path: &Path, format: Format) -> Result<Writer, DumpError> {
        let cannot = |source| DumpError::Write {
            path: path.to_owned(),
            source,
        };
        let path = &replaced::meant(path).map_err(cannot)?;
        // A device is refused and not replaced by a file.
        if path.exists() && !path.is_file() {
            return Err(DumpError::NotAFile {
                path: path.to_owned(),
                found: crate::reader::kind(path.is_dir()),
            });
        }
        let file = replaced::beside(path).map_err(cannot)?;
        let out = match format {
            Format::Csv => {
                let mut out = BufWriter::new(file);
                writeln!(out, "{}", header()).map_err(cannot)?;
                Out::Csv(out)
            }
            Format::Db => {
                let place = file.into_temp_path();
                let begin = || {
                    let connection = Connection::open(&place)?;
                    // Nobody sees the file before it is complete, so nothing has to survive a crash.
                    connection.execute_batch(
                        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN",
                    )?;
                    connection.execute_batch(&schema())?;
                    Ok(connection)
                };
                let connection = begin().map_err(|source| sqlite(path, source))?;
                Out::Db(connection, place)
            }
        };
        Ok(Writer {
            path: path.to_owned(),
            out,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The file cannot be written, or a number is larger than a table can hold.
    pub fn write(&mut self, row: &Row) -> Result<(), DumpError> {
        match &mut self.out {
            Out::Csv(out) => line(out, row).map_err(|source| DumpError::Write {
                path: self.path.clone(),
                source,
            }),
            Out::Db(connection, _) => {
                let large = |column, number: u64| {
                    i64::try_from(number).map_err(|_| DumpError::TooLargeNumber {
                        path: self.path.clone(),
                        column,
                        number,
                        id: row.id,
                    })
                };
                let id = large(COLUMNS[0], row.id)?;
                let time = large(COLUMNS[4], row.timestamp)?;
                let name = name(row);
                let (pid, tid) = (maybe(row.pid), maybe(row.tid));
                connection
                    .prepare_cached(&insert())
                    .and_then(|mut statement| {
                        statement.execute(rusqlite::params![
                            id,
                            row.event,
                            row.event_type,
                            name,
                            time,
                            pid,
                            tid,
                            row.device.to_string(),
                            row.ptr_text(),
                            row.attr.to_json(),
                            row.python_stack,
                            row.c_stack,
                        ])
                    })
                    .map(|_| ())
                    .map_err(|source| sqlite(&self.path, source))
            }
        }
    }

    /// Moves the file to its path. A file that is there already is replaced.
    ///
    /// # Errors
    /// The file cannot be completed, or cannot be moved to its path.
    pub fn finish(self) -> Result<(), DumpError> {
        let path = self.path;
        let cannot = |source| DumpError::Write {
            path: path.clone(),
            source,
        };
        match self.out {
            Out::Csv(out) => {
                let file = out
                    .into_inner()
                    .map_err(|error| cannot(error.into_error()))?;
                // What is replaced must not be gone before the new rows are on the disk.
                file.as_file().sync_all().map_err(cannot)?;
                file.persist(&path)
                    .map(|_| ())
                    .map_err(|error| cannot(error.error))
            }
            Out::Db(connection, place) => {
                connection
                    .execute_batch("COMMIT")
                    .map_err(|source| sqlite(&path, source))?;
                connection
                    .close()
                    .map_err(|(_, source)| sqlite(&path, source))?;
                std::fs::File::open(&place)
                    .and_then(|file| file.sync_all())
                    .map_err(cannot)?;
                place.persist(&path).map_err(|error| cannot(error.error))
            }
        }
    }
}

fn sqlite(path: &Path, source: rusqlite::Error) -> DumpError {
    DumpError::Sqlite {
        path: path.to_owned(),
        doing: "write it",
        source,
    }
}

/// A number, or the text `N/A` if there is none. SQLite stores either in a column of numbers.
fn maybe(number: Option<u32>) -> rusqlite::types::Value {
    match number {
        Some(number) => i64::from(number).into(),
        None => NOTHING.to_owned().into(),
    }
}

/// The name for a table, where marks have quotes around their text.
fn name(row: &Row) -> String {
    match &row.name {
        None => NOTHING.to_owned(),
        Some(name) if row.event == "MSTX" => format!("\"{name}\""),
        Some(name) => name.clone(),
    }
}

fn line(out: &mut impl Write, row: &Row) -> io::Result<()> {
    write!(out, "{},", row.id)?;
    plain(out, &row.event)?;
    plain(out, &row.event_type)?;
    match &row.name {
        // The quotes of the cell are the mark's quotes.
        Some(name) if row.event == "MSTX" => {
            quoted(out, name)?;
            out.write_all(b",")?;
        }
        Some(name) => plain(out, name)?,
        None => plain(out, NOTHING)?,
    }
    let number = |number: Option<u32>| number.map_or_else(|| NOTHING.to_owned(), |n| n.to_string());
    write!(
        out,
        "{},{},{},{},{},",
        row.timestamp,
        number(row.pid),
        number(row.tid),
        row.device,
        row.ptr_text()
    )?;
    for (index, text) in [&row.attr.to_csv(), &row.python_stack, &row.c_stack]
        .into_iter()
        .enumerate()
    {
        if index > 0 {
            out.write_all(b",")?;
        }
        if !text.is_empty() {
            quoted(out, text)?;
        }
    }
    out.write_all(b"\n")
}

/// Writes a cell and a comma. The cell has quotes only if it could not be read without them.
pub(crate) fn plain(out: &mut impl Write, text: &str) -> io::Result<()> {
    if text.contains([',', '"', '\n', '\r']) {
        quoted(out, text)?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.write_all(b",")
}

fn quoted(out: &mut impl Write, text: &str) -> io::Result<()> {
    write!(out, "\"{}\"", text.replace('"', "\"\""))
}
