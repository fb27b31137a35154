//! Reads rows from a CSV file.

use crate::error::{DumpError, RowError, beginning};
use crate::row::{AttrForm, COLUMNS, Cells, Row};
use csv::ByteRecord;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest row in bytes; two stacks of a thousand frames are shorter. Without this limit, a quote that is never closed
/// would bring the whole file into memory.
const LONGEST_ROW: u64 = 16 << 20;
/// Bytes that the CSV reader reads ahead.
const AHEAD: u64 = 64 << 10;

/// A file that returns an error when `left` bytes have been read. [`CsvRows`] sets `left` anew for each row.
#[derive(Debug)]
struct Bounded {
    file: File,
    left: Arc<AtomicU64>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Relaxed);
        if left == 0 {
            return Err(io::Error::other(Endless));
        }
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut buffer[..most])?;
        self.left.store(left - read as u64, Relaxed);
        Ok(read)
    }
}

/// Goes through the CSV reader as an I/O error, and is recognised in [`broken`].
#[derive(Debug, thiserror::Error)]
#[error("a row has no end")]
struct Endless;

/// The rows of a CSV file.
#[derive(Debug)]
pub(crate) struct CsvRows {
    path: PathBuf,
    reader: csv::Reader<Bounded>,
    record: ByteRecord,
    /// Index in the file of each of [`COLUMNS`].
    places: [usize; 12],
    width: usize,
    left: Arc<AtomicU64>,
}

impl CsvRows {
    pub(crate) fn open(path: &Path, file: File) -> Result<CsvRows, DumpError> {
        let left = Arc::new(AtomicU64::new(LONGEST_ROW + AHEAD));
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(AHEAD as usize)
            .from_reader(Bounded {
                file,
                left: Arc::clone(&left),
            });
        let mut record = ByteRecord::new();
        let more = reader
            .read_byte_record(&mut record)
            .map_err(|error| broken(path, 1, error))?;
        if !more {
            return Err(DumpError::Empty {
                path: path.to_owned(),
            });
        }
        let found: Vec<String> = record
            .iter()
            .map(|cell| {
                let text = String::from_utf8_lossy(cell);
                text.trim_start_matches('\u{feff}').trim().to_owned()
            })
            .collect();
        let places = places_of(path, &found)?;
        Ok(CsvRows {
            path: path.to_owned(),
            reader,
            record,
            places,
            width: found.len(),
            left,
        })
    }

    pub(crate) fn next_row(&mut self) -> Result<Option<Row>, DumpError> {
        self.left.store(LONGEST_ROW + AHEAD, Relaxed);
        let begins = self.reader.position().line();
        let more = self
            .reader
            .read_byte_record(&mut self.record)
            .map_err(|error| broken(&self.path, begins, error))?;
        if !more {
            return Ok(None);
        }
        // The row's own position: blank lines before it do not belong to it.
        let line = self.record.position().map_or(begins, csv::Position::line);
        let texts: Vec<_> = self.record.iter().map(String::from_utf8_lossy).collect();
        let wrong = |source| DumpError::Row {
            path: self.path.clone(),
            line,
            id: texts.get(self.places[0]).map(|id| beginning(id)),
            source,
        };
        if texts.len() != self.width {
            return Err(wrong(RowError::Cells {
                found: texts.len(),
                expected: self.width,
            }));
        }
        let cells: Cells = self.places.map(|place| texts.get(place).map_or("", |t| t));
        Row::from_cells(&cells, AttrForm::Csv, line)
            .map(Some)
            .map_err(wrong)
    }
}

/// Index of each column in the file. Capitals are ignored, because msMemScope's documentation writes some names with
/// other capitals than the files.
fn places_of(path: &Path, found: &[String]) -> Result<[usize; 12], DumpError> {
    let place = |column: &str| {
        found
            .iter()
            .position(|own| own.eq_ignore_ascii_case(column))
    };
    let missing: Vec<String> = COLUMNS
        .iter()
        .filter(|column| place(column).is_none())
        .map(|&column| column.to_owned())
        .collect();
    // Not even half of the columns are there, so this is another kind of file.
    if missing.len() * 2 > COLUMNS.len() {
        return Err(DumpError::Header {
            path: path.to_owned(),
            found: beginning(&found.join(",")),
        });
    }
    let known = |own: &str| {
        COLUMNS
            .iter()
            .any(|column| own.eq_ignore_ascii_case(column))
    };
    let mut unknown: Vec<String> = found.iter().filter(|own| !known(own)).cloned().collect();
    if missing.is_empty() && unknown.is_empty() && found.len() > COLUMNS.len() {
        unknown.push("one that is there twice".to_owned());
    }
    if !missing.is_empty() || !unknown.is_empty() {
        return Err(DumpError::Columns {
            path: path.to_owned(),
            missing,
            unknown,
            found: found.to_vec(),
        });
    }
    Ok(COLUMNS.map(|column| place(column).unwrap_or_default()))
}

fn broken(path: &Path, line: u64, error: csv::Error) -> DumpError {
    let source = match error.into_kind() {
        csv::ErrorKind::Io(source) => source,
        // Cells are read as bytes, and a row may have any number of them, so nothing else can be wrong.
        other => io::Error::other(format!("{other:?}")),
    };
    let endless = source
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<Endless>);
    if endless {
        return DumpError::Row {
            path: path.to_owned(),
            line,
            id: None,
            source: RowError::Endless { bytes: LONGEST_ROW },
        };
    }
    DumpError::Read {
        path: path.to_owned(),
        source,
    }
}
