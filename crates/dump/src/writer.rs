//! Writes rows into a file.

use crate::error::DumpError;
use crate::replaced;
use crate::row::{NOTHING, Row, header};
use crate::sqlite::TableWriter;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

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
    Db(TableWriter),
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
            Format::Db => Out::Db(TableWriter::begin(path, file.into_temp_path())?),
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
            Out::Db(table) => table.write(row, name(row)),
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
            Out::Db(table) => table.finish(),
        }
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
