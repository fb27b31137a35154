//! What examples measure, which need no process: the daemon's cost by event, and questions by number of live blocks.
//!
//! Each prints lines of JSON on standard output, `{"row": …, "column": …, "value": …}`, a value of one thing. What it prints
//! besides goes to standard error.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::measure::Ground;
use super::page::{Row, Section};
use super::programs::{self, Programs};
use crate::process;

/// An example that measures.
struct Example {
    /// The folder of its package.
    folder: &'static str,
    package: &'static str,
    name: &'static str,
    /// The arguments of each of its runs.
    runs: &'static [&'static [&'static str]],
}

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
        &Example {
            folder: "crates/log",
            package: "memscope-log",
            name: "event_cost",
            runs: &[&[]],
        },
        Section {
            name: "daemon".to_owned(),
            title: "In the daemon: an event".to_owned(),
            run: None,
            about: "Records as the kernel writes them, of four processes that train: decoded, written to the journal, folded into the ledger, and read\nback from disk. Processor time, each the least of seven rounds."
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
        &Example {
            folder: "memscope-daemon",
            package: "memscope-daemon",
            name: "live_blocks",
            runs: &[&["10000", "3"], &["100000", "3"], &["1000000", "3"], &["10000000", "1"]],
        },
        Section {
            name: "questions".to_owned(),
            title: "Questions, by live blocks".to_owned(),
            run: None,
            about: "In the ledger, until the last byte of the answer is encoded, without the socket and the client; the least of three times (of one with ten million).".to_owned(),
            columns: Vec::new(),
            has_reference: false,
            rows: Vec::new(),
        },
    )
}

fn table(ground: &Ground<'_>, example: &Example, mut section: Section) -> Result<Section> {
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
fn values(programs: &Programs, example: &Example) -> Result<Vec<Value>> {
    let file = Path::new(example.folder).join("examples");
    let file = file.join(format!("{}.rs", example.name));
    if !programs.sources.join(&file).is_file() {
        return Ok(Vec::new());
    }
    let mut values = Vec::new();
    for arguments in example.runs {
        let mut cargo = process::command("cargo");
        cargo.args(["run", "--locked", "-q", "--profile"]);
        cargo.arg(programs::PROFILE.profile());
        cargo.args(["-p", example.package, "--example", example.name, "--"]);
        cargo.args(*arguments);
        if programs.commit.is_some() {
            cargo.env("CARGO_TARGET_DIR", programs::target());
        }
        let said = process::output(cargo.current_dir(&programs.sources))?;
        for line in said.lines().filter(|line| line.starts_with('{')) {
            let value = serde_json::from_str(line);
            values.push(value.with_context(|| format!("not understood: {line}"))?);
        }
    }
    Ok(values)
}
