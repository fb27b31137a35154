//! msMemScope's files.

use crate::pieces::Pieces;
use crate::{Target, ask};
use memscope_dump::compare::{Level, Side, compare};
use memscope_dump::inefficient::{Question, inefficient};
use memscope_dump::leaks::offline_leaks;
use memscope_dump::uses::uses;
use memscope_dump::{Format, Reader, Writer, events};
use memscope_ledger::event::Event;
use std::cell::RefCell;
use std::hint::black_box;
use std::path::{Path, PathBuf};

pub(crate) const TARGET: Target = Target {
    name: "dump",
    reads: "msMemScope's files, CSV and SQLite: rows, analyses, events, the ledger's answers",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 2048,
    longest: 1 << 16,
};

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// A file of this thread's own with these bytes.
fn file(bytes: &[u8]) -> PathBuf {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let path = folder.path().join("dump");
        std::fs::write(&path, bytes).unwrap();
        path
    })
}

/// The first byte says what is asked, the rest is the file.
fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    let asked = pieces.byte();
    let path = file(pieces.0);
    let Ok(rows) = Reader::open(&path) else {
        return;
    };
    match asked % 5 {
        0 => {
            if let Ok(imported) = events::import(rows) {
                ask::about(imported.events);
            }
        }
        1 => {
            let question = Question {
                idle_threshold: 2,
                ..Question::default()
            };
            drop(black_box(inefficient(&path, rows, &question)));
        }
        2 => drop(black_box(offline_leaks(
            &path,
            rows,
            "step start",
            usize::from(asked / 5),
        ))),
        3 => drop(black_box(uses(rows, 0x7f01_0800_0000, asked > 128))),
        _ => both(
            &path,
            rows,
            if asked > 128 {
                Level::Kernel
            } else {
                Level::Op
            },
        ),
    }
}

/// Compares the file with itself.
fn both(path: &Path, rows: Reader, level: Level) {
    let Ok(base) = Side::read(path, rows, level) else {
        return;
    };
    let other = Reader::open(path).map(|rows| Side::read(path, rows, level));
    if let Ok(Ok(other)) = other {
        drop(black_box(compare(&base, &other, &mut || true)));
    }
}

const GOLDEN: [&str; 3] = [
    include_str!("../../crates/dump/tests/golden/ascend_driver.csv"),
    include_str!("../../crates/dump/tests/golden/inefficient_1.csv"),
    include_str!("../../crates/dump/tests/golden/offline_leaks_1.csv"),
];

/// The header and the first rows of a file.
fn beginning(text: &str, rows: usize) -> String {
    text.lines()
        .take(rows + 1)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The events of the golden files' first rows.
pub(crate) fn some_events() -> Vec<Vec<Event>> {
    let of = |text: &&str| {
        let path = file(beginning(text, 60).as_bytes());
        events::import(Reader::open(&path).unwrap()).unwrap().events
    };
    GOLDEN.iter().map(of).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (text, asked) in GOLDEN
        .iter()
        .flat_map(|text| (0..5).map(move |asked| (text, asked)))
    {
        let text = beginning(text, 20);
        seeds.push([&[asked], text.as_bytes()].concat());
    }
    let rows: Vec<_> = Reader::open(&file(beginning(GOLDEN[0], 6).as_bytes()))
        .unwrap()
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump.db");
    let mut writer = Writer::create(&path, Format::Db).unwrap();
    for row in rows {
        writer.write(&row.unwrap()).unwrap();
    }
    writer.finish().unwrap();
    seeds.push([&[0], &std::fs::read(&path).unwrap()[..]].concat());
    seeds
}
