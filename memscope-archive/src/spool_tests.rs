//! The spool against a naive model: a source of numbers, a store that may fail, and a program that is killed at any operation of the disk.

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;

const LIMIT: u64 = 400;

#[derive(Clone, Debug)]
enum Act {
    /// Closes a batch with so many numbers of each table.
    Close(u64),
    /// Tries to upload so many files; whether the store works, and whether its answers arrive.
    Upload(u8, bool, bool),
    /// The disk fails after so many operations, and the program is started again with one that works.
    Kill(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1..20_u64).prop_map(Act::Close),
        (1..6_u8, any::<bool>(), any::<bool>()).prop_map(|(n, a, b)| Act::Upload(n, a, b)),
        (0..14_u64).prop_map(Act::Kill),
    ]
}

fn open(folder: &Path, left: Option<u64>) -> Result<(Spool<u64>, u64), SpoolError> {
    let left = left.map(Cell::new);
    Spool::open(folder, LIMIT, Disk { left })
}

/// Lines of numbers, of two tables with the same numbers, and the gaps.
fn close(spool: &mut Spool<u64>, cursor: &mut u64, count: u64) {
    let after = *cursor + count;
    let lines: String = (*cursor + 1..=after).map(|n| format!("{n}\n")).collect();
    let number = spool.next_batch();
    let file = |table: &str, content: String, rows| NewFile {
        object: format!("{table}/{number}"),
        table: table.to_owned(),
        rows,
        content: content.into_bytes(),
    };
    let Ok(dropped) = spool.make_room(2 * lines.len() as u64) else {
        return;
    };
    let mut files = vec![
        file("events", lines.clone(), count),
        file("steps", lines, count),
    ];
    if !dropped.is_empty() {
        let told: String = dropped
            .iter()
            .map(|gone| format!("{} {}\n", gone.entry.object, gone.entry.rows))
            .collect();
        files.push(file("gaps", told, dropped.len() as u64));
    }
    if spool.commit(files, &after, dropped).is_ok() {
        *cursor = after;
    }
}

type Store = BTreeMap<String, Vec<u8>>;

fn upload(spool: &mut Spool<u64>, store: &mut Store, works: bool, answers: bool) {
    let Some((file, path)) = spool.take() else {
        return;
    };
    let content = fs::read(path).unwrap();
    if works {
        let before = store.insert(file.entry.object.clone(), content.clone());
        assert!(before.is_none_or(|before| before == content), "{file:?}");
    }
    if works && answers {
        let _ = spool.uploaded(&file);
    } else {
        spool.not_uploaded();
    }
}

/// What the store has of a table.
fn numbers(store: &Store, table: &str) -> Vec<u64> {
    let files = store.iter().filter(|(object, _)| object.starts_with(table));
    let lines = files.flat_map(|(_, content)| {
        let text = String::from_utf8(content.clone()).unwrap();
        text.lines()
            .map(|line| line.parse().unwrap())
            .collect::<Vec<u64>>()
    });
    let mut numbers: Vec<u64> = lines.collect();
    numbers.sort_unstable();
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_missing_and_nothing_is_double(acts in prop::collection::vec(act(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::new();
        let (mut spool, mut cursor) = open(folder.path(), None).unwrap();
        for act in acts {
            match act {
                Act::Close(count) => close(&mut spool, &mut cursor, count),
                Act::Upload(count, works, answers) => {
                    for _ in 0..count {
                        upload(&mut spool, &mut store, works, answers);
                    }
                }
                Act::Kill(left) => {
                    drop(spool);
                    // It is killed in its start, or in the work after it.
                    if let Ok((mut dying, at)) = open(folder.path(), Some(left)) {
                        let mut at = at;
                        close(&mut dying, &mut at, 7);
                        upload(&mut dying, &mut store, true, true);
                        close(&mut dying, &mut at, 3);
                    }
                    (spool, cursor) = open(folder.path(), None).unwrap();
                }
            }
            prop_assert!(spool.bytes() <= LIMIT + 200, "{}", spool.bytes());
        }
        while spool.files() > 0 {
            upload(&mut spool, &mut store, true, true);
        }
        let all: Vec<u64> = (1..=cursor).collect();
        prop_assert_eq!(&numbers(&store, "steps"), &all);
        let events = numbers(&store, "events");
        let unique: BTreeSet<u64> = events.iter().copied().collect();
        prop_assert_eq!(unique.len(), events.len(), "double");
        // What is not there was told, with its number of rows. What was told to be dropped may have been uploaded at the same time:
        // then the answer did not arrive.
        let gaps = store.iter().filter(|(object, _)| object.starts_with("gaps"));
        let told = gaps.flat_map(|(_, content)| {
            let text = String::from_utf8(content.clone()).unwrap();
            text.lines()
                .map(|line| {
                    let (object, rows) = line.split_once(' ').unwrap();
                    (object.to_owned(), rows.parse::<u64>().unwrap())
                })
                .collect::<Vec<_>>()
        });
        let told: Vec<(String, u64)> = told.collect();
        let objects: BTreeSet<&String> = told.iter().map(|(object, _)| object).collect();
        prop_assert_eq!(objects.len(), told.len(), "told twice");
        let gone = told.iter().filter(|(object, _)| !store.contains_key(object));
        let gone: u64 = gone.map(|(_, rows)| rows).sum();
        prop_assert_eq!(events.len() as u64 + gone, cursor);
        // Of the spool only the newest batch's cursor is left.
        let left = fs::read_dir(folder.path()).unwrap().count();
        prop_assert!(left <= 3, "{left} entries");
    }
}

#[test]
fn one_spool_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path(), None).unwrap();
    assert!(matches!(
        open(folder.path(), None),
        Err(SpoolError::Taken { .. })
    ));
}

#[test]
fn what_may_not_be_dropped_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, mut cursor) = open(folder.path(), None).unwrap();
    for _ in 0..200 {
        close(&mut spool, &mut cursor, 5);
    }
    // Without a store only the tables that stay fill it, and then nothing more is taken.
    assert!(cursor < 1000, "{cursor}");
    let kept: Vec<&Entry> = spool.waiting.values().flatten().collect();
    assert!(kept.iter().filter(|entry| entry.table == "steps").count() as u64 * 5 == cursor);
    assert!(matches!(
        spool.make_room(LIMIT),
        Err(SpoolError::Full { .. })
    ));
}
