#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use memscope_common::{
    KIND_OPERATOR, OPERATOR_GIVEN, OperatorRecord, RECORD_VERSION, RecordHeader,
};
use memscope_ledger::event::{Backend, Mark, MarkKind, MarkSource, ProcessFacts};
use memscope_log::records::{DaemonRecord, SiteDefined, Stamp};
use memscope_log::{ClockPair, Config, Folded, Journal};
use std::fs;
use std::mem::offset_of;
use tempfile::TempDir;

/// A journal of small segments with the state of each, as a daemon writes it.
struct Written {
    folder: TempDir,
    journal: Journal,
    decoder: Decoder,
    ledger: Ledger,
    next: u64,
}

impl Written {
    fn begin() -> Written {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            segment_bytes: 256 << 10,
            ..Config::new(5, [7; 16], ClockPair::default())
        };
        Written {
            journal: Journal::create(folder.path(), config).unwrap(),
            decoder: Decoder::new(5),
            ledger: Ledger::new(LedgerConfig::default()),
            next: 1,
            folder,
        }
    }

    /// Writes a record as a batch of its own.
    fn add(&mut self, process: u32, record: &DaemonRecord) {
        self.add_bytes(&record.encode(self.stamp(process)).unwrap());
    }

    fn stamp(&self, process: u32) -> Stamp {
        Stamp {
            process: ProcessHandle(process),
            tid: 1,
            time_ns: self.next * 1000,
            lost_before: 0,
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        let state = Folded {
            decoder: &self.decoder,
            ledger: &self.ledger,
        };
        self.journal.append(bytes, 0, Some(state)).unwrap();
        self.journal.settle().unwrap();
        if let Outcome::Decoded(event) = self.decoder.decode(bytes) {
            self.ledger.apply(&event);
        }
        self.next += 1;
    }

    fn attach(&mut self, process: u32) {
        let facts = ProcessFacts {
            pid: 40 + process,
            ..ProcessFacts::default()
        };
        self.add(process, &DaemonRecord::Attached(Box::new(facts)));
    }

    fn mark(&mut self, process: u32) {
        let mark = Mark {
            kind: MarkKind::Instant,
            source: MarkSource::Memscope,
            range: 0,
            name: "here".into(),
            cut: false,
        };
        self.add(process, &DaemonRecord::Mark(mark));
    }

    /// Writes so much that the next record is in another segment.
    fn fill(&mut self) {
        for _ in 0..10 {
            let mut state = self.next;
            let letter = |_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                char::from(b'a' + (state >> 60) as u8)
            };
            let noise = (0..60_000).map(letter).collect();
            self.add(1, &DaemonRecord::Backend(Backend::Other(noise)));
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.journal.epoch_dir().join(name)
    }

    /// Where the last batch of the first segment ends.
    fn end(&self) -> usize {
        let bytes = fs::read(self.file("000000.msj")).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
    }

    /// Changes one byte of a file.
    fn damage(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.file(name)).unwrap();
        bytes[at] ^= 0xff;
        fs::write(self.file(name), bytes).unwrap();
    }

    fn dump(&self) -> Result<Made, DumpingError> {
        let output = self.folder.path().join("dumps");
        let _ = fs::remove_dir_all(&output);
        fs::create_dir(&output).unwrap();
        dump(self.journal.epoch_dir(), Format::Csv, &output, None)
    }
}

#[test]
fn what_cannot_be_read_is_told_and_the_state_behind_it_counts() {
    let mut written = Written::begin();
    written.attach(1);
    let before = written.end();
    written.attach(2);
    let after = written.end();
    written.mark(2);
    written.fill();
    written.mark(1);
    written.mark(2);
    let whole = written.dump().unwrap();
    assert_eq!((whole.rows, whole.folders.len()), (5, 2));
    assert_eq!(whole.warnings, Vec::<String>::new());
    written.damage("000000.msj", (before + after) / 2);
    let made = written.dump().unwrap();
    assert!(made.warnings[0].contains("is damaged at byte"), "{made:?}");
    // The process whose attach cannot be read is known by the next state. Its first mark is of nobody.
    assert_eq!((made.rows, made.folders.len()), (4, 2), "{made:?}");
    assert_eq!(made.known_from_unix_ns, None);
}

