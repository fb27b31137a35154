//! Tables without borders: the eye needs none, and neither does `awk`.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Heading and alignment of a column.
pub(crate) enum Column {
    /// Text, which may be shortened.
    Left(&'static str),
    /// A number or a moment, which is never shortened.
    Right(&'static str),
    /// A number, with a heading that is computed.
    Named(String),
}

fn title(column: &Column) -> &str {
    match column {
        Column::Left(title) | Column::Right(title) => title,
        Column::Named(title) => title,
    }
}

/// Smallest width, in terminal columns, to which texts are shortened where a table is wider than the terminal.
const LEAST: usize = 12;

/// Formats a table, one line for each row. Without any heading the first line is left out. On a terminal, texts are
/// shortened until the table fits.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    match crate::output::width() {
        Some(width) => whole(columns, fitted(columns, rows, width)),
        None => whole(columns, rows),
    }
}

/// Narrows the widest column of texts by one, again and again, until all columns fit. Numbers stay whole.
fn fitted(columns: &[Column], mut rows: Vec<Vec<String>>, width: usize) -> Vec<Vec<String>> {
    let mut widths: Vec<usize> = columns.iter().map(|column| title(column).width()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell
                .lines()
                .map(UnicodeWidthStr::width)
                .fold(*width, usize::max);
        }
    }
    let least = |place: usize| {
        columns
            .get(place)
            .map_or(LEAST, |column| title(column).width().max(LEAST))
    };
    loop {
        // Each column has a blank on both sides.
        let all: usize = widths.iter().map(|width| width + 2).sum();
        let widest = widths
            .iter()
            .enumerate()
            .filter(|(place, width)| {
                matches!(columns.get(*place), Some(Column::Left(_))) && **width > least(*place)
            })
            .max_by_key(|(_, width)| **width)
            .map(|(place, _)| place);
        let Some(place) = widest.filter(|_| all > width + 1) else {
            break;
        };
        if let Some(narrower) = widths.get_mut(place) {
            *narrower -= 1;
        }
    }
    for row in &mut rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            let lines: Vec<String> = cell.lines().map(|line| shortened(line, *width)).collect();
            *cell = lines.join("\n");
        }
    }
    rows
}

/// A text in at most `most` terminal columns: of a path the end is kept, of other texts the beginning.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let mut taken = 0;
    let mut fits = |letter: &char| {
        taken += UnicodeWidthChar::width(*letter).unwrap_or(0);
        taken <= room
    };
    if text.starts_with('/') {
        let end: Vec<char> = text.chars().rev().take_while(&mut fits).collect();
        return std::iter::once('…').chain(end.into_iter().rev()).collect();
    }
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Formats the table without shortening anything.
fn whole(columns: &[Column], rows: Vec<Vec<String>>) -> String {
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

/// A table of names and values, without headings.
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
    fn texts_are_shortened_until_the_table_fits() {
        let columns = [
            Column::Left("LIBRARY"),
            Column::Right("SITES"),
            Column::Left("WAYS IN"),
        ];
        let rows = vec![vec![
            "/a/very/long/path/to/libtorch_cuda.so".to_owned(),
            "123456".to_owned(),
            "record_trace, reportMemoryUsageToProfiler".to_owned(),
        ]];
        for width in [120, 80, 60, 50, 44] {
            let text = whole(&columns, fitted(&columns, rows.clone(), width));
            assert!(
                text.lines().all(|line| line.width() <= width),
                "{width}: {text}"
            );
            assert!(text.contains("123456"), "{text}");
        }
        let text = whole(&columns, fitted(&columns, rows.clone(), 60));
        assert!(
            text.contains("libtorch_cuda.so") && text.contains(" record_trace"),
            "{text}"
        );
        // Shortening has a limit: numbers and a few letters stay.
        let text = whole(&columns, fitted(&columns, rows, 10));
        assert!(text.contains("…rch_cuda.so"), "{text}");
        assert_eq!(shortened("größe_日本語", 8), "größe_…");
        assert_eq!(shortened("/x/größe", 4), "…öße");
    }

    #[test]
    fn lines_without_borders() {
        let text = whole(
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
