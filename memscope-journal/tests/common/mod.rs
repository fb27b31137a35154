//! Journals and records to test with.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)] // each test program uses a part of it

use memscope_decode::{DaemonRecord, SiteDefined, Stamp};
use memscope_journal::{ClockPair, Config, Journal, Recording, RecordingError, Warning};
use memscope_ledger::event::{CoverageNote, ProcessHandle};
use std::path::Path;

/// The smallest segments, eight of them.
pub fn config(epoch: u64) -> Config {
    Config {
        segment_bytes: 256 << 10,
        total_bytes: 2 << 20,
        ..Config::new(
            epoch,
            [7; 16],
            ClockPair {
                boot_ns: 1000,
                unix_ns: 2000,
            },
        )
    }
}

pub fn stamp(time_ns: u64) -> Stamp {
    Stamp {
        process: ProcessHandle(1),
        tid: 0,
        time_ns,
        lost_before: 0,
    }
}

/// A record that says its number, with so many bytes besides.
pub fn record(number: u64, bytes: usize) -> Vec<u8> {
    DaemonRecord::Coverage(CoverageNote {
        code: number.to_string(),
        text: "x".repeat(bytes),
    })
    .encode(stamp(number))
    .unwrap()
}

/// The number in it.
pub fn number(bytes: &[u8]) -> u64 {
    match DaemonRecord::decode(bytes).unwrap() {
        Some(DaemonRecord::Coverage(note)) => note.code.parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

pub fn site(site: u32) -> Vec<u8> {
    DaemonRecord::SiteDefined(SiteDefined {
        site,
        function: "cudaMalloc".to_owned(),
        layer: None,
        vendor: None,
        op: None,
        library: "libcudart.so".to_owned(),
        offset: 0,
    })
    .encode(stamp(0))
    .unwrap()
}

/// A small recording: one segment with batches of 1, 2, 3, … records. Gives its file.
pub fn small(dir: &Path, batches: u64) -> std::path::PathBuf {
    let mut journal = Journal::create(dir, config(5)).unwrap();
    let mut next = 1;
    for batch in 1..=batches {
        let records: Vec<u8> = (next..next + batch).flat_map(|n| record(n, 3)).collect();
        assert_eq!(journal.append(&records, next * 100).unwrap(), next);
        next += batch;
    }
    journal.epoch_dir().join("000000.msj")
}

/// Sequence numbers of the numbered records, each checked against what the record says; how
/// many were repeated; and the warnings.
pub fn read(path: &Path) -> Result<(Vec<u64>, usize, Vec<Warning>), RecordingError> {
    let mut records = Recording::open(path)?.records();
    let (mut numbers, mut repeated) = (Vec::new(), 0);
    while let Some(entry) = records.next_record()? {
        if entry.repeated {
            repeated += 1;
        } else {
            assert_eq!(number(entry.record), entry.sequence);
            numbers.push(entry.sequence);
        }
    }
    Ok((numbers, repeated, records.warnings().to_vec()))
}
