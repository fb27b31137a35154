//! Tests with an allocator that fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::journal::checkpoint::Folded;
use crate::journal::config::Config;
use crate::journal::segment::{Disk, Space};
use crate::journal::writer::{Journal, State};
use crate::journal::{ClockPair, JournalError, LeftJournal, Recording, Warning};
use crate::records::{DaemonRecord, Decoder, Stamp};
use memscope_ledger::event::ProcessHandle;
use memscope_ledger::{Ledger, LedgerConfig};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A disk that has room for a number of further segments, and then fails.
#[derive(Clone)]
struct Tight {
    segments: Arc<AtomicI32>,
    error: rustix::io::Errno,
}

impl Space for Tight {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        if self.segments.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(self.error.into());
        }
        Disk.allocate(file, bytes)
    }
}

fn tight(segments: i32, error: rustix::io::Errno) -> Tight {
    Tight {
        segments: Arc::new(AtomicI32::new(segments)),
        error,
    }
}

fn journal(dir: &Path, space: Tight) -> Result<Journal, JournalError> {
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(5, [0; 16], ClockPair::default())
    };
    Journal::create_in(dir, config, Box::new(space))
}

/// Characters that no compression makes much smaller.
fn noise(number: u64) -> String {
    let mut state = number;
    let letter = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        char::from(b'0' + (mixed >> 58) as u8)
    };
    (0..60_000)
        .map(letter)
        .filter(|letter| *letter != '\\')
        .collect()
}

pub(super) fn record(n: u64) -> Vec<u8> {
    DaemonRecord::Backend(memscope_ledger::event::Backend::Other(noise(n)))
        .encode(Stamp {
            process: ProcessHandle(1),
            tid: 0,
            time_ns: n,
            lost_before: 0,
        })
        .unwrap()
}

pub(super) fn numbers(journal: &Journal) -> (Vec<u64>, Vec<Warning>) {
    let mut records = Recording::open(journal.epoch_dir()).unwrap().records();
    let mut numbers = Vec::new();
    while let Some(entry) = records.next_record().unwrap() {
        numbers.push(entry.sequence);
    }
    (numbers, records.warnings().to_vec())
}

#[test]
fn no_space_for_the_first_segment_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for (errno, no_space) in [
        (rustix::io::Errno::NOSPC, true),
        (rustix::io::Errno::DQUOT, true),
        (rustix::io::Errno::FBIG, true),
        (rustix::io::Errno::IO, false),
    ] {
        let error = journal(dir.path(), tight(0, errno)).unwrap_err();
        assert_eq!(
            matches!(error, JournalError::NoSpace { .. }),
            no_space,
            "{error}"
        );
        assert_eq!(
            crate::journal::epochs(dir.path()).unwrap(),
            Vec::<std::path::PathBuf>::new()
        );
    }
    let read_only = journal(dir.path(), tight(0, rustix::io::Errno::ROFS)).unwrap_err();
    assert!(matches!(read_only, JournalError::NotPermitted { .. }));
    // The failed attempt was cleaned up, so the same epoch can be begun again.
    journal(dir.path(), tight(1, rustix::io::Errno::IO)).unwrap();
}

#[test]
fn it_can_begin_without_room_and_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let space = tight(0, rustix::io::Errno::NOSPC);
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(5, [0; 16], ClockPair::default())
    };
    let (mut journal, error) =
        Journal::create_or_wait_in(dir.path(), config, Box::new(space.clone())).unwrap();
    assert!(matches!(error, Some(JournalError::NoSpace { .. })));
    assert!(matches!(
        journal.state(),
        State::Stopped {
            from_sequence: 1,
            is_full: true,
            ..
        }
    ));
    let (decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
    let state = || {
        Some(Folded {
            decoder: &decoder,
            ledger: &ledger,
        })
    };
    assert_eq!(journal.append(&record(1), 1, state()).unwrap(), 1);
    journal.resume();
    assert!(journal.append(&record(2), 2, state()).is_err());
    space.segments.store(9, Ordering::Relaxed);
    journal.resume();
    assert_eq!(journal.append(&record(3), 3, state()).unwrap(), 3);
    assert_eq!(journal.dropped(), 2);
    journal.settle().unwrap();
    let recording = Recording::open(journal.epoch_dir()).unwrap();
    assert!(
        recording.segments()[0].stands_alone(),
        "it begins with what came before it"
    );
    assert_eq!(numbers(&journal), (vec![3], vec![]));
}

