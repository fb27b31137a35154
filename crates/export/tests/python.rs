//! Python reads the pickle and finds what the JSON says, and only opcodes that the viewer knows.
#![allow(clippy::unwrap_used)]

mod common;

use common::{large, report};
use memscope_export::{json, memory_viz};
use memscope_ledger::report::SnapshotReport;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Loads both, compares them (tuples are lists in JSON), and checks types and opcodes.
const CHECK: &str = r#"
import json, pickle, pickletools, sys

def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value

data = open(sys.argv[1], 'rb').read()
snapshot = pickle.loads(data)
assert plain(snapshot) == json.load(open(sys.argv[2])), 'pickle and JSON differ'
for segment in snapshot['segments']:
    assert type(segment['segment_pool_id']) is tuple
    assert type(segment['is_expandable']) is bool
    assert sum(block['size'] for block in segment['blocks']) == segment['total_size']
for trace in snapshot['device_traces']:
    for entry in trace:
        assert type(entry.get('pool_id', ())) is tuple

allowed = set('''PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2
TUPLE3 LIST DICT APPEND APPENDS SETITEM SETITEMS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE MEMOIZE BINPUT LONG_BINPUT BINGET
LONG_BINGET'''.split())
marks, depth, at_depth, end = [], 0, {}, 0
for opcode, argument, position in pickletools.genops(data):
    assert opcode.name in allowed, opcode.name
    if opcode.name == 'PROTO':
        assert 2 <= argument <= 4
    if opcode.name == 'LONG1':
        # The viewer makes a BigInt of more than eight bytes, which no number can be added to.
        assert data[position + 1] <= 8
    # How many values stand on the stack above each mark.
    before, after = opcode.stack_before, opcode.stack_after
    if opcode.name == 'MARK':
        marks.append(0)
    elif opcode.name in ('APPENDS', 'SETITEMS'):
        count = marks.pop()
        assert opcode.name != 'APPENDS' or 0 < count <= 1000, count
    elif opcode.name == 'TUPLE2':
        marks[-1] -= 1
    elif opcode.name in ('PROTO', 'MEMOIZE', 'STOP'):
        pass
    elif marks:
        marks[-1] += 1
    end = position + 1
assert end == len(data) and not marks
print('ok')
"#;

fn export(report: &SnapshotReport, dir: &Path) -> (PathBuf, PathBuf) {
    let (pickle, text) = (dir.join("snapshot.pickle"), dir.join("snapshot.json"));
    memory_viz(report, &mut std::fs::File::create(&pickle).unwrap()).unwrap();
    json(report, &mut std::fs::File::create(&text).unwrap()).unwrap();
    (pickle, text)
}

fn python(program: &Path, arguments: &[&std::ffi::OsStr], home: Option<&Path>) -> String {
    let mut command = Command::new(program);
    if let Some(home) = home {
        command.env("HOME", home);
    }
    let output = command.args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn check(report: &SnapshotReport) {
    let dir = tempfile::tempdir().unwrap();
    let (pickle, text) = export(report, dir.path());
    let said = python(
        Path::new("python3"),
        &[
            "-c".as_ref(),
            CHECK.as_ref(),
            pickle.as_os_str(),
            text.as_os_str(),
        ],
        None,
    );
    assert_eq!(said, "ok\n");
}

#[test]
fn python_finds_in_the_pickle_what_the_json_says() {
    check(&report());
    check(&SnapshotReport {
        segments: Vec::new(),
        trace: Vec::new(),
        coverage: Vec::new(),
        ..report()
    });
}

#[test]
fn batches_end_where_they_must() {
    for entries in [999 * 8, 1000 * 8, 1001 * 8, 2000 * 8] {
        check(&large(2, entries));
    }
}

#[test]
fn texts_of_any_length() {
    for len in [0, 255, 256, 70_000] {
        let mut report = report();
        report.process.facts.comm = "ü".repeat(len / 2) + &"x".repeat(len % 2);
        check(&report);
    }
}

#[test]
fn a_million_entries_stream() {
    struct Count {
        bytes: u64,
        largest: usize,
    }
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.bytes += bytes.len() as u64;
            self.largest = self.largest.max(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let report = large(100, 1_000_000);
    for write in [memory_viz, json] {
        let mut out = Count {
            bytes: 0,
            largest: 0,
        };
        let started = std::time::Instant::now();
        write(&report, &mut out).unwrap();
        let took = started.elapsed();
        eprintln!("{} bytes in {took:?}", out.bytes);
        assert!(out.largest <= 64 << 10);
        assert!(out.bytes < 300 << 20);
        assert!(took.as_secs() < 60, "{took:?}");
    }
}
