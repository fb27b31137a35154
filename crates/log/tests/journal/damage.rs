//! Broken files: nothing panics, whole records are read, and missing ones are reported.

use crate::common::{Writer, config, read, record, small};
use memscope_log::{Journal, Piece, Recording, RecordingError, Warning};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn killed_at_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 4);
    let whole = fs::read(&file).unwrap();
    let cut = dir.path().join("cut.msj");
    let padded = dir.path().join("padded.msj");
    let mut seen = 0;
    for len in 0..=whole.len() {
        fs::write(&cut, &whole[..len]).unwrap();
        match read(&cut) {
            Ok((numbers, _, warnings)) => {
                assert!(len >= 128);
                assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
                assert!(numbers.len() >= seen, "more bytes, fewer records");
                seen = numbers.len();
                // There is no warning only where a batch ends.
                let ends = [128, whole.len()];
                assert_eq!(
                    warnings.is_empty(),
                    ends.contains(&len) || is_end(&whole, len)
                );
                for warning in &warnings {
                    assert!(matches!(warning, Warning::Truncated { at, lost_bytes, .. }
                        if *at < len as u64 && *lost_bytes <= len as u64 - at));
                    assert_eq!(warning.note().code, "recording_truncated");
                }
            }
            Err(RecordingError::Empty { .. }) => assert_eq!(len, 0),
            Err(RecordingError::ShortHeader { .. }) => assert!((1..128).contains(&len)),
            Err(other) => panic!("{len}: {other}"),
        }
        // The same holds for a file whose space was allocated ahead.
        let mut bytes = whole[..len].to_vec();
        bytes.resize(16 << 10, 0);
        fs::write(&padded, &bytes).unwrap();
        match read(&padded) {
            // A batch whose last bytes are zeros is complete without them.
            Ok((numbers, _, _)) => assert!(numbers.len() >= seen && numbers.len() <= 10),
            Err(error) => assert!(len < 128, "{len}: {error}"),
        }
    }
    assert_eq!(seen, 10);
}

/// Whether a batch ends at `len`.
fn is_end(whole: &[u8], len: usize) -> bool {
    whole[len..].starts_with(b"MSJ2")
}

#[test]
fn every_flipped_bit_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 3);
    let mut whole = fs::read(&file).unwrap();
    whole.resize(whole.len() + 64, 0);
    let flipped = dir.path().join("flipped.msj");
    for bit in 0..whole.len() * 8 {
        whole[bit / 8] ^= 1 << (bit % 8);
        fs::write(&flipped, &whole).unwrap();
        if let Ok((numbers, _, warnings)) = read(&flipped) {
            assert!(!warnings.is_empty(), "bit {bit} was not noticed");
            assert!(numbers.is_sorted() && numbers.len() <= 6);
            assert!(bit >= 128 * 8, "bit {bit} of the header was not noticed");
        }
        whole[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn reading_goes_on_behind_damage() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 4);
    let mut bytes = fs::read(&file).unwrap();
    let batches: Vec<usize> = (0..bytes.len() - 4)
        .filter(|at| bytes[*at..].starts_with(b"MSJ2"))
        .collect();
    let second = batches[1];
    bytes[second + 50] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (numbers, _, warnings) = read(&file).unwrap();
    assert_eq!(numbers, [1, 4, 5, 6, 7, 8, 9, 10]);
    let lost = (batches[2] - second) as u64;
    assert_eq!(
        warnings,
        [
            Warning::Damaged {
                path: file.clone(),
                at: second as u64,
                lost_bytes: lost
            },
            Warning::Missing {
                from_sequence: 2,
                records: 2
            },
        ]
    );
    assert_eq!(warnings[1].to_string(), "records 2 to 3 are missing");
    // An export leaves out the damaged part, and a reader of it still sees the gap.
    let export = dir.path().join("export.msj");
    let exported = Recording::open(&file).unwrap().export(&export).unwrap();
    assert_eq!(exported.warnings.len(), 2);
    assert_eq!(read(&export).unwrap().2, warnings[1..]);
}

