//! Reads rows from a table of an SQLite file.

use super::TABLES;
use crate::error::{DumpError, RowError, beginning};
use crate::row::{AttrForm, COLUMNS, Row};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Longest text or row that SQLite may read, in bytes.
const LONGEST: i32 = 16 << 20;
/// Most rows of a page.
const PAGE_ROWS: usize = 2048;
/// Bytes of text after which a page ends, whatever its number of rows.
const PAGE_BYTES: usize = 8 << 20;

/// Reads rows in the order of their row ids, one page at a time. It keeps no open statement between pages, because a
/// statement borrows its connection.
#[derive(Debug)]
pub(crate) struct TableRows {
    path: PathBuf,
    connection: Connection,
    query: String,
    page: VecDeque<Result<Row, DumpError>>,
    /// Smallest row id that the next page may have; `None` after the last page.
    next: Option<i64>,
}

impl TableRows {
    pub(crate) fn open(path: &Path) -> Result<TableRows, DumpError> {
        let cannot = |doing| {
            move |source| DumpError::Sqlite {
                path: path.to_owned(),
                doing,
                source,
            }
        };
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(cannot("open it"))?;
        // The file is not trusted: the functions that its schema calls may do nothing but compute.
        let bounded = connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)
            .and_then(|_| connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true))
            .and_then(|_| connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST));
        bounded.map_err(cannot("bound what it reads"))?;
        let names = tables(&connection).map_err(cannot("list its tables"))?;
        let table = TABLES
            .iter()
            .find(|table| names.iter().any(|name| name == *table))
            .ok_or_else(|| DumpError::Table {
                path: path.to_owned(),
                found: names.clone(),
            })?;
        let found = columns(&connection, table).map_err(cannot("list the table's columns"))?;
        let has = |column: &str| found.iter().any(|own| own.eq_ignore_ascii_case(column));
        if found.len() != COLUMNS.len() || !COLUMNS.iter().all(|column| has(column)) {
            return Err(DumpError::TableColumns {
                path: path.to_owned(),
                table: (*table).to_owned(),
                found,
            });
        }
        let list = COLUMNS.map(|column| format!("\"{column}\"")).join(", ");
        Ok(TableRows {
            path: path.to_owned(),
            connection,
            query: format!(
                "SELECT rowid, {list} FROM \"{table}\" WHERE rowid >= ?1 ORDER BY rowid"
            ),
            page: VecDeque::new(),
            next: Some(i64::MIN),
        })
    }

    pub(crate) fn next_row(&mut self) -> Result<Option<Row>, DumpError> {
        if let Some(from) = self.next.filter(|_| self.page.is_empty()) {
            self.next = self.turn(from).map_err(|source| DumpError::Sqlite {
                path: self.path.clone(),
                doing: "read its rows",
                source,
            })?;
        }
        self.page.pop_front().transpose()
    }

    /// Reads the next page, whose row ids are not smaller than `from`. Returns the smallest row id that the page after it may have.
    fn turn(&mut self, from: i64) -> rusqlite::Result<Option<i64>> {
        let mut statement = self.connection.prepare_cached(&self.query)?;
        let mut rows = statement.query([from])?;
        let mut bytes = 0;
        let mut next = Some(from);
        while let Some(row) = rows.next()? {
            let place: i64 = row.get(0)?;
            // SQLite believes the file about the order of its rows. In a damaged one, the reading would begin again and never end.
            if next.is_none_or(|least| place < least) {
                return Err(damaged("its row ids do not ascend"));
            }
            next = place.checked_add(1);
            let mut texts: [Cow<str>; 12] = Default::default();
            for (index, text) in texts.iter_mut().enumerate() {
                *text = words(row.get_ref(index + 1)?);
                bytes += text.len();
            }
            let line = u64::try_from(place).unwrap_or(0);
            let cells = texts.each_ref().map(|text| &**text);
            let read = Row::from_cells(&cells, AttrForm::Json, line);
            let id = beginning(cells[0]);
            self.page
                .push_back(read.map_err(|source: RowError| DumpError::Row {
                    path: self.path.clone(),
                    line,
                    id: Some(id),
                    source,
                }));
            if self.page.len() >= PAGE_ROWS || bytes >= PAGE_BYTES {
                return Ok(next);
            }
        }
        Ok(None)
    }
}

fn damaged(what: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(what.to_owned()))
}

fn words(value: ValueRef<'_>) -> Cow<'_, str> {
    match value {
        ValueRef::Null => Cow::Borrowed(""),
        ValueRef::Integer(number) => number.to_string().into(),
        ValueRef::Real(number) => number.to_string().into(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes),
    }
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA table_info(\"{table}\")"))?;
    statement.query_map([], |row| row.get(1))?.collect()
}