#[test]
fn it_stops_counts_and_goes_on_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let space = tight(2, rustix::io::Errno::NOSPC);
    let mut journal = journal(dir.path(), space.clone()).unwrap();
    // Five records fill a segment. The eleventh does not fit; three come at once.
    for n in 1..=10 {
        assert_eq!(journal.append(&record(n), n, None).unwrap(), n);
    }
    assert_eq!(*journal.state(), State::Running);
    let three: Vec<u8> = (11..=13).flat_map(record).collect();
    let error = journal.append(&three, 13, None).unwrap_err();
    assert!(matches!(error, JournalError::NoSpace { .. }));
    let State::Stopped {
        reason,
        from_sequence,
        is_full,
    } = journal.state().clone()
    else {
        panic!("{:?}", journal.state())
    };
    assert_eq!(
        (reason, from_sequence, is_full),
        (error.to_string(), 11, true)
    );
    assert_eq!((journal.dropped(), journal.next_sequence()), (3, 14));
    // The error comes once; numbers go on.
    assert_eq!(journal.append(&record(14), 14, None).unwrap(), 14);
    assert_eq!(journal.dropped(), 4);
    assert_eq!(numbers(&journal), ((1..=10).collect(), vec![]));

    space.segments.store(9, Ordering::Relaxed);
    journal.resume();
    assert_eq!(journal.append(&record(15), 15, None).unwrap(), 15);
    let gap = Warning::Missing {
        from_sequence: 11,
        records: 4,
    };
    assert_eq!(
        numbers(&journal),
        ((1..=10).chain([15]).collect(), vec![gap])
    );
}

/// What could not be removed once, as on a disk that was read-only for a moment, must not be in the way for ever.
#[test]
fn an_unfinished_file_of_its_own_is_not_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = journal(dir.path(), tight(i32::MAX, rustix::io::Errno::NOSPC)).unwrap();
    for name in ["000001.msj.new", "000001.msc.new", "000002.msj.new"] {
        std::fs::write(journal.epoch_dir().join(name), "left").unwrap();
    }
    let (decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
    // Five records fill a segment.
    for n in 1..=15 {
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        assert_eq!(journal.append(&record(n), n, Some(state)).unwrap(), n);
        journal.settle().unwrap();
    }
    assert_eq!(numbers(&journal), ((1..=15).collect(), vec![]));
}

/// A disk that has room for a number of segments at a time.
struct Room(usize);

impl Space for Room {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let beside = std::fs::read_dir(path.parent().unwrap())?;
        let is_segment = |path: &Path| path.extension().is_some_and(|ending| ending == "msj");
        let there = beside.filter(|entry| is_segment(&entry.as_ref().unwrap().path()));
        if there.count() >= self.0 {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Disk.allocate(file, bytes)
    }
}

#[test]
fn the_oldest_segments_make_room_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(5, [0; 16], ClockPair::default())
    };
    let mut journal = Journal::create_in(dir.path(), config, Box::new(Room(3))).unwrap();
    let (decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
    // Five records fill a segment.
    for n in 1..=40 {
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        assert_eq!(journal.append(&record(n), n, Some(state)).unwrap(), n);
    }
    assert_eq!(*journal.state(), State::Running);
    assert_eq!(journal.dropped(), 0);
    assert_eq!(numbers(&journal).0, (26..=40).collect::<Vec<u64>>());
    drop(journal);

    // What an earlier run has left goes as well, before anything of this one.
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(6, [0; 16], ClockPair::default())
    };
    struct Elsewhere;
    impl Space for Elsewhere {
        fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
            use std::os::fd::AsRawFd;
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            let journal = path.parent().unwrap().parent().unwrap();
            if journal.join(format!("{:020}", 5)).exists()
                && std::fs::read_dir(journal.join(format!("{:020}", 5)))?
                    .next()
                    .is_some()
            {
                return Err(rustix::io::Errno::NOSPC.into());
            }
            Disk.allocate(file, bytes)
        }
    }
    let mut journal = Journal::create_in(dir.path(), config, Box::new(Elsewhere)).unwrap();
    assert_eq!(journal.append(&record(1), 1, None).unwrap(), 1);
    assert_eq!(numbers(&journal), (vec![1], vec![]));
}

