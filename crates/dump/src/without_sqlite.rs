//! Stands in for `sqlite` in a build without it: there are no tables, and who wants one is refused.

use crate::error::DumpError;
use crate::row::Row;
use std::convert::Infallible;
use std::path::Path;
use tempfile::TempPath;

/// What nobody can have.
#[derive(Debug)]
pub(crate) struct TableRows(Infallible);

impl TableRows {
    pub(crate) fn open(path: &Path) -> Result<TableRows, DumpError> {
        Err(left_out(path))
    }

    pub(crate) fn next_row(&mut self) -> Result<Option<Row>, DumpError> {
        match self.0 {}
    }
}

/// What nobody can have.
#[derive(Debug)]
pub(crate) struct TableWriter(Infallible);

impl TableWriter {
    pub(crate) fn begin(path: &Path, _: TempPath) -> Result<TableWriter, DumpError> {
        Err(left_out(path))
    }

    pub(crate) fn write(&mut self, _: &Row, _: String) -> Result<(), DumpError> {
        match self.0 {}
    }

    pub(crate) fn finish(self) -> Result<(), DumpError> {
        match self.0 {}
    }
}

fn left_out(path: &Path) -> DumpError {
    DumpError::WithoutSqlite {
        path: path.to_owned(),
    }
}
