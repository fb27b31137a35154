//! Journals and records for tests.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)] // each test program uses a part of it

use memscope_ledger::event::{Backend, CoverageNote, ProcessHandle};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{DaemonRecord, Decoder, Outcome, RecordReader, SiteDefined, Stamp};
use memscope_log::{
    ClockPair, Config, Folded, Journal, JournalError, Recording, RecordingError, Warning,
};
use std::path::Path;

/// The smallest segments, and a bound of eight of them.
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

/// A journal, and the state after the appended records, as in the daemon.
pub struct Writer {
    pub journal: Journal,
    pub decoder: Decoder,
    pub ledger: Ledger,
}

impl Writer {
    pub fn create(dir: &Path, config: Config) -> Result<Writer, JournalError> {
        let decoder = Decoder::new(config.epoch);
        Journal::create(dir, config).map(|journal| Writer {
            journal,
            decoder,
            ledger: Ledger::new(LedgerConfig::default()),
        })
    }

    /// Appends. If this begins a segment, its checkpoint is complete when this returns.
    pub fn append(&mut self, records: &[u8], position: u64) -> Result<u64, JournalError> {
        let first = self.append_only(records, position)?;
        self.journal.settle()?;
        Ok(first)
    }

    /// Appends as the daemon does: a checkpoint is complete only a little later.
    pub fn append_only(&mut self, records: &[u8], position: u64) -> Result<u64, JournalError> {
        let state = Folded {
            decoder: &self.decoder,
            ledger: &self.ledger,
        };
        let first = self.journal.append(records, position, Some(state));
        for record in RecordReader::new(records)
            .flatten()
            .filter(|_| first.is_ok())
        {
            if let Outcome::Decoded(event) = self.decoder.decode(record) {
                self.ledger.apply(&event);
            }
        }
        first
    }
}

/// `bytes` characters that no compression makes much smaller.
fn noise(number: u64, bytes: usize) -> String {
    let mut state = number;
    let letter = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        char::from(b'0' + (mixed >> 58) as u8)
    };
    (0..bytes).map(letter).filter(|c| *c != '\\').collect()
}

/// A record that contains its number, and `bytes` further bytes.
pub fn record(number: u64, bytes: usize) -> Vec<u8> {
    DaemonRecord::Coverage(CoverageNote {
        code: number.to_string(),
        text: noise(number, bytes),
    })
    .encode(stamp(number))
    .unwrap()
}

/// A record of a process with `bytes` bytes. It changes the part of the state that the previous such record has set.
pub fn replacing(process: u32, number: u64, bytes: usize) -> Vec<u8> {
    DaemonRecord::Backend(Backend::Other(noise(number, bytes)))
        .encode(Stamp {
            process: ProcessHandle(process),
            ..stamp(number)
        })
        .unwrap()
}

/// The record of an attach of process 1.
pub fn attached() -> Vec<u8> {
    DaemonRecord::Attached(Box::default())
        .encode(stamp(7))
        .unwrap()
}

/// The number that a record contains.
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

/// A small recording: one segment with batches of 1, 2, 3, … records. Returns its file.
pub fn small(dir: &Path, batches: u64) -> std::path::PathBuf {
    let mut journal = Writer::create(dir, config(5)).unwrap();
    let mut next = 1;
    for batch in 1..=batches {
        let records: Vec<u8> = (next..next + batch).flat_map(|n| record(n, 3)).collect();
        assert_eq!(journal.append(&records, next * 100).unwrap(), next);
        next += batch;
    }
    journal.journal.epoch_dir().join("000000.msj")
}

/// Sequence numbers of the numbered records, each checked against the record's content; how many records were repeated;
/// and the warnings.
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