/// A daemon that is killed while its journal stands still has told of records that are not in it.
#[test]
fn numbers_that_were_given_while_it_stood_still_are_not_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = |epoch| Config {
        segment_bytes: 256 << 10,
        ..Config::new(epoch, [0; 16], ClockPair::default())
    };
    let space = tight(1, rustix::io::Errno::NOSPC);
    let mut journal = journal(dir.path(), space).unwrap();
    // Five records fill a segment.
    for n in 1..=5 {
        assert_eq!(journal.append(&record(n), n, None).unwrap(), n);
    }
    assert!(journal.append(&record(6), 6, None).is_err());
    let after = |journal: Journal, next: u64| {
        drop(journal);
        let left = LeftJournal::open(dir.path(), config(5)).unwrap();
        left.reopen(next).unwrap()
    };
    let mut journal = after(journal, 6);
    assert_eq!(journal.next_sequence(), 7);
    // Whoever goes on may have no room either.
    journal.stop(&JournalError::checkpoint(io::ErrorKind::StorageFull.into()));
    for n in 7..=8 {
        assert_eq!(journal.append(&record(n), n, None).unwrap(), n);
    }
    let mut journal = after(journal, 6);
    let (mut decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
    decoder.seek(9);
    let state = Some(Folded {
        decoder: &decoder,
        ledger: &ledger,
    });
    assert_eq!(journal.append(&record(9), 9, state).unwrap(), 9);
    journal.settle().unwrap();
    let gap = Warning::Missing {
        from_sequence: 6,
        records: 3,
    };
    assert_eq!(numbers(&journal), ((1..=5).chain([9]).collect(), vec![gap]));
    // What came into it since then counts.
    let journal = after(journal, 10);
    assert_eq!(journal.next_sequence(), 10);
    drop(journal);
    let other = Journal::create(dir.path(), config(6)).unwrap();
    assert_eq!(other.next_sequence(), 1, "its numbers are its own");
}

/// A disk on which a state has room only where there are at most so many segments beside it.
struct StatesWith(Arc<AtomicI32>);

impl Space for StatesWith {
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        let new = path_of(file)?;
        let is_segment = new.to_string_lossy().ends_with(".msj.new");
        match is_segment || self.has_room(&new)? {
            true => Disk.allocate(file, bytes),
            false => Err(rustix::io::Errno::NOSPC.into()),
        }
    }

    fn write_state(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        match self.has_room(&path_of(file)?)? {
            true => Disk.write_state(file, bytes),
            false => Err(rustix::io::Errno::NOSPC.into()),
        }
    }
}

impl StatesWith {
    fn has_room(&self, state: &Path) -> io::Result<bool> {
        let most = self.0.load(Ordering::Relaxed);
        Ok(segments_in(state.parent().unwrap())? <= most)
    }
}

fn path_of(file: &File) -> io::Result<std::path::PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn segments_in(folder: &Path) -> io::Result<i32> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        count += i32::from(path.extension().is_some_and(|ending| ending == "msj"));
    }
    Ok(count)
}

#[test]
fn the_oldest_segments_make_room_for_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        segment_bytes: 256 << 10,
        ..Config::new(5, [0; 16], ClockPair::default())
    };
    let room = Arc::new(AtomicI32::new(i32::MAX));
    let space = StatesWith(Arc::clone(&room));
    let mut journal = Journal::create_in(dir.path(), config, Box::new(space)).unwrap();
    let (decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
    let append = |journal: &mut Journal, n| {
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        let appended = journal.append(&record(n), n, Some(state));
        appended.and_then(|_| journal.settle())
    };
    // Five records fill a segment.
    for n in 1..=20 {
        append(&mut journal, n).unwrap();
    }
    assert_eq!(segments_in(journal.epoch_dir()).unwrap(), 4);
    // The state of the fifth one has room beside three.
    room.store(3, Ordering::Relaxed);
    append(&mut journal, 21).unwrap();
    assert_eq!(*journal.state(), State::Running);
    let told = (11..=21).collect::<Vec<u64>>();
    assert_eq!(numbers(&journal), (told, vec![]));

    // Now nothing can go: a reader of the newest records needs what is there. Each try leaves as much as there was.
    for n in 22..=25 {
        append(&mut journal, n).unwrap();
    }
    room.store(0, Ordering::Relaxed);
    assert!(append(&mut journal, 26).is_err());
    let left = segments_in(journal.epoch_dir()).unwrap();
    for n in 27..=40 {
        journal.resume();
        let refused = append(&mut journal, n);
        assert!(matches!(refused, Err(JournalError::NoSpace { .. })), "{n}");
        assert_eq!(segments_in(journal.epoch_dir()).unwrap(), left);
    }
    room.store(i32::MAX, Ordering::Relaxed);
    journal.resume();
    append(&mut journal, 41).unwrap();
    let (read, warnings) = numbers(&journal);
    assert_eq!(read.last(), Some(&41));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let recording = Recording::open(journal.epoch_dir()).unwrap();
    assert!(recording.segments().last().unwrap().stands_alone());
}
