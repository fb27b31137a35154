//! Python reads the trace with a reader of its own and finds in it what a naive replay gives.
#![allow(clippy::unwrap_used)]

mod common;

use common::course::{Numbers, course};
use common::{BASE, block, entry, report};
use memscope_export::perfetto;
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{BlockState, SnapshotReport, SnapshotSegment, SnapshotTrace};
use memscope_tests::limits::{Met, constant};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Command;

/// Decodes the packets, checks what holds for every trace, and compares counters with the second file.
const CHECK: &str = r#"
import json, sys

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]; at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at

def fields(data):
    at, found = 0, {}
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            assert tag & 7 == 2, tag
            length, at = varint(data, at)
            value = data[at:at + length]; at += length
            assert len(value) == length
        found.setdefault(tag >> 3, []).append(value)
    return found

expected = json.load(open(sys.argv[2]))
tracks, parents, counters, opened, begins, ends, instants, last = {}, {}, {}, {}, 0, 0, [], 0
trace = fields(open(sys.argv[1], 'rb').read())
assert list(trace) == [1]
for packet in map(fields, trace[1]):
    assert packet[10] == [1]
    if 6 in packet:
        clocks = [fields(clock) for clock in fields(packet[6][0])[1]]
        assert {c[1][0]: c[2][0] for c in clocks} == {6: expected['boot'], 1: expected['unix']}
        assert fields(packet[6][0])[2] == [6]
    elif 60 in packet:
        track = fields(packet[60][0])
        uuid = track[1][0]
        assert uuid not in tracks and uuid != 0
        tracks[uuid] = track
        if 3 in track:
            process = fields(track[3][0])
            assert process[1] == [4242] and process[6][0].decode() == 'python "quoted" ünï'
        else:
            assert track[5][0] in tracks, 'parents come first'
        if 8 in track:
            assert fields(track[8][0])[3] == [3]
            counters[track[2][0].decode()] = (uuid, [])
    else:
        event = fields(packet[11][0])
        assert packet[58] == [6] and packet[8][0] >= last
        last = packet[8][0]
        kind, uuid = event[9][0], event[11][0]
        track = tracks[uuid]
        if kind == 4:
            counters[track[2][0].decode()][1].append([last, event[30][0]])
        elif kind == 1:
            assert not opened.get(uuid) and 8 not in track, 'slices of a track do not overlap'
            opened[uuid] = True
            begins += 1
        elif kind == 2:
            assert opened[uuid]
            opened[uuid] = False
            ends += 1
        else:
            assert kind == 3
            instants.append((event[23][0].decode(), event))
live = sum(opened.values())
assert begins == ends + live and begins <= 20000
for name, (uuid, values) in counters.items():
    times = [time for time, _ in values]
    assert times == sorted(set(times)), name
    assert all(value < 1 << 62 for _, value in values), name
said = instants.pop()
assert said[0] == 'snapshot'
said = [fields(note) for note in said[1][4]]
said = {note[10][0].decode(): note.get(3, note.get(6))[0] for note in said}
assert said['trace_entries_no_longer_kept'] == expected['dropped']
if 'counters' in expected:
    found = {name: values for name, (_, values) in counters.items()}
    assert found.keys() == expected['counters'].keys(), found.keys()
    for name, values in expected['counters'].items():
        assert found[name] == values, name
    assert live + said['long_lived_blocks_not_drawn'] == expected['live']
    assert said['short_lived_blocks_not_drawn'] + begins == expected['blocks']
    assert [name for name, _ in instants] == expected['instants']
print('ok')
"#;

