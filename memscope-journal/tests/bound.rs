//! The bound is held, across epochs, and nothing that is not ours is removed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Writer, attached, config, read, record};
use memscope_journal::{Config, Journal, JournalError, RecordingError, boot_id, epochs};
use std::fs;
use std::path::Path;

fn segment_bytes(dir: &Path) -> u64 {
    let mut total = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            total += segment_bytes(&entry.path());
        } else if entry
            .path()
            .extension()
            .is_some_and(|ending| ending == "msj" || ending == "msc")
        {
            total += entry.metadata().unwrap().len();
        }
    }
    total
}

#[test]
fn the_oldest_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let bounded = |epoch| Config {
        total_bytes: 1 << 20,
        ..config(epoch)
    };
    let mut first = Writer::create(dir.path(), bounded(900)).unwrap();
    for n in 1..=100 {
        first.append(&record(n, 20_000), 0).unwrap();
        assert!(segment_bytes(dir.path()) <= 1 << 20);
    }
    let first_dir = first.journal.epoch_dir().to_path_buf();
    let (numbers, _, warnings) = read(&first_dir).unwrap();
    assert_eq!(numbers.last(), Some(&100));
    // What is left begins with a checkpoint.
    assert!(numbers[0] > 1);
    assert_eq!(warnings, []);
    drop(first);
    fs::write(first_dir.join("notes.txt"), "mine").unwrap();
    let unfinished = ["000099.msj.new", "000099.msc.new"].map(|name| first_dir.join(name));
    for path in &unfinished {
        fs::write(path, "left by a kill").unwrap();
    }
    fs::create_dir(dir.path().join("not-an-epoch")).unwrap();
    fs::write(dir.path().join("not-an-epoch/000000.msj"), "mine").unwrap();

    // A smaller number, as after a reboot: the epoch written last is the newer one all the same.
    let mut second = Writer::create(dir.path(), bounded(100)).unwrap();
    assert!(!unfinished.iter().any(|path| path.exists()));
    assert_eq!(
        epochs(dir.path()).unwrap(),
        [first_dir.clone(), second.journal.epoch_dir().to_path_buf()]
    );
    let kept = |dir: &Path| read(dir).map_or(0, |(numbers, _, _)| numbers.len());
    let mut before = kept(&first_dir);
    for n in 1..=100 {
        second.append(&record(n, 20_000), 0).unwrap();
        assert!(segment_bytes(dir.path()) <= (1 << 20) + 4);
        let now = kept(&first_dir);
        assert!(now <= before);
        if now > 0 {
            assert_eq!(
                kept(second.journal.epoch_dir()),
                n as usize,
                "the current epoch was cut first"
            );
        }
        before = now;
    }
    assert_eq!(before, 0);
    assert!(kept(second.journal.epoch_dir()) > 0);
    assert_eq!(fs::read(first_dir.join("notes.txt")).unwrap(), b"mine");
    assert!(dir.path().join("not-an-epoch/000000.msj").exists());
}

#[test]
fn emptied_epochs_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let bounded = |epoch| Config {
        total_bytes: 512 << 10,
        ..config(epoch)
    };
    let first = Journal::create(dir.path(), bounded(1)).unwrap();
    let first_dir = first.epoch_dir().to_path_buf();
    // Killed: its file keeps its full size.
    std::mem::forget(first);
    // The lock belongs to the open file, which lives on here; a kill would have closed it.
    fs::remove_file(dir.path().join("lock")).unwrap();
    let mut second = Writer::create(dir.path(), bounded(2)).unwrap();
    assert!(first_dir.exists());
    for n in 1..=20 {
        second.append(&record(n, 20_000), 0).unwrap();
    }
    assert!(!first_dir.exists());
}

#[test]
fn settings_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    for (segment_bytes, total_bytes) in [(1000, 1 << 20), (2 << 30, 8 << 30), (1 << 20, 1 << 20)] {
        let error = Journal::create(
            dir.path(),
            Config {
                segment_bytes,
                total_bytes,
                ..config(1)
            },
        )
        .unwrap_err();
        assert!(matches!(error, JournalError::Config { .. }), "{error}");
    }
}

#[test]
fn a_journal_that_is_too_small_for_its_checkpoints_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(
        dir.path(),
        Config {
            total_bytes: 512 << 10,
            ..config(1)
        },
    )
    .unwrap();
    // The attach and its notes are the state; each note has a text of its own.
    journal.append(&attached(), 0).unwrap();
    for n in 2..=100 {
        journal.append(&record(n, 20_000), 0).unwrap();
        assert!(segment_bytes(dir.path()) <= 512 << 10);
    }
    let said = journal.journal.too_small().unwrap();
    assert!(said.checkpoint_bytes > 256 << 10 && said.needed_bytes > 1 << 20);
    assert!(matches!(
        read(journal.journal.epoch_dir()),
        Err(RecordingError::NoBeginning { .. })
    ));
}

#[test]
fn boot_ids_are_read() {
    assert_eq!(
        boot_id("00112233-4455-6677-8899-aabbccddeeff\n"),
        Some([
            0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff
        ])
    );
    assert_eq!(boot_id("0011"), None);
    assert_eq!(boot_id("zz112233-4455-6677-8899-aabbccddeeff"), None);
    assert_eq!(boot_id("00112233-4455-6677-8899-aabbccddeeff0"), None);
}
