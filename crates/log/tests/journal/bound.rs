//! The bound of the journal is kept, across epochs, and no foreign file is removed.

use crate::common::{Writer, attached, config, read, record, replacing};
use memscope_log::records::Header;
use memscope_log::{
    ClockPair, Config, EARLIER_KEPT, EARLIER_SHARE, Journal, JournalError, LeftJournal, Recording,
    RecordingError, State, boot_id, ended_epochs, epochs,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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

/// Number of records that can be read in the directory.
fn kept(dir: &Path) -> usize {
    read(dir).map_or(0, |(numbers, _, _)| numbers.len())
}

/// Sets the last write of an epoch to so long ago that it has lost its share.
fn end_long_ago(epoch_dir: &Path) {
    let then = SystemTime::now() - EARLIER_KEPT - Duration::from_secs(60);
    for entry in fs::read_dir(epoch_dir).unwrap() {
        let file = fs::File::options()
            .write(true)
            .open(entry.unwrap().path())
            .unwrap();
        file.set_modified(then).unwrap();
    }
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
    // The first segment that is left begins with a checkpoint.
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

    // A smaller epoch, as after a reboot: the epoch that was written last still counts as the newer one.
    let mut second = Writer::create(dir.path(), bounded(100)).unwrap();
    assert!(!unfinished.iter().any(|path| path.exists()));
    assert_eq!(
        epochs(dir.path()).unwrap(),
        [first_dir.clone(), second.journal.epoch_dir().to_path_buf()]
    );
    let share = (1 << 20) / EARLIER_SHARE;
    let mut before = kept(&first_dir);
    for n in 1..=100 {
        second.append(&record(n, 20_000), 0).unwrap();
        assert!(segment_bytes(dir.path()) <= (1 << 20) + 4);
        let now = kept(&first_dir);
        assert!(now <= before);
        assert!(
            segment_bytes(&first_dir) <= share || kept(second.journal.epoch_dir()) == n as usize,
            "the current epoch was cut first"
        );
        before = now;
    }
    // The end of the earlier run stays, up to its share.
    assert!(before > 0);
    assert!(segment_bytes(&first_dir) <= share);
    assert_eq!(read(&first_dir).unwrap().0.last(), Some(&100));
    assert!(kept(second.journal.epoch_dir()) > 0);

    // After a day it is removed like anything older.
    end_long_ago(&first_dir);
    for n in 101..=200 {
        second.append(&record(n, 20_000), 0).unwrap();
    }
    assert_eq!(kept(&first_dir), 0);
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
    // As after a kill: the file keeps its full size.
    std::mem::forget(first);
    // The lock belongs to the open file, which stays open here. A kill would have closed it.
    fs::remove_file(dir.path().join("lock")).unwrap();
    end_long_ago(&first_dir);
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
    // The state consists of the attach and its notes, and each note has a text of its own.
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

/// A daemon that goes on with a journal keeps what its readers need until it has a checkpoint of its own, and here it never gets one.
#[test]
fn one_that_is_too_small_keeps_its_bound_after_it_was_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let large = Config {
        total_bytes: 8 << 20,
        ..config(1)
    };
    let mut journal = Writer::create(dir.path(), large).unwrap();
    journal.append(&attached(), 0).unwrap();
    for n in 2..=60 {
        journal.append(&record(n, 20_000), 0).unwrap();
    }
    let Writer {
        journal,
        decoder,
        ledger,
    } = journal;
    drop(journal);
    let small = Config {
        total_bytes: 512 << 10,
        ..config(1)
    };
    let left = LeftJournal::open(dir.path(), small).unwrap();
    let mut journal = Writer {
        journal: left.reopen(decoder.next_sequence()).unwrap(),
        decoder,
        ledger,
    };
    for n in 61..=200 {
        journal.append(&record(n, 20_000), 0).unwrap();
    }
    assert!(journal.journal.too_small().is_some());
    let bytes = segment_bytes(dir.path());
    assert!(bytes <= 512 << 10, "{bytes}");
}

/// Appends records of a loud process and a quiet one until `end` holds. Returns the number of records.
fn two_processes(journal: &mut Writer, from: u64, mut end: impl FnMut(&Writer) -> bool) -> u64 {
    for number in from..from + 2000 {
        let (process, bytes) = match number % 40 {
            0 => (2, 100),
            _ => (1, 15_000),
        };
        journal
            .append(&replacing(process, number, bytes), number)
            .unwrap();
        if end(journal) {
            return number;
        }
    }
    panic!(
        "it does not end: {:?} {:?} {:?}",
        journal.journal,
        journal.journal.unshared(),
        left_out(journal.journal.epoch_dir())
    );
}

fn left_out(dir: &Path) -> Vec<Vec<u32>> {
    let recording = Recording::open(dir).unwrap();
    let segments = recording.segments().iter();
    segments
        .map(|place| place.left_out().iter().map(|one| one.process).collect())
        .collect()
}

#[test]
fn a_loud_process_gives_way_within_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(1)).unwrap();
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    two_processes(&mut journal, 1, |journal| {
        assert!(segment_bytes(dir.path()) <= 2 << 20);
        assert_eq!(journal.journal.unshared(), None);
        let segments = left_out(&epoch_dir);
        // Three times as much was written as there is room for: segments were joined.
        let written = journal.journal.next_sequence() * 12_000;
        segments[0] == [1] && segments.len() < 10 && written > 3 * (2 << 20)
    });
    let recording = Recording::open(&epoch_dir).unwrap();
    let first = recording.complete_from(2).unwrap().header.first_sequence;
    // The segment begins before the quiet process's first record.
    assert!(first < 40, "{first}");
    assert!(recording.complete_from(1).unwrap().header.first_sequence > 100);
    let mut records = recording.records();
    let (mut quiet, mut loud) = (Vec::new(), Vec::new());
    while let Some(entry) = records.next_record().unwrap() {
        match Header::read(entry.record).unwrap().process {
            2 => quiet.push(entry.sequence),
            _ => loud.push(entry.sequence),
        }
    }
    assert_eq!(records.warnings(), []);
    // Each record has its own number, whatever was left out before it.
    let newest = journal.journal.next_sequence() - 1;
    assert!(quiet.iter().copied().eq((1..=newest / 40).map(|n| n * 40)));
    assert!(loud[0] > 100 && loud.is_sorted());
}