fn check(report: &SnapshotReport, more: serde_json::Value) {
    let dir = tempfile::tempdir().unwrap();
    let (trace, expected) = (dir.path().join("trace"), dir.path().join("expected.json"));
    perfetto(report, &mut std::fs::File::create(&trace).unwrap()).unwrap();
    let mut said = json!({
        "boot": report.as_of.boot_ns, "unix": report.as_of.unix_ns,
        "dropped": report.trace_dropped,
    });
    said.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    std::fs::write(&expected, said.to_string()).unwrap();
    let output = Command::new("python3")
        .args(["-c", CHECK])
        .args([&trace, &expected])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The level before the trace is the level at the end less all that came, plus all that went; from there
/// forwards, entry by entry.
fn replayed(
    report: &SnapshotReport,
    bytes: impl Fn(&SnapshotTrace) -> i64,
    end: u64,
    from_ns: u64,
    of: impl Fn(&SnapshotTrace) -> bool,
) -> Vec<(u64, u64)> {
    let entries: Vec<&SnapshotTrace> = report.trace.iter().filter(|e| of(e)).collect();
    let mut level = end as i64 - entries.iter().map(|e| bytes(e)).sum::<i64>();
    let mut levels = BTreeMap::from([(from_ns, level as u64)]);
    for entry in entries {
        level += bytes(entry);
        if bytes(entry) != 0 {
            levels.insert(entry.time_ns, level as u64);
        }
    }
    levels.insert(report.as_of.boot_ns, end);
    levels.into_iter().collect()
}

#[test]
fn counters_are_what_a_naive_replay_gives() {
    for (entries, drop, seed) in [(3000, 0, 1), (5000, 2500, 2), (40_000, 9000, 3)] {
        let mut report = course(entries, drop, seed);
        let mut counters = serde_json::Map::new();
        for (name, device, pool) in [
            ("device 0", 0, None),
            ("device 0 pool (0, 1)", 0, Some((0, 1))),
            ("device 1", 1, None),
        ] {
            let here = || {
                report
                    .segments
                    .iter()
                    .filter(|s| s.device == device && pool.is_none_or(|pool| s.pool == pool))
            };
            let from = report.trace.iter().find(|e| e.device == device).unwrap();
            let of = |e: &SnapshotTrace| {
                e.device == device && pool.is_none_or(|pool| e.pool == Some(pool))
            };
            let blocks = here().flat_map(|s| &s.blocks);
            let live = blocks.filter(|b| b.state == BlockState::Active);
            let allocated = |e: &SnapshotTrace| match e.action {
                TraceAction::Alloc => e.size as i64,
                TraceAction::FreeRequested => -(e.size as i64),
                _ => 0,
            };
            let reserved = |e: &SnapshotTrace| match e.action {
                TraceAction::SegmentAlloc => e.size as i64,
                TraceAction::SegmentFree => -(e.size as i64),
                _ => 0,
            };
            let end = live.map(|b| b.requested.unwrap()).sum();
            let levels = replayed(&report, allocated, end, from.time_ns, of);
            counters.insert(format!("{name} allocated"), json!(levels));
            let end = here().map(|s| s.size).sum();
            let levels = replayed(&report, reserved, end, from.time_ns, of);
            counters.insert(format!("{name} reserved"), json!(levels));
        }
        let blocks = report.segments.iter().flat_map(|s| &s.blocks);
        let live = blocks.filter(|b| b.state == BlockState::Active).count();
        let count = |action| report.trace.iter().filter(|e| e.action == action).count();
        let instants: Vec<&str> = report
            .trace
            .iter()
            .filter_map(|e| match e.action {
                TraceAction::SegmentAlloc => Some("segment_alloc"),
                TraceAction::Oom => Some("oom"),
                _ => None,
            })
            .collect();
        let ended = count(TraceAction::FreeRequested);
        let expected = json!({
            "counters": counters, "live": live, "blocks": live + ended, "instants": instants,
        });
        check(&report, expected.clone());
        // PyTorch before 2.10 does not say in its trace which pool something is of. The segments know.
        for entry in &mut report.trace {
            entry.pool = None;
        }
        check(&report, expected);
    }
}

/// An address belongs to a private pool only as long as its segment exists.
#[test]
fn a_segment_that_is_gone_was_of_no_known_pool() {
    use TraceAction::*;
    const PART: u64 = 2 << 20;
    let entries = [
        (SegmentMap, 0, 4),
        (Alloc, 1, 1),
        (FreeRequested, 1, 1),
        (SegmentUnmap, 1, 3),
        // From here on the two middle parts belong to the pool.
        (SegmentMap, 1, 2),
        (Alloc, 1, 1),
        (FreeRequested, 1, 1),
        (Alloc, 2, 1),
        (SegmentMap, 3, 1),
    ];
    let mut report = report();
    report.trace = (1..)
        .zip(entries)
        .map(|(time_ns, (action, part, parts))| SnapshotTrace {
            time_ns,
            ..entry(action, 0, BASE + part * PART, parts * PART)
        })
        .collect();
    report.as_of.boot_ns = 20;
    report.segments.truncate(1);
    let segment = report.segments.pop().unwrap();
    report.segments = [
        (0, 1, (0, 0), None),
        (1, 2, (0, 1), Some(1)),
        (3, 1, (0, 0), None),
    ]
    .map(|(part, parts, pool, live)| {
        let blocks = (part..part + parts).map(|at| {
            let state = match live {
                Some(before) if at == part + before => BlockState::Active,
                _ => BlockState::Inactive,
            };
            block(BASE + at * PART, PART, Some(PART), state)
        });
        SnapshotSegment {
            addr: BASE + part * PART,
            size: parts * PART,
            pool,
            pool_told: true,
            expandable: true,
            blocks: blocks.collect(),
            ..segment.clone()
        }
    })
    .into();
    let parts = |levels: &[(u64, u64)]| -> Vec<(u64, u64)> {
        levels.iter().map(|(at, part)| (*at, part * PART)).collect()
    };
    let counters = json!({
        "device 0 allocated": parts(&[(1, 0), (2, 1), (3, 0), (6, 1), (7, 0), (8, 1), (20, 1)]),
        "device 0 reserved": parts(&[(1, 4), (4, 1), (5, 3), (9, 4), (20, 4)]),
        "device 0 pool (0, 1) allocated": parts(&[(1, 0), (6, 1), (7, 0), (8, 1), (20, 1)]),
        "device 0 pool (0, 1) reserved": parts(&[(1, 0), (5, 2), (20, 2)]),
    });
    let instants = ["segment_map", "segment_unmap", "segment_map", "segment_map"];
    check(
        &report,
        json!({"counters": counters, "live": 1, "blocks": 3, "instants": instants}),
    );
}

/// At the level `blocks` entries of segments are missing, so what was reserved is known at the end only.
#[test]
fn nothing_is_reserved_before_the_end_where_segments_are_not_seen() {
    use TraceAction::*;
    let mut report = report();
    report.segments.truncate(1);
    report.segments[0].blocks.clear();
    let at = [(Alloc, 10), (FreeRequested, 20), (FreeCompleted, 20)];
    report.trace = at
        .map(|(action, time_ns)| SnapshotTrace {
            time_ns,
            reported: true,
            ..entry(action, 0, BASE, 5 << 30)
        })
        .to_vec();
    report.coverage.push(memscope_proto::v1::CoverageNote {
        code: "level_blocks".to_owned(),
        ..Default::default()
    });
    report.as_of.boot_ns = 30;
    let counters = json!({
        "device 0 allocated": [(10, 5u64 << 30), (20, 0), (30, 0)],
        "device 0 reserved": [(30, 20 << 20)],
    });
    check(
        &report,
        json!({"counters": counters, "live": 0, "blocks": 1, "instants": []}),
    );
}

#[test]
fn every_state_and_action_and_none() {
    check(&report(), json!({}));
    let empty = SnapshotReport {
        segments: Vec::new(),
        trace: Vec::new(),
        ..report()
    };
    check(
        &empty,
        json!({"counters": {}, "live": 0, "blocks": 0, "instants": []}),
    );
}

/// After losses entries contradict one another; what is written must still be a trace.
#[test]
fn nonsense_stays_in_bounds() {
    use TraceAction::*;
    for seed in 0..12 {
        let mut numbers = Numbers(seed);
        let mut report = report();
        report.trace = (0..3000)
            .map(|at| {
                let action = [
                    Alloc,
                    FreeRequested,
                    FreeCompleted,
                    SegmentAlloc,
                    SegmentFree,
                    SegmentMap,
                    SegmentUnmap,
                    Snapshot,
                    Oom,
                ][numbers.next(9) as usize];
                let size = [0, 512, 1 << 20, 1 << 40, u64::MAX][numbers.next(5) as usize];
                let addr = BASE + numbers.next(12) * (1 << 20);
                SnapshotTrace {
                    time_ns: at / 3 + numbers.next(50),
                    pool: [None, Some((0, 0)), Some((0, numbers.next(3)))]
                        [numbers.next(3) as usize],
                    ..entry(action, numbers.next(3) as i32 - 1, addr, size)
                }
            })
            .collect();
        report.as_of.boot_ns = [0, 500, 2000][numbers.next(3) as usize];
        check(&report, json!({}));
    }
}

#[test]
fn slices_are_bounded_and_the_rest_is_counted() {
    let many = common::large(25, 0);
    let mut out = Vec::new();
    perfetto(&many, &mut out).unwrap();
    check(&many, json!({}));
    let text = String::from_utf8_lossy(&out);
    assert!(text.contains("long_lived_blocks_not_drawn"));
    assert_eq!(text.matches("rounded: what was asked for").count(), 0);
    assert_eq!(text.matches("here at the latest").count(), 20_000);
    Met {
        what: "blocks that are slices of a Perfetto trace",
        most: constant("crates/export/src/perfetto.rs", "MOST_SLICES"),
        beyond: "further ones are in the counters and are no slices",
        told: "`long_lived_blocks_not_drawn` in the trace",
        test: "slices_are_bounded_and_the_rest_is_counted",
    }
    .is_told();
}
