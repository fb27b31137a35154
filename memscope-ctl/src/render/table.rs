//! Tables without borders: the eye needs none, and neither does `awk`.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A column's heading and side.
pub(crate) enum Column {
    /// Text.
    Left(&'static str),
    /// A number.
    Right(&'static str),
    /// A number, with a heading that is not known beforehand.
    Named(String),
}

fn title(column: &Column) -> &str {
    match column {
        Column::Left(title) | Column::Right(title) => title,
        Column::Named(title) => title,
    }
}

/// A table, a line for each row; a heading without any word is left out.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    let alignment = |index: usize| match columns.get(index) {
        Some(Column::Right(_) | Column::Named(_)) => CellAlignment::Right,
        _ => CellAlignment::Left,
    };
    if columns.iter().any(|column| !title(column).is_empty()) {
        table.set_header(
            columns
                .iter()
                .enumerate()
                .map(|(index, column)| Cell::new(title(column)).set_alignment(alignment(index))),
        );
    }
    for row in rows {
        table.add_row(
            row.into_iter()
                .enumerate()
                .map(|(index, text)| Cell::new(text).set_alignment(alignment(index))),
        );
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Names and values.
pub(crate) fn pairs(rows: Vec<(&str, String)>) -> String {
    let rows = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    table(&[Column::Left(""), Column::Left("")], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_borders() {
        let text = table(
            &[Column::Left("NAME"), Column::Right("BYTES")],
            vec![
                vec!["a".into(), "1".into()],
                vec!["bcdef".into(), "12345678".into()],
            ],
        );
        assert_eq!(
            text,
            " NAME      BYTES\n a             1\n bcdef  12345678\n"
        );
    }
}
