//! Writes rows into a table of an SQLite file.

use super::TABLES;
use crate::error::DumpError;
use crate::row::{COLUMNS, NOTHING, Row};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Writes a file, whole or not at all: it has the place of a temporary file until the end.
#[derive(Debug)]
pub(crate) struct TableWriter {
    path: PathBuf,
    connection: Connection,
    place: TempPath,
}

impl TableWriter {
    /// Begins a file that comes to `path` in the end.
    pub(crate) fn begin(path: &Path, place: TempPath) -> Result<TableWriter, DumpError> {
        let begin = || {
            let connection = Connection::open(&place)?;
            // Nobody sees the file before it is complete, so nothing has to survive a crash.
            connection
                .execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")?;
            connection.execute_batch(&schema())?;
            Ok(connection)
        };
        let connection = begin().map_err(|source| cannot(path, source))?;
        Ok(TableWriter {
            path: path.to_owned(),
            connection,
            place,
        })
    }

    /// Adds a row, whose name in a table is `name`.
    pub(crate) fn write(&mut self, row: &Row, name: String) -> Result<(), DumpError> {
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
        let (pid, tid) = (maybe(row.pid), maybe(row.tid));
        self.connection
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
            .map_err(|source| cannot(&self.path, source))
    }

    /// Moves the file to its path.
    pub(crate) fn finish(self) -> Result<(), DumpError> {
        let TableWriter {
            path,
            connection,
            place,
        } = self;
        connection
            .execute_batch("COMMIT")
            .map_err(|source| cannot(&path, source))?;
        connection
            .close()
            .map_err(|(_, source)| cannot(&path, source))?;
        let unwritten = |source| DumpError::Write {
            path: path.clone(),
            source,
        };
        std::fs::File::open(&place)
            .and_then(|file| file.sync_all())
            .map_err(unwritten)?;
        place.persist(&path).map_err(|error| unwritten(error.error))
    }
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

fn cannot(path: &Path, source: rusqlite::Error) -> DumpError {
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