#[test]
fn a_segment_that_is_gone_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Writer::create(dir.path(), config(5)).unwrap();
    for n in 1..=40 {
        journal.append(&record(n, 20_000), 0).unwrap();
    }
    let epoch_dir = journal.journal.epoch_dir().to_path_buf();
    drop(journal);
    let third = Recording::open(&epoch_dir.join("000002.msj"))
        .unwrap()
        .header()
        .first_sequence;
    let second = Recording::open(&epoch_dir.join("000001.msj"))
        .unwrap()
        .header()
        .first_sequence;
    let recording = Recording::open(&epoch_dir).unwrap();
    fs::remove_file(epoch_dir.join("000001.msj")).unwrap();
    let missing = Warning::Missing {
        from_sequence: second,
        records: third - second,
    };
    // The checkpoint of the next segment contains the effect of the missing records.
    let mut records = Recording::open(&epoch_dir).unwrap().records();
    let mut checkpoints = Vec::new();
    while let Some(piece) = records.next_piece().unwrap() {
        if let Piece::Segment { checkpoint, .. } = piece {
            checkpoints.push((checkpoint, records.warnings().len()));
        }
    }
    assert!(matches!(&checkpoints[..2], [(None, 0), (Some(_), 1)]));
    let place = checkpoints.swap_remove(1).0.unwrap();
    let restored = recording.restore(&place, None).unwrap();
    assert_eq!(restored.decoder.next_sequence(), third);
    assert_eq!(read(&epoch_dir).unwrap().2, std::slice::from_ref(&missing));
    // Files that are removed after the opening, as in a journal that is being written, are still read to the end.
    let mut records = recording.records();
    let mut count = 0;
    while records.next_record().unwrap().is_some() {
        count += 1;
    }
    assert_eq!((count, records.warnings()), (40, &[][..]));
    // A segment with a damaged header is left out. If it is the only segment, opening fails with that error.
    fs::write(epoch_dir.join("000002.msj"), vec![0; 4096]).unwrap();
    let (_, _, warnings) = read(&epoch_dir).unwrap();
    assert!(matches!(warnings[0], Warning::SegmentUnreadable { .. }));
    assert!(matches!(
        Recording::open(&epoch_dir.join("000002.msj")),
        Err(RecordingError::NotARecording {
            looks: "begins with zeros",
            ..
        })
    ));
}

#[test]
fn two_recordings_in_one_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("a"), 2);
    let other = {
        let journal = Journal::create(&dir.path().join("b"), config(6)).unwrap();
        journal.epoch_dir().join("000000.msj")
    };
    let mut bytes = fs::read(&file).unwrap();
    let twice = [bytes.clone(), bytes.clone()].concat();
    bytes.extend(fs::read(&other).unwrap());
    let both = dir.path().join("both.msj");
    fs::write(&both, &bytes).unwrap();
    assert!(matches!(
        read(&both),
        Err(RecordingError::MixedEpochs {
            epoch: 5,
            found: 6,
            ..
        })
    ));
    // If the same recording is in the file twice, it is read once.
    fs::write(&both, &twice).unwrap();
    let (numbers, _, warnings) = read(&both).unwrap();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(matches!(
        warnings[..],
        [Warning::OutOfOrder { .. }, Warning::OutOfOrder { .. }]
    ));
}

#[test]
fn a_file_full_of_would_be_batches_is_read_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 1);
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend_from_slice(&[1; 8]);
    let whole = bytes.len();
    for mark in [b"MSJB", b"MSJ2"] {
        bytes.truncate(whole);
        let mut fake = mark.to_vec();
        fake.extend_from_slice(&(4u32 << 20).to_ne_bytes());
        bytes.extend(fake.repeat(1 << 20));
        fs::write(&file, &bytes).unwrap();
        let started = std::time::Instant::now();
        let (numbers, _, warnings) = read(&file).unwrap();
        assert_eq!((numbers.len(), warnings.len()), (1, 1));
        assert!(started.elapsed().as_secs() < 20);
    }
}

/// In a recording of one file, a segment has a right header, and the list of the processes that are left out of it is damaged.
/// The reader goes on behind it: before, it read the same header again and again.
#[test]
fn a_segment_whose_list_is_damaged_is_passed() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 3);
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(end.next_multiple_of(8));
    let batch = (128..end)
        .rev()
        .find(|at| bytes[*at..].starts_with(b"MSJ2"));
    let last = bytes.split_off(batch.unwrap());
    let mut header = bytes[..128].to_vec();
    // What follows the header has 48 bytes: a list of one process.
    header[112..120].copy_from_slice(&48u64.to_ne_bytes());
    header[120..128].copy_from_slice(&1u64.to_ne_bytes());
    let sum = crc32fast::hash(&[&header[..20], &header[24..]].concat());
    header[20..24].copy_from_slice(&sum.to_ne_bytes());
    bytes.extend(header);
    bytes.extend([7; 48]);
    bytes.extend(last);
    // Behind other damage, the way from header to header does not lead there, and the reader of records meets it.
    bytes[128 + 50] ^= 1;
    bytes[128] = b'?';
    fs::write(&file, &bytes).unwrap();
    let (numbers, _, warnings) = read(&file).unwrap();
    assert_eq!(numbers, [2, 3, 4, 5, 6]);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
}

