//! A page: sentences, a table and a chart, before anybody knows how large the window is.
//!
//! Owns: what a cell is, how rows are ordered and filtered. Refuses: questions, keys and drawing. Every text that comes into a page is made
//! safe for a terminal here, so that no other place has to remember it.

use crate::units::plain;
use std::cmp::Ordering;

/// A column of a table.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Numbers stand at the right.
    pub(super) is_right: bool,
    /// How soon it gives way where the window is narrow: 0 never does, and the largest number does first.
    pub(super) rank: u8,
    /// Least width in terminal columns. A column of texts is shortened to it, and a course has it at least.
    pub(super) least: usize,
    /// Takes what room is left.
    pub(super) grows: bool,
}

/// A column of numbers.
pub(super) const fn number(title: &'static str, rank: u8) -> Column {
    Column {
        title,
        is_right: true,
        rank,
        least: 0,
        grows: false,
    }
}

/// A column of texts, which are shortened to `least` terminal columns where there is no room.
pub(super) const fn text(title: &'static str, rank: u8, least: usize) -> Column {
    Column {
        title,
        is_right: false,
        rank,
        least,
        grows: false,
    }
}

/// A column of courses, which takes room that is left.
pub(super) const fn course(title: &'static str, rank: u8) -> Column {
    Column {
        title,
        is_right: false,
        rank,
        least: 10,
        grows: true,
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// What it is ordered by, where that is a number; NaN is never in it.
    by: Option<f64>,
    /// Levels, oldest first, that are drawn as bars in place of a text.
    pub(super) levels: Vec<u64>,
    pub(super) tone: Tone,
}

/// How much a text asks to be looked at. It is said by its words, too: no tone tells anything alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    /// It stands back.
    Quiet,
    /// It is what somebody looks for.
    Loud,
}

impl Cell {
    /// A text, which may come from anywhere.
    pub(super) fn text(text: impl AsRef<str>) -> Cell {
        Cell {
            text: plain(text.as_ref()),
            ..Cell::default()
        }
    }

    /// The text of a number, and the number that it is ordered by; `None` is ordered last.
    pub(super) fn number(text: impl AsRef<str>, by: Option<f64>) -> Cell {
        Cell {
            by: by.filter(|by| !by.is_nan()),
            ..Cell::text(text)
        }
    }

    /// Levels over time, oldest first.
    pub(super) fn course(levels: Vec<u64>) -> Cell {
        Cell {
            by: levels.last().map(|level| *level as f64),
            levels,
            ..Cell::default()
        }
    }

    pub(super) fn toned(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    fn compare(&self, other: &Cell) -> Ordering {
        match (self.by, other.by) {
            // What is largest comes first; what is not known, last.
            (Some(a), Some(b)) => b.total_cmp(&a),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.text.cmp(&other.text),
        }
    }
}

/// A row of a table.
pub(super) struct Row {
    /// What it is known by when rows come, go and change places.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    /// The place in the sources that it names, which can be copied.
    pub(super) location: Option<String>,
    /// The process that it is about.
    pub(super) pid: Option<u32>,
    /// More that can be seen of it.
    pub(super) opens: Option<Opens>,
}

/// What a row leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opens {
    /// The leaks of its process.
    Leaks,
    /// All that is known of this line that grows.
    Line,
    /// The stacks that this line is in.
    Stacks,
    /// Why this use of memory is what it is.
    Owner,
}

/// Levels that are drawn as bars over several lines where the window has room.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) levels: Vec<u64>,
}

/// What is shown beneath the bar of views.
#[derive(Default)]
pub(super) struct Page {
    /// Whose page it is.
    pub(super) about: String,
    /// The moment that it describes, nanoseconds since 1970, as the answer has it.
    pub(super) as_of: Option<u64>,
    /// Sentences above the table.
    pub(super) says: Vec<Cell>,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// What stands in place of rows where there are none.
    pub(super) nothing: String,
    pub(super) charts: Vec<Chart>,
    /// What limits the numbers: codes, which `stats` explains.
    pub(super) limits: Vec<String>,
}

impl Page {
    /// A page that has only a sentence.
    pub(super) fn only(about: impl AsRef<str>, says: impl AsRef<str>) -> Page {
        Page {
            about: plain(about.as_ref()),
            nothing: plain(says.as_ref()),
            ..Page::default()
        }
    }

    /// Keeps the rows that have the text in one of their cells, whatever its case.
    pub(super) fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        if text.is_empty() {
            return;
        }
        self.rows.retain(|row| {
            let mut cells = row.cells.iter();
            cells.any(|cell| cell.text.to_lowercase().contains(&text))
        });
        if self.rows.is_empty() {
            self.nothing = "Nothing here has that text (Esc shows all).".to_owned();
        }
    }

    /// Orders the rows by a column; rows that are equal in it stay in the order of the answer.
    pub(super) fn sort(&mut self, column: usize) {
        self.rows.sort_by(|a, b| {
            let empty = Cell::default();
            let of = |row: &Row| row.cells.get(column).cloned();
            let (a, b) = (of(a).unwrap_or(empty.clone()), of(b).unwrap_or(empty));
            a.compare(&b)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, by: Option<f64>) -> Row {
        Row {
            key: key.to_owned(),
            cells: vec![Cell::number(key, by)],
            location: None,
            pid: None,
            opens: None,
        }
    }

    #[test]
    fn the_largest_comes_first_and_what_is_not_known_last() {
        let rows = [("a", Some(1.0)), ("b", None), ("c", Some(7.0)), ("d", None)];
        let mut page = Page {
            rows: rows.map(|(key, by)| row(key, by)).into(),
            ..Page::default()
        };
        page.sort(0);
        let keys: Vec<&str> = page.rows.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(keys, ["c", "a", "b", "d"]);
        page.sort(9);
        page.filter("C");
        assert_eq!(page.rows.len(), 1);
        page.filter("no such text");
        assert!(page.rows.is_empty() && page.nothing.contains("Esc"));
    }

    #[test]
    fn no_text_of_a_page_reaches_the_terminal_as_it_is() {
        let cell = Cell::text("py\u{1b}]52;c;AAAA\u{7}\u{202e}");
        assert!(!cell.text.chars().any(char::is_control), "{}", cell.text);
        assert!(!cell.text.contains('\u{202e}'), "{}", cell.text);
    }
}
