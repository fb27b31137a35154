//! The page about the archive says what the tables are, and no column ever goes.

#![allow(clippy::unwrap_used)]

use memscope_archive_rows::{Column, Record as _, TABLES, VERSION, Whose};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn write() -> bool {
    std::env::var_os("MEMSCOPE_BOOK").is_some_and(|how| how == "write")
}

fn all() -> Vec<(&'static str, &'static Column)> {
    let common = Whose::TABLE.own.iter().map(|column| ("", column));
    let own = TABLES
        .iter()
        .flat_map(|table| table.own.iter().map(|column| (table.name, column)));
    common.chain(own).collect()
}

#[test]
fn the_page_has_every_column() {
    const HEADING: &str = "## Tables\n";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/archive.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, _) = text.split_once(HEADING).unwrap();
    let mut expected = format!(
        "{before}{HEADING}\nVersion {VERSION}. Every column may be null, which means that it is not known.\n"
    );
    for table in std::iter::once(&Whose::TABLE).chain(TABLES) {
        let name = match table.name {
            "" => "all tables".to_owned(),
            name => format!("`{name}`"),
        };
        let about = table.about.trim();
        expected.push_str(&format!(
            "\n### {name}\n\n{about}\n\n| column | type | what it is |\n|---|---|---|\n"
        ));
        for column in table.own {
            let (kind, what) = (column.kind.word(), column.what.trim());
            expected.push_str(&format!("| `{}` | {kind} | {what} |\n", column.name));
        }
    }
    if write() {
        std::fs::write(&page, &expected).unwrap();
    }
    assert!(
        std::fs::read_to_string(&page).unwrap() == expected,
        "MEMSCOPE_BOOK=write writes the page anew"
    );
}

#[test]
fn no_column_goes_and_none_gets_another_type() {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("columns.txt");
    let now: BTreeSet<String> = all()
        .into_iter()
        .map(|(table, column)| format!("v{VERSION} {table}.{} {}", column.name, column.kind.word()))
        .collect();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let known: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let begins = format!("v{VERSION} ");
    let gone: Vec<&String> = known
        .difference(&now)
        .filter(|line| line.starts_with(&begins))
        .collect();
    assert!(
        gone.is_empty(),
        "columns that are in archives already are gone or have another type; that needs another version: {gone:#?}"
    );
    if write() {
        let all: BTreeSet<&String> = known.union(&now).collect();
        let text: String = all.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
    } else {
        assert!(known == now, "MEMSCOPE_BOOK=write writes columns.txt anew");
    }
}

#[test]
fn names_are_unique_and_meanings_are_sentences() {
    for table in TABLES {
        let names = Whose::TABLE.own.iter().chain(table.own);
        let names: Vec<&str> = names.map(|column| column.name).collect();
        let unique: BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{}", table.name);
        // These are the names of folders, and a reader takes them for columns.
        for folder in ["date", "cluster", "job"] {
            assert!(!names.contains(&folder), "{}", table.name);
        }
    }
    for (table, column) in all() {
        assert!(column.what.ends_with('.'), "{table}.{}", column.name);
    }
}