#[test]
fn what_is_damaged_is_not_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(1)).unwrap();
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    // The segment before it has no record of the quiet process, and is removed as a whole.
    let first = epoch_dir.join("000001.msj");
    let second = epoch_dir.join("000002.msj");
    let number = two_processes(&mut journal, 1, |_| second.exists());
    let mut bytes = fs::read(&first).unwrap();
    bytes[5000] ^= 1;
    fs::write(&first, &bytes).unwrap();
    let number = two_processes(&mut journal, number + 1, |journal| {
        journal.journal.unshared().is_some()
    });
    assert!(first.exists(), "it is kept as it is");
    let why = journal.journal.unshared().unwrap().to_owned();
    assert!(
        why.contains("000001.msj") && why.contains("damaged"),
        "{why}"
    );
    // It is removed when it is the oldest one, and after that the loud process gives way as before.
    two_processes(&mut journal, number + 1, |journal| {
        assert!(segment_bytes(dir.path()) <= 2 << 20);
        !first.exists() && journal.journal.unshared().is_none()
    });
    assert_eq!(*journal.journal.state(), State::Running);
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

/// Which run goes on is in the lock: the times of files follow a clock that may have been set back since, and a disk that is full
/// takes no segment of it.
#[test]
fn the_epoch_that_is_being_written_has_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let of = |epoch| Config::new(epoch, [0; 16], ClockPair::default());
    let earlier = Journal::create(dir.path(), of(5)).unwrap();
    let ended = [earlier.epoch_dir().to_path_buf()];
    assert_eq!(ended_epochs(dir.path()).unwrap(), [] as [PathBuf; 0]);
    drop(earlier);
    assert_eq!(ended_epochs(dir.path()).unwrap(), ended);
    let later = SystemTime::now() + Duration::from_secs(24 * 60 * 60);
    for entry in fs::read_dir(&ended[0]).unwrap() {
        let file = fs::File::options().write(true).open(entry.unwrap().path());
        file.unwrap().set_modified(later).unwrap();
    }
    let running = Journal::create(dir.path(), of(6)).unwrap();
    assert_eq!(ended_epochs(dir.path()).unwrap(), ended);
    fs::remove_dir_all(running.epoch_dir()).unwrap();
    assert_eq!(ended_epochs(dir.path()).unwrap(), ended);
}
