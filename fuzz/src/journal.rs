//! The journal: segments, checkpoints and recordings of one file, with right check sums around contents that are not.
//!
//! An input is a list of pieces, of which the files are made. So what is compressed or has a check sum can be changed inside.

use crate::pieces::{Pieces, put};
use crate::{Target, ask, made};
use memscope_ledger::event::CoverageNote;
use memscope_log::records::{DaemonRecord, Decoder, Outcome, RecordReader};
use memscope_log::{ClockPair, Config, Folded, Journal, Piece, Recording};
use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::path::Path;

pub(crate) const TARGET: Target = Target {
    name: "journal",
    reads: "journals: segments, checkpoints and exported recordings, replayed and asked about",
    read,
    seeds,
    held_mib: 96,
    held_per_byte: 8192,
    longest: 1 << 16,
};

/// Bytes of the headers of a segment and of a batch, and where their check sums are.
const SEGMENT: usize = 128;
const SEGMENT_SUM: usize = 20;
const BATCH: usize = 40;

/// Kinds of pieces.
const HEADER: u8 = 0;
const PLAIN: u8 = 1;
const PACKED: u8 = 2;
const PART: u8 = 3;
const RAW: u8 = 4;
const NEXT_SEGMENT: u8 = 5;
const CHECKPOINT: u8 = 6;

/// Bytes of the records with which a segment is filled. Batches of that length are left out of the seeds.
const FILLING: usize = 48 << 10;

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// A header of a segment, with its check sum made right.
fn header(content: &[u8], file: &mut Vec<u8>) {
    let mut header = content.to_vec();
    header.resize(SEGMENT, 0);
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header[..SEGMENT_SUM]);
    sum.update(&header[SEGMENT_SUM + 4..]);
    header[SEGMENT_SUM..SEGMENT_SUM + 4].copy_from_slice(&sum.finalize().to_ne_bytes());
    file.extend_from_slice(&header);
}

/// A batch: its header, whose length and check sum are made right, and what it stores.
fn batch(head: &[u8], mut stored: Vec<u8>, file: &mut Vec<u8>) {
    stored.resize(stored.len().next_multiple_of(8), 0);
    let mut header = head.to_vec();
    header.resize(BATCH, 0);
    header[4..8].copy_from_slice(&(stored.len() as u32).to_ne_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header[4..8]);
    sum.update(&header[12..]);
    sum.update(&stored);
    header[8..12].copy_from_slice(&sum.finalize().to_ne_bytes());
    file.extend_from_slice(&header);
    file.extend_from_slice(&stored);
}

/// The files of a journal, by name.
fn files(mut pieces: Pieces<'_>) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("000000.msj".to_owned(), Vec::new())];
    let mut segments = 0;
    while let Some((kind, content)) = pieces.piece() {
        let (head, rest) = content.split_at(content.len().min(BATCH));
        let Some((_, file)) = files.last_mut() else {
            break;
        };
        match kind % 7 {
            HEADER => header(content, file),
            PLAIN => batch(head, rest.to_vec(), file),
            PACKED => {
                let packed = zstd::bulk::compress(rest, 1).unwrap();
                let stored = [&(packed.len() as u32).to_ne_bytes(), &packed[..]].concat();
                batch(head, stored, file);
            }
            PART => batch(head, zstd::bulk::compress(rest, 1).unwrap(), file),
            RAW => file.extend_from_slice(content),
            NEXT_SEGMENT => {
                segments += 1;
                files.push((format!("{segments:06}.msj"), content.to_vec()));
            }
            _ => files.push((format!("{segments:06}.msc"), content.to_vec())),
        }
    }
    files
}

fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    let pid = match pieces.byte() {
        0 => None,
        pid => Some(u32::from(pid)),
    };
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let epoch = folder.path().join("1");
        let _ = fs::remove_dir_all(&epoch);
        fs::create_dir(&epoch).unwrap();
        let files = files(pieces);
        let first = epoch.join(&files[0].0);
        for (name, bytes) in &files {
            fs::write(epoch.join(name), bytes).unwrap();
        }
        replay(&epoch, pid);
        if files.len() > 1 {
            replay(&first, pid);
        }
    });
}

