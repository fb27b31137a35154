//! Appended records are read back in order and with their numbers, from the directory and from an export.

use crate::common::{Writer, attached, config, read, record, site, small};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome};
use memscope_log::{
    ClockPair, Config, Journal, JournalError, Piece, Recording, RecordingError, SegmentPlace,
    leading,
};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_small_journal_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(dir.path(), 4);
    let (numbers, repeated, warnings) = read(&file).unwrap();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
    assert_eq!((repeated, warnings.len()), (0, 0));
    // A closed file ends with its records.
    assert!(fs::metadata(&file).unwrap().len() < 4096);

    let recording = Recording::open(file.parent().unwrap()).unwrap();
    let header = recording.header();
    assert_eq!(
        (header.epoch, header.boot_id, header.first_sequence),
        (5, [7; 16], 1)
    );
    assert_eq!(
        header.clock,
        ClockPair {
            boot_ns: 1000,
            unix_ns: 2000
        }
    );
    let mut records = recording.records();
    let mut positions = Vec::new();
    while let Some(entry) = records.next_record().unwrap() {
        positions.push(entry.ring_position);
    }
    assert_eq!(
        positions,
        [100, 200, 200, 400, 400, 400, 700, 700, 700, 700]
    );
}

/// What is said to come next in a batch does come next.
#[test]
fn upcoming_records_come() {
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(small(dir.path(), 4).parent().unwrap()).unwrap();
    let mut records = recording.records();
    let mut foretold: Vec<Vec<u8>> = Vec::new();
    let mut most = 0;
    while let Some(entry) = records.next_record().unwrap() {
        let record = entry.record.to_vec();
        if !foretold.is_empty() {
            assert_eq!(foretold.remove(0), record);
        }
        let upcoming = records.upcoming().map(|(_, record)| record.to_vec());
        let upcoming: Vec<_> = upcoming.collect();
        assert!(upcoming.starts_with(&foretold));
        most = most.max(upcoming.len());
        foretold = upcoming;
    }
    assert!(foretold.is_empty());
    // Its batches have 1, 2, 3 and 4 records.
    assert_eq!(most, 3);
}

#[test]
fn files_are_for_their_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("journal");
    let file = small(&root, 1);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&root), mode(&file)), (0o700, 0o600));
    let export = dir.path().join("out.msj");
    Recording::open(&file).unwrap().export(&export).unwrap();
    assert_eq!(mode(&export), 0o600);
}

#[test]
fn a_living_journal_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(5)).unwrap();
    assert_eq!(
        read(journal.journal.epoch_dir()).unwrap(),
        (vec![], 0, vec![])
    );
    for n in 1..=5 {
        journal.append(&record(n, 10), n).unwrap();
        let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
        assert_eq!(numbers, (1..=n).collect::<Vec<_>>());
        assert_eq!(warnings, []);
    }
    // As after a kill: nothing is closed, and the space stays allocated.
    let file = journal.journal.epoch_dir().join("000000.msj");
    assert_eq!(fs::metadata(&file).unwrap().len(), 256 << 10);
    std::mem::forget(journal);
    assert_eq!(read(&file).unwrap(), ((1..=5).collect(), 0, vec![]));
}

/// A reader that has come to the end of what was written goes on with what has been written since. It had looked ahead, to where nothing was.
#[test]
fn a_reader_goes_on_with_what_is_written_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(5)).unwrap();
    let mut written = 0;
    let mut write = |journal: &mut Writer| {
        for _ in 0..3 {
            written += 1;
            journal.append(&record(written, 10), written).unwrap();
        }
    };
    write(&mut journal);
    let recording = Recording::open(journal.journal.epoch_dir()).unwrap();
    let mut records = recording.records();
    for expected in 1..=9 {
        if expected % 3 == 1 && expected > 1 {
            write(&mut journal);
        }
        let entry = records.next_record().unwrap().unwrap();
        assert_eq!(entry.sequence, expected);
    }
    assert!(records.next_record().unwrap().is_none());
    assert_eq!(records.warnings(), []);
}

/// There is room for all segments, so none is removed.
fn roomy() -> Config {
    Config {
        total_bytes: 16 << 20,
        ..config(5)
    }
}

