//! Writes the table of docs/evidence/kernels.md: a row for each architecture and suite. Rows of what was not booted now
//! stay as they are.

use std::fs;

use anyhow::{Context, Result};

use super::architecture::Architecture;
use super::judge::Outcome;
use super::kernels::SUITES;
use crate::process;

const PAGE: &str = "docs/evidence/kernels.md";
/// The line above the rows, by which they are found.
const HEAD: &str = "|---|---|---|---|---|---|";

/// The beginning of a row, by which it is found.
fn key(architecture: &Architecture, suite: &str) -> String {
    format!("| {} | {suite} | ", architecture.name)
}

/// A row of the table.
pub fn row(architecture: &Architecture, suite: &str, release: &str, outcome: &Outcome) -> String {
    let rest = match outcome {
        Outcome::Right { links } => format!("`{links}` | everything agrees | nothing is left"),
        Outcome::Refused { sentence } => format!("none | refused: “{sentence}” | nothing is left"),
    };
    format!("{}{release} | {rest} |", key(architecture, suite))
}

/// Puts rows into the page.
pub fn write(rows: &[String]) -> Result<()> {
    let path = process::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let page = with_rows(&page, rows).with_context(|| format!("{PAGE} has no table"))?;
    fs::write(&path, page).with_context(|| format!("cannot write {PAGE}"))
}

fn with_rows(page: &str, rows: &[String]) -> Option<String> {
    let (above, rest) = page.split_once(&format!("{HEAD}\n"))?;
    let kept: Vec<&str> = rest
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    let below = &rest[kept.iter().map(|line| line.len() + 1).sum::<usize>()..];
    let mut table = String::new();
    for architecture in Architecture::ALL {
        for suite in SUITES {
            let key = key(architecture, suite);
            let new = rows.iter().map(String::as_str);
            let mut all = new.chain(kept.iter().copied());
            let row = all.find(|row| row.starts_with(&key));
            table.extend(row.map(|row| format!("{row}\n")));
        }
    }
    Some(format!("{above}{HEAD}\n{table}{below}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_replace_those_of_the_same_machine() {
        let page = format!(
            "a\n{HEAD}\n| x86_64 | trixie | 6.12.1 | b |\n| aarch64 | trixie | 6.12.2 | c |\n\nd\n"
        );
        let rows = [
            "| x86_64 | bookworm | 6.1 | e |",
            "| x86_64 | trixie | 6.12.3 | f |",
        ];
        let page = with_rows(&page, &rows.map(str::to_owned)).unwrap();
        let expected = format!(
            "a\n{HEAD}\n{}\n{}\n| aarch64 | trixie | 6.12.2 | c |\n\nd\n",
            rows[0], rows[1]
        );
        assert_eq!(page, expected);
        assert_eq!(with_rows("no table", &[]), None);
    }
}