/// Folds a recording, as the daemon does, and asks about what it says.
fn replay(path: &Path, pid: Option<u32>) {
    let Ok(recording) = Recording::open(path) else {
        return;
    };
    black_box(
        recording
            .complete_from(1)
            .map(|place| place.first_unix_ns()),
    );
    let mut records = recording.records();
    let mut decoder = Decoder::new(recording.header().epoch);
    let mut ledger = ask::ledger();
    let mut began = false;
    while let Ok(Some(piece)) = records.next_piece() {
        match piece {
            Piece::Segment { checkpoint, .. } => {
                let Some(place) = checkpoint.filter(|_| !began) else {
                    continue;
                };
                if let Ok(restored) = recording.restore(&place, pid) {
                    (decoder, ledger) = (restored.decoder, restored.ledger);
                    began = true;
                }
            }
            Piece::Record(entry) => {
                began = true;
                decoder.seek(entry.sequence);
                if let Outcome::Decoded(event) = decoder.decode_read(&entry.header, entry.record) {
                    ledger.apply(&event);
                }
            }
        }
    }
    for warning in records.warnings() {
        black_box(warning.to_string());
    }
    ask::everything(&ledger);
    let _ = black_box(recording.write_to(&mut std::io::sink()));
}

/// Takes files apart into the pieces of which [`files`] makes them.
fn pieces_of(files: &[(bool, Vec<u8>)]) -> Vec<u8> {
    let mut input = vec![0];
    for (number, (is_segment, bytes)) in files.iter().enumerate() {
        if number > 0 {
            put(
                if *is_segment {
                    NEXT_SEGMENT
                } else {
                    CHECKPOINT
                },
                &[],
                &mut input,
            );
        }
        let mut rest = &bytes[..];
        while let Some(mark) = rest.first_chunk::<4>() {
            if mark == b"mems" {
                let (header, after) = rest.split_at(SEGMENT);
                put(HEADER, header, &mut input);
                rest = after;
                continue;
            }
            if mark != b"MSJ2" {
                break;
            }
            let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            let (stored, packing) = (word(4) as usize, word(36));
            let (head, after) = rest.split_at(BATCH);
            let (stored, after) = after.split_at(stored);
            let most = 1 << 20;
            let (kind, content) = match packing {
                1 => {
                    let len = u32::from_ne_bytes(stored[..4].try_into().unwrap()) as usize;
                    (
                        PACKED,
                        zstd::bulk::decompress(&stored[4..4 + len], most).unwrap(),
                    )
                }
                2 => (PART, unpacked(stored)),
                _ => (PLAIN, stored.to_vec()),
            };
            rest = after;
            if content.len() < FILLING {
                put(kind, &[head, &content].concat(), &mut input);
            }
        }
    }
    input
}

/// The content of a part of a checkpoint, which is padded with zeros.
fn unpacked(stored: &[u8]) -> Vec<u8> {
    let len = zstd::zstd_safe::find_frame_compressed_size(stored).unwrap();
    zstd::stream::decode_all(&stored[..len]).unwrap()
}

/// A record that takes much room and says nothing.
fn filling(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let text = std::iter::repeat_with(|| random.alphanumeric())
        .take(FILLING)
        .collect();
    let note = CoverageNote {
        code: "filling".to_owned(),
        text,
    };
    made::of_daemon(DaemonRecord::Coverage(note))
}

/// Journals of which the second segment is taken, which begins with a checkpoint.
fn seeds() -> Vec<Vec<u8>> {
    let of = |records: Vec<u8>| {
        let folder = tempfile::tempdir().unwrap();
        let clock = ClockPair {
            boot_ns: 1000,
            unix_ns: 1_700_000_000_000_000_000,
        };
        let mut config = Config::new(5, [7; 16], clock);
        config.segment_bytes = 256 << 10;
        config.total_bytes = 64 << 20;
        let mut journal = Journal::create(folder.path(), config).unwrap();
        let mut decoder = Decoder::new(5);
        let mut ledger = ask::ledger();
        for record in RecordReader::new(&records).flatten() {
            if let Outcome::Decoded(event) = decoder.decode(record) {
                ledger.apply(&event);
            }
        }
        let epoch = journal.epoch_dir().to_owned();
        let state = Folded {
            decoder: &decoder,
            ledger: &ledger,
        };
        let checkpoint = epoch.join("000001.msc");
        for number in 0.. {
            if checkpoint.exists() {
                break;
            }
            journal.append(&filling(number), 0, Some(state)).unwrap();
            journal.settle().unwrap();
        }
        journal.append(&records, 0, Some(state)).unwrap();
        drop(journal);
        let segment = fs::read(epoch.join("000001.msj")).unwrap();
        pieces_of(&[(true, segment), (false, fs::read(checkpoint).unwrap())])
    };
    made::recordings().into_iter().map(of).collect()
}
