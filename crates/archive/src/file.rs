//! Rows as a Parquet file. The same rows give the same bytes.

use crate::table::{Cell, Column, Kind, Record, Row, Table, VERSION};
use crate::tables::Whose;
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::sync::Arc;

/// Why rows are no file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Parquet refuses it.
    #[error("rows of {table} cannot be written as Parquet")]
    Parquet {
        /// Name of the table.
        table: &'static str,
        /// Why.
        source: ParquetError,
    },
    /// A row has other values than its table has columns.
    #[error("a row of {table} does not fit its column {column}")]
    Misfit {
        /// Name of the table.
        table: &'static str,
        /// Name of the column.
        column: &'static str,
    },
}

/// The columns of a table: those that all tables have, and its own.
fn columns(table: &Table) -> impl Iterator<Item = &'static Column> {
    Whose::TABLE.own.iter().chain(table.own)
}

/// Writes rows of one table.
///
/// # Errors
/// If a row is of another table.
pub fn parquet(table: &Table, rows: &[Row]) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Parquet {
        table: table.name,
        source,
    };
    let schema = schema(table).map_err(failed)?;
    let properties = properties(table).map_err(failed)?;
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).map_err(failed)?;
    let mut group = writer.next_row_group().map_err(failed)?;
    for (place, column) in columns(table).enumerate() {
        let misfit = || FileError::Misfit {
            table: table.name,
            column: column.name,
        };
        let cells: Option<Vec<&Cell>> = rows.iter().map(|row| row.cells.get(place)).collect();
        let cells = cells.ok_or_else(misfit)?;
        let mut out = group.next_column().map_err(failed)?.ok_or_else(misfit)?;
        if !write(&mut out, column.kind, &cells).map_err(failed)? {
            return Err(misfit());
        }
        out.close().map_err(failed)?;
    }
    group.close().map_err(failed)?;
    writer.into_inner().map_err(failed)
}

fn schema(table: &Table) -> Result<Arc<Type>, ParquetError> {
    let fields: Result<Vec<_>, _> = columns(table)
        .map(|column| {
            let (physical, logical) = match column.kind {
                Kind::Int => (Physical::INT64, None),
                Kind::Double => (Physical::DOUBLE, None),
                Kind::Bool => (Physical::BOOLEAN, None),
                Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Kind::Bytes => (Physical::BYTE_ARRAY, None),
                Kind::Time => (
                    Physical::INT64,
                    Some(LogicalType::timestamp(true, TimeUnit::MICROS)),
                ),
            };
            let field = Type::primitive_type_builder(column.name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(logical)
                .build()?;
            Ok::<_, ParquetError>(Arc::new(field))
        })
        .collect();
    let group = Type::group_type_builder(table.name).with_fields(fields?);
    Ok(Arc::new(group.build()?))
}

fn properties(table: &Table) -> Result<WriterProperties, ParquetError> {
    let known = |key: &str, value: String| KeyValue {
        key: key.to_owned(),
        value: Some(value),
    };
    let level = ZstdLevel::try_new(3)?;
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by(format!("memscope-archive {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![
            known("memscope.table", table.name.to_owned()),
            known("memscope.schema_version", VERSION.to_string()),
        ]))
        .build())
}

/// Writes one column. `false`: a value is of another kind.
fn write(
    out: &mut SerializedColumnWriter<'_>,
    kind: Kind,
    cells: &[&Cell],
) -> Result<bool, ParquetError> {
    /// The values that are there, and for each row whether there is one.
    fn split<'a, T>(
        cells: &[&'a Cell],
        of: impl Fn(&'a Cell) -> Option<Option<T>>,
    ) -> Option<(Vec<T>, Vec<i16>)> {
        let all: Option<Vec<Option<T>>> = cells.iter().map(|cell| of(cell)).collect();
        let all = all?;
        let levels = all.iter().map(|value| i16::from(value.is_some())).collect();
        Some((all.into_iter().flatten().collect(), levels))
    }
    macro_rules! column {
        ($type:ty, $of:expr) => {{
            let Some((values, levels)) = split(cells, $of) else {
                return Ok(false);
            };
            out.typed::<$type>()
                .write_batch(&values, Some(&levels), None)?;
        }};
    }
    match kind {
        Kind::Int => column!(Int64Type, |cell| match cell {
            Cell::Int(value) => Some(*value),
            _ => None,
        }),
        Kind::Time => column!(Int64Type, |cell| match cell {
            Cell::Time(value) => Some(value.map(|time| time.0)),
            _ => None,
        }),
        Kind::Double => column!(DoubleType, |cell| match cell {
            Cell::Double(value) => Some(*value),
            _ => None,
        }),
        Kind::Bool => column!(BoolType, |cell| match cell {
            Cell::Bool(value) => Some(*value),
            _ => None,
        }),
        Kind::Text => column!(ByteArrayType, |cell| match cell {
            Cell::Text(value) => Some(value.as_deref().map(ByteArray::from)),
            _ => None,
        }),
        Kind::Bytes => column!(ByteArrayType, |cell| match cell {
            Cell::Bytes(value) => Some(value.clone().map(ByteArray::from)),
            _ => None,
        }),
    }
    Ok(true)
}
