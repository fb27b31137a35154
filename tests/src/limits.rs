//! The page docs/limits-met.md: what each limit does when it is met. A row of its first table is told by the test that meets
//! the limit, after what it asserts has come true.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

use crate::places::root;

/// Path of the page within the repository.
pub const PAGE: &str = "docs/limits-met.md";

/// Stands above the first table's rows and beneath them.
const FIRST: &str = "|---|---|---|---|---|\n";

/// A limit that a test has met.
#[derive(Clone, Debug)]
pub struct Met<'a> {
    /// What is limited.
    pub what: &'a str,
    /// The most: a constant of the code ([`constant`]), or a setting.
    pub most: String,
    /// What happens beyond it.
    pub beyond: &'a str,
    /// Where it is told: a counter, a note of coverage, an error, by name.
    pub told: &'a str,
    /// The name of the test's function.
    pub test: &'a str,
}

impl Met<'_> {
    /// Compares this row with the page's, or (with `MEMSCOPE_BOOK=write`) writes it into the page.
    #[track_caller]
    pub fn is_told(&self) {
        let file = Location::caller().file();
        let source = read(file);
        let function = format!("fn {}(", self.test);
        assert!(source.contains(&function), "{file} has no `{function}`");
        let Met {
            what,
            most,
            beyond,
            told,
            test,
        } = self;
        let row = format!("| {what} | {most} | {beyond} | {told} | `{test}` in {file} |");
        if std::env::var("MEMSCOPE_BOOK").is_ok_and(|what| what == "write") {
            write(what, &row);
            return;
        }
        let page = std::fs::read_to_string(repository().join(PAGE)).expect("the page can be read");
        assert!(
            page.lines().any(|line| line == row),
            "{PAGE} has no such row: {row}\nIf it is right, run this test with MEMSCOPE_BOOK=write."
        );
    }
}

/// The folder with the page: that above the crate whose test runs.
fn repository() -> PathBuf {
    let inside = root();
    let mut folders = inside.ancestors();
    let found = folders.find(|folder| folder.join(PAGE).is_file());
    found.unwrap_or_else(|| panic!("no {PAGE}")).to_owned()
}

/// Puts a row among the others, in place of the one that is about the same.
fn write(what: &str, row: &str) {
    let path = repository().join(PAGE);
    let mut file = File::options().read(true).write(true).open(&path);
    let file = file.as_mut().expect("the page can be written");
    // Other tests may write theirs.
    file.lock().expect("the page can be locked");
    let mut page = String::new();
    file.read_to_string(&mut page).expect("the page is text");
    let begins = page.find(FIRST).expect("the page has its table") + FIRST.len();
    let rows = page[begins..].split_inclusive('\n');
    let length: usize = rows
        .take_while(|line| line.starts_with('|'))
        .map(str::len)
        .sum();
    let same = format!("| {what} | ");
    let table = page[begins..begins + length].lines();
    let mut table: Vec<&str> = table.filter(|line| !line.starts_with(&same)).collect();
    table.push(row);
    table.sort_unstable();
    let table: String = table.iter().map(|row| format!("{row}\n")).collect();
    page.replace_range(begins..begins + length, &table);
    file.set_len(0).expect("the page can be cut");
    file.rewind().expect("its beginning");
    file.write_all(page.as_bytes())
        .expect("the page is written");
}

/// A constant of the code as the page shows it: its value as it stands there, its name, and its file.
#[track_caller]
pub fn constant(file: &str, name: &str) -> String {
    let source = read(file);
    let begins = format!("const {name}:");
    let line = source.lines().find(|line| line.contains(&begins));
    let line = line.unwrap_or_else(|| panic!("{file} has no `{begins}`"));
    let value = line
        .split_once(" = ")
        .map(|(_, value)| value.trim_end_matches(';'));
    let value = value.unwrap_or_else(|| panic!("{file}: {line}"));
    format!("`{value}` (`{name}` in {file})")
}

/// Checks the page as a whole: each row's test is there and has the row, each constant has the value that the page shows, and
/// each constant that is called the most of something is on the page.
pub fn is_complete() {
    let page = std::fs::read_to_string(repository().join(PAGE)).expect("the page can be read");
    let begins = page.find(FIRST).expect("the page has its table") + FIRST.len();
    let rows = page[begins..].lines();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let (what, test) = (cells[0], cells[cells.len() - 1]);
        let (test, file) = test.split_once(" in ").expect("a test in a file");
        let source = read(file);
        let function = format!("fn {}(", test.trim_matches('`'));
        let is_there = source.contains(&function) && source.contains(&format!("\"{what}\""));
        assert!(is_there, "{file} has no such test, or not this row: {row}");
    }
    for place in page.split("(`").skip(1) {
        let Some((name, rest)) = place.split_once("` in ") else {
            continue;
        };
        let file = rest.split(')').next().unwrap_or_default();
        if name.chars().any(char::is_lowercase) {
            continue;
        }
        let shown = constant(file, name);
        assert!(page.contains(&shown), "{PAGE} shows another value: {shown}");
    }
    let mut missing = Vec::new();
    for folder in [repository(), repository().join("crates")] {
        for entry in std::fs::read_dir(folder).expect("the workspace") {
            let source = entry.expect("an entry of the workspace").path().join("src");
            if !source.ends_with("xtask/src") && !source.ends_with("tests/src") {
                collect(&source, &page, &mut missing);
            }
        }
    }
    assert!(missing.is_empty(), "{PAGE} lacks {missing:#?}");
}

/// Constants of the sources in a folder that are called the most of something, and are not on the page.
fn collect(folder: &Path, page: &str, missing: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect(&path, page, missing);
            continue;
        }
        let file = path.strip_prefix(repository()).expect("a path inside");
        let file = file.to_str().expect("a path of text");
        if !file.ends_with(".rs") || file.ends_with("tests.rs") {
            continue;
        }
        let source = read(file);
        let source = source
            .split("#[cfg(test)]\nmod ")
            .next()
            .unwrap_or_default();
        for line in source.lines() {
            let words = line.split_once("const ").map(|(_, words)| words);
            let name = words.and_then(|words| words.split_once(": "));
            let name = name.map_or("", |(name, _)| name);
            let on_the_page = format!("`{name}` in {file}");
            let is_most = name.split('_').any(|word| word == "MOST" || word == "MAX");
            if is_most && !page.contains(&on_the_page) {
                missing.push(constant(file, name));
            }
        }
    }
}

fn read(file: &str) -> String {
    let path = repository().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
