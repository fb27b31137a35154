//! The table of the libraries that have probes.

use super::table::{Column, table};
use super::{coverage, list};
use crate::units::plain;
use memscope_proto::v1;

/// A table of the libraries with probes, and the ways in that they offer.
pub(crate) fn libraries(libraries: &[v1::Library]) -> String {
    if libraries.is_empty() {
        return String::new();
    }
    let head = [
        Column::Left("LIBRARY"),
        Column::Right("SITES"),
        Column::Right("PROCESSES"),
        Column::Left("WAYS IN"),
    ];
    let rows = libraries.iter().map(|library| {
        vec![
            plain(&library.path),
            library.sites.to_string(),
            library.pids.len().to_string(),
            list(&library.ways),
        ]
    });
    let mut text = format!("\n{}", table(&head, rows.collect()));
    let notes: Vec<_> = libraries.iter().flat_map(|l| l.notes.clone()).collect();
    text.push_str(&coverage(&notes));
    text
}
