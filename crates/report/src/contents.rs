//! What a report consists of.

use crate::decided::Row;
use crate::figures::Figures;
use crate::titan::Compared;

/// What a living process or a recording says beside its snapshot.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// What its memory is for, most bytes first; empty if nobody could say it.
    pub categories: Vec<Row>,
    /// Whose it is.
    pub owners: Vec<Row>,
    /// Whose it is beside these.
    pub other_owners: Others,
    /// What the memory was for when most was handed out, most bytes first; empty if nobody could say it.
    pub categories_at_peak: Vec<Row>,
    /// Whose it was then.
    pub owners_at_peak: Vec<Row>,
    /// Whose it was then beside these.
    pub other_owners_at_peak: Others,
    /// What is to be said of leaks, in a sentence.
    pub leaks_headline: String,
    /// The lines that grow, or may.
    pub leaks: Vec<Leak>,
    /// How many further lines there are, with less growth.
    pub other_leaks: u64,
    /// What limits these answers.
    pub notes: Vec<String>,
}

/// What is not told row by row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// How many rows there would be.
    pub count: u64,
    /// The sum of their bytes.
    pub bytes: u64,
}

/// A line that grows, or may.
#[derive(Clone, Debug)]
pub struct Leak {
    /// The program's own line; empty if it is not known.
    pub line: String,
    /// The verdict in a word.
    pub verdict: String,
    /// Bytes by which it grew while it was watched.
    pub growth_bytes: u64,
    /// Bytes that live.
    pub live_bytes: u64,
    /// Why, in a sentence.
    pub reason: String,
}

/// A report.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// When and of what it was made, in a sentence.
    pub made: String,
    /// How it was made: the program and the command.
    pub made_by: String,
    /// The ranks.
    pub ranks: Vec<Figures>,
    /// What a process or a recording says beside its snapshot.
    pub live: Option<Live>,
    /// What the report is compared with: its name and the categories of both.
    pub compared: Option<(String, Vec<Compared>)>,
}
