//! What examples measure, which need no process: the daemon's cost by event, and questions by number of live blocks.
//!
//! Each prints lines of JSON on standard output, `{"row": …, "column": …, "value": …}`, a value of one thing. What it prints
//! besides goes to standard error.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::measure::{Ground, Programs};
use super::page::{Row, Section};
use crate::process;

/// A value that an example prints.
#[derive(Deserialize)]
struct Value {
    row: String,
    column: String,
    value: f64,
}

/// The daemon's cost by event.
pub fn daemon(ground: &Ground<'_>) -> Result<Section> {
    table(
        ground,
        ("memscope-daemon", "event_cost"),
        Section {
            name: "daemon",
            title: "In the daemon: an event",
            about: "Records as the kernel writes them, through the journal and the ledger, without a kernel: one core, no system under test beside it."
                .to_owned(),
            columns: Vec::new(),
            has_reference: false,
            rows: Vec::new(),
        },
    )
}

/// Questions by number of live blocks.
pub fn questions(ground: &Ground<'_>) -> Result<Section> {
    table(
        ground,
        ("memscope-daemon", "question_cost"),
        Section {
            name: "questions",
            title: "Questions, by live blocks",
            about: "Milliseconds until the last byte of the answer is encoded, in the daemon, without the socket and the client.".to_owned(),
            columns: Vec::new(),
            has_reference: false,
            rows: Vec::new(),
        },
    )
}

fn table(ground: &Ground<'_>, example: (&str, &str), mut section: Section) -> Result<Section> {
    for _ in 0..ground.options.rounds {
        for programs in &ground.programs {
            for value in values(programs, example)? {
                section.put(programs.row(&value.row), value.column, value.value);
            }
        }
    }
    Ok(section)
}

impl Section {
    fn put(&mut self, row: String, column: String, value: f64) {
        let known = self.columns.iter().position(|one| *one == column);
        let at = known.unwrap_or_else(|| {
            self.columns.push(column);
            self.columns.len() - 1
        });
        let known = self.rows.iter().position(|one| one.name == row);
        let number = known.unwrap_or_else(|| {
            self.rows.push(Row::new(row, 0));
            self.rows.len() - 1
        });
        let columns = self.columns.len();
        for row in &mut self.rows {
            row.columns.resize(columns, Vec::new());
        }
        self.rows[number].columns[at].push(value);
    }
}

/// Runs an example of a commit; nothing where that commit has none of this name.
fn values(programs: &Programs, (package, example): (&str, &str)) -> Result<Vec<Value>> {
    let file = Path::new(package)
        .join("examples")
        .join(format!("{example}.rs"));
    if !programs.sources.join(&file).is_file() {
        return Ok(Vec::new());
    }
    let mut cargo = process::command("cargo");
    cargo.args([
        "run",
        "--locked",
        "--release",
        "-q",
        "-p",
        package,
        "--example",
        example,
    ]);
    if programs.commit.is_some() {
        let target = process::target().join("against/target");
        cargo.env("CARGO_TARGET_DIR", target);
    }
    let said = process::output(cargo.current_dir(&programs.sources))?;
    let lines = said.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("not understood: {line}")))
        .collect()
}
