//! From answers to pages, a file for each view.

pub(super) mod devices;
pub(super) mod leaks;
pub(super) mod line;
pub(super) mod owners;
pub(super) mod processes;
pub(super) mod stacks;
pub(super) mod steps;

use super::page::Cell;
use crate::units::{maybe_bytes, plain};
use memscope_proto::v1;

/// An answer, or in its place a sentence: why there is none, or that it is awaited.
pub(super) type Got<'a, A> = Result<&'a A, String>;

/// A number of bytes that may not be known.
fn size(bytes: Option<u64>) -> Cell {
    Cell::number(maybe_bytes(bytes), bytes.map(|bytes| bytes as f64))
}

/// The same, in words that say how exactly it is known.
fn size_known(words: String, bytes: Option<u64>) -> Cell {
    Cell::number(words, bytes.map(|bytes| bytes as f64))
}

/// A number without a unit.
fn count(count: u64) -> Cell {
    Cell::number(crate::units::grouped(count), Some(count as f64))
}

/// Codes of the notes that limit an answer's numbers; those that only explain are none.
fn limits(notes: &[v1::CoverageNote]) -> Vec<String> {
    let spoils = notes.iter().filter(|note| !note.affects.is_empty());
    let mut codes: Vec<String> = spoils.map(|note| plain(&note.code)).collect();
    codes.dedup();
    codes
}

/// `pid 4242 python`: of a long name the end is cut, and the number stays.
fn about(process: Option<&v1::Process>, pid: u32) -> String {
    let facts = process.and_then(|process| process.facts.as_ref());
    let name = facts.map_or_else(String::new, |facts| plain(&facts.comm));
    format!("pid {pid} {name}").trim_end().to_owned()
}