/// A journal of some segments, of which all but the first begin with a state. Returns its directory.
fn of_segments(dir: &Path) -> PathBuf {
    let mut journal = Writer::create(dir, config(5)).unwrap();
    for n in 1..=60 {
        journal.append(&record(n, 20_000), 0).unwrap();
    }
    journal.journal.epoch_dir().to_path_buf()
}

/// Which segments of a recording can be read without those before them.
fn alone(recording: &Recording) -> Vec<bool> {
    let segments = recording.segments().iter();
    segments.map(|place| place.stands_alone()).collect()
}

#[test]
fn a_recording_that_ends_inside_a_state_is_read_up_to_there() {
    let dir = tempfile::tempdir().unwrap();
    let segments = of_segments(dir.path());
    let file = dir.path().join("whole.msj");
    Recording::open(&segments).unwrap().export(&file).unwrap();
    let recording = Recording::open(&file).unwrap();
    assert_eq!(alone(&recording), [true; 4]);
    let third = &recording.segments()[2];
    let bytes = fs::read(&file).unwrap();
    let header = bytes
        .windows(8)
        .enumerate()
        .filter(|(_, word)| *word == &bytes[..8])
        .map(|(at, _)| at)
        .nth(2)
        .unwrap();
    let state = third.checkpoint().unwrap().bytes() as usize;
    let cut = dir.path().join("cut.msj");
    let before = third.header.first_sequence;
    for there in [0, 1, state / 2, state - 1] {
        fs::write(&cut, &bytes[..header + 128 + there]).unwrap();
        let recording = Recording::open(&cut).unwrap();
        assert_eq!(alone(&recording), [true, true, false], "{there}");
        let (numbers, _, warnings) = read(&cut).unwrap();
        assert_eq!(numbers, (1..before).collect::<Vec<_>>());
        let told = Warning::Truncated {
            path: cut.clone(),
            at: header as u64 + 128,
            lost_bytes: there as u64,
        };
        assert_eq!(warnings, [told], "{there}");
    }
}

#[test]
fn a_state_without_bytes_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let segments = of_segments(dir.path());
    fs::write(segments.join("000003.msc"), b"").unwrap();
    let recording = Recording::open(&segments).unwrap();
    assert_eq!(alone(&recording), [true, true, true, false]);
    let (numbers, _, warnings) = read(&segments).unwrap();
    assert_eq!(numbers, (1..=60).collect::<Vec<_>>());
    assert_eq!(warnings, []);
}

/// The way from header to header leads to a segment whose list of left-out processes is damaged.
#[test]
fn a_damaged_list_is_no_reason_not_to_open() {
    let dir = tempfile::tempdir().unwrap();
    let segments = of_segments(dir.path());
    let file = dir.path().join("whole.msj");
    Recording::open(&segments).unwrap().export(&file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let mut headers = (0..bytes.len() - 8).filter(|at| bytes[*at..].starts_with(&bytes[..8]));
    let second = headers.nth(1).unwrap();
    let third = headers.next().unwrap();
    // It says that its state has a list of one process before it, and what is there is none.
    let header = &mut bytes[second..second + 128];
    header[120..128].copy_from_slice(&1u64.to_ne_bytes());
    let sum = crc32fast::hash(&[&header[..20], &header[24..]].concat());
    header[20..24].copy_from_slice(&sum.to_ne_bytes());
    fs::write(&file, &bytes).unwrap();
    let recording = Recording::open(&file).unwrap();
    assert_eq!(alone(&recording), [true; 3]);
    let (numbers, _, warnings) = read(&file).unwrap();
    assert_eq!((numbers.first(), numbers.last()), (Some(&1), Some(&60)));
    assert!(
        matches!(warnings[0], Warning::Damaged { at, .. } if at == second as u64),
        "{warnings:?}"
    );
    // If nothing is before it, the recording begins behind it, and says so.
    fs::write(&file, &bytes[second..]).unwrap();
    let recording = Recording::open(&file).unwrap();
    assert_eq!(alone(&recording), [true; 2]);
    let (numbers, _, warnings) = read(&file).unwrap();
    assert_eq!(numbers[0], recording.header().first_sequence);
    assert!(
        matches!(warnings[..], [Warning::SegmentUnreadable { .. }]),
        "{warnings:?}"
    );
    // It is refused if it has nothing else.
    fs::write(&file, &bytes[second..third]).unwrap();
    let refused = Recording::open(&file);
    assert!(matches!(refused, Err(RecordingError::DamagedHeader { .. })));
}