#[test]
fn every_segment_can_be_read_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), roomy()).unwrap();
    journal.append(&site(1), 0).unwrap();
    journal.append(&attached(), 0).unwrap();
    journal.journal.set_clock(ClockPair {
        boot_ns: 5,
        unix_ns: 6,
    });
    // A reader that begins at a segment must see the same as one that has read on to it.
    for n in 3..=50 {
        assert_eq!(journal.append(&record(n, 15_000), n).unwrap(), n);
    }
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    drop(journal);
    let segments: Vec<_> = (0..2)
        .map(|n| epoch_dir.join(format!("{n:06}.msj")))
        .collect();
    assert!(segments.iter().all(|segment| segment.exists()));

    let replay = |path: &std::path::Path| {
        let recording = Recording::open(path).unwrap();
        let mut decoder = Decoder::new(recording.header().epoch);
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut records = recording.records();
        let mut events = Vec::new();
        let mut began = false;
        while let Some(piece) = records.next_piece().unwrap() {
            match piece {
                Piece::Segment {
                    checkpoint: Some(place),
                    ..
                } if !began => {
                    let restored = recording.restore(&place, None).unwrap();
                    (decoder, ledger) = (restored.decoder, restored.ledger);
                }
                Piece::Segment { .. } => {}
                Piece::Record(entry) => {
                    assert_eq!(decoder.next_sequence(), entry.sequence);
                    if let Outcome::Decoded(event) = decoder.decode(entry.record) {
                        ledger.apply(&event);
                        events.push(event.id.sequence);
                    }
                }
            }
            began = true;
        }
        assert!(decoder.site(1).is_some());
        let process = ledger.find(0).unwrap();
        let notes = ledger.coverage(process).unwrap();
        (events, notes, records.warnings().to_vec())
    };
    let whole = replay(&epoch_dir);
    assert_eq!(whole.0, (2..=50).collect::<Vec<_>>());
    assert!(whole.1.len() >= 48);
    assert_eq!(whole.2, []);
    let header = Recording::open(&segments[1]).unwrap().header().clone();
    assert_eq!(header.clock.unix_ns, 6);
    assert_eq!(header.first_boot_ns, header.first_sequence);
    let (events, notes, warnings) = replay(&segments[1]);
    assert!(events[0] > 2);
    assert_eq!(warnings, []);
    let kept = notes.iter().filter(|note| whole.1.contains(note)).count();
    assert_eq!(kept, notes.len());

    // An export has the same content.
    let export = dir.path().join("export.msj");
    let recording = Recording::open(&epoch_dir).unwrap();
    let exported = recording.export(&export).unwrap();
    assert_eq!(exported.bytes, fs::metadata(&export).unwrap().len());
    assert_eq!(exported.warnings, []);
    assert_eq!(replay(&export), whole);
    let places = Recording::open(&export).unwrap().segments().len();
    assert_eq!(places, recording.segments().len());
    let mut bytes = Vec::new();
    recording.write_to(&mut bytes).unwrap();
    assert_eq!(bytes, fs::read(&export).unwrap());
    // So has an export of the export.
    let again = dir.path().join("again.msj");
    Recording::open(&export).unwrap().export(&again).unwrap();
    assert_eq!(bytes, fs::read(&again).unwrap());
    assert!(matches!(
        recording.export(&again),
        Err(RecordingError::ExportExists { .. })
    ));
}

#[test]
fn a_journal_can_be_read_while_a_checkpoint_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), roomy()).unwrap();
    journal.append(&attached(), 0).unwrap();
    for n in 2..=70 {
        journal.append_only(&record(n, 15_000), n).unwrap();
        let recording = Recording::open(journal.journal.epoch_dir()).unwrap();
        // Whichever segment a reader begins with, it reaches the state after the newest record.
        let place = recording.segment_before(|_| true);
        let mut records = recording.records_from(place);
        let mut next = 1;
        while let Some(piece) = records.next_piece().unwrap() {
            match piece {
                Piece::Segment {
                    checkpoint: Some(checkpoint),
                    ..
                } if next == 1 => {
                    let restored = recording.restore(&checkpoint, None).unwrap();
                    next = restored.decoder.next_sequence();
                }
                Piece::Segment { .. } => {}
                Piece::Record(entry) => {
                    assert_eq!(entry.sequence, next);
                    next += 1;
                }
            }
        }
        assert_eq!(next, n + 1);
    }
    // In a closed journal every segment but the first has its checkpoint.
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    drop(journal);
    let recording = Recording::open(&epoch_dir).unwrap();
    assert!(recording.segments().len() > 2);
    assert!(recording.segments().iter().all(SegmentPlace::stands_alone));
    // If the daemon was killed while a checkpoint was written, a reader begins with the segment before it.
    let last = recording.segments().len() - 1;
    let newest = &recording.segments()[last];
    let name = format!("{:06}.msc", newest.header.index);
    let whole = fs::read(epoch_dir.join(&name)).unwrap();
    fs::remove_file(epoch_dir.join(&name)).unwrap();
    fs::write(epoch_dir.join(name + ".new"), &whole[..whole.len() / 2]).unwrap();
    let left = Recording::open(&epoch_dir).unwrap();
    assert_eq!(left.segments().len(), last + 1);
    let begins = left.segment_before(|_| true).header.index;
    assert_eq!(begins, newest.header.index - 1);
}

#[test]
fn only_whole_records_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(5)).unwrap();
    let mut bytes = record(1, 5);
    bytes.extend_from_slice(&record(2, 5)[..48]);
    assert!(matches!(
        journal.append(&bytes, 0),
        Err(JournalError::NotRecords { at, .. }) if at == record(1, 5).len()
    ));
    assert_eq!(journal.append(&[], 0).unwrap(), 1);
    assert_eq!(journal.append(&record(1, 5), 0).unwrap(), 1);
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    assert_eq!(read(&epoch_dir).unwrap(), (vec![1], 0, vec![]));
}

#[test]
fn one_daemon_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::create(dir.path(), config(5)).unwrap();
    assert!(matches!(
        Journal::create(dir.path(), config(6)),
        Err(JournalError::InUse { .. })
    ));
    drop(journal);
    assert!(matches!(
        Journal::create(dir.path(), config(5)),
        Err(JournalError::EpochTaken { .. })
    ));
    assert!(Journal::create(dir.path(), config(6)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_batches_come_back(
        batches in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![0usize..200, 0usize..60_000], 0..12), 0..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Writer::create(dir.path(), crate::common::config(5)).unwrap();
        let mut next = 1;
        for sizes in &batches {
            let records: Vec<u8> =
                sizes.iter().zip(next..).flat_map(|(size, n)| record(n, *size)).collect();
            let mut rest = records.as_slice();
            while !rest.is_empty() {
                let part = leading(rest, journal.journal.most_bytes());
                journal.append(part, 0).unwrap();
                rest = &rest[part.len()..];
            }
            next += sizes.len() as u64;
        }
        prop_assert_eq!(journal.journal.next_sequence(), next);
        let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
        // The oldest records may have been removed to keep the bound.
        let first = next - numbers.len() as u64;
        prop_assert_eq!(numbers, (first..next).collect::<Vec<_>>());
        prop_assert_eq!(warnings, vec![]);
    }
}