/// What an operator was given beyond what its records have room and time for is missing in the rows like what was lost.
#[test]
fn uses_that_are_not_told_count_as_lost() {
    const SITE: u32 = 3;
    let mut written = Written::begin();
    written.attach(1);
    let site = SiteDefined {
        site: SITE,
        function: "_foreach_add_".to_owned(),
        layer: None,
        vendor: None,
        op: None,
        library: "libtorch_cpu.so".to_owned(),
        offset: 0x40,
    };
    written.add(1, &DaemonRecord::SiteDefined(site));
    for untold in [0u32, 5, 7] {
        let mut bytes = vec![0; size_of::<OperatorRecord>()];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let stamp = written.stamp(1);
        let len = size_of::<OperatorRecord>() as u16;
        set(offset_of!(RecordHeader, len), &len.to_ne_bytes());
        set(offset_of!(RecordHeader, kind), &KIND_OPERATOR.to_ne_bytes());
        set(offset_of!(RecordHeader, version), &[RECORD_VERSION]);
        set(offset_of!(RecordHeader, process), &1u32.to_ne_bytes());
        set(
            offset_of!(RecordHeader, time_ns),
            &stamp.time_ns.to_ne_bytes(),
        );
        set(offset_of!(OperatorRecord, site), &SITE.to_ne_bytes());
        set(
            offset_of!(OperatorRecord, what),
            &OPERATOR_GIVEN.to_ne_bytes(),
        );
        set(offset_of!(OperatorRecord, untold), &untold.to_ne_bytes());
        written.add_bytes(&bytes);
    }
    assert_eq!(written.dump().unwrap().lost_records, 12);
}

#[test]
fn a_gap_is_told() {
    let mut written = Written::begin();
    written.attach(1);
    written.fill();
    written.fill();
    written.fill();
    written.mark(1);
    fs::remove_file(written.file("000001.msj")).unwrap();
    let made = written.dump().unwrap();
    assert!(made.warnings[0].contains("are missing"), "{made:?}");
}

#[test]
fn a_state_that_cannot_be_read_is_no_end() {
    let mut written = Written::begin();
    written.attach(1);
    for _ in 0..3 {
        written.fill();
        written.mark(1);
    }
    // Nothing needs the state between others.
    let middle = fs::metadata(written.file("000001.msc")).unwrap().len();
    written.damage("000001.msc", middle as usize - 20);
    let whole = written.dump().unwrap();
    assert_eq!((whole.rows, whole.warnings.len()), (4, 0), "{whole:?}");
    // As the first one it is left out with its segment.
    fs::remove_file(written.file("000000.msj")).unwrap();
    let made = written.dump().unwrap();
    assert!(made.warnings[0].contains("000001.msc"), "{made:?}");
    assert!(made.rows > 1 && made.rows < 4, "{made:?}");
    assert!(made.known_from_unix_ns.is_some());
}

/// Nothing comes behind it that would make up for it.
#[test]
fn an_end_that_cannot_be_read_is_told() {
    let mut written = Written::begin();
    written.attach(1);
    for _ in 0..3 {
        written.fill();
    }
    written.mark(1);
    let mut segments: Vec<PathBuf> = fs::read_dir(written.journal.epoch_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "msj"))
        .collect();
    segments.sort();
    let zero_header = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[..128].fill(0);
        fs::write(path, bytes).unwrap();
    };
    let said = |written: &Written| {
        let dir = written.journal.epoch_dir();
        let replayed = crate::replay::replay(dir, LedgerConfig::default()).unwrap();
        assert_eq!(replayed.ledger.processes().len(), 1);
        replayed.warnings
    };
    // The next state makes up for what is in the middle.
    zero_header(&segments[1]);
    assert_eq!(said(&written), Vec::<String>::new());
    zero_header(segments.last().unwrap());
    let warnings = said(&written);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("was left out"), "{warnings:?}");
    assert_eq!(written.dump().unwrap().warnings.len(), 3);
}
